"""Graphs: what is computed and when, stale expressions, checkpoints, errors."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.graph import StaleExpressionError
from dynet_cy.graph.graph import set_autobatching
from dynet_cy.model.parameters import const_parameter


@pytest.fixture
def collection():
    return dy.ParameterCollection()


@pytest.fixture
def w(collection):
    return collection.parameters_from_numpy(np.array([1.0, 2.0, 3.0]), name="w")


# ---- stale expressions -------------------------------------------------------


def every_use(x):
    """Everything that can be done with an expression."""
    return [
        x.value,
        x.npvalue,
        x.vec_value,
        x.scalar_value,
        x.forward,
        x.backward,
        x.gradient,
        x.dim,
        lambda: len(x),
        lambda: dy.tanh(x),
        lambda: x + 1,
        lambda: -x,
        lambda: x * x,
        lambda: dy.zeros(3) + x,
        lambda: dy.esum([dy.zeros(3), x]),
    ]


def assert_stale(x, match: str) -> None:
    for use in every_use(x):
        with pytest.raises(StaleExpressionError, match=match):
            use()


def test_renewed(graph) -> None:
    x = dy.ones(3)
    dy.renew_cg()
    assert_stale(x, "stale: its graph has been renewed")
    assert "renewed since" in repr(x)


def test_setting_a_stale_input(graph) -> None:
    x = dy.inputVector([1, 2])
    dy.renew_cg()
    with pytest.raises(StaleExpressionError, match="renewed"):
        x.set([3, 4])


def test_closed_graph(graph) -> None:
    with dy.ComputationGraph() as other:
        x = dy.ones(3)
    del other
    gc.collect()
    assert_stale(x, "renewed .* or closed")


def test_other_graph(graph) -> None:
    x = dy.ones(3)
    with dy.ComputationGraph():
        for build in (lambda: dy.tanh(x), lambda: x + dy.ones(3), lambda: dy.ones(3) + x, lambda: dy.esum([x])):
            with pytest.raises(StaleExpressionError, match="another graph"):
                build()
        # Values of a graph that is open can be read from anywhere.
        assert x.value() == [1, 1, 1]
    assert dy.tanh(x).dim() == ((3,), 1)


def test_renewing_one_graph_leaves_others(graph) -> None:
    x = dy.ones(3)
    with dy.ComputationGraph():
        y = dy.ones(2)
        dy.renew_cg()
        with pytest.raises(StaleExpressionError):
            y.value()
    assert (x + x).value() == [2, 2, 2]


def test_graphs_nest(graph) -> None:
    outer = dy.ComputationGraph()
    with outer:
        assert dy.cg() is outer
        with dy.ComputationGraph() as inner:
            assert dy.cg() is inner
        with outer:
            assert dy.cg() is outer
        assert dy.cg() is outer
    assert dy.cg() is graph
    with pytest.raises(RuntimeError, match="reverse order"):
        outer.__exit__(None, None, None)
    a, b = dy.ComputationGraph(), dy.ComputationGraph()
    a.__enter__()
    b.__enter__()
    with pytest.raises(RuntimeError, match="reverse order"):
        a.__exit__(None, None, None)
    b.__exit__(None, None, None)
    a.__exit__(None, None, None)
    assert dy.cg() is graph


def test_graph_is_left_when_an_error_is_raised(graph) -> None:
    with pytest.raises(KeyError), dy.ComputationGraph():
        raise KeyError
    assert dy.cg() is graph


def test_versions_grow(graph) -> None:
    first = dy.cg_version()
    dy.renew_cg()
    assert dy.cg_version() > first
    assert graph.version() == dy.cg_version()


def test_expressions_made_by_hand(graph) -> None:
    assert_stale(dy.Expression() if hasattr(dy, "Expression") else type(dy.tanh(dy.ones(1)))(), "made by hand")


def test_expressions_do_not_pickle(graph) -> None:
    with pytest.raises(TypeError, match="do not pickle"):
        pickle.dumps(dy.ones(3))


# ---- checkpoints -------------------------------------------------------------


def test_revert(graph, strategy) -> None:
    x = dy.inputVector([1, 2, 3])
    before = x * 2
    dy.cg_checkpoint()
    after = before + 1
    assert after.value() == [3, 5, 7]
    dy.cg_revert()
    assert_stale(after, "made after the checkpoint")
    assert before.value() == [2, 4, 6]
    assert (before + 10).value() == [12, 14, 16]
    with pytest.raises(StaleExpressionError):
        after.value()


def test_revert_takes_memory_back(graph) -> None:
    x = dy.ones(1000)
    dy.cg_checkpoint()
    for _ in range(3):
        n = len(graph)
        for _ in range(5):
            dy.tanh(x).value()
        assert len(graph) == n + 5
        dy.cg_revert()
        assert len(graph) == n
        dy.cg_checkpoint()


def test_checkpoints_nest(graph, strategy) -> None:
    x = dy.inputVector([1, 2])
    made, values = [], []
    for depth in range(5):
        dy.cg_checkpoint()
        made.append(x * (depth + 1.0))
        values.append(made[-1].value())
    for depth in range(4, -1, -1):
        dy.cg_revert()
        for e, v in zip(made[:depth], values):
            assert e.value() == v
        for e in made[depth:]:
            with pytest.raises(StaleExpressionError):
                e.value()
        x * 7.0  # takes the number of a dropped node
    with pytest.raises(RuntimeError, match="no checkpoint"):
        dy.cg_revert()


def test_renewal_drops_checkpoints(graph) -> None:
    dy.cg_checkpoint()
    dy.renew_cg()
    with pytest.raises(RuntimeError, match="no checkpoint"):
        dy.cg_revert()


def test_nodes_from_before_computed_after(graph, strategy) -> None:
    """What was computed since the checkpoint, in one call with what was made since, is computed again."""
    x = dy.inputVector([1, 2, 3])
    before = [dy.tanh(x * float(k)) for k in range(4)]
    dy.cg_checkpoint()
    after = [dy.tanh(x * float(k)) for k in range(4, 8)]
    total = dy.esum(before + after)
    total.forward()
    dy.cg_revert()
    for k, e in enumerate(before):
        np.testing.assert_allclose(e.npvalue(), np.tanh(np.array([1, 2, 3]) * k), rtol=1e-5)


def test_revert_with_parameters_and_gradients(graph, w, strategy) -> None:
    x = dy.inputVector([1, 2, 3])
    dy.cg_checkpoint()
    loss = dy.dot_product(w, x)  # the parameter enters the graph after the checkpoint
    loss.backward()
    dy.cg_revert()
    assert w.value() == [1, 2, 3]
    loss = dy.dot_product(w, x)
    loss.backward()
    np.testing.assert_array_equal(w.grad_as_array(), [2, 4, 6])
    dy.cg_checkpoint()
    y = loss + 1
    dy.cg_revert()
    with pytest.raises(StaleExpressionError):
        y.backward()


def test_revert_after_setting_an_input(graph, strategy) -> None:
    x = dy.inputVector([1, 2])
    y = dy.square(x)
    assert y.value() == [1, 4]
    dy.cg_checkpoint()
    z = y + 1
    assert z.value() == [2, 5]
    x.set([3, 4])
    assert z.value() == [10, 17]
    dy.cg_revert()
    assert y.value() == [9, 16]
    assert (y + 1).value() == [10, 17]


def test_revert_many_times(graph, strategy) -> None:
    x = dy.inputVector([1, 2])
    kept = x * 2
    for k in range(300):
        dy.cg_checkpoint()
        assert (kept + float(k)).value() == [2 + k, 4 + k]
        dy.cg_revert()
    assert kept.value() == [2, 4]


# ---- what is computed --------------------------------------------------------


def test_only_what_is_needed(graph) -> None:
    x = dy.inputVector([1, 2])
    a = dy.tanh(x)
    b = dy.exp(a)
    dy.exp(x)
    assert graph.n_batches() == 0
    a.forward()
    assert graph.n_batches() == 1
    b.forward()
    assert graph.n_batches() == 2


def test_computed_values_stand(graph, strategy) -> None:
    x = dy.inputVector([1, 2])
    y = dy.exp(dy.tanh(x))
    y.value()
    n = graph.n_batches()
    for _ in range(3):
        y.value()
        y.npvalue()
        y.forward()
    assert graph.n_batches() == n == 2
    z = y + 1
    z.value()
    assert graph.n_batches() == 3


def test_backward_computes_nothing_twice(graph, w, strategy) -> None:
    loss = dy.dot_product(w, dy.tanh(w))
    loss.value()
    n = graph.n_batches()
    loss.backward()
    loss.backward()
    assert graph.n_batches() == n


def test_recalculate(graph, w, strategy) -> None:
    y = w * 2
    assert y.value() == [2, 4, 6]
    w.set_value([2, 2, 2])
    assert y.value() == [2, 4, 6]
    assert y.value(recalculate=True) == [4, 4, 4]
    w.set_value([3, 3, 3])
    assert y.npvalue(recalculate=True).tolist() == [6, 6, 6]
    y.forward(recalculate=True)
    assert y.vec_value() == [6, 6, 6]


def test_setting_an_input(graph, w, strategy) -> None:
    x = dy.vecInput(3)
    other = dy.inputVector([1, 1, 1])
    loss = dy.dot_product(w, dy.square(x) + other)
    assert loss.value() == 6
    for k in range(5):
        x.set([k, k, k])
        assert loss.value() == 6 * (k * k + 1)
        loss.backward()
    other.set(np.zeros(3))
    assert loss.value() == 6 * 16
    s = dy.scalarInput(1)
    s.set(7)
    assert s.value() == 7


def test_running_one_graph_for_ever_takes_no_more_memory(graph, w, strategy) -> None:
    from dynet_cy.memory import arena

    x = dy.vecInput(1000)
    loss = dy.dot_product(dy.tanh(x), dy.ones(1000))
    loss.value()
    used = arena.used_bytes()
    for k in range(2000):  # 2,000 times 8 kB
        x.set(np.full(1000, k / 1000))
        loss.value()
        loss.backward()
    assert arena.used_bytes() - used <= 2 << 20


def test_setting_an_input_wrongly(graph) -> None:
    x = dy.inputVector([1, 2, 3])
    for wrong in ([1, 2], [1, 2, 3, 4], 5, []):
        with pytest.raises(ValueError, match="set: the value has shape"):
            x.set(wrong)
    with pytest.raises(TypeError, match="real numbers"):
        x.set(["a", "b", "c"])
    assert x.value() == [1, 2, 3]


def test_inputs_are_copies(graph) -> None:
    a = np.ones(3, np.float32)
    x = dy.inputTensor(a)
    a[:] = 5
    assert x.value() == [1, 1, 1]
    x.npvalue()[:] = 7
    assert x.value() == [1, 1, 1]


def test_immediate_compute() -> None:
    graph = dy.renew_cg(immediate_compute=True)
    x = dy.ones(3)
    y = dy.tanh(x)
    assert graph.n_batches() == 1
    (y + 1) * 2.0
    assert graph.n_batches() == 3
    assert y.value() == pytest.approx(np.tanh([1, 1, 1]).tolist())
    assert graph.n_batches() == 3
    dy.renew_cg()


def test_check_validity() -> None:
    dy.renew_cg(check_validity=True)
    y = dy.log(dy.inputVector([1, -1]))
    with pytest.raises(ValueError, match=r"log: a value of expression 1 \{2\} is not finite"):
        y.value()
    dy.renew_cg(immediate_compute=True, check_validity=True)
    x = dy.zeros(2)
    with pytest.raises(ValueError, match=r"log: .* is not finite"):
        dy.log(x)
    dy.renew_cg()
    assert dy.log(dy.zeros(1)).value() == -np.inf


def test_check_validity_holds_when_asked_again() -> None:
    dy.renew_cg(check_validity=True)
    y = dy.log(dy.inputVector([1, -1]))
    try:
        for _ in range(2):
            with pytest.raises(ValueError, match="not finite"):
                y.value()
    finally:
        dy.renew_cg()


def test_nan_and_infinity_pass_through(graph, w, strategy) -> None:
    x = dy.inputVector([np.nan, np.inf, 1])
    y = dy.cmult(x, w)
    np.testing.assert_array_equal(y.npvalue(), [np.nan, np.inf, 3])
    dy.dot_product(y, dy.ones(3)).backward()
    np.testing.assert_array_equal(w.grad_as_array(), [np.nan, np.inf, 1])


# ---- values ------------------------------------------------------------------


def test_forms_of_values(graph) -> None:
    m = np.arange(6, dtype=np.float32).reshape(2, 3)
    x = dy.inputTensor(m)
    np.testing.assert_array_equal(x.npvalue(), m)
    np.testing.assert_array_equal(x.value(), m)
    np.testing.assert_array_equal(x.tensor_value(), m)
    assert x.vec_value() == m.ravel(order="F").tolist()
    assert x.npvalue().dtype == np.float64
    assert dy.scalarInput(2).value() == 2.0
    assert isinstance(dy.scalarInput(2).value(), float)
    assert dy.scalarInput(2).scalar_value() == 2.0
    b = dy.inputTensor(m, batched=True)
    assert b.dim() == ((2,), 3)
    np.testing.assert_array_equal(b.npvalue(), m)
    with pytest.raises(ValueError, match=r"scalar_value: the expression has shape \{2\} x 3"):
        b.scalar_value()
    assert len(x) == 2


# ---- backward ----------------------------------------------------------------


def test_backward_adds_to_parameters_and_anew_to_expressions(graph, w, strategy) -> None:
    y = w * 3
    loss = dy.dot_product(y, dy.ones(3))
    for k in range(1, 4):
        loss.backward()
        np.testing.assert_array_equal(w.grad_as_array(), [3 * k] * 3)
        np.testing.assert_array_equal(y.gradient(), [1, 1, 1])


def test_backward_of_several_losses(graph, w, strategy) -> None:
    a = dy.dot_product(w, dy.ones(3))
    b = dy.dot_product(dy.square(w), dy.ones(3))
    b.value()
    a.backward()
    np.testing.assert_array_equal(w.grad_as_array(), [1, 1, 1])
    b.backward()
    np.testing.assert_array_equal(w.grad_as_array(), [3, 5, 7])


def test_gradient_is_zero_where_the_loss_does_not_depend(graph, w, strategy) -> None:
    on, off = (dy.cmult(w, dy.ones(3)) * 2 for _ in range(2))
    never = dy.tanh(w)
    # One call for both, and the place of both gradients has been written before.
    dy.dot_product(dy.esum([on, off]), dy.ones(3) * 7.0).backward()
    w.scale_gradient(0)
    dy.dot_product(on, dy.ones(3)).backward()
    np.testing.assert_array_equal(w.grad_as_array(), [2, 2, 2])
    np.testing.assert_array_equal(on.gradient(), [1, 1, 1])
    np.testing.assert_array_equal(off.gradient(), [0, 0, 0])
    np.testing.assert_array_equal(never.gradient(), [0, 0, 0])


def test_gradient_of_what_was_not_computed(graph, collection, w) -> None:
    table = collection.lookup_parameters_from_numpy(np.ones((4, 3)))
    row, unused = table[1], table[2]
    dy.dot_product(w, row).backward()
    np.testing.assert_array_equal(row.gradient(), [1, 2, 3])
    np.testing.assert_array_equal(unused.gradient(), [0, 0, 0])
    np.testing.assert_array_equal(w.gradient(), [1, 1, 1])


def test_gradient_needs_backward(graph, w) -> None:
    x = dy.ones(3)
    y = dy.cmult(w, x)
    with pytest.raises(RuntimeError, match="gradient: run backward"):
        y.gradient()
    loss = dy.dot_product(y, x)
    loss.backward()
    np.testing.assert_array_equal(x.gradient(), 2 * np.array([1, 2, 3]))
    later = loss + 1
    with pytest.raises(RuntimeError, match="gradient: run backward"):
        later.gradient()
    loss.backward(full=True)
    np.testing.assert_array_equal(x.gradient(), np.array([1, 2, 3]) + 1 * np.array([1, 2, 3]))


def test_backward_needs_a_scalar(graph, w) -> None:
    with pytest.raises(ValueError, match=r"backward: the expression has shape \{3\}, not one element"):
        (w * 2).backward()


def test_backward_of_a_batch_is_that_of_its_sum(graph, w, strategy) -> None:
    x = dy.inputTensor(np.arange(12.0).reshape(3, 4), batched=True)
    dy.dot_product(w, x).backward()
    np.testing.assert_array_equal(w.grad_as_array(), np.arange(12.0).reshape(3, 4).sum(1))


def test_backward_from_leaves(graph, collection) -> None:
    p = collection.parameters_from_numpy(np.array([5.0]))
    p.backward()
    assert p.grad_as_array().tolist() == [1]
    dy.scalarInput(3).backward()
    const_parameter(p).backward()
    assert p.grad_as_array().tolist() == [1]


def test_constants_have_no_gradient(graph, w, strategy) -> None:
    y = dy.cmult(const_parameter(w), w)
    dy.dot_product(y, dy.ones(3)).backward()
    np.testing.assert_array_equal(w.grad_as_array(), [1, 2, 3])


# ---- autobatching ------------------------------------------------------------


def test_equal_nodes_run_together(w, collection) -> None:
    m = collection.parameters_from_numpy(np.eye(3) * 2)
    expected = {0: 40, 1: 3, 2: 3}
    for strategy, calls in expected.items():
        graph = dy.renew_cg(autobatching=strategy)
        ys = [dy.tanh(m * dy.inputVector([k, k, k]) + dy.inputVector([1, 2, 3])) for k in range(13)]
        dy.esum(ys).forward()
        assert graph.n_batches() == calls + (1 if strategy else 0)
        for k, y in enumerate(ys):
            np.testing.assert_allclose(y.npvalue(), np.tanh(2.0 * k + np.array([1, 2, 3])), rtol=1e-5)
    dy.renew_cg()


def test_nodes_of_nothing_but_parameters(w, strategy) -> None:
    """The same op on the same parameters, several times: no argument has as many elements as the call."""
    graph = dy.renew_cg()
    ys = [dy.rectify(w) for _ in range(4)] + [dy.cmult(w, w) for _ in range(4)] + [dy.tanh(w) for _ in range(2)]
    loss = dy.dot_product(dy.esum(ys), dy.ones(3))
    assert loss.value() == pytest.approx(24 + 56 + 2 * np.tanh([1, 2, 3]).sum())
    loss.backward()
    np.testing.assert_allclose(w.grad_as_array(), 4 + 8 * np.array([1, 2, 3]) + 2 / np.cosh([1, 2, 3]) ** 2, rtol=1e-5)
    assert len(graph) > 10


def test_an_argument_occurs_twice_in_one_call(graph, w, strategy) -> None:
    x = dy.cmult(w, dy.ones(3))
    ys = [dy.tanh(x), dy.tanh(x), dy.tanh(x)]
    dy.dot_product(dy.esum(ys), dy.ones(3)).backward()
    np.testing.assert_allclose(w.grad_as_array(), 3 / np.cosh([1, 2, 3]) ** 2, rtol=1e-5)


def test_setting_of_strategies() -> None:
    for wrong in (3, -1, "x"):
        with pytest.raises(ValueError, match="autobatching must be 0|invalid literal"):
            set_autobatching(wrong)
        with pytest.raises(ValueError, match="autobatching must be 0|invalid literal"):
            dy.renew_cg(autobatching=wrong)
    dy.renew_cg()


@pytest.mark.parametrize("chosen", [1, 2])
def test_deep_and_wide_graphs(chosen: int, collection) -> None:
    w = collection.parameters_from_numpy(np.full(4, 0.5))
    results = []
    for autobatching in (0, chosen):
        dy.renew_cg(autobatching=autobatching)
        y = dy.zeros(4)
        for k in range(3000):
            y = dy.tanh(dy.cmult(w, y) + k % 3)
        wide = dy.esum([dy.tanh(w * float(k % 7)) for k in range(3000)])
        results.append(np.concatenate([y.npvalue(), wide.npvalue()]))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5)
    dy.renew_cg()


# ---- wrong use ---------------------------------------------------------------


@pytest.mark.parametrize("op", [dy.esum, dy.average, dy.emax, dy.affine_transform])
def test_empty_lists(op, graph) -> None:
    with pytest.raises(ValueError, match=rf"^{op.__name__}: the list of arguments is empty$"):
        op([])
    assert len(graph) == 0


@pytest.mark.parametrize("wrong", [None, 1.0, "x", np.ones(3), [1, 2]], ids=lambda w: type(w).__name__)
def test_wrong_types(wrong, graph) -> None:
    x = dy.ones(3)
    for build in (
        lambda: dy.tanh(wrong),
        lambda: dy.cmult(x, wrong),
        lambda: dy.cmult(wrong, x),
        lambda: dy.esum([x, wrong]),
        lambda: dy.esum(wrong),
        lambda: dy.dot_product(wrong, x),
    ):
        with pytest.raises(TypeError):
            build()
    if not isinstance(wrong, (float, np.ndarray)):
        for build in (lambda: x + wrong, lambda: wrong - x, lambda: x * wrong, lambda: wrong / x, lambda: x / wrong):
            with pytest.raises(TypeError):
                build()
    assert x.value() == [1, 1, 1]


def test_esum_names_the_wrong_argument(graph) -> None:
    with pytest.raises(TypeError, match="esum: argument 1 must be an Expression, not NoneType"):
        dy.esum([dy.ones(2), None])


def test_division_by_the_number_0(graph) -> None:
    with pytest.raises(ZeroDivisionError, match="divided by the number 0"):
        dy.ones(3) / 0


def test_generators_are_lists_too(graph) -> None:
    assert dy.esum(dy.ones(2) for _ in range(3)).value() == [3, 3]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: dy.zeros((2, -1)), ValueError),
        (lambda: dy.zeros((1,) * 8), ValueError),
        (lambda: dy.zeros((2.5,)), TypeError),
        (lambda: dy.zeros(("a",)), TypeError),
        (lambda: dy.zeros(3, batch_size=0), ValueError),
        (lambda: dy.zeros(3, batch_size=1.5), ValueError),
        (lambda: dy.zeros((1 << 31, 1 << 31)), MemoryError),
        (lambda: dy.inputTensor([[1, 2], [3]]), ValueError),
        (lambda: dy.inputTensor(["a"]), TypeError),
        (lambda: dy.inputTensor([1j]), TypeError),
        (lambda: dy.inputTensor(None), TypeError),
        (lambda: dy.inputTensor(1.0, batched=True), ValueError),
        (lambda: dy.inputTensor(np.zeros((1,) * 8)), ValueError),
        (lambda: dy.inputTensor(np.zeros((3, 0)), batched=True), ValueError),
        (lambda: dy.inputVector(3), ValueError),
        (lambda: dy.inputVector([[1, 2]]), ValueError),
        (lambda: dy.inputMatrix([1, 2, 3], (2, 2)), ValueError),
        (lambda: dy.scalarInput([1, 2]), ValueError),
        (lambda: dy.inputVector([1], device="GPU:9"), RuntimeError),
    ],
)
def test_inputs_that_are_not_possible(make, error, graph) -> None:
    with pytest.raises(error):
        make()
    assert dy.ones(2).value() == [1, 1]


def test_empty_tensors(graph) -> None:
    x = dy.zeros((0,))
    y = dy.tanh(x) + 1
    assert y.npvalue().shape == (0,)
    assert y.value() == []
    assert dy.dot_product(x, x).value() == 0


def test_many_renewals_of_a_graph_with_nothing_in_it() -> None:
    for _ in range(1000):
        assert len(dy.renew_cg()) == 0


@pytest.mark.parametrize(
    ("shape", "size", "expected"),
    [
        ((), 1, 0.0),
        ((1,), 1, 0.0),
        ((), 3, [0.0, 1.0, 2.0]),
        ((1,), 3, [0.0, 1.0, 2.0]),
        ((3,), 1, [0.0, 1.0, 2.0]),
        ((2,), 2, [0.0, 1.0, 2.0, 3.0]),
        ((1, 1), 1, np.array([[0.0]])),
        ((2, 1), 1, np.array([[0.0], [1.0]])),
        ((1, 1), 2, np.array([[[0.0, 1.0]]])),
        ((1, 2), 2, np.array([[[0.0, 2.0], [1.0, 3.0]]])),
    ],
)
def test_type_of_value_follows_the_number_of_axes(shape, size, expected, graph) -> None:
    x = dy.reshape(dy.inputVector(np.arange(np.prod(shape, dtype=int) * size)), shape, size)
    for value in (x.value(), dy.values([x])[0]):
        assert type(value) is type(expected)
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: dy.vecInput("a"), TypeError, "vecInput: shape .* must hold whole numbers"),
        (lambda: dy.vecInput(-1), ValueError, "vecInput: axis 0 of shape .* is out of range"),
        (lambda: dy.vecInput(2.5), TypeError, "vecInput: shape .* must hold whole numbers"),
        (lambda: dy.matInput(2, None), TypeError, "matInput: shape .* must hold whole numbers"),
    ],
)
def test_sizes_of_empty_inputs(make, error, message: str, graph) -> None:
    with pytest.raises(error, match=message):
        make()


# ---- a graph that nobody renews ----------------------------------------------


def grow(w, x) -> None:
    dy.dot_product(w, x).backward()


def test_growth_across_updates(graph, collection, w) -> None:
    trainer = dy.SimpleSGDTrainer(collection, 0.1)
    x = dy.inputVector([1, 2, 3])
    grow(w, x)
    grow(w, x)  # no update in between
    trainer.update()
    with pytest.warns(
        RuntimeWarning, match=r"the graph grew from 4 to 5 nodes across an update.*Call renew_cg\(\)"
    ) as said:
        grow(w, x)
    assert said[0].filename == __file__
    trainer.update()
    grow(w, x)  # said once


def test_no_growth_across_updates(graph, collection, w) -> None:
    """Graphs that are renewed, reverted, or made once and used with new inputs."""
    trainer = dy.SimpleSGDTrainer(collection, 0.1)
    for n in range(3):
        dy.renew_cg()
        for _ in range(n):
            dy.tanh(w)
        grow(w, dy.inputVector([1, 2, 3]))
        trainer.update()
    dy.renew_cg()
    x = dy.inputVector([1, 2, 3])
    for n in range(3):
        dy.cg_checkpoint()
        for _ in range(n):
            dy.tanh(w)
        grow(w, x)
        trainer.update()
        dy.cg_revert()
    dy.renew_cg()
    x = dy.inputVector([1, 2, 3])
    loss = dy.dot_product(w, x)
    for n in range(3):
        x.set([n, n, n])
        loss.backward()
        trainer.update()
    # Another model's update.
    dy.renew_cg()
    grow(w, dy.inputVector([1, 2, 3]))
    dy.SimpleSGDTrainer(dy.ParameterCollection()).update()
    grow(w, dy.inputVector([1, 2, 3]))
