"""Every row of the table: values, gradients, minibatches, autobatching."""

from __future__ import annotations

import numpy as np
import pytest
from table import CASES, Case

import dynet_cy as dy
from dynet_cy.graph.expressions import set_autobatching
from dynet_cy.ops.registry import describe

each_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)


def of_equal_shapes(case: Case) -> bool:
    return case.grad is not False and len(case.shapes) > 1 and len(set(case.shapes)) == 1


each_with_gradient = pytest.mark.parametrize("case", [c for c in CASES if c.grad is not False], ids=lambda c: c.id)

# Leaves and ops that no row of the table can reach, with the tests that do.
ELSEWHERE = {
    "parameter": "arguments of every case; tests/model/test_model.py",
    "lookup": "tests/model/test_model.py",
    "lookup_at": "tests/model/test_lookup_at.py",
    "to_device": "tests/gpu/test_devices.py",
    "gates": "made by plans; tests/schedule/test_gates.py",
}

GRAPHS = -(-len(CASES) // 4)  # with four cases in each


# ---- building ----------------------------------------------------------------


def squeezed(shape) -> tuple[int, ...]:
    """A shape without trailing ones."""
    shape = tuple(shape)
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def as_input(x: np.ndarray):
    return dy.inputTensor(x, batched=True)


def run(case: Case, xs):
    """The expression of a case and its value, with the batch as the last axis."""
    y = case.build(dy, xs)
    shape, size = y.dim()
    return y, y.npvalue().reshape((*shape, size), order="F")


def weighted(y, weights: np.ndarray):
    """A scalar: the sum of the elements of y, each with its own weight."""
    return dy.dot_product(y, dy.inputTensor(weights, batched=True))


def expected_loss(case: Case, xs, weights: np.ndarray) -> float:
    y = case.expected(xs)
    return float((y.reshape(weights.shape, order="F") * weights).sum())


def slope_of(case: Case, xs, i: int, direction: np.ndarray, weights: np.ndarray, h: float = 1e-5):
    """Slope of the reference along a direction of argument i; None near a kink."""
    at = [np.asarray(x, np.float64) for x in xs]
    losses = []
    for step in (-h, 0.0, h):
        moved = list(at)
        moved[i] = at[i] + step * direction
        losses.append(expected_loss(case, moved, weights))
    left, right = (losses[1] - losses[0]) / h, (losses[2] - losses[1]) / h
    scale = 1 + abs(left) + abs(right)
    return None if abs(left - right) > 1e-2 * scale else (losses[2] - losses[0]) / (2 * h)


def close(actual, desired, tol: float) -> None:
    """Equal up to tol, relative to the greatest magnitude."""
    actual, desired = np.asarray(actual, np.float64), np.asarray(desired, np.float64)
    assert actual.shape == desired.shape
    size = np.abs(desired)
    scale = max(1.0, float(size.max(initial=0)))
    with np.errstate(invalid="ignore"):
        near = np.abs(actual - desired) <= tol * (scale + size)
    if not near.all() or not np.isfinite(size).all():  # what follows takes ten times as long
        np.testing.assert_allclose(actual, desired, rtol=tol, atol=tol * scale)


def gradients(case: Case, samples, weights):
    """Gradients of all arguments, needed or not, with the batch as the last axis."""
    dy.renew_cg()
    xs = [as_input(x) for x in samples]
    weighted(case.build(dy, xs), weights).backward(full=True)
    return [x.gradient().reshape(s.shape, order="F") for x, s in zip(xs, samples)]


def weights_for(case: Case, samples, rng) -> np.ndarray:
    dy.renew_cg()
    shape, size = case.build(dy, [as_input(x) for x in samples]).dim()
    return rng.uniform(0.5, 1.5, (*shape, size)).astype(np.float32)


# ---- value and gradient ------------------------------------------------------


@each_case
def test_value(case: Case, rng, graph) -> None:
    for sizes in case.batch_sizes():
        samples = case.sample(rng, sizes)
        dy.renew_cg()
        y, value = run(case, [as_input(x) for x in samples])
        desired = case.expected(samples)
        assert squeezed(y.dim()[0]) == squeezed(desired.shape[:-1])
        assert y.dim()[1] == desired.shape[-1]
        close(value, desired.reshape(value.shape, order="F"), case.tol)


@each_case
def test_value_in_memory_used_before(case: Case, rng, graph) -> None:
    """In a forward-only graph, where values reuse the memory of others."""
    dy.renew_cg(forward_only=True)
    for _ in range(3):
        samples = [case.sample(rng, sizes) for sizes in case.batch_sizes()]
        ys = [case.build(dy, [as_input(x) for x in xs]) for xs in samples]
        dy.forward(ys)
        for y, xs in zip(ys, samples):
            close(y.npvalue().ravel(order="F"), case.expected(xs).ravel(order="F"), case.tol)


@each_case
def test_value_from_parameters(case: Case, rng, graph) -> None:
    samples = [x[..., 0] for x in case.sample(rng, [1] * len(case.shapes))]
    dy.renew_cg()
    collection = dy.ParameterCollection()
    _, value = run(case, [collection.parameters_from_numpy(x) for x in samples])
    dy.renew_cg()
    _, desired = run(case, [dy.inputTensor(x) for x in samples])
    np.testing.assert_array_equal(value.ravel(), desired.ravel())


@each_with_gradient
def test_gradient(case: Case, rng, graph) -> None:
    for sizes in case.batch_sizes():
        for i in range(len(case.shapes)):
            if not case.has_gradient(i):
                continue
            for _ in range(20):
                samples = case.sample(rng, sizes)
                weights = weights_for(case, samples, rng)
                direction = rng.normal(size=samples[i].shape)
                slope = slope_of(case, samples, i, direction, weights)
                if slope is not None:
                    break
            else:
                pytest.fail("no point without a kink was found")
            gradient = gradients(case, samples, weights)[i].astype(np.float64)
            scale = max(1.0, float(np.abs(gradient * direction).sum()))
            assert abs((gradient * direction).sum() - slope) <= 10 * case.tol * scale


@each_with_gradient
def test_gradient_accumulates(case: Case, rng, graph) -> None:
    """Gradients of parameters add up over two uses in one graph, and over two backward passes."""
    samples = [x[..., 0] for x in case.sample(rng, [1] * len(case.shapes))]
    batched = [x[..., None] for x in samples]
    weights = weights_for(case, batched, rng)
    once = gradients(case, batched, weights)
    collection = dy.ParameterCollection()
    ps = [collection.parameters_from_numpy(x) for x in samples]
    for total in (2, 3):
        dy.renew_cg()
        losses = [weighted(case.build(dy, ps), weights) for _ in range(2 if total == 2 else 1)]
        dy.esum(losses).backward()
        for p, g in zip(ps, once):
            close(p.grad_as_array(), total * g[..., 0], 10 * case.tol)


each_of_equal_shapes = pytest.mark.parametrize("case", [c for c in CASES if of_equal_shapes(c)], ids=lambda c: c.id)


@each_of_equal_shapes
def test_same_argument_twice(case: Case, rng, graph) -> None:
    """One expression used for all arguments gets the sum of their gradients."""
    lows, highs = np.max(case.low), np.min(case.high)
    for size in (1, 3):
        if (size,) * len(case.shapes) not in case.batch_sizes():
            continue
        x = rng.uniform(lows, highs, (*case.shapes[0], size)).astype(np.float32)
        samples = [x] * len(case.shapes)
        weights = weights_for(case, samples, rng)
        desired = sum(gradients(case, samples, weights))
        dy.renew_cg()
        expression = as_input(x)
        weighted(case.build(dy, [expression] * len(samples)), weights).backward(full=True)
        close(expression.gradient().reshape(x.shape, order="F"), desired, 10 * case.tol)


@each_with_gradient
def test_only_one_argument_is_trained(case: Case, rng, graph) -> None:
    """The gradient of a parameter does not depend on whether the other arguments have one."""
    samples = [x[..., 0] for x in case.sample(rng, [1] * len(case.shapes))]
    batched = [x[..., None] for x in samples]
    weights = weights_for(case, batched, rng)
    desired = gradients(case, batched, weights)
    for i in range(len(samples)):
        if not case.has_gradient(i):
            continue
        collection = dy.ParameterCollection()
        dy.renew_cg()
        p = collection.parameters_from_numpy(samples[i])
        xs = [p if k == i else dy.inputTensor(x) for k, x in enumerate(samples)]
        weighted(case.build(dy, xs), weights).backward()
        close(p.grad_as_array(), desired[i][..., 0], 10 * case.tol)


# ---- minibatches -------------------------------------------------------------


@pytest.mark.parametrize("case", [c for c in CASES if not c.whole_batch], ids=lambda c: c.id)
def test_batch_elements_are_as_alone(case: Case, rng, graph) -> None:
    for sizes in case.batch_sizes():
        if max(sizes) == 1:
            continue
        samples = case.sample(rng, sizes)
        weights = weights_for(case, samples, rng)
        dy.renew_cg()
        _, together = run(case, [as_input(x) for x in samples])
        together_gradients = gradients(case, samples, weights) if case.grad is not False else []
        totals = [np.zeros(x.shape) for x in samples]
        for b in range(max(sizes)):
            places = [b if n > 1 else 0 for n in sizes]
            alone = [x[..., k : k + 1] for x, k in zip(samples, places)]
            dy.renew_cg()
            _, value = run(case, [as_input(x) for x in alone])
            close(together[..., b : b + 1], value, case.tol)
            if case.grad is not False:
                for total, g, k in zip(totals, gradients(case, alone, weights[..., b : b + 1]), places):
                    total[..., k : k + 1] += g
        for i, (actual, desired) in enumerate(zip(together_gradients, totals)):
            if case.has_gradient(i):
                close(actual, desired, 10 * case.tol)


# ---- autobatching ------------------------------------------------------------


def mixed_graph(cases, rng_seed: int, strategy: int):
    """Values, gradients and number of calls of a graph with many nodes of some cases.

    They differ in batch size, in depth, and in whether arguments are
    inputs, results or parameters.
    """
    rng = np.random.default_rng(rng_seed)
    set_autobatching(strategy)
    try:
        graph = dy.renew_cg()
        collection = dy.ParameterCollection()
        arguments, results, losses = [], [], []
        for case in cases:
            shared = [collection.parameters_from_numpy(x[..., 0]) for x in case.sample(rng, [1] * len(case.shapes))]
            for instance in range(7):
                sizes = case.batch_sizes()[int(rng.integers(len(case.batch_sizes())))]
                xs = [as_input(x) for x in case.sample(rng, sizes)]
                arguments += xs
                for _ in range(int(rng.integers(3))):
                    xs = [x * 1.0 for x in xs]
                if instance >= 3 and any(n == 1 for n in sizes):
                    # Parameters: all arguments, or only the first, or only the last.
                    which = [i for i, n in enumerate(sizes) if n == 1]
                    which = {3: which, 4: which[:1], 5: which[-1:], 6: which[:1]}[instance]
                    xs = [shared[i] if i in which else x for i, x in enumerate(xs)]
                y = case.build(dy, xs)
                results.append(y)
                shape, size = y.dim()
                if case.grad is not False and size in (1, 3):
                    weights = rng.uniform(0.5, 1.5, (*shape, size)).astype(np.float32)
                    losses.append(weighted(y, weights))
        loss = dy.esum(losses) if losses else None
        if loss is not None:
            loss.backward(full=True)
        values = [y.npvalue() for y in results]
        found = [x.gradient() for x in arguments] if losses else []
        found += [p.grad_as_array() for p in collection.parameters_list()]
        return values, found, graph.n_batches()
    finally:
        set_autobatching(1)
        dy.renew_cg()


def assert_strategies_agree(cases, seed: int, tol: float, fewer_calls: bool = True) -> None:
    values, found, calls = mixed_graph(cases, seed, 0)
    for strategy in (1, 2):
        batched_values, batched_found, batched_calls = mixed_graph(cases, seed, strategy)
        assert batched_calls <= calls
        if fewer_calls:
            assert batched_calls < calls
        for actual, desired in zip(batched_values, values):
            close(actual, desired, tol)
        for actual, desired in zip(batched_found, found):
            close(actual, desired, 10 * tol)


@each_case
def test_autobatched(case: Case) -> None:
    alone = {op["name"] for op in describe() if op["batching"] == "alone"}
    # Ops that combine batch elements do not batch either.
    fewer_calls = not case.whole_batch and not alone & ops_of(case)
    assert_strategies_agree([case], 1, case.tol, fewer_calls)


@pytest.mark.parametrize("at", range(GRAPHS), ids=lambda at: CASES[at].id)
def test_autobatched_among_others(at: int) -> None:
    """Each case in a graph with three others that are far from it in the table."""
    cases = CASES[at::GRAPHS]
    assert_strategies_agree(cases, at, max(c.tol for c in cases), fewer_calls=False)


# ---- compositions ------------------------------------------------------------

KEEP_SHAPE_1 = ["tanh", "logistic", "sin", "cos", "atan", "softsign", "erf", "elu", "silu", "square", "rectify"]


def composition(seed: int, strategy: int):
    """A random deep graph: its value and the gradients of its parameters."""
    rng = np.random.default_rng(seed)
    set_autobatching(strategy)
    try:
        dy.renew_cg()
        collection = dy.ParameterCollection()
        n = int(rng.integers(2, 6))
        ps = [collection.parameters_from_numpy(rng.uniform(-0.7, 0.7, s)) for s in [(n,), (n,), (n, n), (n, n)]]
        pool = [ps[0], ps[1]]
        pool += [as_input(rng.uniform(-1, 1, (n, b)).astype(np.float32)) for b in (1, 1, 1, 4)]
        for _ in range(60):
            a, b = (pool[int(rng.integers(max(0, len(pool) - 12), len(pool)))] for _ in range(2))
            kind = int(rng.integers(7))
            if kind == 0:
                y = ps[2 + int(rng.integers(2))] * a
            elif kind == 1:
                y = dy.affine_transform([ps[0], ps[2], a, ps[3], b])
            elif kind == 2:
                y = dy.cmult(a, b)
            elif kind == 3:
                y = 0.5 * (a - b) + 0.1
            elif kind == 4:
                y = dy.average([a, b, ps[1]])
            else:
                y = getattr(dy, KEEP_SHAPE_1[int(rng.integers(len(KEEP_SHAPE_1)))])(a)
            pool.append(dy.tanh(y))
        loss = dy.dot_product(dy.average(pool), dy.ones(n))
        loss.backward()
        return loss.npvalue(), [p.grad_as_array() for p in ps]
    finally:
        set_autobatching(1)
        dy.renew_cg()


@pytest.mark.parametrize("seed", range(12))
def test_composition(seed: int) -> None:
    value, found = composition(seed, 0)
    for strategy in (1, 2):
        batched_value, batched_found = composition(seed, strategy)
        close(batched_value, value, 1e-5)
        for actual, desired in zip(batched_found, found):
            close(actual, desired, 1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_composition_of_unary_functions(seed: int, rng, graph) -> None:
    """A chain of functions compared with NumPy."""
    by_name = {c.id: c for c in CASES}
    names = list(np.random.default_rng(seed).choice(["tanh", "logistic", "sin", "cos", "atan", "softsign"], 12))

    def chain(xs):
        y = xs[0]
        for name in names:
            y = by_name[name].reference([y])
        return y

    def build(package, xs):
        y = xs[0]
        for name in names:
            y = getattr(package, name)(y)
        return y

    case = Case("chain", [(3, 2)], build, chain)
    test_value(case, rng, graph)
    test_gradient(case, rng, graph)


# ---- errors ------------------------------------------------------------------

WRONG_SHAPES = [
    (
        lambda w, x: w * x,
        "matmul: a has 3 columns but b has 2 rows\n    a  {4,3}    parameter /W\n    b  {2} x 6  input",
    ),
    (
        lambda w, x: w + x,
        "add: a has 4 elements along axis 0 but b has 2\n    a  {4,3}    parameter /W\n    b  {2} x 6  input",
    ),
    (
        lambda w, x: dy.cdiv(x, w),
        "div: a has 2 elements along axis 0 but b has 4\n    a  {2} x 6  input\n    b  {4,3}    parameter /W",
    ),
    (
        lambda w, x: dy.esum([x, x, w]),
        "esum: xs[2] differs in shape from xs[0]\n"
        "    xs[0]  {2} x 6  input\n    xs[1]  {2} x 6  input\n    xs[2]  {4,3}    parameter /W",
    ),
    (
        lambda w, x: dy.average([w, x]),
        "average: xs[1] differs in shape from xs[0]\n    xs[0]  {4,3}    parameter /W\n    xs[1]  {2} x 6  input",
    ),
    (
        lambda w, x: dy.emax([w, x]),
        "emax: xs[1] differs in shape from xs[0]\n    xs[0]  {4,3}    parameter /W\n    xs[1]  {2} x 6  input",
    ),
    (
        lambda w, x: dy.dot_product(w, x),
        "dot_product: a has 12 elements but b has 2\n    a  {4,3}    parameter /W\n    b  {2} x 6  input",
    ),
    (
        lambda w, x: dy.affine_transform([x, w, x]),
        "affine_transform: xs[0] has 3 columns but xs[1] has 2 rows\n"
        "    b      {2} x 6  input\n    xs[0]  {4,3}    parameter /W\n    xs[1]  {2} x 6  input",
    ),
    (
        lambda w, x: dy.affine_transform([x, w]),
        "affine_transform: 2 arguments given: an odd number is needed, b and then pairs of W and x\n"
        "    b      {2} x 6  input\n    xs[0]  {4,3}    parameter /W",
    ),
    (
        lambda w, x: dy.affine_transform([x, w, dy.zeros(3)]),
        "affine_transform: xs[0] xs[1] has shape 4 x 1 but the sum so far has 2 x 1\n"
        "    b      {2} x 6  input\n    xs[0]  {4,3}    parameter /W\n    xs[1]  {3}      input",
    ),
    (
        lambda w, x: dy.affine_transform([dy.zeros((4, 1, 3)), w, dy.zeros((3, 1))]),
        "affine_transform: b must be a matrix or a vector\n"
        "    b      {4,1,3}  input\n    xs[0]  {4,3}    parameter /W\n    xs[1]  {3,1}    input",
    ),
    (
        lambda w, x: x + dy.zeros(2, batch_size=5),
        "add: batch sizes 6 and 5 differ\n    a  {2} x 6  input\n    b  {2} x 5  input",
    ),
    (
        lambda w, x: dy.colwise_add(w, x),
        "colwise_add: x must be a matrix and y a vector of as many rows\n    x  {4,3}\n    y  {2} x 6",
    ),
]


@pytest.mark.parametrize(("build", "message"), WRONG_SHAPES, ids=[m.partition("\n")[0] for _, m in WRONG_SHAPES])
def test_wrong_shapes(build, message: str, graph) -> None:
    from dynet_cy.ops.registry import DimensionError

    collection = dy.ParameterCollection()
    w = collection.add_parameters((4, 3), name="W")
    x = dy.zeros(2, batch_size=6)
    nodes = len(dy.cg())
    with pytest.raises(DimensionError) as raised:
        build(w, x)
    assert str(raised.value) == message
    assert isinstance(raised.value, ValueError)
    # Only leaves are left in the graph.
    assert set(graph.op_names()[nodes:]) <= {"parameter", "input"}
    assert (w * dy.ones(3)).npvalue().shape == (4,)


def test_long_argument_lists_are_shortened(graph) -> None:
    with pytest.raises(ValueError, match=r"xs\[17\] differs") as raised:
        dy.esum([dy.zeros(2)] * 17 + [dy.zeros(3)] + [dy.zeros(2)] * 5)
    assert len(str(raised.value).splitlines()) == 13


# ---- completeness ------------------------------------------------------------


def ops_of(case: Case) -> set[str]:
    """The ops of all nodes that a case makes, apart from those of its arguments."""
    rng = np.random.default_rng(0)
    graph = dy.renew_cg()
    xs = [as_input(x) for x in case.sample(rng, case.batch_sizes()[0])]
    n = len(graph)
    case.build(dy, xs)
    return set(graph.op_names()[n:])


def test_every_op_is_in_the_table() -> None:
    covered = set().union(*(ops_of(case) for case in CASES))
    registered = {op["name"] for op in describe()}
    assert sorted(registered - covered - set(ELSEWHERE)) == []


def test_every_op_says_how_it_batches() -> None:
    for op in describe():
        if op["batching"] == "alone":
            assert op["alone_because"], op["name"]
        else:
            assert not op["alone_because"], op["name"]
        assert op["gradient"], f"{op['name']} has no gradient and gives no reason"


# ---- trailing axes of one element ----------------------------------------------


def ones(*shape: int):
    return dy.inputTensor(np.ones(shape))


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (lambda: dy.affine_transform([ones(3), ones(3, 6), ones(6, 1)]), (3,)),
        (lambda: dy.affine_transform([ones(3, 1), ones(3, 6), ones(6, 1)]), (3,)),
        (lambda: dy.affine_transform([ones(3, 1), ones(3, 6), ones(6)]), (3,)),
        (lambda: dy.affine_transform([ones(3), ones(3, 6), ones(6, 1), ones(3, 2), ones(2)]), (3,)),
        (lambda: dy.affine_transform([ones(3), ones(3, 6), ones(6, 2)]), (3, 2)),
        (lambda: dy.concatenate([ones(3), ones(6, 1)]), (9,)),
        (lambda: dy.concatenate([ones(3, 1), ones(6)]), (9, 1)),
        (lambda: dy.concatenate([ones(3), ones(6, 1, 1)]), (9,)),
        (lambda: dy.concatenate_cols([ones(3), ones(3, 1, 1)]), (3, 2)),
        (lambda: dy.concatenate_cols([ones(3, 2), ones(3)]), (3, 3)),
        (lambda: dy.logsumexp([ones(3, 1), ones(3)]), (3,)),
        (lambda: dy.logsumexp([ones(1, 3, 1), ones(1, 3)]), (1, 3)),
    ],
)
def test_trailing_axes_are_those_of_dynet(build, shape) -> None:
    dy.renew_cg()
    y = build()
    assert y.dim() == (shape, 1)
    assert y.npvalue().shape == shape
