"""Values that are requested one by one and computed together."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from arrays import all_close

import dynet_cy as dy
from dynet_cy import config, profiling
from dynet_cy.core import engine
from dynet_cy.graph.expressions import random_state, set_random_state
from dynet_cy.graph.expressions import reset_random_seed as set_seed
from dynet_cy.memory import arena
from dynet_cy.schedule import speculation

WIDTH = 12  # examples that advance in step


@pytest.fixture(autouse=True)
def own_graph() -> Iterator[None]:
    with dy.ComputationGraph():
        yield
    config.set(batch_requests=True)


class Net:
    """A recurrent network whose next input depends on the value of its state."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.model = dy.ParameterCollection()
        self.w = self.model.parameters_from_numpy(rng.uniform(-1, 1, (5, 5)))
        self.v = self.model.parameters_from_numpy(rng.uniform(-1, 1, (3, 5)))
        self.table = self.model.lookup_parameters_from_numpy(rng.uniform(-1, 1, (4, 5)))

    def begin(self, count: int = WIDTH) -> list[dy.Expression]:
        return [self.table[i % 4] for i in range(count)]

    def step(self, h: dy.Expression, choice: int) -> tuple[dy.Expression, dy.Expression]:
        h = dy.tanh(self.w * h + self.table[choice])
        return h, self.v * h

    def in_step(self, steps: int, together: bool = False, asked: int = WIDTH) -> tuple[list[int], list[dy.Expression]]:
        """Advance all examples in step; request the scores of the first `asked`."""
        states, choices, losses, decided = self.begin(), [0] * WIDTH, [], []
        for _ in range(steps):
            both = [self.step(h, c) for h, c in zip(states, choices)]
            states = [h for h, _ in both]
            scores = [s for _, s in both]
            if together:
                dy.forward(scores)
            for i in range(asked):
                choices[i] = int(np.argmax(scores[i].npvalue()))
            decided += choices
            losses += [dy.pickneglogsoftmax(s, 1) for s in scores]
        return decided, losses


def learn(net: Net, rounds: int = 20) -> None:
    """Run a program that requests all values, so that the scheduler expects these requests."""
    for _ in range(rounds):
        dy.renew_cg()
        net.in_step(10)


def test_a_loop_costs_what_forward_of_the_list_costs() -> None:
    net = Net()
    dy.renew_cg()
    together = net.in_step(10, together=True)[0]
    batches = dy.cg().n_batches()
    learn(net)
    dy.renew_cg()
    assert net.in_step(10)[0] == together
    assert dy.cg().n_batches() == batches
    config.set(batch_requests=False)
    dy.renew_cg()
    assert net.in_step(10)[0] == together
    assert dy.cg().n_batches() > 5 * batches


@pytest.mark.parametrize("autobatching", [0, 1, 2])
def test_values_and_gradients_are_those_without(autobatching: int) -> None:
    found = []
    for on in (True, False):
        net = Net()
        config.set(batch_requests=on)
        with dy.ComputationGraph():
            for _ in range(12):
                dy.renew_cg(autobatching=autobatching)
                decided, losses = net.in_step(10)
                loss = dy.esum(losses)
                value = loss.value()
                loss.backward()
            assert (speculation.counts(dy.cg()).early > 0) == (on and autobatching > 0)
        gradients = [p.grad_as_array() for p in (net.w, net.v, net.table)]
        found.append((decided, value, gradients))
    assert found[0][0] == found[1][0]
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-6)
    all_close(found[0][2], found[1][2], rtol=1e-4, atol=1e-5)


def nodes_of(run) -> int:
    with profiling.measure() as profile:
        run()
    return sum(row.nodes for row in profile if not row.backward)


@pytest.mark.parametrize("asked", [1, WIDTH // 2])
def test_what_is_never_used_is_bounded(asked: int) -> None:
    """A program that requests all values and then suddenly only some computes at most 5 % more nodes."""
    net = Net()

    def program() -> None:
        learn(net, 12)
        for _ in range(12):
            dy.renew_cg()
            net.in_step(10, asked=asked)

    with dy.ComputationGraph():
        ours = nodes_of(program)
        assert speculation.counts(dy.cg()).early > 0
    config.set(batch_requests=False)
    with dy.ComputationGraph():
        plain = nodes_of(program)
    assert plain <= ours <= 1.05 * plain


def test_at_any_time_the_unused_is_a_twentieth_of_the_used() -> None:
    rng = np.random.default_rng(3)
    net = Net()
    most = 0.0
    for _ in range(300):
        dy.renew_cg()
        net.in_step(3, asked=int(rng.integers(1, WIDTH + 1)) if rng.random() < 0.1 else WIDTH)
        counts = speculation.counts(dy.cg())
        if counts.unused:
            most = max(most, counts.unused / (counts.ran + counts.unused))
    assert 0 < most <= 0.05


def test_programs_that_ask_for_one_of_many_compute_nothing_else() -> None:
    """The best of several successors, early exits: nodes that nobody requests are not computed."""
    net = Net()
    for _ in range(30):
        dy.renew_cg()
        h = net.begin(1)[0]
        for k in range(6):
            successors = [net.step(h, c) for c in range(4)]
            h = successors[k % 4][0]
            successors[k % 4][1].value()
    assert speculation.counts(dy.cg()).early == 0


def test_what_needs_the_value_or_another_one_is_not_beside_it() -> None:
    w = dy.ParameterCollection().parameters_from_numpy(np.eye(3))
    for _ in range(40):
        dy.renew_cg()
        chain = [dy.inputVector([1, 2, 3])]
        for _ in range(5):
            chain.append(w * chain[-1])
        for x in chain[1:]:
            x.value()
    assert speculation.counts(dy.cg()).early == 0


def test_several_kinds_in_turns() -> None:
    net = Net()
    u = net.model.parameters_from_numpy(np.ones((1, 5)))
    for _ in range(25):
        dy.renew_cg()
        states = net.begin()
        for _ in range(6):
            both = [net.step(h, 0) for h in states]
            states = [h for h, _ in both]
            stops = [dy.logistic(u * h) for h in states]
            for (_, scores), stop in zip(both, stops):
                scores.value()
                stop.value()
    assert dy.cg().n_batches() <= 6 * 9


def test_plans_are_cached() -> None:
    net = Net()
    learn(net)
    engine.stats("schedule.plan", reset=True)
    dy.renew_cg()
    net.in_step(10)
    made, reused = tuple(engine.stats("schedule.plan").values())
    assert made == 0
    assert reused == 10


def test_forward_only() -> None:
    net = Net()
    dy.renew_cg()
    expected, _ = net.in_step(10)
    for _ in range(25):
        dy.renew_cg(forward_only=True)
        assert net.in_step(10)[0] == expected
    assert speculation.counts(dy.cg()).early > 0
    states = net.begin()
    for _ in range(2500):  # nodes are numbered anew meanwhile
        both = [net.step(h, 0) for h in states]
        states = [h for h, _ in both]
        values = [s.npvalue() for _, s in both]
        del both
    counts = speculation.counts(dy.cg())
    assert len(dy.cg()) < 20000
    assert counts.early > 0.8 * counts.ran
    assert counts.unused <= 0.05 * counts.ran
    np.testing.assert_allclose(values[0], values[4], rtol=1e-5)


def test_checkpoints() -> None:
    net = Net()
    learn(net)
    dy.renew_cg()
    states = net.begin()
    expected = None
    for _ in range(30):
        dy.cg_checkpoint()
        scores = [net.step(h, 2)[1] for h in states]
        found = [s.npvalue() for s in scores[: WIDTH // 2]]
        dy.cg_revert()
        again = [net.step(h, 2)[1] for h in states]
        found += [s.npvalue() for s in again[WIDTH // 2 :]]
        if expected is None:
            expected = found
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        dy.renew_cg()
        states = net.begin()
    counts = speculation.counts(dy.cg())
    assert 0 < counts.unused <= 0.05 * counts.ran


@pytest.mark.parametrize("how", ["check_validity", "detect_anomaly"])
def test_an_error_beside_is_that_of_who_asks_for_it(how: str) -> None:
    x = dy.ParameterCollection().parameters_from_numpy(np.ones((2, 2)))

    def values(numbers: list[float]) -> Iterator[dy.Expression]:
        return iter([dy.log(dy.sum_elems(x * dy.inputVector([n, 0.0]))) for n in numbers])

    def program() -> None:
        check = how == "check_validity"
        for _ in range(60):
            dy.renew_cg(check_validity=check)
            for e in values([1.0] * WIDTH):
                e.value()
        early = speculation.counts(dy.cg()).early
        assert early > 0
        dy.renew_cg(check_validity=check)
        asked = list(values([1.0, 2.0, -1.0, 3.0, *[1.0] * (WIDTH - 4)]))
        assert asked[0].value() == pytest.approx(np.log(2))
        assert speculation.counts(dy.cg()).early > early
        assert asked[1].value() == pytest.approx(np.log(4))
        with pytest.raises(ValueError, match=r"[Ll]og"):
            asked[2].value()
        assert asked[3].value() == pytest.approx(np.log(6))

    if how == "detect_anomaly":
        with dy.detect_anomaly():
            program()
    else:
        program()


@pytest.mark.usefixtures("nothing_held")
def test_too_little_memory_for_those_beside() -> None:
    def program(size: int) -> list[dy.Expression]:
        return [dy.tanh(dy.ones((size,))) for _ in range(WIDTH)]

    for _ in range(60):
        dy.renew_cg()
        for e in program(4):
            e.value()
    dy.renew_cg()
    large = program(1 << 18)  # a megabyte each, and as much for the ones
    early = speculation.counts(dy.cg()).early
    before = arena.limit()
    arena.set_limit(arena.used_bytes() + (7 << 20))
    try:
        assert large[3].npvalue()[0] == pytest.approx(np.tanh(1))
    finally:
        arena.set_limit(before)
    assert speculation.counts(dy.cg()).early > early
    assert large[4].npvalue()[-1] == pytest.approx(np.tanh(1))


def test_what_a_handler_raises_is_not_taken_for_a_failure() -> None:
    net = Net()
    learn(net)

    def handler(*_: object) -> None:
        raise MemoryError("of the handler")

    before = signal.signal(signal.SIGALRM, handler)
    try:
        w = dy.ParameterCollection().add_parameters((700, 700))
        for _ in range(60):
            dy.renew_cg()
            for e in [w * dy.inputVector([1.0] * 700) for _ in range(WIDTH)]:
                e.value()
        dy.renew_cg()
        wide = []
        for _ in range(WIDTH):
            h = dy.inputTensor(np.ones((700, 400)))
            for _ in range(8):
                h = w * h
            wide.append(h)

        def stopped() -> None:
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            list(map(dy.Expression.npvalue, wide))

        with pytest.raises(MemoryError, match="of the handler"):
            stopped()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_random_numbers_do_not_depend_on_it() -> None:
    found = []
    for on in (True, False):
        config.set(batch_requests=on)
        set_seed(5)
        net = Net()
        with dy.ComputationGraph():
            for _ in range(15):
                dy.renew_cg()
                values = []
                for _ in range(20):
                    masked = [dy.dropout(dy.tanh(h), 0.5) for h in net.begin()]
                    values += [m.npvalue() for m in masked]
        found.append(values)
    np.testing.assert_array_equal(*found)


def test_the_same_bits_from_a_saved_state() -> None:
    """The batches decide how sums are rounded, so a restored state must repeat the same batches."""
    net = Net()
    learn(net)
    state = random_state()
    found = []
    for begin in (lambda: None, lambda: set_random_state(state), lambda: set_seed(3)):
        begin()
        batches = []
        for _ in range(6):
            dy.renew_cg()
            net.in_step(10)
            batches.append(dy.cg().n_batches())
        found.append(batches)
    assert found[0] == found[1] == found[2]
    assert found[0][0] > found[0][-1]


def test_threads() -> None:
    net = Net()
    dy.renew_cg()
    expected, _ = net.in_step(10)
    found: list[list[int]] = []

    def work() -> None:
        with dy.ComputationGraph():
            learn(net)
            dy.renew_cg()
            found.append(net.in_step(10)[0])
            assert speculation.counts(dy.cg()).early > 0

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 3


def test_recalculate() -> None:
    net = Net()
    learn(net)
    dy.renew_cg()
    x = [dy.inputVector([float(k)] * 5) for k in range(WIDTH)]
    scores = [net.v * e for e in x]
    first = [s.npvalue() for s in scores[:3]]
    for e in x:
        e.set([1.0] * 5)
    assert scores[1].npvalue(recalculate=True).sum() == pytest.approx(first[1].sum())
    assert scores[2].npvalue().sum() == pytest.approx(first[1].sum())


def test_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.get()["batch_requests"] is True
    monkeypatch.setattr("sys.argv", ["program", "--dynet-batch-requests", "0"])
    params = config.DynetParams()
    params.from_args()
    config.init_from_params(params)
    assert config.get()["batch_requests"] is False
    with pytest.raises(ValueError, match="batch_requests must be 0 or 1, not 3"):
        config.set(batch_requests=3)
