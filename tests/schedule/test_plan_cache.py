"""The cache of plans: the same numbers, less work, bounded memory."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from arrays import all_equal
from random_graphs import Model, build

import dynet_cy as dy
from dynet_cy import profiling
from dynet_cy.core import engine
from dynet_cy.schedule import plan as plan_cache


@pytest.fixture(autouse=True)
def defaults():
    """Restore limits and hashes after the test."""
    at_first = {"most_plans": 64, "most_bytes": 1 << 24, "hash_mask": 2**64 - 1}
    with engine.tuned({f"schedule.plan.{name}": value for name, value in at_first.items()}):
        engine.stats("schedule.plan", reset=True)
        yield
    dy.renew_cg()


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


def run(m: Model, strategy: int, structure: int, numbers: int) -> tuple[float, list[np.ndarray]]:
    dy.renew_cg(autobatching=strategy)
    loss = dy.esum(build(m, structure, numbers))
    value = loss.value()
    loss.backward()
    return value, m.gradients()


def made_and_reused() -> tuple[int, int]:
    found = engine.stats("schedule.plan")
    return found["made"], found["reused"]


def counted(work) -> tuple[int, int]:
    """The numbers of schedules that some work makes and reuses."""
    engine.stats("schedule.plan", reset=True)
    work()
    return made_and_reused()


@pytest.mark.parametrize("mask", [2**64 - 1, 3, 0], ids=["hashes", "many collisions", "all collide"])
@pytest.mark.parametrize("strategy", [1, 2])
def test_same_numbers(model: Model, strategy: int, mask: int) -> None:
    """Structures in random order, each several times with different values."""
    engine.tune("schedule.plan.hash_mask", mask)
    rng = np.random.default_rng(5)
    cases = [(int(s), int(n)) for s, n in zip(rng.integers(0, 12, 90), rng.integers(0, 1000, 90))]
    with engine.tuned({"schedule.plan.most_plans": 0}):
        desired = [run(model, strategy, *case) for case in cases]
    with dy.ComputationGraph():
        engine.stats("schedule.plan", reset=True)
        for case, (value, gradients) in zip(cases, desired):
            got, got_gradients = run(model, strategy, *case)
            assert got == value
            all_equal(got_gradients, gradients)
        made, reused = made_and_reused()
    assert reused > 40
    assert made + reused <= 90  # narrow graphs are not scheduled


def test_used_from_the_third_time_on(model: Model) -> None:
    with dy.ComputationGraph() as graph:
        engine.stats("schedule.plan", reset=True)
        for k in range(6):
            run(model, 1, 3, k)
        assert made_and_reused() == (2, 4)
        assert plan_cache.cached_in(graph)[0] == 1
        run(model, 2, 3, 0)  # another way to schedule
        run(model, 1, 4, 0)  # another structure
        assert made_and_reused() == (4, 4)


def columns(widths: list[int], scales: list[float] | None = None):
    """A graph whose nodes have these widths and are scaled by these constants."""
    xs = [dy.inputTensor(np.arange(2.0 * n).reshape(2, n) / 7) for n in widths]
    scaled = [dy.tanh(x) * s for x, s in zip(xs, scales or [2.0] * len(xs))]
    return dy.esum([dy.sum_elems(dy.exp(dy.softmax(x))) for x in scaled])


def products(m: Model, weights: str, vectors: str = "xxyx"):
    """Products of parameters with vectors, both named by letters; s and t are vectors that take one or two steps."""
    named = {"w": m.w.expr(), "u": m.u.expr(), "x": dy.inputVector(np.ones(6)), "y": dy.inputVector(np.arange(6.0))}
    named["s"] = dy.tanh(named["y"])
    named["t"] = dy.tanh(named["s"])
    return dy.esum([dy.squared_norm(named[w] * named[v]) for w, v in zip(weights, vectors)])


def batches_of(x, sizes: str):
    """Differences from x of values whose batch sizes are the digits of `sizes`."""
    ys = [dy.inputTensor(np.full((6, int(n)), 0.5), batched=True) for n in sizes]
    return dy.esum([dy.sum_batches(dy.squared_norm(dy.softmax(y) - x)) for y in ys])


ALIKE = {
    "sizes": (lambda m: columns([3, 4, 4]), lambda m: columns([3, 3, 4])),
    "parameters of ops": (lambda m: columns([3, 3, 3], [1, 1, 2]), lambda m: columns([3, 3, 3], [1, 2, 2])),
    "weights": (lambda m: products(m, "wwwu"), lambda m: products(m, "wuuu")),
    "arguments": (lambda m: products(m, "wwww", "sstt"), lambda m: products(m, "wwww", "tsst")),
    "batch sizes": (lambda m: batches_of(m.b, "2233"), lambda m: batches_of(m.b, "2333")),
    "tables": (
        lambda m: dy.esum([dy.squared_norm(t[k]) for k, t in enumerate([m.table, m.table, m.other])]),
        lambda m: dy.esum([dy.squared_norm(t[k]) for k, t in enumerate([m.table, m.other, m.other])]),
    ),
    "ops": (
        lambda m: dy.squared_norm(dy.esum([f(dy.sinh(m.b)) for f in (dy.sin, dy.sin, dy.cos)])),
        lambda m: dy.squared_norm(dy.esum([f(dy.sinh(m.b)) for f in (dy.sin, dy.cos, dy.cos)])),
    ),
}


@pytest.mark.parametrize("what", ALIKE)
def test_what_differs_is_scheduled_anew(model: Model, what: str) -> None:
    """Graphs with equal hashes that differ in one respect, and so in how they batch, do not share a plan."""
    engine.tune("schedule.plan.hash_mask", 0)
    desired = []
    for make in ALIKE[what]:
        dy.renew_cg(autobatching=0)
        desired.append(make(model).value())
    for order in ((0, 1), (1, 0)):
        with dy.ComputationGraph() as graph:
            engine.stats("schedule.plan", reset=True)
            for k in order * 3:
                graph.renew(autobatching=1)
                assert ALIKE[what][k](model).value() == pytest.approx(desired[k], rel=1e-6)
            made, reused = made_and_reused()
            assert made in (2, 3)
            assert made + reused == 6


@pytest.mark.parametrize("alternating", [2, 3, 4])
def test_structures_whose_hashes_are_near_are_cached(model: Model, alternating: int) -> None:
    """Structures that alternate are cached, though the hashes seen last are kept by their low bits only."""
    engine.tune("schedule.plan.hash_mask", ~0xFFFF & (2**64 - 1))
    with dy.ComputationGraph() as graph:
        for _ in range(3):
            engine.stats("schedule.plan", reset=True)
            for i in range(alternating):
                graph.renew(autobatching=1)
                dy.esum([dy.tanh(model.w * model.table[j]) for j in range(i + 2)]).value()
        assert made_and_reused() == (0, alternating)


def test_which_nodes_are_computed_matters(model: Model) -> None:
    engine.tune("schedule.plan.hash_mask", 0)
    values = []
    for k in range(8):
        dy.renew_cg(autobatching=1 if k else 0)
        xs = [dy.tanh(model.w * model.table[j]) for j in range(6)]
        dy.forward(xs[: k % 4 + 1])
        values.append(dy.esum([dy.squared_norm(x) for x in xs]).value())
    assert values == pytest.approx([values[0]] * 8, rel=1e-6)


def test_later_in_the_same_graph(model: Model) -> None:
    """Steps that repeat within one graph, on arguments computed before."""

    def steps(strategy: int) -> list[float]:
        dy.renew_cg(autobatching=strategy)
        states = [model.table[k] for k in range(8)]
        values = []
        for _ in range(10):
            states = [dy.tanh(model.w * s + model.b) for s in states]
            values.append(dy.esum([dy.squared_norm(s) for s in states]).value())
        dy.esum([dy.sum_elems(s) for s in states]).backward()
        return values

    desired = steps(0)
    want = model.gradients()
    for _ in range(2):
        made, reused = counted(lambda: np.testing.assert_allclose(steps(1), desired, rtol=1e-6))
        for g, w in zip(model.gradients(), want):
            np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6 * max(1, np.abs(w).max()))
    assert reused >= 8
    assert made <= 2


def test_after_going_back(model: Model) -> None:
    dy.renew_cg(autobatching=0)
    desired = {s: dy.esum(build(model, s, 0)).value() for s in range(6)}
    graph = dy.renew_cg(autobatching=1)
    dy.tanh(model.b).forward()
    made_before = len(graph)
    for k in range(30):
        dy.cg_checkpoint()
        assert dy.esum(build(model, k % 6, 0)).value() == pytest.approx(desired[k % 6], rel=1e-5)
        dy.cg_revert()
        assert len(graph) == made_before


def test_new_inputs_in_the_same_graph(model: Model) -> None:
    dy.renew_cg(autobatching=1)
    x = dy.inputVector(np.zeros(6))
    loss = dy.esum([dy.squared_norm(dy.tanh(model.w * x * float(k))) for k in range(5)])
    engine.stats("schedule.plan", reset=True)
    for k in range(5):
        x.set([k] * 6)
        w = model.w.as_array()
        got = loss.value(recalculate=True)
        want = sum((np.tanh(float(j) * (w @ np.full(6, k))) ** 2).sum() for j in range(5))
        assert got == pytest.approx(want, rel=1e-5)
    assert made_and_reused() == (2, 3)


def test_limits() -> None:
    def use(graph, n: int) -> None:
        graph.renew(autobatching=1)
        columns([n, n + 1, n + 2]).value()

    with dy.ComputationGraph() as graph:
        engine.tune("schedule.plan.most_plans", 3)
        for n in [1, 1, 2, 2, 3, 3, 1, 4, 4]:  # 2 was used least recently
            use(graph, n)
        assert plan_cache.cached_in(graph)[0] == 3
        assert counted(lambda: [use(graph, n) for n in (1, 3, 4)]) == (0, 3)
        assert counted(lambda: use(graph, 2)) == (1, 0)  # seen before, so it is cached, and 1 is dropped
        assert counted(lambda: [use(graph, n) for n in (2, 1)]) == (1, 1)
        count, size = plan_cache.cached_in(graph)
        assert count == 3
        engine.tune("schedule.plan.most_plans", 64)
        engine.tune("schedule.plan.most_bytes", size // 3 + 10)
        use(graph, 9)
        use(graph, 9)
        assert plan_cache.cached_in(graph)[0] == 1
        engine.tune("schedule.plan.most_bytes", 10)
        use(graph, 8)
        use(graph, 8)  # too large for the cache
        assert counted(lambda: use(graph, 8)) == (1, 0)


def test_structures_that_never_repeat_are_not_cached() -> None:
    with dy.ComputationGraph() as graph:
        for n in range(1, 100):
            graph.renew(autobatching=1)
            columns([n, n + 1, n + 2]).value()
        assert plan_cache.cached_in(graph) == (0, 0)


def test_threads(model: Model) -> None:
    """Each thread has its own graph and schedules."""
    desired = {(s, n): build_value(model, 0, s, n) for s in range(6) for n in range(3)}
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(60):
            case = int(rng.integers(6)), int(rng.integers(3))
            got = build_value(model, 1, *case)
            if got != pytest.approx(desired[case], rel=1e-5):
                wrong.append((case, got))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert engine.stats("schedule.plan")["reused"] > 100


def build_value(m: Model, strategy: int, structure: int, numbers: int) -> float:
    dy.renew_cg(autobatching=strategy)
    return dy.esum(build(m, structure, numbers)).value()


def test_in_the_profile(model: Model) -> None:
    with dy.ComputationGraph(), profiling.measure() as profile:
        for k in range(5):
            run(model, 1, 3, k)
    assert (profile.schedules, profile.reused) == (2, 3)
    assert "schedules: 2 made, 3 taken from the plan cache" in str(profile)
