"""batched_map: programs that look at values, run for many items, with one pass for all that wait."""

from __future__ import annotations

import contextvars
import cProfile
import gc
import os
import threading
import traceback

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.graph.graph import set_seed
from dynet_cy.kernels.draws import HostRandom

pytestmark = pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""),
    reason="fibers copy stacks, which the address sanitizer takes for faults",
)


def halvings(number: float) -> int:
    """How often a number is halved until it is at most 1."""
    x, steps = dy.scalarInput(number), 0
    while x.value() > 1:
        x, steps = x * 0.5, steps + 1
    return steps


class Walker:
    """A model whose next step depends on a value."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.model = dy.ParameterCollection()
        self.w = self.model.parameters_from_numpy(rng.uniform(-1, 1, (6, 6)))
        self.v = self.model.parameters_from_numpy(rng.uniform(-1, 1, (1, 6)))
        self.table = self.model.lookup_parameters_from_numpy(rng.uniform(-1, 1, (5, 6)))

    def loss(self, start: int, length: int) -> dy.Expression:
        h, terms = self.table[start], []
        for _ in range(length):
            h = dy.tanh(self.w * h + self.table[0 if h.npvalue().sum() > 0 else 1])
            terms.append(dy.square(self.v * h))
        return dy.esum(terms)


ITEMS = [(i % 5, 1 + 3 * i % 7) for i in range(11)]


def test_results_are_in_the_order_of_the_items() -> None:
    dy.renew_cg()
    assert dy.batched_map(halvings, [100, 1, 8]) == [7, 0, 3]
    assert dy.batched_map(lambda a, b: a - b, [5, 6, 7], (1, 2)) == [4, 4]
    assert dy.batched_map(halvings, []) == []


def test_one_pass_for_all_that_wait() -> None:
    dy.renew_cg(autobatching=1)
    dy.batched_map(halvings, [2.0**k for k in range(20)])
    assert dy.cg().n_batches() == 19


@pytest.mark.parametrize("autobatching", [0, 1, 2])
@pytest.mark.parametrize("width", [None, 1, 3])
def test_values_and_gradients_are_those_of_a_loop(autobatching: int, width: int | None) -> None:
    walker = Walker()
    dy.renew_cg(autobatching=autobatching)
    plain = dy.esum([walker.loss(*item) for item in ITEMS])
    expected = plain.value()
    plain.backward()
    gradients = [p.grad_as_array() for p in (walker.w, walker.v, walker.table)]
    trainer = dy.SimpleSGDTrainer(walker.model, learning_rate=0.0)
    trainer.update()
    dy.renew_cg(autobatching=autobatching)
    losses = dy.batched_map(walker.loss, *zip(*ITEMS), width=width)
    total = dy.esum(losses)
    assert total.value() == pytest.approx(expected, rel=1e-6)
    total.backward()
    for p, gradient in zip((walker.w, walker.v, walker.table), gradients):
        np.testing.assert_allclose(p.grad_as_array(), gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ask", ["value", "npvalue", "scalar_value", "vec_value", "tensor_value", "forward", "values"])
def test_every_request_lets_the_others_go_on(ask: str) -> None:
    def item(number: int) -> None:
        x = dy.scalarInput(number) * 2
        if ask == "values":
            dy.values([x, x + 1])
        else:
            getattr(x, ask)()
        seen.append(len(dy.cg()))

    dy.renew_cg()
    seen: list[int] = []
    dy.batched_map(item, range(5))
    assert len(set(seen)) == 1


def test_nested_maps_join_the_same_passes() -> None:
    def inner(number: int) -> int:
        return sum(dy.batched_map(lambda k: halvings(number * k), range(1, 5)))

    dy.renew_cg(autobatching=1)
    found = dy.batched_map(inner, [1, 3, 9])
    assert dy.cg().n_batches() == 6
    assert found == [sum(halvings(n * k) for k in range(1, 5)) for n in (1, 3, 9)]


def test_items_are_read_when_there_is_room() -> None:
    read: list[int] = []
    running = []
    most = 0

    def items():
        for i in range(10):
            read.append(i)
            yield i

    def item(i: int) -> None:
        nonlocal most
        assert read[-1] == i
        running.append(i)
        most = max(most, len(running))
        for _ in range(1 + i % 3):
            (dy.scalarInput(i) + 1).value()
        running.remove(i)

    dy.renew_cg()
    dy.batched_map(item, items(), width=3)
    assert most == 3
    assert read == list(range(10))


def test_an_error_names_its_item_and_ends_the_others() -> None:
    ended = []

    def item(number: int) -> int:
        try:
            if dy.scalarInput(number).value() == 0:
                (dy.scalarInput(1) + 1).value()
                raise LookupError("not this one")
            for _ in range(9):
                (dy.scalarInput(1) + 1).value()
        finally:
            ended.append(number)
        return number

    dy.renew_cg()
    with pytest.raises(LookupError, match="not this one") as caught:
        dy.batched_map(item, [3, 0, 4])
    text = "".join(traceback.format_exception(caught.type, caught.value, caught.tb))
    assert "in item 1 of batched_map: 0" in text
    assert 'raise LookupError("not this one")' in text
    assert sorted(ended) == [0, 3, 4]
    assert dy.batched_map(halvings, [4]) == [2]
    found = dy.batched_map(item, [3, 0], return_exceptions=True)
    assert found[0] == 3
    assert isinstance(found[1], LookupError)


def test_an_error_in_a_nested_map() -> None:
    def inner(number: int) -> int:
        return 1 // (number - int((dy.scalarInput(1) * 2).value()))

    def outer(number: int) -> list[int]:
        return dy.batched_map(inner, [number, number + 1])

    dy.renew_cg()
    with pytest.raises(ZeroDivisionError):
        dy.batched_map(outer, [5, 1, 7])
    found = dy.batched_map(outer, [5, 1, 7], return_exceptions=True)
    assert found[0] == [0, 0]
    assert isinstance(found[1], ZeroDivisionError)
    assert found[2] == [0, 0]


def test_an_error_of_a_pass_is_that_of_the_item_that_asked() -> None:
    def item(number: float) -> float:
        return dy.log(dy.scalarInput(number)).value()

    dy.renew_cg(check_validity=True)
    found = dy.batched_map(item, [1.0, -1.0, 2.0], return_exceptions=True)
    assert found[0] == 0
    assert isinstance(found[1], ValueError)
    assert found[2] == pytest.approx(np.log(2))


def test_an_error_of_the_iterable() -> None:
    def items():
        yield 4
        raise OSError("no more")

    dy.renew_cg()
    with pytest.raises(OSError, match="no more"):
        dy.batched_map(halvings, items(), width=1)
    assert halvings(4) == 2


def test_an_interrupt_ends_all() -> None:
    def item(number: int) -> None:
        (dy.scalarInput(number) + 1).value()
        if number == 1:
            raise KeyboardInterrupt
        (dy.scalarInput(number) + 1).value()

    dy.renew_cg()
    with pytest.raises(KeyboardInterrupt):
        dy.batched_map(item, range(4), return_exceptions=True)
    assert dy.batched_map(halvings, [4]) == [2]


def draws_of(number: int) -> list[float]:
    found = []
    for _ in range(number):
        found += [dy.random_normal((2,)).npvalue().sum(), float(HostRandom().uniform(1)[0])]
        found.append(dy.dropout(dy.ones((8,)), 0.5).npvalue().sum())
    return found


def test_random_numbers_of_an_item_do_not_depend_on_the_others() -> None:
    numbers = [2, 5, 1, 3]
    found = []
    for width in (None, 1, 2, 3):
        set_seed(7)
        dy.renew_cg()
        found.append((dy.batched_map(draws_of, numbers, width=width), dy.random_normal((1,)).value()))
    assert all(other == found[0] for other in found[1:])
    firsts = [item[0] for item in found[0][0]]
    assert len(set(firsts)) == 4
    set_seed(7)
    dy.renew_cg()
    assert dy.batched_map(draws_of, [9, 5, 9, 9])[1] == found[0][0][1]
    assert dy.batched_map(draws_of, numbers) != found[0][0]  # the next map draws other numbers


def test_random_numbers_of_nested_maps() -> None:
    def outer(number: int) -> list[list[float]]:
        return [*dy.batched_map(draws_of, [1, number]), *dy.batched_map(draws_of, [1])]

    found = []
    for width in (None, 1, 2):
        set_seed(7)
        dy.renew_cg()
        found.append(dy.batched_map(outer, [3, 1, 2], width=width))
    assert found[0] == found[1] == found[2]
    firsts = [draws[0] for item in found[0] for draws in item]
    assert len(set(firsts)) == 9


def test_forward_only_drops_what_ended() -> None:
    w = dy.ParameterCollection().parameters_from_numpy(np.eye(8))

    def item(number: int) -> float:
        h = dy.inputVector([number % 3] * 8)
        for _ in range(50):
            h = w * h
            h.npvalue()
        return h.npvalue()[0]

    dy.renew_cg(forward_only=True)
    assert dy.batched_map(item, range(300), width=10) == [float(i % 3) for i in range(300)]
    assert len(dy.cg()) < 6000


def test_threads_with_a_graph_each() -> None:
    found: dict[int, list[int]] = {}

    def work(k: int) -> None:
        with dy.ComputationGraph():
            for _ in range(20):
                found[k] = dy.batched_map(halvings, [2.0**i for i in range(k, k + 9)])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {k: list(range(k, k + 9)) for k in range(3)}


def test_a_graph_of_its_own_in_an_item() -> None:
    def item(number: int) -> int:
        (dy.scalarInput(number) + 1).value()
        with dy.ComputationGraph():
            inner = dy.batched_map(halvings, [number, number * 2])
        return inner[1] + int((dy.scalarInput(number) + 1).value())

    dy.renew_cg()
    assert dy.batched_map(item, [4, 8]) == [8, 13]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: dy.renew_cg(), "renew_cg in an item of batched_map"),
        (lambda: dy.cg_checkpoint(), "cg_checkpoint in an item of batched_map"),
        (lambda: dy.cg_revert(), "cg_revert in an item of batched_map"),
        (lambda: dy.scalarInput(1).backward(), "backward in an item of batched_map"),
    ],
)
def test_what_an_item_must_not_do(wrong, message: str) -> None:
    dy.renew_cg()
    with pytest.raises(RuntimeError, match=message):
        dy.batched_map(lambda _: wrong(), [1])
    assert halvings(4) == 2


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="function must be callable, not int"):
        dy.batched_map(3, [1])
    with pytest.raises(TypeError, match="an iterable of items is needed"):
        dy.batched_map(halvings)
    with pytest.raises(ValueError, match="width must be at least 1, not 0"):
        dy.batched_map(halvings, [1], width=0)

    def items():
        yield dy.batched_map(halvings, [1])

    dy.renew_cg()
    with pytest.raises(RuntimeError, match="not one of its items that called"):
        dy.batched_map(halvings, items())


def test_each_item_has_its_context_variables() -> None:
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(5)

    def item(number: int) -> int:
        before = variable.get()
        variable.set(number)
        (dy.scalarInput(1) + 1).value()
        return before * 100 + variable.get()

    dy.renew_cg()
    assert dy.batched_map(item, [1, 2, 3]) == [501, 502, 503]
    assert variable.get() == 5


def test_profilers_see_the_function() -> None:
    profile = cProfile.Profile()
    dy.renew_cg()
    profile.runcall(dy.batched_map, halvings, [4, 8, 16])
    calls = {code.co_name: entry.callcount for entry in profile.getstats() if hasattr(code := entry.code, "co_name")}
    assert calls["halvings"] == 3


def test_nothing_is_left_of_the_items() -> None:
    dy.renew_cg()
    dy.batched_map(halvings, [4, 8])
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(20):
        dy.renew_cg()
        dy.batched_map(halvings, [4, 8])
        dy.batched_map(lambda k: 1 // k if halvings(k) == 0 else k, [0, 4], return_exceptions=True)
    gc.collect()
    assert len(gc.get_objects()) < before + 100
