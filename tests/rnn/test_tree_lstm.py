"""Tree-LSTM builders: values compared with NumPy, missing inputs and children, batching, errors, saving."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from arrays import all_equal
from rnn_reference import batched, value_of

import dynet_cy as dy

pytestmark = pytest.mark.usefixtures("on_each_device")

D, H = 4, 3


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def arrays(builder):
    return [p.as_array().astype(np.float64) for p in builder.get_parameters()]


def nary(parameters, x, children):
    w, *u, b = parameters
    n = len(u)
    sums = b[:, None] + (0 if x is None else w @ x)
    sums = sums + sum(u[k] @ child[0] for k, child in enumerate(children) if child is not None)
    i, o, v, *f = np.split(np.broadcast_to(sums, (len(b), sums.shape[1])), 3 + n)
    c = sigmoid(i) * np.tanh(v)
    c = c + sum(sigmoid(f[k]) * child[1] for k, child in enumerate(children) if child is not None)
    return sigmoid(o) * np.tanh(c), c


def child_sum(parameters, x, children):
    w, u, b, w_f, u_f, b_f = parameters
    sums = b[:, None] + (0 if x is None else w @ x) + sum(u @ h for h, _ in children)
    i, o, v = np.split(sums, 3)
    c = sigmoid(i) * np.tanh(v)
    c = c + sum(sigmoid(b_f[:, None] + (0 if x is None else w_f @ x) + u_f @ h) * old for h, old in children)
    return sigmoid(o) * np.tanh(c), c


def make(kind, seed=0):
    model = dy.ParameterCollection()
    builder = dy.NaryTreeLSTMBuilder(3, D, H, model) if kind == "nary" else dy.ChildSumTreeLSTMBuilder(D, H, model)
    rng = np.random.default_rng(seed)
    for p in model.parameters_list():
        p.set_value(rng.normal(0.1, 0.6, p.shape()).astype(np.float32))
    return builder, model


def build(kind, xs, node, none):
    """The root of a tree with nodes of several kinds; `node` makes one from an input and children."""
    leaves = [node(x, []) for x in xs[:4]]
    inner = node(None, leaves[:2])
    deep = node(xs[4], [inner, leaves[2], leaves[3]])
    chain = node(xs[5], [deep])
    if kind == "nary":
        chain = node(None, [none, chain])
    return node(None, [chain, leaves[0]])


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kind", ["nary", "child_sum"])
def test_values(kind, batch) -> None:
    builder, _ = make(kind)
    rng = np.random.default_rng(1)
    xs = [rng.normal(0, 1, (D, batch)) for _ in range(6)]
    formula = nary if kind == "nary" else child_sum
    parameters = arrays(builder)
    h, c = build(kind, xs, lambda x, children: formula(parameters, x, children), None)
    for strategy in (0, 1, 2):
        dy.renew_cg(autobatching=strategy)
        inputs = [batched(dy, x) for x in xs]
        root = build(kind, inputs, builder.add_input, None)
        np.testing.assert_allclose(value_of(root.output()), h, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(value_of(root.c), c, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["nary", "child_sum"])
def test_gradients_with_and_without_batching(kind) -> None:
    """Gradients of many trees at once agree in all schedules; those of single ops are tested with the ops."""
    builder, model = make(kind)
    table = model.add_lookup_parameters((20, D))
    found = []
    for strategy in (0, 1, 2):
        dy.renew_cg(autobatching=strategy)
        for p in [*model.parameters_list(), table]:
            p.scale_gradient(0)
        losses = []
        for tree in range(7):
            xs = [table[(3 * tree + k) % 20] for k in range(6)]
            root = build(kind, xs, builder.add_input, None)
            losses.append(dy.sum_elems(dy.cmult(root.h, root.c)))
        dy.esum(losses).backward()
        found.append([p.grad_as_array() for p in [*model.parameters_list(), table]])
    for gradients in found[1:]:
        for got, expected in zip(gradients, found[0]):
            assert abs(expected).max() > 0
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_parameters() -> None:
    builder, model = make("nary")
    assert [p.shape() for p in builder.get_parameters()] == [(6 * H, D), *[(6 * H, H)] * 3, (6 * H,)]
    assert builder.get_parameters()[0].name() == "/nary-tree-lstm-builder/_0"
    assert builder.param_collection().name() == "/nary-tree-lstm-builder/"
    other = dy.NaryTreeLSTMBuilder.from_spec(builder.spec, model)
    assert other.spec == (3, D, H)
    builder, model = make("child_sum")
    shapes = [(3 * H, D), (3 * H, H), (3 * H,), (H, D), (H, H), (H,)]
    assert [p.shape() for p in builder.get_parameters()] == shapes
    assert dy.ChildSumTreeLSTMBuilder.from_spec(builder.spec, model).spec == (D, H)


@pytest.mark.parametrize("kind", ["nary", "child_sum"])
def test_saved_builders(kind, tmp_path) -> None:
    builder, model = make(kind)
    dy.save(str(tmp_path / "model"), [builder])
    (other,) = dy.load(str(tmp_path / "model"), dy.ParameterCollection())
    assert type(other) is type(builder)
    all_equal(arrays(builder), arrays(other))


def test_errors() -> None:
    builder, model = make("nary")
    dy.renew_cg()
    x = dy.inputVector([1.0] * D)
    leaf = builder.add_input(x)
    with pytest.raises(ValueError, match=r"NaryTreeLSTMBuilder\.add_input: 4 children are given, 3 are possible"):
        builder.add_input(x, [leaf] * 4)
    with pytest.raises(ValueError, match=r"NaryTreeLSTMBuilder\.add_input: a node needs an input or a child"):
        builder.add_input(None, [None])
    with pytest.raises(TypeError, match="argument children: 1 is a _?.*Expression, no TreeState"):
        builder.add_input(x, [leaf, leaf.h])
    with pytest.raises(ValueError, match="tree_lstm_gates|gated_affine"):
        builder.add_input(dy.inputVector([1.0] * 5))
    with pytest.raises(ValueError, match="NaryTreeLSTMBuilder: argument N: expected at least 1, got 0"):
        dy.NaryTreeLSTMBuilder(0, D, H, model)
    with pytest.raises(TypeError, match="ChildSumTreeLSTMBuilder: argument model: expected a ParameterCollection"):
        dy.ChildSumTreeLSTMBuilder(D, H, None)


@pytest.mark.parametrize("kind", ["nary", "child-sum"])
def test_a_step_is_made_without_python(kind, graph):
    model = dy.ParameterCollection()
    builder = dy.NaryTreeLSTMBuilder(2, 3, 4, model) if kind == "nary" else dy.ChildSumTreeLSTMBuilder(3, 4, model)
    x = dy.inputVector([1, 2, 3])
    leaf = builder.add_input(x)
    names = []
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: names.append(frame.f_code.co_name) if event == "call" else None)
    try:
        builder.add_input(x, [leaf, leaf])
    finally:
        sys.setprofile(before)
    assert names == ["add_input"]
