"""Second-order gradients are those of PyTorch, in float64, to 1e-5, if it is installed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import dynet_cy as dy

Array = Any


pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")


@pytest.fixture(scope="module")
def torch() -> Any:
    return importlib.import_module("torch")


def near(found: Array, desired: Array, tol: float = 1e-5) -> None:
    desired = np.asarray(desired, np.float64)
    scale = max(1.0, float(np.abs(desired).max(initial=0)))
    np.testing.assert_allclose(np.asarray(found).reshape(desired.shape, order="F"), desired, rtol=tol, atol=tol * scale)


# ---- single operations: products of the Hessian of a sum of squares with a vector


class Row(NamedTuple):
    """A function in both libraries; arrays have the same axes in both."""

    ours: Callable[..., dy.Expression]
    theirs: Callable[..., Any]  # takes torch first
    shapes: list[tuple[int, ...]]
    low: float = -1.0
    high: float = 1.0


INDICES = [2, 0, 2]

ROWS = {
    # products
    "matrix times vector": Row(lambda a, b: a * b, lambda t, a, b: a @ b, [(3, 4), (4,)]),
    "matrix times matrix": Row(lambda a, b: a * b, lambda t, a, b: a @ b, [(3, 4), (4, 2)]),
    "matmul of tensors": Row(
        lambda a, b: dy.matmul(a, b), lambda t, a, b: t.einsum("ijk,jlk->ilk", a, b), [(3, 4, 2), (4, 5, 2)]
    ),
    "affine_transform": Row(
        lambda b, W, x, V, y: dy.affine_transform([b, W, x, V, y]),
        lambda t, b, W, x, V, y: b[:, None] + W @ x + V @ y,
        [(3,), (3, 4), (4, 2), (3, 5), (5, 2)],
    ),
    "dot_product": Row(dy.dot_product, lambda t, a, b: (a * b).sum(), [(3,), (3,)]),
    "cmult": Row(dy.cmult, lambda t, a, b: a * b[:, None], [(3, 4), (3,)]),
    "cdiv": Row(dy.cdiv, lambda t, a, b: a / b, [(3, 4), (1, 4)], 0.5, 2),
    "pow": Row(dy.pow, lambda t, a, b: a**b, [(3, 4), (3, 4)], 0.5, 2),
    "inverse": Row(lambda x: dy.inverse(x + dy.eye(3) * 3), lambda t, x: t.linalg.inv(x + 3 * t.eye(3)), [(3, 3)]),
    "logdet": Row(lambda x: dy.logdet(x + dy.eye(3) * 3), lambda t, x: t.logdet(x + 3 * t.eye(3)), [(3, 3)]),
    # elementwise
    **{
        name: Row(getattr(dy, name), lambda t, x, name=name: getattr(t, name)(x), [(4, 3)], low, 0.9)
        for name, low in [
            ("tanh", -1),
            ("exp", -1),
            ("log", 0.2),
            ("sqrt", 0.2),
            ("sin", -1),
            ("erf", -1),
            ("atanh", -0.9),
        ]
    },
    **{
        name: Row(getattr(dy, name), lambda t, x, f=f: getattr(t.nn.functional, f)(x), [(4, 3)], -2, 2)
        for name, f in [("gelu", "gelu"), ("silu", "silu"), ("softplus", "softplus"), ("elu", "elu"), ("mish", "mish")]
    },
    "logistic": Row(dy.logistic, lambda t, x: t.sigmoid(x), [(4, 3)], -3, 3),
    "log_sigmoid": Row(dy.log_sigmoid, lambda t, x: t.nn.functional.logsigmoid(x), [(4, 3)], -3, 3),
    "where": Row(
        lambda x: dy.where(x > 0, dy.square(x), dy.exp(x)), lambda t, x: t.where(x > 0, x * x, x.exp()), [(9,)]
    ),
    # softmax
    "softmax": Row(lambda x: dy.softmax(x, 1), lambda t, x: t.softmax(x, 1), [(4, 3)]),
    "log_softmax": Row(dy.log_softmax, lambda t, x: t.log_softmax(x, 0), [(4, 3)]),
    "pickneglogsoftmax": Row(lambda x: dy.pickneglogsoftmax(x, 2), lambda t, x: -t.log_softmax(x, 0)[2], [(4,)], -2, 2),
    "cross_entropy": Row(
        lambda x: dy.cross_entropy(x, INDICES, label_smoothing=0.1),
        lambda t, x: t.nn.functional.cross_entropy(x.T, t.tensor(INDICES), label_smoothing=0.1),
        [(4, 3)],
    ),
    "logsumexp": Row(lambda a, b: dy.logsumexp([a, b]), lambda t, a, b: t.logsumexp(t.stack([a, b]), 0), [(4,), (4,)]),
    "logsumexp_dim": Row(lambda x: dy.logsumexp_dim(x, 1), lambda t, x: t.logsumexp(x, 1), [(4, 3)]),
    # norms
    "squared_norm": Row(dy.squared_norm, lambda t, x: (x * x).sum(), [(4, 3)]),
    "l2_norm": Row(dy.l2_norm, lambda t, x: x.norm(), [(4, 3)]),
    "norm": Row(lambda x: dy.norm(x, 3, 1), lambda t, x: x.norm(3, 1), [(4, 3)], 0.1, 1),
    "squared_distance": Row(dy.squared_distance, lambda t, a, b: ((a - b) ** 2).sum(), [(4, 3), (4, 3)]),
    "layer_norm": Row(
        lambda x, g, b: dy.layer_norm(x, g, b, eps=1e-5),
        lambda t, x, g, b: t.nn.functional.layer_norm(x.T, (4,), g, b, 1e-5).T,
        [(4, 3), (4,), (4,)],
    ),
    "normalize": Row(dy.normalize, lambda t, x: x / x.norm(dim=0, keepdim=True), [(4, 3)], 0.1, 1),
    # sums and means
    "sum_dim": Row(lambda x: dy.sum_dim(x, [0, 2]), lambda t, x: x.sum((0, 2)), [(4, 3, 2)]),
    "mean_dim": Row(lambda x: dy.mean_dim(x, [1]), lambda t, x: x.mean(1), [(4, 3)]),
    "std_dim": Row(lambda x: dy.std_dim(x, [1]), lambda t, x: x.std(1, correction=0), [(4, 3)]),
    "moment_elems": Row(lambda x: dy.moment_elems(x, 3), lambda t, x: (x**3).mean(), [(4, 3)]),
    "cumsum": Row(lambda x: dy.cumsum(x, 1), lambda t, x: x.cumsum(1), [(4, 3)]),
    "max_dim": Row(lambda x: dy.max_dim(x, 1), lambda t, x: x.amax(1), [(4, 3)]),
    # shapes
    "transpose": Row(lambda x: dy.transpose(x, [1, 2, 0]), lambda t, x: x.permute(1, 2, 0), [(4, 3, 2)]),
    "reshape": Row(lambda x: dy.reshape(x, (6, 2)), lambda t, x: x.T.reshape(2, 6).T, [(4, 3)]),
    "concatenate": Row(lambda a, b: dy.concatenate([a, b], 1), lambda t, a, b: t.cat([a, b], 1), [(4, 3), (4, 2)]),
    "pick": Row(lambda x: dy.pick(x, 1, 1), lambda t, x: x[:, 1], [(4, 3)]),
    "pick_range": Row(lambda x: dy.pick_range(x, 1, 3), lambda t, x: x[1:3], [(4, 3)]),
    "select_cols": Row(lambda x: dy.select_cols(x, INDICES), lambda t, x: x[:, INDICES], [(4, 3)]),
    "steps": Row(lambda x: x[::2, 1:], lambda t, x: x[::2, 1:], [(4, 3)]),
    "scatter_add": Row(
        lambda x, y: dy.scatter_add(x, INDICES, y), lambda t, x, y: x.index_add(0, t.tensor(INDICES), y), [(4,), (3,)]
    ),
    # images, whose channels come last here
    "conv2d": Row(
        lambda x, f, b: dy.conv2d_bias(x, f, b, [2, 1], dilation=[1, 2]),
        lambda t, x, f, b: t.nn.functional.conv2d(
            x.permute(2, 0, 1)[None], f.permute(3, 2, 0, 1), b, (2, 1), dilation=(1, 2)
        )[0].permute(1, 2, 0),
        [(7, 8, 2), (3, 3, 2, 4), (4,)],
    ),
    "maxpooling2d": Row(
        lambda x: dy.maxpooling2d(x, [2, 2], [2, 2]),
        lambda t, x: t.nn.functional.max_pool2d(x.permute(2, 0, 1)[None], 2)[0].permute(1, 2, 0),
        [(4, 6, 2)],
    ),
    "avgpooling2d": Row(
        lambda x: dy.avgpooling2d(x, [2, 2], [2, 2]),
        lambda t, x: t.nn.functional.avg_pool2d(x.permute(2, 0, 1)[None], 2)[0].permute(1, 2, 0),
        [(4, 6, 2)],
    ),
    "attention": Row(
        lambda q, k, v: dy.scaled_dot_product_attention(q, k, v),
        lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q.T[None], k.T[None], v.T[None])[0].T,
        [(4, 3), (4, 5), (2, 5)],
    ),
    "cumprod": Row(lambda x: dy.cumprod(x, 1), lambda t, x: x.cumprod(1), [(4, 3)]),
    # cells
    "gru_h": Row(dy.gru_h, lambda t, h, z, g: h + z * (g - h), [(3,), (3,), (3,)]),
}


@pytest.mark.parametrize("row", list(ROWS))
@pytest.mark.parametrize("strategy", [0, 1], ids=["plain", "autobatched"], indirect=True)
def test_operations(row: str, strategy: int, rng: np.random.Generator, torch: Any) -> None:
    ours, theirs, shapes, low, high = ROWS[row]
    found, desired = [], []
    for _ in range(3):
        xs, vectors = ([rng.uniform(*r, s).astype(np.float32) for s in shapes] for r in ((low, high), (-1, 1)))
        leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in xs]
        value = theirs(torch, *leaves)
        slopes = torch.autograd.grad((value**2).sum(), leaves, create_graph=True)
        product = sum((slope * torch.tensor(v)).sum() for slope, v in zip(slopes, vectors))
        desired += [*slopes, *torch.autograd.grad(product, leaves)]
        inputs = [dy.inputTensor(x) for x in xs]
        y = ours(*inputs)
        loss = dy.squared_norm(y)
        found += [*dy.gradients(loss, inputs), *dy.hessian_vector_product(loss, inputs, vectors)]
    for actual, expected in zip(dy.npvalues(found), desired):
        near(actual, expected.detach().numpy())


# ---- models -----------------------------------------------------------------


def gradients_of(torch: Any, loss: Any, weights: list[Any]) -> list[Array]:
    return [g.numpy() for g in torch.autograd.grad(loss, weights)]


def parameters(rng: np.random.Generator, *shapes: tuple[int, ...]) -> tuple[list[dy.Parameters], list[Array]]:
    model = dy.ParameterCollection()
    arrays = [rng.normal(size=s).astype(np.float32) / 2 for s in shapes]
    return [model.parameters_from_numpy(a) for a in arrays], arrays


@pytest.mark.parametrize("strategy", [0, 1], ids=["plain", "autobatched"], indirect=True)
@pytest.mark.parametrize("batch", [1, 5])
def test_gradient_penalty(batch: int, strategy: int, rng: np.random.Generator, torch: Any) -> None:
    """The penalty of a critic (Gulrajani et al. 2017), example by example and as a minibatch."""
    ours, arrays = parameters(rng, (8, 4), (8,), (1, 8))
    weights = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in arrays]
    examples = rng.normal(size=(4, 5)).astype(np.float32)

    xs = torch.tensor(examples, dtype=torch.float64, requires_grad=True)
    W, b, v = weights
    (slopes,) = torch.autograd.grad((v @ torch.tanh(W @ xs + b[:, None])).sum(), xs, create_graph=True)
    desired = gradients_of(torch, ((slopes.norm(dim=0) - 1) ** 2).sum(), weights)

    def penalty(x: dy.Expression) -> dy.Expression:
        W, b, v = ours
        slope = dy.gradients(v * dy.tanh(W * x + b), x)
        return dy.square(dy.l2_norm(slope) - 1)

    if batch > 1:
        loss = penalty(dy.inputTensor(examples, batched=True))
    else:
        loss = dy.esum([penalty(dy.inputVector(x)) for x in examples.T])
    loss.backward()
    for p, expected in zip(ours, desired):
        near(p.grad_as_array(), expected)


@pytest.mark.parametrize("strategy", [0, 1], ids=["plain", "autobatched"], indirect=True)
def test_maml(strategy: int, rng: np.random.Generator, torch: Any) -> None:
    """Gradients through three steps of gradient descent on each task (Finn et al. 2017)."""
    ours, arrays = parameters(rng, (6, 1), (6,), (1, 6), (1,))
    weights = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in arrays]
    tasks = rng.uniform(-2, 2, (3, 2, 2, 4)).astype(np.float32)  # task, support or query, x or y, points

    def adapted(net: Callable[..., Any], start: list[Any], gradients: Callable[..., Any], task: Any) -> Any:
        (x, y), (other_x, other_y) = task
        now = list(start)
        for _ in range(3):
            now = [w - 0.1 * g for w, g in zip(now, gradients(net(now, x, y), now))]
        return net(now, other_x, other_y)

    def theirs(w: list[Any], x: Any, y: Any) -> Any:
        hidden = torch.tanh(w[0] @ x[None] + w[1][:, None])
        return ((w[2] @ hidden + w[3][:, None] - y[None]) ** 2).mean()

    def mine(w: list[dy.Expression], x: Array, y: Array) -> dy.Expression:
        hidden = dy.tanh(w[0] * dy.inputTensor(x[None]) + w[1])
        return dy.mean_elems(dy.square(w[2] * hidden + w[3] - dy.inputTensor(y[None])))

    exact = torch.tensor(tasks, dtype=torch.float64)
    create = lambda loss, ws: torch.autograd.grad(loss, ws, create_graph=True)  # noqa: E731
    desired = gradients_of(torch, sum(adapted(theirs, weights, create, task) for task in exact), weights)
    dy.esum([adapted(mine, ours, dy.gradients, task) for task in tasks]).backward()
    for p, expected in zip(ours, desired):
        near(p.grad_as_array(), expected)


@pytest.mark.parametrize("strategy", [0, 1], ids=["plain", "autobatched"], indirect=True)
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("batch", [1, 3])
def test_recurrent_networks(kind: str, batch: int, strategy: int, rng: np.random.Generator, torch: Any) -> None:
    """Products with the Hessian of a loss of sentences, by all weights of a recurrent network and by its inputs."""
    model = dy.ParameterCollection()
    builder = dy.VanillaLSTMBuilder(1, 3, 4, model) if kind == "LSTM" else dy.GRUBuilder(1, 3, 4, model)
    ours = model.parameters_list()
    for p in ours:
        p.set_value(rng.normal(size=p.shape()) / 2)
    weights = [torch.tensor(p.as_array(), dtype=torch.float64, requires_grad=True) for p in ours]
    sentences = [rng.normal(size=(n, 3, batch)).astype(np.float32) for n in (2, 4)]

    def lstm(sentence: Any) -> Any:
        Wx, Wh, b = weights
        h = c = torch.zeros(4, batch, dtype=torch.float64)
        for x in sentence:
            i, f, o, g = (Wx @ x + Wh @ h + b[:, None]).split(4)
            c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return (h**3).sum()

    def gate(k: int, x: Any, h: Any) -> Any:
        Wx, Wh, b = weights[3 * k : 3 * k + 3]
        return Wx @ x + b[:, None] + Wh @ h

    def gru(sentence: Any) -> Any:
        h = torch.zeros(4, batch, dtype=torch.float64)
        for x in sentence:
            z, r = torch.sigmoid(gate(0, x, h)), torch.sigmoid(gate(1, x, h))
            h = (1 - z) * h + z * torch.tanh(gate(2, x, r * h))
        return (h**3).sum()

    vectors = [rng.normal(size=p.shape()).astype(np.float32) for p in ours]
    others = [rng.normal(size=s.shape).astype(np.float32) for s in sentences]
    theirs = [torch.tensor(s, dtype=torch.float64, requires_grad=True) for s in sentences]
    leaves = [*weights, *theirs]
    total = sum((lstm if kind == "LSTM" else gru)(s) for s in theirs)
    slopes = torch.autograd.grad(total, leaves, create_graph=True)
    product = sum((slope * torch.tensor(v)).sum() for slope, v in zip(slopes, [*vectors, *others]))
    desired = [g.numpy() for g in torch.autograd.grad(product, leaves)]

    inputs = [[dy.inputTensor(x, batched=True) for x in s] for s in sentences]
    outputs = [builder.initial_state().transduce(xs)[-1] for xs in inputs]
    loss = dy.sum_batches(dy.esum([dy.sum_elems(dy.cube(h)) for h in outputs]))
    flat = [x for xs in inputs for x in xs]
    parts = [dy.inputTensor(v, batched=True) for other in others for v in other]
    found = dy.npvalues(dy.hessian_vector_product(loss, [*ours, *flat], [*vectors, *parts]))
    expected = [*desired[: len(ours)], *(x for s in desired[len(ours) :] for x in s)]
    for actual, wanted in zip(found, expected):
        near(actual, wanted)


@pytest.mark.parametrize("strategy", [0, 1], ids=["plain", "autobatched"], indirect=True)
def test_influence(strategy: int, rng: np.random.Generator, torch: Any) -> None:
    """Products with the Hessian of a classifier of bags of words, by its table of words too."""
    model = dy.ParameterCollection()
    table = model.lookup_parameters_from_numpy(rng.normal(size=(6, 4)).astype(np.float32))
    (W, b), _ = parameters(rng, (3, 4), (3,))
    data = [([0, 2, 5], 1), ([1, 1], 0), ([4], 2), ([3, 0, 1, 2], 1)]
    weights = [torch.tensor(p.as_array(), dtype=torch.float64, requires_grad=True) for p in (table, W, b)]
    losses = [
        torch.nn.functional.cross_entropy(weights[1] @ weights[0][words].mean(0).tanh() + weights[2], torch.tensor(y))
        for words, y in data
    ]
    slopes = torch.autograd.grad(sum(losses), weights, create_graph=True)
    vectors = [rng.normal(size=tuple(w.shape)) for w in weights]
    product = sum((slope * torch.tensor(v)).sum() for slope, v in zip(slopes, vectors))
    desired = [g.numpy() for g in torch.autograd.grad(product, weights)]

    mine = [dy.pickneglogsoftmax(W * dy.tanh(dy.average([table[i] for i in words])) + b, y) for words, y in data]
    found = dy.npvalues(dy.hessian_vector_product(dy.esum(mine), [table, W, b], [vectors[0].T, *vectors[1:]]))
    near(found[0].T, desired[0])
    near(found[1], desired[1])
    near(found[2], desired[2])
