"""batched_map: programs that read values run for many items at once, with one pass for all waiting calls."""

from __future__ import annotations

import asyncio
import contextvars
import cProfile
import gc
import io
import pdb
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from functools import partial
from pathlib import Path
from typing import Callable

import greenlet
import numpy as np
import pytest
from own_process import run_python

import dynet_cy as dy
from dynet_cy.graph.expressions import reset_random_seed as set_seed
from dynet_cy.kernels.kernels import HostRandom
from dynet_cy.memory import arena

pytestmark = pytest.mark.fibers


def halvings(number: float) -> int:
    """The number of times a number is halved until it is at most 1."""
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
    dy.batched_map(halvings, [2.0**k for k in range(20)], width=20)
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


@pytest.mark.parametrize(
    "ask",
    [
        *["value", "npvalue", "scalar_value", "vec_value", "tensor_value", "forward"],
        *["values", "npvalues", "float", "array", "sample", "forward of a list", "forward_scalar"],
    ],
)
def test_every_request_lets_the_others_go_on(ask: str) -> None:
    ways = {
        "values": lambda x: dy.values([x, x + 1]),
        "npvalues": lambda x: dy.npvalues([x, x + 1]),
        "float": float,
        "array": np.asarray,
        "sample": lambda x: dy.concatenate([x, x]).tensor_value().categorical_sample_log_prob(),
        "forward of a list": lambda x: dy.forward([x]),
        "forward_scalar": lambda x: dy.cg().forward_scalar(len(dy.cg()) - 1),
    }

    def item(number: int) -> None:
        x = dy.scalarInput(number) * 2
        if ask in ways:
            ways[ask](x)
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


def test_ctrl_c_during_a_pass_ends_all() -> None:
    """The handler runs in the middle of the common pass; `finally` blocks of all calls run.

    The timer measures the time of the CPU, which other programs do not change.
    """
    w = dy.ParameterCollection().add_parameters((600, 600))
    ended = []

    def item(number: int) -> float:
        h = dy.inputTensor(np.ones((600, 300)))
        for _ in range(40):
            h = w * h
        try:
            if number == 2:  # the pass begins when the last item waits
                signal.setitimer(signal.ITIMER_PROF, 0.02)
            return h.npvalue()[0, 0]
        finally:
            ended.append(number)

    def handler(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGPROF, handler)
    dy.renew_cg()
    try:
        with pytest.raises(KeyboardInterrupt):
            dy.batched_map(item, range(3), return_exceptions=True)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    assert sorted(ended) == [0, 1, 2]
    assert dy.batched_map(halvings, [4]) == [2]
    dy.renew_cg()
    assert dy.batched_map(halvings, [8]) == [3]


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


def test_thousands_of_items_need_no_more_memory_than_a_few() -> None:
    w = dy.ParameterCollection().parameters_from_numpy(np.eye(64))

    def item(number: int) -> float:
        h = dy.inputVector([number % 7] * 64)
        for _ in range(6):
            h = w * h
            h.npvalue()
        return h.npvalue()[0]

    sizes = []
    with dy.ComputationGraph() as graph:
        for count in (300, 6000):
            graph.renew(forward_only=True)
            found = dy.batched_map(item, iter(range(count)), width=30)
            assert found == [i % 7 for i in range(count)]
            sizes.append((len(graph), arena.used_bytes()))
    assert sizes[1][0] < 10000  # of 90,000 nodes
    assert sizes[1][1] < sizes[0][1] + (1 << 20)


def test_thousands_at_once() -> None:
    dy.renew_cg(autobatching=1)
    assert dy.batched_map(halvings, [8.0] * 4000, width=4000) == [3] * 4000
    assert dy.cg().n_batches() == 3


@pytest.mark.parametrize(("size", "usual", "first"), [(8, 8, 8), (300, 64, 8), (1500, 64, 64)])
def test_usual_width(size: int, usual: int, first: int) -> None:
    """On a CPU, calls under way at once are 8 that read little, or 64 once it is seen that they read much."""
    model = dy.ParameterCollection()
    w = model.add_parameters((size, size))
    under_way, most = 0, 0
    begun: list[int] = []

    def item(number: int) -> float:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        h = dy.inputVector([number] * size)
        for _ in range(10):
            h = dy.tanh(w * h)
            h.npvalue()
            begun.append(under_way)
        under_way -= 1
        return float(h.npvalue()[0])

    found, widths = [], []
    for own in (None, 200, None):  # products with a matrix that was used before sum in another order
        most = 0
        begun.clear()
        dy.renew_cg(forward_only=True, autobatching=1)
        found.append(dy.batched_map(item, range(200), width=own))
        widths += [most, begun[0]]
    assert widths == [usual, first, 200, 200, usual, first]
    assert found[0] == pytest.approx(found[1], abs=1e-5)
    dy.renew_cg(forward_only=True, autobatching=1)
    assert dy.batched_map(item, range(200)) == found[2]


@pytest.mark.usefixtures("small_graphs_keep_all")
@pytest.mark.parametrize("losses", [False, True])
@pytest.mark.parametrize("forward_only", [False, True])
def test_small_calls_wait_for_each_other_only_if_backward_will_follow(losses: bool, forward_only: bool) -> None:
    """As far as that can be seen: the graph keeps nodes, and some that no value needed are left after each request."""
    w = dy.ParameterCollection().add_parameters((8, 8))

    def item(number: int) -> dy.Expression:
        h, left = dy.inputVector([number] * 8), []
        for _ in range(12):
            h = dy.tanh(w * h)
            h.npvalue()
            if losses:
                left.append(dy.pickneglogsoftmax(h, 1))
        return dy.esum(left or [h])

    dy.renew_cg(forward_only=forward_only, autobatching=1)
    before = dy.cg().n_batches()
    dy.batched_map(item, range(100))
    batches = dy.cg().n_batches() - before
    assert (batches < 1000) == (losses and not forward_only), batches


def test_data_parallel_training(tmp_path: Path) -> None:
    """Two processes with half of the items each get the same parameters as one with all of them in a loop."""
    program = tmp_path / "train.py"
    program.write_text(
        """
import sys
import greenlet
import numpy as np
import dynet_cy as dy

model = dy.ParameterCollection()
w = model.parameters_from_numpy(np.random.default_rng(1).uniform(-1, 1, (4, 4)))
trainer = dy.parallel.wrap(dy.SimpleSGDTrainer(model, 0.1), reduction="sum")
rank, size = dy.parallel.rank(), dy.parallel.size()

def loss_of(k):
    h = dy.inputVector([k, 1, 2, 3])
    for _ in range(5):
        h = dy.tanh(w * h) + (0.5 if dy.sum_elems(h).value() > 0 else -0.5)
    return dy.squared_norm(h)

for _ in range(4):
    dy.renew_cg()
    items = range(rank, 6, size)
    loss = dy.esum(list(map(loss_of, items)) if sys.argv[1] == "loop" else dy.batched_map(loss_of, items))
    loss.backward()
    trainer.update()
np.save(f"{sys.argv[1]}{rank}.npy", w.as_array())
""",
        encoding="utf-8",
    )
    python = [sys.executable]
    subprocess.run([*python, str(program), "loop"], cwd=tmp_path, check=True, timeout=600)
    launched = [*python, "-m", "dynet_cy.launch", "-n", "2", str(program), "map"]
    subprocess.run(launched, cwd=tmp_path, check=True, timeout=600)
    ranks = [np.load(tmp_path / f"map{k}.npy") for k in range(2)]
    np.testing.assert_array_equal(*ranks)
    np.testing.assert_allclose(ranks[0], np.load(tmp_path / "loop0.npy"), rtol=1e-4, atol=1e-5)


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
    with pytest.raises(RuntimeError, match="the caller is not one of its items"):
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


def test_a_trace_function_sees_the_function() -> None:
    """Debuggers and coverage tools see every line and every return of every item."""
    events: list[str] = []

    def trace(frame, event: str, argument: object):
        if frame.f_code is halvings.__code__:
            events.append(event)
            return trace
        return None

    dy.renew_cg()
    found = []
    before = sys.gettrace()
    for run in (lambda: list(map(halvings, [4, 8, 16])), lambda: dy.batched_map(halvings, [4, 8, 16])):
        events.clear()
        sys.settrace(trace)
        try:
            assert run() == [2, 3, 4]
            assert sys.gettrace() is trace
        finally:
            sys.settrace(before)
        found.append(sorted(events))
    assert found[0] == found[1]
    assert found[0].count("call") == 3


def test_a_debugger_stops_in_an_item() -> None:
    def item(number: int) -> int:
        (dy.scalarInput(number) + 1).value()
        if number == 2:
            debugger.set_trace()
        (dy.scalarInput(number) + 1).value()
        return number * 10

    told = io.StringIO()
    # From Python 3.13 on, it stops at the line of set_trace, before at the next one: two lines later, it is at the
    # return or past it.
    debugger = pdb.Pdb(stdin=io.StringIO("p number\nw\nn\nn\np number\nc\n"), stdout=told, nosigint=True, readrc=False)
    dy.renew_cg()
    before = sys.gettrace()
    try:
        assert dy.batched_map(item, [1, 2, 3]) == [10, 20, 30]
    finally:
        sys.settrace(before)
    text = told.getvalue()
    assert re.findall(r"^\(Pdb\) (\d+)$", text, flags=re.M) == ["2", "2"]
    assert "return number * 10" in text


def test_tracebacks_show_the_lines_of_the_item_alone() -> None:
    def helper(number: int) -> float:
        return 1 / (dy.scalarInput(number) * 2).value()

    dy.renew_cg()
    with pytest.raises(ZeroDivisionError) as caught:
        dy.batched_map(lambda k: helper(k), [1, 0, 2])
    names = [frame.name for frame in traceback.extract_tb(caught.tb)]
    assert names[-1] == "helper"
    assert names.count("helper") == 1
    assert "<lambda>" in names


def test_another_task_waits_while_a_map_runs() -> None:
    """A map blocks its thread, like any call; if it runs in another thread, tasks go on."""
    order: list[str] = []
    ended = threading.Event()

    async def other() -> None:
        for _ in range(3):
            await asyncio.sleep(0.001)
        order.append("other")
        ended.set()

    def work(wait: Callable[[], object]) -> list[int]:
        with dy.ComputationGraph():
            found = dy.batched_map(lambda k: (wait(), halvings(k))[1], [4, 8])
        order.append("map")
        return found

    async def main() -> None:
        beside = asyncio.create_task(other())
        await asyncio.sleep(0)
        assert work(lambda: time.sleep(0.05)) == [2, 3]
        await beside
        ended.clear()
        beside = asyncio.create_task(other())
        assert await asyncio.to_thread(work, lambda: ended.wait(600)) == [2, 3]
        await beside

    asyncio.run(main())
    assert order == ["map", "other", "other", "map"]


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


def test_calls_take_over_the_greenlets_of_those_that_have_ended() -> None:
    """Greenlets are reused: starting one costs more than the rest of a short call."""
    used: set[greenlet.greenlet] = set()

    def item(number: int) -> int:
        used.add(greenlet.getcurrent())
        return halvings(number)

    dy.renew_cg()
    for _ in range(20):
        assert dy.batched_map(item, [4] * 12, width=3) == [2] * 12
    assert len(used) == 3


def test_calls_hand_over_to_each_other() -> None:
    """A call that waits switches directly to the next one, not through the caller of the map."""

    def item(number: int) -> None:
        for _ in range(10):
            (dy.scalarInput(number) + 1).value()

    switches: list[tuple[greenlet.greenlet, greenlet.greenlet]] = []
    here = greenlet.getcurrent()
    before = greenlet.settrace(lambda event, greenlets: switches.append(greenlets))
    dy.renew_cg()
    try:
        dy.batched_map(item, range(20), width=20)
    finally:
        greenlet.settrace(before)
    by_way = sum(here in pair for pair in switches)
    assert by_way == 2 * (20 + 9 + 20)  # start, the first call after each pass but the last, and end
    assert len(switches) == by_way + 9 * 19


def test_greenlets_that_are_kept_do_not_keep_what_they_ran() -> None:
    class Kept:
        pass

    def item(thing: Kept) -> Kept:
        (dy.scalarInput(1) + 1).value()
        return thing

    dy.renew_cg()
    things = [Kept() for _ in range(5)]
    seen = [weakref.ref(thing) for thing in things]
    results = dy.batched_map(item, things)
    assert len(results) == 5
    del things, results
    dy.renew_cg()
    gc.collect()
    assert [ref() for ref in seen] == [None] * 5


def test_threads_that_end_leave_their_greenlets() -> None:
    def work() -> None:
        with dy.ComputationGraph():
            assert dy.batched_map(halvings, [4] * 8) == [2] * 8

    gc.collect()
    before = sum(isinstance(x, greenlet.greenlet) for x in gc.get_objects())
    for _ in range(5):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    gc.collect()
    assert sum(isinstance(x, greenlet.greenlet) for x in gc.get_objects()) <= before + 2


def test_maps_from_elsewhere_in_the_stack() -> None:
    """Greenlets are reused only by maps called from a similar stack depth; others start new ones."""

    def deeper(levels: int) -> int:
        if levels:
            return sorted([0], key=lambda _: deeper(levels - 1))[0]  # through C
        found.append(dy.batched_map(halvings, [4, 8]))
        return 0

    dy.renew_cg()
    found: list[list[int]] = []
    for levels in (0, 60, 0, 30, 60, 0):
        deeper(levels)
    assert found == [[2, 3]] * 6


def test_random_numbers_of_the_items_do_not_depend_on_the_width() -> None:
    """Numbers that the iterable draws come from the program's stream, whichever calls ran before."""

    def numbers():
        for _ in range(6):
            yield float(dy.random_uniform((1,), 0, 1).npvalue()[0])

    found = []
    for width in (1, 3):
        set_seed(5)
        dy.renew_cg()
        found.append(
            (dy.batched_map(lambda x: (x, draws_of(1)), numbers(), width=width), dy.random_normal((1,)).value())
        )
    assert found[0] == found[1]


def test_who_waits_for_a_map_goes_on_when_it_ends() -> None:
    """A call that waits for a nested map resumes before others that are ready, and nothing else keeps the results."""

    class Found:
        pass

    def inner(number: int) -> Found:
        (dy.scalarInput(number) + 1).value()
        order.append(f"inner {number}")
        found = Found()
        kept.append(weakref.ref(found))
        return found

    def outer(number: int) -> None:
        dy.batched_map(inner, [number, number])
        order.append(f"outer {number}")
        assert [ref() for ref in kept] == [None] * len(kept)

    order: list[str] = []
    kept: list[weakref.ref[Found]] = []
    dy.renew_cg()
    dy.batched_map(outer, [1, 2])
    assert order == ["inner 1", "inner 1", "outer 1", "inner 2", "inner 2", "outer 2"]


def test_the_next_items_begin_together() -> None:
    """The next items of a wide map begin together, so their first steps can batch."""
    began = []

    def item(number: int) -> None:
        began.append(dy.cg().n_batches())
        x = dy.scalarInput(number)
        for _ in range(5 + number % 37):
            x = x + 1
            x.value()

    dy.renew_cg()
    dy.batched_map(item, range(128), width=32)
    assert sorted(began) == began
    assert len(set(began)) <= 1 + (128 - 32) // 4


END = """
import atexit, sys, threading, time
import dynet_cy as dy

def block():
    waits.set()
    while True:                     # asks for the GIL again and again, until the interpreter has let it go
        time.sleep(0.0002)

def item(i):
    dy.tanh(dy.scalarInput(i)).value()
    if i == 1:
        {blocking}
    return dy.tanh(dy.scalarInput(i)).value()

def deeper(n):
    return deeper(n - 1) if n else dy.batched_map(item, range(3))

def work():
    dy.renew_cg()
    dy.batched_map(lambda i: dy.scalarInput(i).value(), range(5))   # its greenlets are used again
    {running}

waits = threading.Event()
threading.Thread(target=work, daemon=True).start()
waits.wait()
print("ends")
"""
RUNNING = [
    "dy.batched_map(item, range(3))",
    "deeper(20)",
    "dy.batched_map(lambda k: dy.batched_map(item, range(3)), range(2))",
]


@pytest.mark.parametrize("running", RUNNING)
@pytest.mark.parametrize("blocking", ["block()", "dy.batched_map(lambda k: block(), [0])"])
def test_a_process_ends_while_a_daemon_thread_is_in_an_item(running: str, blocking: str, tmp_path: Path) -> None:
    ended = run_python(tmp_path, END.format(running=running, blocking=blocking))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ends\n", "")


def endless(width: int, limit: int) -> tuple[int, int, int]:
    """How many items begin, how deep they are, and how many switches there are until an endless recursion ends."""

    def item(depth: int) -> list:
        nonlocal begun, deepest
        begun, deepest = begun + 1, max(deepest, depth)
        dy.tanh(dy.scalarInput(depth)).value()
        return dy.batched_map(item, [depth + 1] * width)

    def count(event: str, args: object) -> None:
        nonlocal switches
        switches += 1

    begun = deepest = switches = 0
    before = sys.getrecursionlimit()
    dy.renew_cg()
    greenlet.settrace(count)
    sys.setrecursionlimit(limit)
    try:
        with pytest.raises(RecursionError, match="recursion"):
            dy.batched_map(item, [0])
    finally:
        greenlet.settrace(None)
        sys.setrecursionlimit(before)
    assert halvings(4) == 2
    return begun, deepest, switches


def test_endless_recursion_is_an_error() -> None:
    begun, deepest, switches = endless(1, 1000)
    twice_begun, twice_deepest, twice_switches = endless(1, 2000)
    assert 200 < deepest < 1000
    assert begun == deepest + 1
    assert 1.9 < twice_deepest / deepest < 2.2
    for number, levels in [(switches, begun), (twice_switches, twice_begun)]:
        assert number < 8 * levels  # unwinding takes a few for each level


def test_endless_recursion_of_several_items_is_an_error() -> None:
    begun, deepest, switches = endless(2, 300)  # in the breadth, there would be 2^90 items at that depth
    assert 60 < deepest < 300
    assert begun < 80_000
    assert switches < 8 * begun


def test_more_nested_items_than_run_at_once() -> None:
    """From 32,768 nested items on, calls go into depth; results and random numbers are those of the plain order."""

    def leaf(i: int) -> float:
        return (dy.scalarInput(i) + dy.random_normal(1)).value()

    def tree(width: int | None, depth: int) -> list:
        x = leaf(depth)
        return [x, *(dy.batched_map(partial(tree, width), [depth - 1] * 2, width=width) if depth else [])]

    def wide(width: int | None, n: int) -> float:
        return sum(dy.batched_map(leaf, range(n), width=width))

    for function, argument in [(tree, 14), (wide, 34_000)]:
        found = []
        for width in (None, 1):
            dy.reset_random_seed(1)
            dy.renew_cg()
            found.append(dy.batched_map(partial(function, width), [argument]))
        assert found[0] == found[1]


def test_an_error_ends_the_maps_around_it_before_more_of_their_items_begin() -> None:
    begun = []

    def item(depth: int) -> list:
        begun.append(depth)
        if depth == 12:
            raise ValueError("deep")
        return dy.batched_map(item, [depth + 1] * 3)

    dy.renew_cg()
    with pytest.raises(ValueError, match="deep"):
        dy.batched_map(item, [0])
    assert begun == list(range(13))


def test_nested_maps_end_from_the_inside_out() -> None:
    ended = []

    def item(depth: int) -> None:
        try:
            while depth == 100:
                dy.tanh(dy.scalarInput(1)).value()
            dy.batched_map(item, [depth + 1])
        except greenlet.GreenletExit:
            ended.append(depth)
            raise

    def outer(i: int) -> None:
        if i:
            dy.tanh(dy.scalarInput(1)).value()
            raise KeyboardInterrupt
        item(0)

    dy.renew_cg()
    with pytest.raises(KeyboardInterrupt):
        dy.batched_map(outer, range(2))
    assert ended == list(range(101))[::-1]
    assert dy.batched_map(halvings, [4]) == [2]
