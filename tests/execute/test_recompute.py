"""Values that are dropped after forward and computed again in backward: the same bits, and less memory."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import all_close
from own_process import run_python

import dynet_cy as dy
from dynet_cy import profiling
from dynet_cy.core import engine
from dynet_cy.graph.expressions import arena_bytes
from dynet_cy.memory import arena

Call = Callable[..., Any]


def plainly(function: Call, *args: Any) -> Any:
    """What `checkpoint` does, without dropping anything."""
    return function(*args)


def chain(model: dy.ParameterCollection, call: Call) -> dy.Expression:
    """Sentences of different lengths through cells, some at a time, and a layer over all states."""
    cells = dy.LSTMBuilder(2, 24, 128, model)
    out = model.add_parameters((10, 128))
    table = model.add_lookup_parameters((30, 24))

    def run(state, words):
        states = []
        for word in words:
            state = state.add_input(dy.tanh(table[word]))
            states.append(state.output())
        return state, states

    losses = []
    for n in (12, 7, 9):
        state = cells.initial_state()
        words = [(7 * i + n) % 30 for i in range(n)]
        for i in range(0, n, 4):
            state, states = call(run, state, words[i : i + 4])
            losses += [dy.pickneglogsoftmax(out * h, k % 10) for k, h in enumerate(states)]
    return dy.esum(losses)


def layers(model: dy.ParameterCollection, call: Call) -> dy.Expression:
    """Layers of a Transformer with dropout, each of them called for every sentence."""
    encoders = [dy.nn.TransformerEncoderLayer(32, 4, 64, model, dropout=0.2) for _ in range(3)]
    table = model.add_lookup_parameters((40, 32))
    losses = []
    for n in (5, 9, 5):
        x = dy.concatenate_cols([table[(3 * i + n) % 40] for i in range(n)])
        for encoder in encoders:
            x = call(encoder, x)
        losses.append(dy.squared_norm(x))
    return dy.esum(losses)


def images(model: dy.ParameterCollection, call: Call) -> dy.Expression:
    """Convolutions with batch normalization, whose statistics change once."""
    first = dy.nn.Conv2d(3, 4, 3, model, padding="same")
    norm = dy.nn.BatchNorm(4, model, axis=-1)
    second = dy.nn.Conv2d(4, 2, 3, model)

    def block(x):
        return dy.rectify(norm(first(x)))

    x = dy.inputTensor(np.linspace(-1, 1, 8 * 8 * 3 * 2).reshape(8, 8, 3, 2), batched=True)
    y = dy.maxpooling2d(call(block, x), (2, 2), (2, 2))
    return dy.sum_batches(dy.squared_norm(call(second, y)))


def nested(model: dy.ParameterCollection, call: Call) -> dy.Expression:
    """Calls within calls within calls, with results of the inner ones used outside."""
    W = [model.add_parameters((100, 100)) for _ in range(3)]
    noisy = []

    def inner(h, i):
        a = dy.tanh(W[i] * h)
        b = dy.dropout(dy.logistic(a + h), 0.3)
        return dy.cmult(a, b) + h

    def middle(h):
        for i in range(3):
            h = call(inner, h, i)
            noisy.append(h)
        return dy.tanh(h)

    def outer(h):
        return call(middle, call(middle, h)) + dy.noise(h, 0.1)

    losses = []
    for k in range(3):
        h = dy.inputVector(np.sin(np.arange(100) + k))
        losses.append(dy.squared_norm(call(outer, call(outer, h))))
    return dy.esum([*losses, dy.squared_norm(noisy[1]), dy.sum_elems(noisy[-1])])


def parts(model: dy.ParameterCollection, call: Call) -> dy.Expression:
    """Long vectors, which run in pieces and tiles, and parts of them, which are views."""
    W = model.add_parameters((4 * 160, 160))
    b = model.add_parameters(4 * 160)

    def cell(h, c):
        gates = dy.affine_transform([b, W, h])
        i, f, o, u = (dy.pick_range(gates, 160 * k, 160 * k + 160) for k in range(4))
        c = dy.cmult(dy.logistic(i), dy.tanh(u)) + dy.cmult(dy.logistic(f), c)
        return dy.cmult(dy.logistic(o), dy.tanh(c)), c

    def cells(h, c):
        for _ in range(3):
            h, c = cell(h, c)
        return h, c

    losses = []
    for k in range(4):
        h, c = dy.inputVector(np.cos(np.arange(160) + k)), dy.zeros(160)
        for _ in range(3):
            h, c = call(cells, h, c)
        losses.append(dy.squared_norm(h) + dy.sum_elems(c))
    return dy.esum(losses)


PROGRAMS = [chain, layers, images, nested, parts]


def gradients(program: Call, call: Call) -> list[np.ndarray]:
    """The loss and the gradients of all parameters."""
    dy.reset_random_seed(11)
    dy.renew_cg()
    model = dy.ParameterCollection()
    loss = program(model, call)
    value = loss.npvalue()
    loss.backward()
    return [value, *(p.grad_as_array() for p in [*model.parameters_list(), *model.lookup_parameters_list()])]


def same_bits(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b))


@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_have_the_same_bits(program, strategy):
    """With every schedule, on fresh parameters."""
    expected = gradients(program, plainly)
    engine.stats("execute.rematerialize", reset=True)
    assert same_bits(gradients(program, dy.checkpoint), expected)
    # Of `images`, backward reads only what batch normalization has asked for, and what stays after the pass.
    assert (engine.stats("execute.rematerialize")["nodes"] > 0) == (program is not images)


def test_a_chain_takes_the_memory_of_a_square_root():
    """A chain of N cells, in one call: memory of order sqrt(N), and less than 2 N forward operations."""
    n, size = 1024, 1024

    def run(call):
        dy.reset_random_seed(1)
        dy.renew_cg()
        model = dy.ParameterCollection()
        b = model.add_parameters(size)

        def cells(h):
            for _ in range(n):
                h = dy.tanh(h + b)
            return h

        gc.collect()
        arena.give_back()
        loss = dy.squared_norm(call(cells, dy.zeros(size)))
        engine.stats("execute.rematerialize", reset=True)
        loss.backward()
        held = arena_bytes()
        return held["values"] + held["gradients"], b.grad_as_array()

    most, expected = run(plainly)
    least, found = run(dy.checkpoint)
    assert np.array_equal(found, expected)
    assert 0 < engine.stats("execute.rematerialize")["nodes"] < 2 * n  # each cell is two nodes
    per_node = 4 * size
    assert most > n * per_node  # gradients live for a batch only, and sums until they have been read
    assert least < 2.2 * (2 * n) ** 0.5 * per_node + (1 << 17)


def steps(
    call: Call, n: int = 12, model: dy.ParameterCollection | None = None
) -> tuple[list[dy.Expression], dy.Parameters]:
    """All expressions of a chain, and its parameter."""
    model = model or dy.ParameterCollection()
    W = model.add_parameters((40, 40), init=dy.UniformInitializer(0.3))
    made = [dy.inputVector(np.linspace(-1, 1, 40))]

    def some(h):
        for _ in range(4):
            product = W * h
            h = dy.dropout(dy.tanh(product), 0.2)
            made.extend([product, h])
        return h

    h = made[0]
    for _ in range(n // 4):
        h = call(some, h)
    made.append(dy.squared_norm(h))
    return made, W


def test_gradients_of_dropped_values_are_there(strategy):
    """Those of nodes to which an expression refers: nothing runs again for them, and the program may have updated."""

    def asked(call):
        dy.reset_random_seed(3)
        dy.renew_cg()
        model = dy.ParameterCollection()
        made, W = steps(call, model=model)
        made[-1].backward()
        engine.stats("execute.rematerialize", reset=True)
        dy.SimpleSGDTrainer(model, 0.1).update()
        found = [x.gradient() for x in made[1:]]
        assert engine.stats("execute.rematerialize")["nodes"] == 0
        return found

    assert same_bits(asked(dy.checkpoint), asked(plainly))


@pytest.mark.parametrize("views", [False, True])
def test_full_backward_keeps_the_gradients_of_dropped_values(strategy, views):
    def asked(call):
        dy.reset_random_seed(3)
        dy.renew_cg()
        model = dy.ParameterCollection()
        made, W = steps(call, model=model)
        if views:

            def halves(h):
                both = dy.concatenate([dy.tanh(W * h), h])
                made.extend([dy.pick_range(both, 0, 40), dy.pick_range(both, 40, 80), both])
                return dy.cmult(made[-3], made[-2])

            h = made[-2]
            for _ in range(4):
                h = call(halves, h)
            made.append(dy.squared_norm(h))
        made[-1].backward(full=True)
        return [x.gradient() for x in made] + [W.grad_as_array()]

    assert same_bits(asked(dy.checkpoint), asked(plainly))


def test_newer_values_may_be_dropped_before_backward(strategy):
    """The stretch that ran last is newer than the target of backward, whose stretches need the memory."""

    def asked(call):
        dy.reset_random_seed(3)
        dy.renew_cg()
        made, W = steps(call)
        found = [made[-1].npvalue()]
        newer = [made[0]]

        def more(h):
            for _ in range(6):
                newer.append(h := dy.tanh(W * h + made[0]))
            return h

        last = call(more, made[0])
        found.append(last.npvalue())
        made[-1].backward()
        found += [W.grad_as_array().copy(), *(x.npvalue() for x in newer), *(x.npvalue() for x in made)]
        dy.squared_norm(last).backward()
        return [*found, W.grad_as_array(), newer[2].gradient()]

    assert same_bits(asked(dy.checkpoint), asked(plainly))


def test_new_nodes_read_dropped_values(strategy):
    """A node that is made after forward reads what was dropped, and its gradient arrives there."""

    def asked(call):
        dy.reset_random_seed(3)
        dy.renew_cg()
        made, W = steps(call)
        found = [made[-1].npvalue()]
        second = call(lambda x, y: dy.squared_norm(dy.tanh(x) + y), made[7], made[-4])
        found.append(second.npvalue())
        (second + made[-1] + dy.sum_elems(made[2])).backward()
        return [*found, W.grad_as_array(), made[7].gradient(), made[2].gradient()]

    all_close(asked(dy.checkpoint), asked(plainly), rtol=2e-5, atol=1e-6)


def test_values_are_asked_for_inside(strategy):
    """`value()` within the call; what ran before it is kept."""

    def asked(call):
        dy.reset_random_seed(3)
        dy.renew_cg()
        W = dy.ParameterCollection().add_parameters((30, 30))

        def some(h):
            for _ in range(3):
                h = dy.tanh(W * h)
                if h.npvalue()[0] > 0:
                    h = dy.dropout(h, 0.5)
            return dy.tanh(W * h)

        h = dy.inputVector(np.ones(30))
        for _ in range(4):
            h = call(some, h)
        dy.squared_norm(h).backward()
        return [W.grad_as_array(), h.gradient()]

    all_close(asked(dy.checkpoint), asked(plainly), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("change", ["update", "set_value", "load"])
def test_parameters_that_changed_are_an_error(change, tmp_path):
    """Never a wrong number; and the gradients are as they were before."""
    dy.renew_cg()
    model = dy.ParameterCollection()
    made, W = steps(dy.checkpoint, model=model)
    made[-1].forward()
    dropped = made[3]
    if change == "update":
        with dy.ComputationGraph():
            dy.squared_norm(W).backward()
        dy.SimpleSGDTrainer(model, 0.1).update()
    elif change == "set_value":
        W.set_value(W.as_array() + 1)
    else:
        model.save(str(tmp_path / "w"))
        model.populate(str(tmp_path / "w"))
    before = W.grad_as_array().copy()
    for ask in (made[-1].backward, dropped.value, lambda: dy.squared_norm(dropped).value()):
        with pytest.raises(RuntimeError, match=r"have changed.*checkpoint\(\) dropped"):
            ask()
    assert np.array_equal(W.grad_as_array(), before)
    assert made[-1].value() > 0  # what was kept is still there
    dy.renew_cg()
    made, W = steps(dy.checkpoint)
    made[-1].backward()


def test_the_seed_may_change_between_forward_and_backward():
    """Masks are drawn again from the seed of forward."""

    def asked(call):
        dy.reset_random_seed(3)
        dy.renew_cg()
        made, W = steps(call)
        made[-1].forward()
        dy.reset_random_seed(4)
        made[-1].backward()
        return [W.grad_as_array()]

    assert same_bits(asked(dy.checkpoint), asked(plainly))


def test_reverts_and_new_inputs(strategy):
    """Going back to a checkpoint of the graph, and inputs that are set anew."""

    def asked(call):
        dy.reset_random_seed(3)
        dy.renew_cg()
        x = dy.vecInput(40)
        x.set(np.ones(40))
        W = dy.ParameterCollection().add_parameters((40, 40))

        def some(h):
            for _ in range(6):
                h = dy.tanh(W * h)
            return h

        y = call(some, x)
        inner = dy.tanh(W * call(some, y))
        found = [y.npvalue()]
        dy.cg_checkpoint()
        z = call(some, inner)
        found.append(dy.squared_norm(z).npvalue())
        dy.squared_norm(z).backward()
        dy.cg_revert()
        z = dy.squared_norm(call(some, call(some, inner)))
        found.append(z.npvalue())
        x.set(np.zeros(40) + 0.5)
        found.append(z.npvalue())
        z.backward()
        return [*found, W.grad_as_array(), y.gradient()]

    all_close(asked(dy.checkpoint), asked(plainly), rtol=2e-5, atol=1e-6)


def test_anomalies_and_profiles():
    """Checks find numbers that are not finite inside; profiles count what is computed again."""
    model = dy.ParameterCollection()
    W = model.add_parameters((20, 20))
    for last in (dy.tanh, dy.sqrt):  # the gradient of a square root at 0 is not finite
        dy.renew_cg()
        h = dy.inputVector(np.ones(20))
        for function in (dy.tanh, dy.tanh, last, dy.tanh):
            h = dy.checkpoint(lambda h, function=function: function(dy.square(W * h) * 0), h)
        loss = dy.squared_norm(h + 1)
        with dy.detect_anomaly():
            if last is dy.sqrt:
                with pytest.raises(dy.AnomalyError, match="backward of sqrt"):
                    loss.backward()
            else:
                loss.backward()
    dy.renew_cg()
    made, _ = steps(dy.checkpoint)
    with profiling.measure() as profile:
        made[-1].backward()
    nodes = {row.way: row.nodes for row in profile if row.op == "matmul"}
    assert nodes["forward"] == 12
    assert 0 < nodes["again"] <= 12


def test_exceptions_inside_leave_no_region():
    """And the graph goes on."""
    dy.renew_cg()
    x = dy.inputVector([1.0, 2.0])
    with pytest.raises(ZeroDivisionError):
        dy.checkpoint(lambda: dy.tanh(x) / 0 and 1 // 0)
    assert dy.checkpoint(dy.tanh, x=x).value() == dy.tanh(x).value()


def test_items_of_a_map_overlap():
    """Items of a batched map that wait within their calls."""
    W = dy.ParameterCollection().add_parameters((20, 20))

    def item(call, k):
        def some(h):
            for _ in range(3):
                h = dy.tanh(W * h)
                if k % 2:
                    h.value()
            return h

        h = dy.inputVector(np.full(20, 0.1 * k))
        return dy.squared_norm(call(some, call(some, h)))

    def asked(call):
        dy.renew_cg()
        dy.esum(list(dy.batched_map(lambda k: item(call, k), range(6)))).backward()
        gradient = W.grad_as_array().copy()
        W.scale_gradient(0)
        return gradient

    np.testing.assert_allclose(asked(dy.checkpoint), asked(plainly), rtol=2e-5, atol=1e-6)


def random_program(seed: int, call: Call) -> tuple[bool, list[np.ndarray], list[np.ndarray]]:
    """Random nodes in random calls, nested, whose values are asked for at random; what it finds."""
    rng = np.random.default_rng(seed)
    dy.reset_random_seed(seed)
    dy.renew_cg(autobatching=int(rng.integers(3)))
    model = dy.ParameterCollection()
    sizes = (12, 144)
    W = {n: model.add_parameters((n, n)) for n in sizes}
    pool = {n: [dy.inputVector(np.sin(np.arange(n) + k)) for k in range(3)] for n in sizes}
    found = []

    def one():
        n = sizes[int(rng.integers(2))]
        x, y = (pool[n][int(rng.integers(max(0, len(pool[n]) - 6), len(pool[n])))] for _ in range(2))
        kind = int(rng.integers(8))
        if kind == 0:
            new = dy.tanh(W[n] * x)
        elif kind == 1:
            new = dy.cmult(x, dy.logistic(y))
        elif kind == 2:
            new = dy.dropout(x + y, 0.3)
        elif kind == 3:
            new = dy.pick_range(dy.concatenate([x, y]), n // 2, n + n // 2)
        elif kind == 4:
            new = dy.softmax(x) + y
        elif kind == 5:
            new = dy.layer_norm(x, W[n][0], y)
        elif kind == 6:
            both = dy.concatenate([dy.tanh(x), y])
            new = dy.pick_range(both, 0, n) - dy.pick_range(both, n, 2 * n)
        else:
            new = dy.tanh(dy.affine_transform([y, W[n], x]))
        pool[n].append(new)

    def some(depth):
        for _ in range(int(rng.integers(2, 12))):
            if depth < 3 and rng.random() < 0.2:
                call(some, depth + 1)
            else:
                one()

    quiet = rng.random() < 0.5
    for _ in range(int(rng.integers(3, 9))):
        call(some, 0) if rng.random() < 0.8 else one()
        if not quiet and rng.random() < 0.4:
            n = sizes[int(rng.integers(2))]
            found.append(pool[n][int(rng.integers(len(pool[n])))].npvalue())
    loss = dy.esum([dy.squared_norm(x) for n in sizes for x in pool[n][-4:]])
    loss.backward()
    found += [loss.npvalue(), *(p.grad_as_array() for p in model.parameters_list())]
    later = []
    for _ in range(4):
        n = sizes[int(rng.integers(2))]
        x = pool[n][int(rng.integers(max(1, len(pool[n]) - 4)))]
        later += [x.npvalue(), x.gradient()] if rng.random() < 0.5 else [x.gradient(), x.npvalue()]
    return quiet, found, later


def compare_random_programs(seeds: Iterable[int]) -> None:
    for seed in seeds:
        quiet, found, later = random_program(seed, dy.checkpoint)
        _, expected, expected_later = random_program(seed, plainly)
        assert not quiet or same_bits(found, expected), seed
        all_close([*found, *later], [*expected, *expected_later], rtol=1e-3, atol=1e-5, what=seed)


# In the last ones arguments of a softmax lie side by side in memory with `checkpoint` only, or without it only.
@pytest.mark.parametrize(
    "seeds", [*(range(i, i + 20) for i in range(0, 200, 20)), (1546, 1581, 1590, 1842, 2310, 2364, 3080)], ids=str
)
def test_random_programs(seeds: Sequence[int], tmp_path: Path) -> None:
    """The same numbers as without; the same bits where one pass computes all.

    In a process of its own, since the products that another test has made may decide how these are made."""
    done = run_python(tmp_path, f"import test_recompute; test_recompute.compare_random_programs({seeds!r})")
    assert done.returncode == 0, done.stderr
