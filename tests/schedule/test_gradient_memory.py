"""Memory of gradients: reused once a batch has run backward, kept where an expression refers to a node."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import pytest
from kept import N, Weights, same
from random_graphs import Model, build

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.graph.expressions import arena_bytes
from dynet_cy.memory.arena import used_bytes

pytestmark = pytest.mark.usefixtures("nothing_held")


@pytest.fixture
def weights() -> Weights:
    return Weights()


def taken() -> int:
    return arena_bytes()["gradients"]


def test_a_chain_takes_the_memory_of_a_few_nodes() -> None:
    with dy.ComputationGraph(autobatching=0):
        p = dy.ParameterCollection().add_parameters(1 << 14)
        x = p + 0
        for _ in range(200):
            x = dy.tanh(x) + p
        dy.sum_elems(x).backward()
        assert taken() < 8 << 16


def test_batches_take_turns(weights: Weights, one_thread: None) -> None:
    """Of a network over sequences, the gradients of one step are alive at a time."""
    with dy.ComputationGraph(autobatching=1):
        states = [weights.table[i] for i in range(20)]
        for _ in range(400):
            states = [dy.tanh(weights.w * h + weights.b) for h in states]
        dy.esum([dy.sum_elems(h) for h in states]).backward()
        took = arena_bytes()
        assert 10 * took["gradients"] < took["values"]


def test_what_an_expression_refers_to_is_kept(graph, strategy, weights: Weights) -> None:
    """Any expression can be asked for its gradient afterwards, also after an update."""
    rng = np.random.default_rng(4)

    def program() -> tuple[list[Any], Any]:
        x = weights.b + weights.table[3]
        held, y = [x], x
        for i in range(40):
            y = dy.tanh(weights.w * y) + x
            if i % 7 == 0:
                held.append(y)
        return held, dy.dot_product(y, dy.inputVector(rng.uniform(-1, 1, N)))

    rng = np.random.default_rng(4)
    held, loss = program()
    loss.backward(full=True)
    expected, of_parameters = [x.gradient() for x in held], weights.gradients()
    dy.renew_cg()
    rng = np.random.default_rng(4)
    held, loss = program()
    loss.backward()
    values = weights.w.as_array()
    weights.w.set_value(2 * values)
    same([x.gradient() for x in held], expected)
    weights.w.set_value(values)
    same(weights.gradients(), of_parameters)


def test_what_none_referred_to_is_computed_again(weights: Weights) -> None:
    with dy.ComputationGraph(autobatching=0) as graph:
        x = weights.b + 1
        y = dy.tanh(dy.tanh(x))
        loss = dy.sum_elems(y)
        loss.backward()
        number = list(graph.op_names()).index("tanh")
        inner = graph._node(number)  # no expression referred to it
        expected = 1 - np.tanh(np.tanh(x.npvalue())) ** 2
        np.testing.assert_allclose(inner.gradient(), expected, rtol=1e-5)
        np.testing.assert_allclose(x.gradient(), expected * (1 - np.tanh(x.npvalue()) ** 2), rtol=1e-5)
        loss.backward()
        np.testing.assert_allclose(inner.gradient(), expected, rtol=1e-5)  # now one does
        del inner
        loss.backward()
        weights.b.set_value(np.zeros(N))
        with pytest.raises(RuntimeError, match="no expression referred during backward"):
            graph._node(number).gradient()


def test_a_dump_shows_all_gradients(weights: Weights) -> None:
    with dy.ComputationGraph(autobatching=0) as graph:
        loss = dy.sum_elems(dy.tanh(dy.tanh(weights.b)))
        with contextlib.redirect_stdout(io.StringIO()) as before:
            loss.backward(full=True)
            graph.dump()
        with contextlib.redirect_stdout(io.StringIO()) as after:
            loss.backward()
            graph.dump()
        assert after.getvalue() == before.getvalue()


def test_a_part_of_a_sum(graph, weights: Weights) -> None:
    """A product that a sum has absorbed has no gradient of its own: that of the sum is kept for it."""
    b = weights.b + 0
    part = weights.w * dy.tanh(b)
    y = dy.tanh(part + weights.w * b + weights.b)
    dy.sum_elems(y).backward()
    expected = 1 - y.npvalue() ** 2
    del y
    np.testing.assert_allclose(part.gradient(), expected, rtol=1e-5)


@pytest.mark.parametrize("structure", range(12))
@pytest.mark.parametrize("threads", [1, 2])
def test_random_programs(structure: int, threads: int, usual_threads) -> None:
    """The same gradients, to the last bit, as when all are kept; with values that are requested on the way."""
    m = Model()
    dy.config.set(threads=threads)
    for autobatching in (0, 1, 2):
        found = []
        for full in (False, True):
            with dy.ComputationGraph(autobatching=autobatching):
                dy.esum(build(m, structure, 5, look=0.1)).backward(full=full)
            found.append(m.gradients())
        same(*found)


def test_after_a_revert(weights: Weights) -> None:
    """Batches made after a revert take the place of others, whose gradients lay together with those of their
    neighbours."""
    with dy.ComputationGraph(autobatching=1):
        rows = [weights.table[i] for i in range(4)]
        above = [dy.tanh(x) for x in rows]
        dy.forward(above)
        dy.cg_checkpoint()
        for width in (4, 2, 3):
            below = [dy.logistic(x) for x in rows[:width]]
            loss = dy.esum([dy.sum_elems(weights.w * x) for x in above + below])
            loss.backward()
            found = weights.gradients()
            loss.backward(full=True)
            same(found, weights.gradients())
            dy.cg_revert()
            dy.cg_checkpoint()
            loss = dy.esum([dy.sum_elems(weights.w * x) for x in above])
            loss.backward()
            found = weights.gradients()
            loss.backward(full=True)
            same(found, weights.gradients())
            dy.cg_revert()
            dy.cg_checkpoint()


def test_an_expression_of_another_graph_does_not_count(weights: Weights) -> None:
    """References are counted for each node: those of an earlier renewal, or from before a revert, do not mix in."""
    with dy.ComputationGraph(autobatching=0):
        old = [weights.b + i for i in range(10)]
        dy.renew_cg()
        x = weights.b + 1
        y = dy.tanh(x)
        del old
        dy.sum_elems(y).backward()
        weights.b.set_value(np.ones(N))
        np.testing.assert_allclose(x.gradient(), 1 - y.npvalue() ** 2, rtol=1e-5)


def test_many_expressions_of_a_node(weights: Weights) -> None:
    """The count of references does not overflow."""
    with dy.ComputationGraph(autobatching=0) as graph:
        x = weights.b + 1
        y = dy.tanh(x)
        more = [graph._node(1) for _ in range(600)]
        del more
        dy.sum_elems(y).backward()
        weights.b.set_value(np.ones(N))
        np.testing.assert_allclose(x.gradient(), 1 - y.npvalue() ** 2, rtol=1e-5)


def test_an_input_between_values_that_are_read_in_place() -> None:
    """The gradients of the values are not side by side then, although a call reads all three as one vector."""

    def program(call: Any) -> list[np.ndarray]:
        p = dy.ParameterCollection().parameters_from_numpy(np.linspace(-1, 1, 16))

        def chain() -> Any:
            x = p * 2
            for _ in range(12):
                x = dy.tanh(x) + p
            return x

        dy.renew_cg(autobatching=1)
        x = call(chain) + call(chain)
        x.forward()
        above = dy.tanh(x)
        above.forward()
        between = dy.inputVector(np.linspace(0, 1, 16))
        below = dy.logistic(x)
        below.forward()
        loss = dy.sum_elems(dy.esum([dy.square(y) for y in (above, between, below)]))
        loss += dy.sum_elems(dy.esum([dy.exp(y) for y in (between, below)]))
        loss.backward(full=True)
        return [y.gradient() for y in (above, between, below, x)] + [p.grad_as_array()]

    same(program(dy.checkpoint), program(lambda function: function()))


def test_later_values_that_do_not_fit_leave_gradients_as_they_are() -> None:
    """Memory is given back before a pass runs again with less: not that of gradients, which can be requested."""
    with dy.ComputationGraph(autobatching=0):
        x = dy.tanh(dy.ParameterCollection().add_parameters(1 << 16) + 1)
        dy.squared_norm(x).backward()
        expected = x.gradient()
        y = x
        for _ in range(60):
            y = dy.tanh(y)
        before = engine.tune("schedule.budget.percent", 20)  # too low, so that the first plan does not fit
        dy.config.set(mem=used_bytes() / 2**20 + 6)
        try:
            y.forward()
        finally:
            dy.config.set(mem=0)
            engine.tune("schedule.budget.percent", before)
        np.testing.assert_array_equal(x.gradient(), expected)


def test_backward_again_after_it_has_failed_in_a_stretch() -> None:
    """The stretch at which it has failed does not take the room of others, nor is it used as it is."""

    refusing = True

    def back(d: np.ndarray, y: np.ndarray, x: np.ndarray) -> Any:
        if refusing:
            raise ValueError("not now")
        return (d,)

    once = dy.custom_op("refuses", lambda x: x + 0, back, lambda x: x)

    def gradients(call: Any) -> list[np.ndarray]:
        nonlocal refusing
        model = dy.ParameterCollection()
        p = model.parameters_from_numpy(np.linspace(-1, 1, 256))
        dy.reset_random_seed(3)
        dy.renew_cg()
        refusing = True

        def chain(x: Any, at: int) -> Any:
            for i in range(60):
                x = dy.dropout(dy.tanh(x), 0.2) + p
                if i == at:
                    x = once(x)
            return x

        x = p + 1
        for at in (-1, 30, -1, -1):
            x = call(chain, x, at)
        loss = dy.sum_elems(x)
        loss.forward()
        with pytest.raises(ValueError, match="not now"):
            loss.backward()
        model.zero_gradients()
        refusing = False
        loss.backward()
        return [loss.npvalue(), p.grad_as_array()]

    same(gradients(dy.checkpoint), gradients(lambda function, *args: function(*args)))


# ---- gradients that take the place of others ------------------------------------------------------


def test_functions_hand_their_memory_on() -> None:
    """A chain of functions whose values are kept has one gradient, which moves from node to node."""

    def chain() -> int:
        dy.renew_cg(autobatching=0)
        before = taken()
        p = dy.ParameterCollection().add_parameters(1 << 20)
        x = p + 0
        for _ in range(5):
            x = dy.square(dy.tanh(x))
        loss = dy.sum_elems(x)
        del x  # or its gradient would be kept
        loss.backward()
        return taken() - before

    assert chain() < 6 << 20  # one takes 4 MiB


def programs(w: Weights) -> dict[str, Any]:
    """Programs of gradients that may move: shared, of several users, of parts, in one batch."""
    rows = [w.table[i] for i in range(6)]
    halves = [dy.pick_range(w.w * x, 0, N // 2) for x in rows]
    x = w.b + w.table[1]
    return {
        "twice": x + x,
        "three times": dy.esum([x, dy.tanh(x), x]),
        "average": dy.average([x, dy.tanh(x), w.b]),
        "average of one": dy.average([dy.tanh(x)]),
        "two functions": dy.tanh(x) + dy.rectify(x),
        "functions of functions": dy.logistic(-dy.exp(dy.tanh(dy.square(x)))),
        "reshape": dy.reshape(dy.reshape(dy.tanh(x), (8, N // 8)) * 2, (N,)),
        "batch": dy.esum([dy.tanh(dy.square(r) + w.b) for r in rows]),
        "pairs": dy.esum([dy.tanh(a) + dy.tanh(b) for a, b in zip(rows, rows[1:] + rows[:1])]),
        "crossed": dy.esum([dy.esum([dy.tanh(rows[i]), dy.square(rows[(i + 2) % 6])]) for i in range(6)]),
        "averages": dy.esum([dy.average([dy.tanh(a), dy.square(a)]) for a in rows]),
        "some": dy.esum([dy.tanh(r) for r in rows[:3]]) + dy.esum([dy.square(dy.tanh(r)) for r in rows]),
        "parts": dy.concatenate([dy.tanh(h) for h in halves[:2]]) + dy.concatenate([h + h for h in halves[2:4]]),
        "minibatch": dy.sum_batches(dy.concatenate_to_batch(rows) + dy.tanh(w.b) + dy.concatenate_to_batch(rows)),
    }


@pytest.mark.parametrize("autobatching", [0, 1])
@pytest.mark.parametrize("threads", [1, 2])
def test_handing_on_changes_no_bit(weights: Weights, autobatching: int, threads: int, usual_threads) -> None:
    dy.config.set(threads=threads)
    with dy.ComputationGraph(autobatching=autobatching):
        names = list(programs(weights))
    for name in names:
        found = []
        for full in (False, True, False):
            with dy.ComputationGraph(autobatching=autobatching):
                loss = dy.sum_elems(dy.square(programs(weights)[name] - 0.5))
                loss.backward(full=full)
                found.append(weights.gradients())
                loss.backward()  # again, in the same graph
                same(weights.gradients(), found[0])
        same(found[0], found[1])
        same(found[0], found[2])


@pytest.mark.parametrize("autobatching", [0, 1])
@pytest.mark.parametrize("op", ["gates", "tanh_affine"])
def test_gradients_that_sums_would_be_written_over(autobatching: int, op: str) -> None:
    """Backward writes the gradient of a sum over that of its activation, unless the program can ask for that."""
    found, gradients = [], []
    for held, full in ((True, False), (True, True), (False, False)):
        weights = Weights()  # new ones, which are not packed
        wide = weights.collection.parameters_from_numpy(np.random.default_rng(5).uniform(-0.1, 0.1, (4 * N, N)))
        with dy.ComputationGraph(autobatching=autobatching):
            kept, losses = [], []
            for k in range(5):
                x = weights.table[k]
                if op == "gates":
                    y = dy.vanilla_lstm_gates_projected(wide * x, x, wide)
                    h = dy.vanilla_lstm_h(dy.vanilla_lstm_c(x, y), y)
                else:
                    y = dy.tanh_affine([weights.b, weights.w, x])
                    h = dy.cmult(y, x)
                losses.append(dy.sum_elems(dy.square(h)))
                kept += [y] if held else []
                del x, y, h
            dy.esum(losses).backward(full=full)
            gradients.append([y.gradient() for y in kept])
        found.append([wide.grad_as_array().copy(), *weights.gradients()])
    same(gradients[0], gradients[1])
    same(found[0], found[1])
    same(found[0], found[2])


def test_a_batch_that_runs_in_pieces_hands_its_gradients_on() -> None:
    """Long elementwise nodes of several examples run in pieces: they need no more gradients than one minibatch."""
    rng = np.random.default_rng(2)
    model = dy.ParameterCollection()
    first, second = (model.parameters_from_numpy(rng.uniform(-1, 1, (3, 3, n, 8))) for n in (1, 8))
    images = rng.uniform(-1, 1, (16, 20, 20, 1))

    def scores(x: Any) -> Any:
        for filters in (first, second):
            x = dy.rectify(dy.conv2d(x, filters, [1, 1], is_valid=False))
            x = dy.maxpooling2d(x, [2, 2], [2, 2])
        return dy.sum_elems(dy.square(x))

    def example_by_example() -> Any:
        return dy.esum([scores(dy.inputTensor(x)) for x in images])

    def minibatch() -> Any:
        return dy.sum_batches(scores(dy.inputTensor(np.moveaxis(images, 0, -1), batched=True)))

    def train(program: Any, full: bool = False) -> tuple[int, list[np.ndarray]]:
        with dy.ComputationGraph(autobatching=1):
            program().backward(full=full)
            found = taken(), [p.grad_as_array().copy() for p in (first, second)]
        model.zero_gradients()
        return found

    took, gradients = train(example_by_example)
    assert took <= train(minibatch)[0]
    same(gradients, train(example_by_example, full=True)[1])
