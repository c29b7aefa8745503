"""Gradients as expressions: what they are of, what they are part of, how they run, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import all_close

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.graph import nodes as inspection
from dynet_cy.graph.expressions import set_autobatching
from dynet_cy.graph.nodes import graph_node, nodes

# ---- of what ---------------------------------------------------------------


def test_parameters(w: dy.Parameters, graph: dy.ComputationGraph) -> None:
    slope = dy.gradients(dy.sum_elems(dy.cube(w)), w)
    np.testing.assert_allclose(slope.npvalue(), [3, 12, 27])
    curvature = dy.gradients(dy.sum_elems(slope), [w])
    np.testing.assert_allclose(curvature[0].npvalue(), [6, 12, 18])
    np.testing.assert_allclose(dy.gradients(dy.sum_elems(curvature[0]), w).npvalue(), [6, 6, 6])
    assert not w.grad_as_array().any()  # nothing is added to the parameter


def test_a_loss_of_gradients(w: dy.Parameters, graph: dy.ComputationGraph) -> None:
    """backward goes through them: the gradient of |4 w^3|^2."""
    dy.squared_norm(dy.gradients(dy.sum_elems(w**4), w)).backward()
    np.testing.assert_allclose(w.grad_as_array(), 96 * np.array([1, 2, 3]) ** 5, rtol=1e-5)


@pytest.mark.usefixtures("on_each_device")
def test_expressions_between(graph: dy.ComputationGraph) -> None:
    """One of them depends on another; one is the loss itself, and one is there twice."""
    x = dy.inputVector([1, 2])
    h = dy.square(x)
    loss = dy.dot_product(h, h)
    found = dy.gradients(loss, [x, h, loss, x])
    assert [e.npvalue().tolist() for e in found] == [[4, 32], [2, 8], [1], [4, 32]]


def test_what_the_loss_does_not_depend_on(w: dy.Parameters, graph: dy.ComputationGraph) -> None:
    x, later = dy.inputTensor(np.ones((2, 3, 4)), batched=True), dy.inputVector([1])
    loss = dy.squared_norm(dy.nobackprop(w))
    found = dy.gradients(loss, [w, x, later])
    assert [e.dim() for e in found] == [((3,), 1), ((2, 3), 4), ((1,), 1)]
    assert not any(e.npvalue().any() for e in found)
    assert dy.gradients(loss, []) == []
    assert dy.hessian_vector_product(loss, [], []) == []


def test_constants_of_parameters_are_apart(w: dy.Parameters, graph: dy.ComputationGraph) -> None:
    constant = dy.const_parameter(w)
    found = dy.gradients(dy.dot_product(w, constant), [w, constant])
    np.testing.assert_allclose(dy.gradients(dy.dot_product(w, constant), w).npvalue(), [1, 2, 3])
    assert [e.npvalue().tolist() for e in found] == [[1, 2, 3], [1, 2, 3]]


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("shape", [(4, 2), (4, 2, 3)], ids=["vectors", "matrices"])
def test_lookup_tables(collection: dy.ParameterCollection, shape: tuple[int, ...], graph: dy.ComputationGraph) -> None:
    values = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    table = collection.lookup_parameters_from_numpy(values)
    rows = [dy.lookup(table, 1), dy.lookup_batch(table, [3, 1, 1]), dy.lookup(table, 2, update=False)]
    loss = dy.esum([dy.sum_batches(dy.sum_elems(dy.cube(x))) for x in rows])
    used = np.array([0, 3, 0, 1]).reshape(-1, *[1] * (len(shape) - 1))
    slope, of_row = dy.gradients(loss, [table, rows[0]])
    np.testing.assert_allclose(np.moveaxis(slope.npvalue(), -1, 0), 3 * values**2 * used, rtol=1e-5)
    np.testing.assert_allclose(of_row.npvalue(), 3 * values[1] ** 2, rtol=1e-5)
    vector = np.random.default_rng(2).normal(size=slope.dim()[0])
    product = dy.hessian_vector_product(loss, table, vector).npvalue()
    expected = 6 * values * np.moveaxis(vector, -1, 0) * used
    np.testing.assert_allclose(np.moveaxis(product, -1, 0), expected, rtol=1e-5, atol=1e-6)
    dy.squared_norm(slope).backward()
    np.testing.assert_allclose(table.grad_as_array(), 36 * values**3 * used**2, rtol=1e-4)


@pytest.mark.usefixtures("on_each_device")
def test_whole_tables(collection: dy.ParameterCollection, graph: dy.ComputationGraph) -> None:
    """Rows, and the expression of all rows, in one loss."""
    table = collection.lookup_parameters_from_numpy(np.array([[1.0, 2.0], [3.0, 4.0]]))
    loss = dy.squared_norm(table.expr()) + dy.sum_elems(table[1])
    np.testing.assert_allclose(dy.gradients(loss, table).npvalue(), [[2, 7], [4, 9]])


@pytest.mark.usefixtures("on_each_device")
def test_batches(w: dy.Parameters, graph: dy.ComputationGraph) -> None:
    """The gradient of the sum over the batch; of an expression with a batch, one for each batch element."""
    x = dy.inputTensor(np.array([[1, 4], [2, 5], [3, 6]]), batched=True)
    loss = dy.dot_product(dy.square(w), x)
    assert loss.batch_size == 2
    np.testing.assert_allclose(dy.gradients(loss, w).npvalue(), [2 * 5, 4 * 7, 6 * 9])
    np.testing.assert_allclose(dy.gradients(loss, x).npvalue(), [[1, 1], [4, 4], [9, 9]])
    vector = np.array([[1.0, 0], [0, 1], [0, 0]])
    product = dy.hessian_vector_product(dy.cube(loss), x, vector).npvalue()
    np.testing.assert_allclose(product.T, [6 * 36 * np.array([1, 4, 9]), 6 * 78 * 4 * np.array([1, 4, 9])], rtol=1e-5)


# ---- of what operations -----------------------------------------------------


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("op", ["dropout", "dropout_dim", "dropout_batch", "block_dropout", "noise"])
def test_dropout_is_the_same_draw(op: str, rng: np.random.Generator, strategy: int) -> None:
    x = dy.inputTensor(rng.normal(size=(3, 2, 30)), batched=True)
    y = dy.dropout_dim(x, 0, 0.5) if op == "dropout_dim" else getattr(dy, op)(x, 0.5)
    before = dy.random_normal(3)
    loss = dy.sum_batches(dy.sum_elems(dy.cube(y)))
    slope = dy.gradients(loss, x)
    mask = np.ones_like(x.npvalue()) if op == "noise" else (y / x).npvalue()
    np.testing.assert_allclose(slope.npvalue(), 3 * y.npvalue() ** 2 * mask, rtol=1e-5)
    second = dy.gradients(dy.squared_norm(slope), x).npvalue()
    np.testing.assert_allclose(second, 36 * y.npvalue() ** 3 * mask**3, rtol=1e-4, atol=1e-4)
    if op != "noise":
        assert set(np.unique(mask.round(3))) == {0, 2}
    assert before.npvalue().tolist() != dy.random_normal(3).npvalue().tolist()


def test_gradients_draw_nothing(rng: np.random.Generator) -> None:
    """What is drawn after them does not depend on them."""

    def draws(differentiate: bool) -> list[float]:
        dy.reset_random_seed(5)
        dy.renew_cg()
        x = dy.inputVector([1, 2, 3])
        y = dy.dropout(x, 0.5)
        if differentiate:
            dy.gradients(dy.squared_norm(y), x).npvalue()
        return dy.random_normal(4).npvalue().tolist()  # type: ignore[no-any-return]

    assert draws(True) == draws(False)


def test_to_device(graph: dy.ComputationGraph) -> None:
    x = dy.inputVector([1, 2])
    loss = dy.squared_norm(dy.to_device(dy.square(x), "CPU"))
    np.testing.assert_allclose(dy.gradients(loss, x).npvalue(), [4, 32])


def test_reversed_gradients(graph: dy.ComputationGraph) -> None:
    """What changes the gradient of backward changes these gradients too."""
    x = dy.inputVector([1, 2])
    loss = dy.squared_norm(dy.flip_gradient(x)) + dy.squared_norm(dy.scale_gradient(x, 3))
    np.testing.assert_allclose(dy.gradients(loss, x).npvalue(), [4, 8])


def test_length_zero(graph: dy.ComputationGraph) -> None:
    """The gradient of a length at zero is zero, and so is the second one."""
    x = dy.inputVector([0, 0])
    for length in (dy.l2_norm(x), dy.norm(x), dy.safe_sqrt(dy.squared_norm(x)), dy.std_elems(x)):
        slope = dy.gradients(length, x)
        assert slope.npvalue().tolist() == [0, 0]
        assert dy.gradients(dy.dot_product(slope, dy.inputVector([1, 2])), x).npvalue().tolist() == [0, 0]


def after_values(m: int) -> tuple[dy.Expression, list[dy.Expression]]:
    """A sum of products of matrices, and one of activations, which plans change into single operations."""
    rng = np.random.default_rng(3)
    W, U = (dy.ParameterCollection().parameters_from_numpy(rng.normal(size=(m, m)) / m) for _ in range(2))
    x, h, c = (dy.inputVector(rng.normal(size=m)) for _ in range(3))
    a, b = W * x + U * h + c, W * h + c
    cell = dy.cmult(dy.logistic(a), dy.tanh(b)) + dy.cmult(dy.logistic(b), c)
    return dy.squared_norm(cell), [W, U, x, h, c]


def test_nodes_that_plans_have_changed(graph: dy.ComputationGraph) -> None:
    """Values that are read first do not change gradients."""
    vectors = [np.random.default_rng(4).normal(size=s) for s in [(40, 40), (40, 40), (40,), (40,), (40,)]]
    loss, xs = after_values(40)
    expected = dy.npvalues(dy.hessian_vector_product(loss, xs, vectors))
    dy.renew_cg()
    loss, xs = after_values(40)
    engine.stats("schedule.rewrite.gates", reset=True)
    loss.value()
    assert {"affine_transform", "gates"} <= {node.op for node in nodes(dy.cg())}
    all_close(dy.npvalues(dy.hessian_vector_product(loss, xs, vectors)), expected, rtol=1e-4, atol=1e-5)


# ---- how they run -----------------------------------------------------------


def penalties(n: int, strategy: int) -> tuple[list[np.ndarray], int]:
    """The gradients of a sum of gradient penalties of n sentences, and the calls that computing them took."""
    dy.reset_random_seed(1)
    set_autobatching(strategy)
    try:
        rng = np.random.default_rng(1)
        model = dy.ParameterCollection()
        lstm, W = dy.LSTMBuilder(1, 3, 4, model), model.add_parameters((1, 4))
        graph = dy.renew_cg()
        losses = []
        for i in range(n):
            xs = [dy.inputVector(rng.normal(size=3)) for _ in range(4 + i % 3)]
            score = W * lstm.initial_state().transduce(xs)[-1]
            losses.append(dy.square(dy.l2_norm(dy.concatenate(dy.gradients(score, xs))) - 1))
        dy.esum(losses).backward()
        return [p.grad_as_array() for p in model.parameters_list()], graph.n_batches()
    finally:
        set_autobatching(1)


def test_they_batch() -> None:
    plain, calls = penalties(12, 0)
    batched, fewer = penalties(12, 1)
    assert fewer < calls / 6
    all_close(batched, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.fibers
def test_in_batched_maps(w: dy.Parameters, graph: dy.ComputationGraph) -> None:
    def steps(start: float) -> float:
        x = dy.inputVector([start])
        for _ in range(3):
            x = x - 0.25 * dy.gradients(dy.squared_norm(x - 1), x)
            x.value()
        return float(x.value())

    np.testing.assert_allclose(dy.batched_map(steps, [1.0, 2.0, 9.0]), [1, 1.125, 2])


def test_long_chains(w: dy.Parameters, graph: dy.ComputationGraph) -> None:
    """Neither 20,000 nodes one after the other nor as many uses of one need recursion or much memory."""
    h: dy.Expression = w
    for _ in range(10000):
        h = h * 1.0 + 0.0001
    loss = dy.esum([dy.sum_elems(h), *[dy.squared_norm(w) for _ in range(10000)]])
    slope = dy.gradients(loss, w)
    np.testing.assert_allclose(slope.npvalue(), 1 + 20000 * np.array([1, 2, 3]), rtol=1e-5)
    np.testing.assert_allclose(dy.gradients(dy.sum_elems(slope), w).npvalue(), [20000] * 3, rtol=1e-5)


def test_weights_of_many_steps(collection: dy.ParameterCollection, graph: dy.ComputationGraph) -> None:
    """The gradient of a weight that is used n times takes one product, not n of them."""
    W = collection.add_parameters((200, 200))
    xs = [dy.inputVector(np.full(200, 0.01 * i)) for i in range(50)]
    loss = dy.esum([dy.squared_norm(W * x) for x in xs])
    slope = dy.gradients(loss, W)
    of_the_size_of_w = [n for n in nodes(graph) if n.shape == (200, 200)]
    assert len(of_the_size_of_w) <= 3
    expected = 2 * W.as_array() @ sum(np.outer(x.npvalue(), x.npvalue()) for x in xs)
    np.testing.assert_allclose(slope.npvalue(), expected, rtol=1e-3, atol=1e-3)


def test_parts_of_one_expression(collection: dy.ParameterCollection, graph: dy.ComputationGraph) -> None:
    """The gradient of a matrix whose columns are used one by one, and of a table, is made once."""
    values = np.random.default_rng(1).normal(size=(300, 7)).astype(np.float32)
    x = dy.inputTensor(values.T)
    table = collection.lookup_parameters_from_numpy(values)
    parts = [dy.pick(x, i, 1) for i in range(300)] + [x[:, i : i + 1] for i in range(300)] + [x[:, ::-1]]
    loss = dy.esum([dy.sum_elems(dy.cube(e)) for e in (*parts, *(table[i] for i in range(300)))])
    slopes = dy.gradients(loss, [x, table])
    assert len([n for n in nodes(graph) if n.shape == (7, 300)]) <= 12
    np.testing.assert_allclose(slopes[0].npvalue(), 9 * values.T**2, rtol=1e-5)
    np.testing.assert_allclose(slopes[1].npvalue(), 3 * values.T**2, rtol=1e-5)
    product = dy.hessian_vector_product(loss, [x, table], [dy.ones((7, 300)), dy.ones((7, 300))])
    np.testing.assert_allclose(product[0].npvalue(), 18 * values.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(product[1].npvalue(), 6 * values.T, rtol=1e-4, atol=1e-5)


def test_each_row_is_looked_at_once(
    collection: dy.ParameterCollection, graph: dy.ComputationGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What many rows of a table cost is in proportion to them, not to their number times that of the nodes."""
    described = []

    class Described(inspection.GraphNode):
        def __new__(cls, *values: Any) -> Described:
            described.append(values[0])
            return super().__new__(cls, *values)

    table = collection.lookup_parameters_from_numpy(np.ones((300, 7)))
    loss = dy.esum([dy.sum_elems(dy.cube(table[i])) for i in range(300)])
    monkeypatch.setattr(inspection, "GraphNode", Described)
    dy.gradients(loss, table)
    assert len(described) == 300


def test_one_node(graph: dy.ComputationGraph) -> None:
    x = dy.tanh(dy.inputVector([1, 2]))
    assert graph_node(graph, 1) == nodes(graph)[1]
    assert graph_node(graph, 1).op == "tanh"
    with pytest.raises(IndexError, match="^graph_node: the graph has 2 nodes, and none with number 2"):
        graph_node(graph, len(nodes(graph)))
    assert x.value() == pytest.approx(np.tanh([1, 2]))


def test_large_parts(graph: dy.ComputationGraph) -> None:
    """More places than one call takes."""
    x = dy.inputTensor(np.arange(300000.0).reshape(3, 100000) / 1e5)
    loss = dy.sum_elems(dy.square(x[1:3, ::2])) + dy.sum_elems(x[:, 3:90000]) + dy.squared_norm(x[0, 1:])
    slope = dy.gradients(loss, x).npvalue()
    expected = np.zeros((3, 100000))
    expected[1:3, ::2] += 2 * x.npvalue()[1:3, ::2]
    expected[:, 3:90000] += 1
    expected[0, 1:] += 2 * x.npvalue()[0, 1:]
    np.testing.assert_allclose(slope, expected, rtol=1e-5, atol=1e-6)


# ---- errors -----------------------------------------------------------------


def refused(loss: Any, expressions: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^gradients: {message}"):
        dy.gradients(loss, expressions)


def test_wrong_arguments(w: dy.Parameters, graph: dy.ComputationGraph) -> None:
    loss = dy.squared_norm(w)
    refused(3.0, w, TypeError, "loss must be an Expression, not float")
    refused(loss, [w, 3], TypeError, r"expressions\[1\] must be an Expression, not int")
    refused(loss, None, TypeError, "expressions must be a list of them, or one Expression, not NoneType")
    refused(w, w, ValueError, r"the loss has shape \(3,\), not one element")
    with dy.ComputationGraph():
        x = dy.inputVector([1])
        refused(loss, w, ValueError, "the expression belongs to another graph than the current one")
        refused(dy.squared_norm(x), [dy.squared_norm(x), loss], ValueError, "the expressions belong to several graphs")
    dy.renew_cg()
    with pytest.raises(dy.StaleExpressionError):
        dy.gradients(loss, w)
    dy.renew_cg(forward_only=True)
    refused(dy.squared_norm(w), w, RuntimeError, "a graph with forward_only=True")
    dy.renew_cg()


def test_wrong_vectors(w: dy.Parameters, graph: dy.ComputationGraph) -> None:
    loss = dy.squared_norm(w)
    with pytest.raises(ValueError, match="^hessian_vector_product: 1 vectors given for 2 expressions"):
        dy.hessian_vector_product(loss, [w, w], [[1, 2, 3]])
    for vectors in (3, "ab"):
        with pytest.raises(TypeError, match="^hessian_vector_product: vectors must be a list"):
            dy.hessian_vector_product(loss, [w], vectors)
    with pytest.raises(
        TypeError, match="^hessian_vector_product: a vector must be an Expression, a number or an array"
    ):
        dy.hessian_vector_product(loss, w, "ab")
    for vector in (5.0, [1, 2], dy.zeros((1, 3)), np.ones((3, 2))):
        with pytest.raises(
            dy.DimensionError, match=r"^hessian_vector_product: the vector of .* shape \(3,\) has another"
        ):
            dy.hessian_vector_product(loss, w, vector)


def test_errors_say_where(graph: dy.ComputationGraph) -> None:
    with dy.record_lines():
        x = dy.inputVector([1, 2])
        loss = dy.sum_elems(dy.sort(x))
    with pytest.raises(NotImplementedError, match=r"^gradients: sort has no second order \(made at .*:\d+.*\): "):
        dy.gradients(loss, x)


def test_custom_ops(graph: dy.ComputationGraph) -> None:
    twice = dy.custom_op("twice", lambda x: 2 * x, lambda dy, y, x: 2 * dy)
    x = dy.inputVector([1, 2])
    with pytest.raises(NotImplementedError, match="^gradients: twice has no second order: it has only `backward`"):
        dy.gradients(dy.sum_elems(twice(x)), x)
