"""Forward-only graphs: they drop values that nothing needs, and compute the same."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from arrays import all_close

import dynet_cy as dy
from dynet_cy.graph.expressions import ForwardExpression
from dynet_cy.graph.nodes import expression, nodes
from dynet_cy.memory import arena
from dynet_cy.rnn.stacked import StackedRNNState

MIB = 1 << 20


def random_values(seed: int, forward_only: bool, immediate: bool = False) -> list[np.ndarray]:
    """Values of a graph in which expressions are made, computed and dropped at random."""
    dy.renew_cg(forward_only=forward_only, immediate_compute=immediate)
    rng = np.random.default_rng(seed)
    model = dy.ParameterCollection()
    w = model.parameters_from_numpy(rng.uniform(-1, 1, (4, 4)))
    b = model.parameters_from_numpy(rng.uniform(-1, 1, 4))
    table = model.lookup_parameters_from_numpy(rng.uniform(-1, 1, (5, 4)))
    pool = [dy.inputVector(rng.uniform(-1, 1, 4)), table[1], b + 0]
    found = []
    for _ in range(300):
        kind = int(rng.integers(9))
        x, y = (pool[int(rng.integers(len(pool)))] for _ in range(2))
        if kind == 0:
            new = dy.affine_transform([b, w, x])
        elif kind == 1:
            new = dy.cmult(x, y) + 0.1
        elif kind == 2:
            new = dy.tanh(x + y)
        elif kind == 3:
            new = dy.pick_range(dy.concatenate([x, y]), 2, 6)
        elif kind == 4:
            new = table[int(rng.integers(5))]
        elif kind == 5:
            new = dy.softmax(w * x)
        elif kind == 6:
            new = dy.dropout(x, 0.3)
        elif kind == 7:
            new = dy.inputVector(rng.uniform(-1, 1, 4))
        else:
            new = dy.esum([x, y, dy.logistic(x)])
        # Most rounds drop an expression, some of them before it was computed.
        if len(pool) > 8 or (len(pool) > 3 and rng.random() < 0.6):
            del pool[int(rng.integers(len(pool)))]
        pool.append(new)
        del x, y, new
        if rng.random() < 0.15:
            found.append(pool[int(rng.integers(len(pool)))].npvalue())
    found.append(np.array(dy.esum(pool).npvalue()))
    return found


@pytest.mark.parametrize("immediate", [False, True], ids=["when asked", "immediate"])
@pytest.mark.parametrize("seed", range(12))
def test_values_are_the_same(seed: int, immediate: bool, strategy) -> None:
    dy.config.set(random_seed=seed + 1)
    expected = random_values(seed, False, immediate)
    dy.config.set(random_seed=seed + 1)
    all_close(random_values(seed, True, immediate), expected, rtol=1e-5, atol=1e-6)


def tagger_memory(forward_only: bool) -> int:
    """Bytes in arenas after several sentences were run through a network in one graph."""
    graph = dy.ComputationGraph()
    with graph:
        graph.renew(forward_only=forward_only)
        model = dy.ParameterCollection()
        builder = dy.BiRNNBuilder(2, 20, 40, model, dy.VanillaLSTMBuilder)
        before = arena.used_bytes()
        for _ in range(200):
            xs = [dy.inputVector(np.ones(20)) for _ in range(50)]
            dy.esum(builder.transduce(xs)).value()
        return arena.used_bytes() - before


@pytest.mark.usefixtures("nothing_held")
def test_takes_less_memory() -> None:
    with_all, with_needed = tagger_memory(False), tagger_memory(True)
    assert with_needed < with_all / 4


@pytest.mark.usefixtures("nothing_held")
def test_goes_on_for_ever() -> None:
    """The memory of a loop that keeps one state does not grow."""
    model = dy.ParameterCollection()
    w = model.parameters_from_numpy(np.eye(64) * 0.9)
    b = model.parameters_from_numpy(np.full(64, 0.1))
    graph = dy.ComputationGraph()
    with graph:
        graph.renew(forward_only=True)
        h = dy.zeros(64)
        first = dy.inputVector(np.ones(64))
        expected = np.zeros(64)
        used = 0
        for step in range(6000):
            h = dy.tanh(w * h + b) + first * 0.01
            expected = np.tanh(0.9 * expected + np.float32(0.1)) + 0.01
            h.value()
            if step == 3000:
                used = arena.used_bytes()
        assert arena.used_bytes() == used
        assert len(graph) < 10_000  # of 30,000 nodes
        np.testing.assert_allclose(h.npvalue(), expected, rtol=1e-4)
        np.testing.assert_array_equal(first.npvalue(), np.ones(64))
        assert w.expr() is w.expr()
        np.testing.assert_allclose((w * first).npvalue(), np.full(64, 0.9), rtol=1e-6)


def test_nodes_not_computed_are_kept_when_numbered_anew() -> None:
    graph = dy.ComputationGraph()
    with graph:
        graph.renew(forward_only=True)
        x = dy.inputTensor(np.arange(6.0).reshape(2, 3), batched=True)
        later = dy.pick(dy.dropout(x, 0.5) + x, 1) * 2
        kept = [dy.pick_batch(x, [1, 0, 1])]
        for _ in range(9000):
            dy.tanh(x).value()
        assert len(graph) < 9000
        kept.append(later)
        value = later.npvalue().ravel()
        assert set(value / np.array([3, 4, 5]) / 2) <= {1.0, 3.0}
        np.testing.assert_array_equal(kept[0].npvalue().ravel(), [3, 1, 5])


def test_what_is_never_computed_frees_its_arguments() -> None:
    dy.renew_cg(forward_only=True)
    x = dy.inputVector(np.ones(8))
    y = x
    for _ in range(100_000):  # too long to be freed by recursion
        y = dy.tanh(y)
    graph = dy.cg()
    del y
    alive = [node for node in nodes(graph) if node.args]
    assert not alive
    np.testing.assert_array_equal(x.value(), [1] * 8)


def test_dropped_nodes_by_number() -> None:
    graph = dy.renew_cg(forward_only=True)
    x = dy.inputVector([1, 2])
    y = dy.tanh(dy.square(x))
    y.value()
    with pytest.raises(IndexError, match="node 1 has been dropped"):
        expression(graph, 1)
    assert expression(graph, 2) is y
    assert graph.forward_vec(2) == y.value()


def test_what_is_not_possible() -> None:
    dy.renew_cg(forward_only=True)
    model = dy.ParameterCollection()
    p = model.add_parameters(3)
    x = dy.inputVector([1, 2, 3])
    loss = dy.dot_product(p, x)
    for call, name in (
        (loss.backward, "backward"),
        (lambda: loss.value(recalculate=True), "recalculate"),
        (lambda: x.set([3, 2, 1]), "set"),
        (lambda: dy.pick(x, 1).set_index(0), "set_index"),
    ):
        with pytest.raises(RuntimeError, match=f"{name}: a graph with forward_only=True"):
            call()
    loss.value()
    dy.renew_cg()
    dy.dot_product(p, dy.inputVector([1, 2, 3])).backward()
    np.testing.assert_array_equal(p.grad_as_array(), [1, 2, 3])


def test_stale_expressions(graph) -> None:
    graph.renew(forward_only=True)
    x = dy.inputVector([1, 2])
    assert type(x) is ForwardExpression
    graph.renew(forward_only=True)
    y = dy.inputVector([3, 4])
    with pytest.raises(dy.StaleExpressionError):
        x.value()
    del x  # now y has its number
    gc.collect()
    z = dy.square(y)
    assert z.value() == [9, 16]
    graph.renew()
    assert type(dy.inputVector([1])) is not ForwardExpression
    with pytest.raises(dy.StaleExpressionError):
        z.value()


def test_revert(strategy) -> None:
    graph = dy.ComputationGraph()
    with graph:
        graph.renew(forward_only=True)
        x = dy.inputVector(np.arange(4))
        y = dy.square(x)
        for k in range(3000):
            dy.cg_checkpoint()
            z = dy.tanh(y) + k
            w = dy.cube(z)
            if k % 2:
                w.value()
            unfinished = dy.exp(z)
            dy.cg_revert()
            assert len(graph) == 2
            if k % 3:
                with pytest.raises(dy.StaleExpressionError):
                    unfinished.value()
        assert y.value() == [0, 1, 4, 9]
        assert x.value() == [0, 1, 2, 3]
        # The value is computed after a later checkpoint, and is right after the revert.
        late = dy.cube(x)
        dy.cg_checkpoint()
        assert dy.sum_elems(late).value() == 36
        dy.cg_revert()
        assert late.value() == [0, 1, 8, 27]


def test_checkpoints_and_long_loops() -> None:
    graph = dy.ComputationGraph()
    with graph:
        graph.renew(forward_only=True)
        x = dy.inputVector([1, 2])
        dy.cg_checkpoint()
        for _ in range(10_000):
            y = dy.square(x)
            y.value()
        assert len(graph) > 10_000
        dy.cg_revert()
        for _ in range(10_000):
            y = dy.square(x)
            y.value()
        assert len(graph) < 10_000
        assert y.value() == [1, 4]


def test_out_of_memory_loses_nothing(memory_left) -> None:
    graph = dy.ComputationGraph()
    with graph:
        graph.renew(forward_only=True)
        x = dy.constant((1000, 100), 1.0)
        kept = [x]
        memory_left(8 * MIB)
        while len(kept) < 200:
            kept.append(kept[-1] + 1)
            try:
                kept[-1].forward()
            except MemoryError:
                break
        assert 10 < len(kept) < 30
        n = len(kept) - 2  # the last has no value
        assert float(kept[n].npvalue().max()) == n + 1
        del kept[1 : n - 1]
        memory_left(2 * MIB)  # for everything but values
        for _ in range(50):  # the memory of dropped values is enough
            kept.append(kept[-1] + 1)
            kept[-1].forward()
            del kept[0]
        assert float(kept[-1].npvalue().min()) == float(kept[-1].npvalue().max())


def test_check_validity() -> None:
    dy.renew_cg(forward_only=True, check_validity=True)
    x = dy.inputVector([0.0, 1.0])
    y = dy.log(x)
    with pytest.raises(ValueError, match="not finite"):
        y.value()
    with pytest.raises(ValueError, match="not finite"):
        y.value()
    assert dy.exp(x).value() == pytest.approx([1, np.e])


@pytest.mark.parametrize("builder", [dy.LSTMBuilder, dy.GRUBuilder], ids=lambda b: b.__name__)
@pytest.mark.parametrize("stacked", [False, True], ids=["one", "stacked"])
def test_states_keep_no_predecessors(builder, stacked: bool) -> None:
    builder = builder(2, 8, 8, dy.ParameterCollection())
    dy.renew_cg(forward_only=True)
    x = dy.inputVector(np.ones(8))
    state = StackedRNNState([builder.initial_state()]) if stacked else builder.initial_state()
    first = state.add_input(x)
    state = first
    for _ in range(5):
        state = state.add_input(x)
    with pytest.raises(RuntimeError, match="the program has to keep the states"):
        state.prev()
    assert first.add_input(x).prev() is first


@pytest.mark.usefixtures("nothing_held")
def test_decoding_without_end() -> None:
    """A decoder that reads its own output, in one graph."""
    model = dy.ParameterCollection()
    builder = dy.LSTMBuilder(1, 32, 64, model)
    w, b = model.add_parameters((2000, 64)), model.add_parameters(2000)
    table = model.add_lookup_parameters((2000, 32))
    graph = dy.ComputationGraph()
    with graph:
        graph.renew(forward_only=True)
        state = builder.initial_state()
        word, said, used = 0, [], 0
        for step in range(3000):
            state = state.add_input(table[word])
            word = int(np.argmax(dy.log_softmax(dy.affine_transform([b, w, state.output()])).npvalue()))
            said.append(word)
            if step == 1000:
                used = arena.used_bytes()
        assert arena.used_bytes() == used
    dy.renew_cg()
    state = builder.initial_state()
    word = 0
    for i in range(50):
        state = state.add_input(table[word])
        word = int(np.argmax((w * state.output() + b).npvalue()))
        assert word == said[i]
