"""Server: calls from threads and tasks join running ones, with one pass for all waiting calls."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import math
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
from arrays import all_close

import dynet_cy as dy
from dynet_cy.serving import server as serving

pytestmark = pytest.mark.fibers


def halvings(number: float) -> int:
    """The number of times a number is halved until it is at most 1."""
    x, steps = dy.scalarInput(number), 0
    while x.value() > 1:
        x, steps = x * 0.5, steps + 1
    return steps


@pytest.fixture
def server() -> Iterator[dy.Server]:
    with dy.Server(halvings) as made:
        yield made


class Endless:
    """A function that requests values until it is stopped."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.over = threading.Event()
        self.ended: list[Any] = []

    def __call__(self, name: Any = None) -> Any:
        try:
            while not self.over.is_set():
                (dy.scalarInput(1) + 1).value()
                self.begun.set()
            return name
        finally:
            self.ended.append(name)


@pytest.fixture
def endless() -> Iterator[Endless]:
    function = Endless()
    yield function
    function.over.set()


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that other threads make true."""
    end = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.001)


# -- calls ---------------------------------------------------------------------------------------


def test_threads_call_it_like_a_function(server: dy.Server) -> None:
    assert server(100) == 7
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(server, [2.0**k for k in range(60)])) == list(range(60))


def test_tasks_await_it(server: dy.Server) -> None:
    async def all_of_them() -> list[int]:
        return await asyncio.gather(*(server.call_async(2.0**k) for k in range(60)))

    assert asyncio.run(all_of_them()) == list(range(60))


def test_futures(server: dy.Server) -> None:
    calls = [server.submit(2.0**k) for k in range(60)]
    assert [call.result(600) for call in calls] == list(range(60))
    assert calls[0].exception() is None
    assert not calls[0].cancel()


@pytest.mark.parametrize("longest_pass", [1e-9, 0.005])
@pytest.mark.parametrize("autobatching", [0, 1, 2])
def test_values_are_those_of_a_loop(on_each_device: str, autobatching: int, longest_pass: float) -> None:
    rng = np.random.default_rng(1)
    model = dy.ParameterCollection()
    w = model.parameters_from_numpy(rng.uniform(-1, 1, (6, 6)))
    table = model.lookup_parameters_from_numpy(rng.uniform(-1, 1, (5, 6)))

    def walk(start: int, length: int) -> np.ndarray:
        h = table[start]
        for _ in range(length):
            h = dy.tanh(w * h + table[0 if h.npvalue().sum() > 0 else 1])
        return h.npvalue()

    items = [(k % 5, 1 + 7 * k % 12) for k in range(100)]
    dy.renew_cg()
    expected = [walk(*item) for item in items]
    with (
        dy.Server(walk, autobatching=autobatching, longest_pass=longest_pass) as server,
        ThreadPoolExecutor(9) as threads,
    ):
        all_close(threads.map(lambda item: server(*item), items), expected, rtol=1e-5, atol=1e-6)


def test_one_pass_for_all_that_wait(on_each_device: str, server: dy.Server) -> None:
    with server.paused():
        calls = [server.submit(2.0**k) for k in range(20)]
    assert [call.result(600) for call in calls] == list(range(20))
    found = server.statistics()
    assert found.passes == 19  # the first value exists before any pass
    assert found.nodes_per_pass == found.nodes / 19


def test_a_call_joins_those_under_way(endless: Endless) -> None:
    with dy.Server(lambda f, *arguments: f(*arguments)) as server:
        call = server.submit(endless, "last")
        assert endless.begun.wait(600)
        assert server(halvings, 100) == 7
        assert not call.done()
        assert server.statistics().in_flight == 1
        endless.over.set()
        assert call.result(600) == "last"


def test_a_call_joins_in_the_middle_of_a_pass() -> None:
    """A long pass is split, so that a call that arrives during it can end before it."""
    w = dy.ParameterCollection().parameters_from_numpy(np.eye(100))
    order = []

    def chain(length: int) -> float:
        x = dy.ones((100,))
        for _ in range(length):
            x = w * x
        found = float(x.npvalue()[0])
        order.append(length)
        return found

    with dy.Server(chain, longest_pass=1e-9) as server:
        with server.paused():
            long, short = server.submit(3000), server.submit(3)
        assert (long.result(600), short.result(600)) == (1, 1)
        assert order == [3, 3000]
        assert server.statistics().passes > 1000


def test_width_bounds_how_many_run(endless: Endless) -> None:
    with dy.Server(endless, width=3) as server:
        calls = [server.submit(k) for k in range(5)]
        until(lambda: server.statistics().in_flight == 3)
        time.sleep(0.02)
        found = server.statistics()
        assert (found.waiting, found.in_flight) == (2, 3)
        endless.over.set()
        assert [call.result(600) for call in calls] == list(range(5))


def test_maps_within_calls() -> None:
    def outer(number: int) -> int:
        return sum(dy.batched_map(lambda k: halvings(number * k), range(1, 5)))

    with dy.Server(outer) as server:
        with server.paused():
            calls = [server.submit(n) for n in (1, 3, 9)]
        found = [call.result(600) for call in calls]
        assert server.statistics().passes == 6
    assert found == [sum(halvings(n * k) for k in range(1, 5)) for n in (1, 3, 9)]


def test_each_call_has_the_context_of_its_caller() -> None:
    variable = contextvars.ContextVar("variable", default=0)

    def function(number: int) -> tuple[int, int]:
        before = variable.get()
        variable.set(number)
        (dy.scalarInput(1) + 1).value()
        return before, variable.get()

    async def caller(server: dy.Server, number: int) -> tuple[int, int]:
        variable.set(number * 10)
        with dy.ComputationGraph():  # the graph of the task, not of the call
            dy.scalarInput(1)
            found = await server.call_async(number)
            assert len(dy.cg()) == 1
        assert variable.get() == number * 10
        return found

    async def all_of_them(server: dy.Server) -> list[tuple[int, int]]:
        return await asyncio.gather(*(caller(server, k) for k in range(5)))

    with dy.Server(function) as server:
        assert asyncio.run(all_of_them(server)) == [(k * 10, k) for k in range(5)]


def test_graphs_of_callers_stay_theirs(server: dy.Server) -> None:
    dy.renew_cg()
    x = dy.scalarInput(3) * 2
    assert server(100) == 7
    assert len(dy.cg()) == 2
    assert x.value() == 6


# -- deadlines and cancellation ------------------------------------------------------------------


def submitted(server: dy.Server, deadline: float) -> None:
    server.submit(deadline=deadline).result(600)


def called_by_a_task(server: dy.Server, deadline: float) -> None:
    asyncio.run(server.call_async(deadline=deadline))


@pytest.mark.parametrize("called", [dy.Server.__call__, submitted, called_by_a_task])
def test_a_deadline_ends_a_call_under_way(endless: Endless, called: Callable[..., Any]) -> None:
    with dy.Server(endless) as server:
        # On a busy machine, a call may not have begun by its deadline; then it is made again with a later one.
        for number in range(1, 12):
            deadline = 0.05 * 2**number
            with pytest.raises(TimeoutError, match=f"no result within {deadline:g} s"):
                called(server, deadline=deadline)
            until(lambda: server.statistics().in_flight == 0)
            assert server.statistics().expired == number
            if endless.begun.is_set():
                break
        assert endless.ended == [None]


def test_a_deadline_ends_a_call_that_waits(endless: Endless) -> None:
    with dy.Server(endless, width=1, deadline=600) as server:
        first = server.submit("first")
        assert endless.begun.wait(600)
        call = server.submit("late", deadline=0.02)
        with pytest.raises(TimeoutError):
            call.result(600)
        endless.over.set()
        assert first.result(600) == "first"
        assert server("then") == "then"
        assert endless.ended == ["first", "then"]


def test_a_deadline_while_the_server_is_paused(server: dy.Server) -> None:
    with server.paused():
        with pytest.raises(TimeoutError):
            server(100, deadline=0.02)
        with pytest.raises(TimeoutError):
            server.submit(100, deadline=0.02).result(600)
    assert server(100) == 7


def test_the_deadline_of_the_server() -> None:
    endless = Endless()
    with dy.Server(endless, deadline=0.02) as server:
        with pytest.raises(TimeoutError):
            server()


def test_deadlines_of_calls_that_have_ended_are_forgotten(server: dy.Server) -> None:
    for _ in range(300):
        server(1, deadline=3600)
    assert len(server._engine.deadlines) < 200


def test_a_timeout_of_the_function_is_its_own(server: dy.Server) -> None:
    def function() -> None:
        raise TimeoutError("of a socket")

    server.reload(function)
    with pytest.raises(TimeoutError, match="of a socket"):
        server(deadline=600)
    assert server.statistics().failed == 1


def test_cancelling_a_call_under_way(endless: Endless) -> None:
    with dy.Server(endless) as server:
        other, call = server.submit("other"), server.submit("call")
        until(lambda: server.statistics().in_flight == 2)
        assert call.cancel()
        assert call.cancelled()
        assert call.cancel()
        with pytest.raises(CancelledError):
            call.result(600)
        until(lambda: endless.ended == ["call"])
        assert not other.done()
        endless.over.set()
        assert other.result(600) == "other"
        assert server.statistics().cancelled == 1


def test_cancelling_a_call_that_waits(endless: Endless) -> None:
    with dy.Server(endless, width=1) as server:
        first, second = server.submit("first"), server.submit("second")
        assert second.cancel()
        until(lambda: server.statistics().waiting == 0)
        endless.over.set()
        assert first.result(600) == "first"
        assert endless.ended == ["first"]


def test_a_task_that_is_cancelled_ends_its_call(endless: Endless) -> None:
    async def cancelled(server: dy.Server) -> None:
        task = asyncio.create_task(server.call_async("task"))
        while not endless.begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with dy.Server(endless) as server:
        asyncio.run(cancelled(server))
        until(lambda: endless.ended == ["task"])


def test_an_inner_map_ends_with_its_call(endless: Endless) -> None:
    with dy.Server(lambda: dy.batched_map(endless, range(3))) as server:
        call = server.submit()
        assert endless.begun.wait(600)
        call.cancel()
        until(lambda: sorted(endless.ended) == [0, 1, 2])


def test_a_call_that_asks_on_while_it_is_ended() -> None:
    asked = []

    def function() -> None:
        while True:
            try:
                (dy.scalarInput(1) + 1).value()
            finally:
                asked.append(1)
                (dy.scalarInput(1) + 1).value()

    with dy.Server(function) as server:
        with pytest.raises(TimeoutError):
            server(deadline=0.02)
        until(lambda: server.statistics().in_flight == 0)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_of_the_caller_ends_its_call(endless: Endless) -> None:
    def caller_waits() -> bool:
        """Whether it has queued the call and waits for the result."""
        code = sys._current_frames()[caller].f_code
        return (code.co_filename, code.co_name) == (threading.__file__, "wait")

    def interrupt() -> None:
        endless.begun.wait(600)
        until(caller_waits)
        os.kill(os.getpid(), signal.SIGINT)

    caller = threading.get_ident()

    with dy.Server(endless) as server:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            server("interrupted")
        until(lambda: endless.ended == ["interrupted"])
        assert server.statistics().cancelled == 1
        endless.over.set()
        assert server("next") == "next"


# -- exceptions ----------------------------------------------------------------------------------


def test_exceptions_go_to_their_callers(server: dy.Server) -> None:
    def function(number: float) -> float:
        if (dy.scalarInput(number) + 1).value() == 1:
            raise LookupError("not this one")
        return number

    server.reload(function)
    with server.paused():
        calls = [server.submit(k % 3) for k in range(9)]
    wait(calls, 30)
    for k, call in enumerate(calls):
        if k % 3:
            assert call.result() == k % 3
        else:
            with pytest.raises(LookupError, match="not this one") as caught:
                call.result()
            text = "".join(traceback.format_exception(caught.type, caught.value, caught.tb))
            assert 'raise LookupError("not this one")' in text
    with pytest.raises(LookupError):
        server(0)
    with pytest.raises(LookupError):
        asyncio.run(server.call_async(0))
    assert server.statistics().failed == 5


def test_an_error_of_a_pass_is_that_of_the_call_that_asked() -> None:
    def function(number: float) -> float:
        return dy.log(dy.scalarInput(number)).value()

    with dy.detect_anomaly(), dy.Server(function) as server:
        with server.paused():
            calls = [server.submit(number) for number in (1.0, -1.0, 2.0)]
        assert calls[0].result(600) == 0
        with pytest.raises(dy.AnomalyError):
            calls[1].result(600)
        assert calls[2].result(600) == pytest.approx(math.log(2))


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_whatever_a_function_raises_is_its_caller_s_alone(kind: type[BaseException], server: dy.Server) -> None:
    def raises() -> None:
        (dy.scalarInput(1) + 1).value()
        raise kind

    def outer() -> None:
        dy.batched_map(lambda _: raises(), range(3))

    for function in (raises, outer):
        server.reload(function)
        with pytest.raises(kind):
            server()
    server.reload(halvings)
    assert server(100) == 7


def test_stop_iteration_reaches_tasks(server: dy.Server) -> None:
    server.reload(lambda: next(iter([])))
    with pytest.raises(RuntimeError, match="the function raised StopIteration"):
        asyncio.run(server.call_async(deadline=600))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dy.renew_cg, "renew_cg in an item of batched_map or a call of a Server"),
        (dy.cg_checkpoint, "cg_checkpoint in an item of batched_map or a call of a Server"),
        (lambda: dy.scalarInput(1).backward(), "backward in an item of batched_map or a call of a Server"),
    ],
)
def test_what_a_call_must_not_do(wrong: Callable[[], Any], message: str, server: dy.Server) -> None:
    server.reload(wrong)
    with pytest.raises(RuntimeError, match=message):
        server()


@pytest.mark.parametrize("how", ["call", "submit", "result", "paused", "reload", "close"])
def test_a_call_does_not_wait_for_another(how: str) -> None:
    with dy.Server(halvings) as other:

        def function() -> Any:
            if how == "result":
                return other.submit(4, wait=False).result()
            if how == "paused":
                with other.paused():
                    return None
            return {
                "call": lambda: other(4),
                "submit": lambda: other.submit(4),
                "reload": lambda: other.reload(halvings, wait=True),
                "close": other.close,
            }[how]()

        with dy.Server(function) as server:
            with pytest.raises(RuntimeError, match="must not wait for another call"):
                server(deadline=600)
        assert other(4) == 2


# -- overload ------------------------------------------------------------------------------------


def test_a_full_queue_refuses_or_lets_wait(endless: Endless) -> None:
    with dy.Server(endless, queue=2, width=1) as server:
        calls = [server.submit(0)]
        until(lambda: server.statistics().in_flight == 1)
        calls += [server.submit(1), server.submit(2)]
        for refused in (server, server.submit, lambda **k: asyncio.run(server.call_async(**k))):
            with pytest.raises(dy.ServerFull, match="2 calls wait already"):
                refused(wait=False)
        assert server.statistics().refused == 3
        with ThreadPoolExecutor(2) as threads:
            third, fourth = threads.submit(server.submit, 3), threads.submit(server, 4)
            until(lambda: server.statistics().waiting == 4)
            time.sleep(0.02)
            assert not third.done()
            endless.over.set()
            assert third.result(600).result(600) == 3
            assert fourth.result(600) == 4
        assert [call.result(600) for call in calls] == [0, 1, 2]
        assert sorted(endless.ended) == list(range(5))


def test_a_deadline_ends_waiting_for_room(endless: Endless) -> None:
    with dy.Server(endless, queue=1, width=1) as server:
        server.submit(0)
        until(lambda: server.statistics().in_flight == 1)
        server.submit(1)
        with pytest.raises(TimeoutError):
            server.submit(2, deadline=0.02).result()
        with pytest.raises(TimeoutError):
            server(3, deadline=0.02)
        until(lambda: server.statistics().waiting == 1)
        endless.over.set()


# -- closing, loading and sharing ----------------------------------------------------------------


def test_closing_lets_calls_end() -> None:
    server = dy.Server(halvings, width=2)
    with server.paused():
        calls = [server.submit(2.0**k) for k in range(20)]
    server.close()
    assert [call.result(0) for call in calls] == list(range(20))
    server.close()
    for closed in (server, server.submit, lambda x: asyncio.run(server.call_async(x)), server.reload):
        with pytest.raises(dy.ServerClosed):
            closed(halvings)
    assert server.statistics().finished == 20


def test_closing_without_waiting(endless: Endless) -> None:
    server = dy.Server(endless, width=1)
    calls = [server.submit(k) for k in range(3)]
    assert endless.begun.wait(600)
    with pytest.raises(TimeoutError, match=r"calls are still under way after 0\.02 s"):
        server.close(timeout=0.02)
    with pytest.raises(dy.ServerClosed):
        server(3)
    server.close(drain=False)
    for call in calls:
        with pytest.raises(dy.ServerClosed):
            call.result(0)
    assert endless.ended == [0]


def test_a_server_that_is_forgotten_is_closed(endless: Endless) -> None:
    server = dy.Server(endless)
    call, thread = server.submit(), server._engine.thread
    assert endless.begun.wait(600)
    del server
    gc.collect()
    with pytest.raises(dy.ServerClosed):
        call.result(600)
    thread.join(600)
    assert not thread.is_alive()


def test_loading_another_function_drops_no_call(endless: Endless) -> None:
    with dy.Server(lambda: endless("old"), width=2) as server:
        old = [server.submit(), server.submit()]
        until(lambda: server.statistics().in_flight == 2)
        waits = server.submit()
        server.reload(lambda: "new")
        old[0].cancel()
        assert waits.result(600) == "new"
        assert server() == "new"
        assert not old[1].done()
        loading = threading.Thread(target=server.reload, args=(lambda: "newest",), kwargs={"wait": True})
        loading.start()
        assert server() == "newest"
        assert loading.is_alive()
        endless.over.set()
        loading.join(600)
        assert not loading.is_alive()
        assert old[1].result(600) == "old"
        assert len(server._engine.versions) == 1


def test_a_model_that_is_replaced_is_freed(server: dy.Server) -> None:
    class Model:
        def __init__(self) -> None:
            self.w = dy.ParameterCollection().parameters_from_numpy(np.eye(3))

        def __call__(self) -> float:
            return dy.sum_elems(self.w * dy.ones((3,))).value()

    model = Model()
    server.reload(model)
    assert server() == 3
    gone = weakref.ref(model)
    server.reload(halvings)
    del model
    assert server(4) == 2
    gc.collect()
    until(lambda: gone() is None)


@pytest.mark.parametrize("longest_pass", [1e-9, 0.005])
def test_training_beside_it_tears_no_parameter(longest_pass: float) -> None:
    """A computed value uses all parameters from before an update or all from after it."""
    model = dy.ParameterCollection()
    parameters = [model.parameters_from_numpy(np.zeros((200, 200))) for _ in range(30)]
    trainer = dy.SimpleSGDTrainer(model, learning_rate=1.0)
    trainer.set_clip_threshold(0)

    def spread() -> float:
        sums = [dy.sum_elems(p * dy.ones((200,))) for p in parameters]
        seen = dy.concatenate(sums).npvalue()
        return float(seen.max() - seen.min())

    with dy.Server(spread, longest_pass=longest_pass) as server, ThreadPoolExecutor(4) as threads:
        over = threading.Event()

        def calls() -> list[float]:
            found = []
            while not over.is_set():
                found.append(server())
            return found

        running = [threads.submit(calls) for _ in range(3)]
        for _ in range(40):
            dy.renew_cg()
            dy.esum([dy.sum_elems(p) for p in parameters]).backward()
            with server.paused():
                trainer.update()
        over.set()
        found = [number for future in running for number in future.result(600)]
    assert found
    assert set(found) == {0.0}
    assert parameters[0].as_array()[0, 0] == -40


def test_pauses_nest(server: dy.Server) -> None:
    with server.paused(), server.paused():
        call = server.submit(100)
        time.sleep(0.02)
        assert not call.done()
        assert server.statistics().waiting == 1
    assert call.result(600) == 7


# -- graphs that live long -----------------------------------------------------------------------


def test_nodes_go_with_their_calls() -> None:
    sizes = []

    def function(number: int) -> int:
        steps = halvings(2.0**number)
        sizes.append(len(dy.cg()))
        return steps

    with dy.Server(function) as server, ThreadPoolExecutor(4) as threads:
        for _ in range(25):
            assert list(threads.map(server, range(60))) == list(range(60))
            with pytest.raises(TypeError):
                server("no number")
    assert max(sizes) < 10_000
    assert server.statistics().nodes > 30_000


def test_graphs_are_replaced_after_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "CALLS_OF_A_GRAPH", 5)
    with dy.Server(lambda n: (halvings(n), dy.cg())[0]) as server:
        calls = [server.submit(2.0**k) for k in range(23)]
        assert [call.result(600) for call in calls] == list(range(23))
        assert server(2) == 1
        until(lambda: len(server._engine.versions) == 1)
        found = server.statistics()
        assert found.finished == 24
        assert found.passes >= 22
        assert found.nodes >= sum(1 + k for k in range(23))


def test_nothing_is_left_of_calls(server: dy.Server) -> None:
    def fails(number: int) -> float:
        return 1 / (number - (dy.scalarInput(1) * 1).value())

    def some(n: int) -> None:
        for _ in range(n):
            server(100, deadline=600)
            server.submit(2.0**900).cancel()
            server.reload(fails)
            with pytest.raises(ZeroDivisionError):
                server(1)
            server.reload(halvings)
        until(lambda: server.statistics()[:2] == (0, 0))

    some(10)
    gc.collect()
    before = len(gc.get_objects())
    some(50)
    gc.collect()
    assert len(gc.get_objects()) < before + 200


def test_expressions_that_go_while_the_graph_runs_free_their_nodes() -> None:
    """For example, if another thread collects garbage during a pass of this one."""
    dy.renew_cg(forward_only=True)
    kept = [dy.scalarInput(1) for _ in range(5000)]
    during_a_pass = []

    def clear(*_: object) -> None:
        try:
            dy.scalarInput(1)
        except RuntimeError:
            during_a_pass.append(True)
        kept.clear()

    original = signal.signal(signal.SIGALRM, clear)
    w = dy.ParameterCollection().parameters_from_numpy(np.eye(400))
    try:
        length = 4000
        while not during_a_pass:  # long passes make it likely that the signal comes during one
            kept += [dy.scalarInput(1) for _ in range(5000)]
            length *= 2
            x = dy.ones((400,))
            for _ in range(length):
                x = w * x
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            while kept:
                x.npvalue()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, original)
    for _ in range(8000):
        (dy.ones((1,)) * 2).npvalue()
    assert during_a_pass
    assert len(dy.cg()) < 5000


# -- processes -----------------------------------------------------------------------------------

FORKED = """
import os, sys, threading
import dynet_cy as dy

def double(number):
    return (dy.scalarInput(number) * 2).value()

server = dy.Server(double)
busy = [threading.Thread(target=lambda: [server(k) for k in range(300)]) for _ in range(3)]
for thread in busy:
    thread.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        try:
            server(4)
        except RuntimeError as error:
            assert "made before this process was forked" in str(error), error
            server.close()
            with dy.Server(double) as own:
                os._exit(0 if own(4) == 8 else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
for thread in busy:
    thread.join()
assert server(4) == 8
print("ended")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_children_of_a_fork(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


def test_a_process_ends_with_an_open_server(tmp_path: Path) -> None:
    program = (
        "import dynet_cy as dy\n"
        "def endless():\n"
        "    while True:\n"
        "        (dy.scalarInput(1) + 1).value()\n"
        "server = dy.Server(endless)\n"
        "server.submit()\n"
        "print('ended')\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


# -- bad input -----------------------------------------------------------------------------------


def test_wrong_arguments(server: dy.Server) -> None:
    with pytest.raises(TypeError, match="Server: function must be callable, not int"):
        dy.Server(3)
    with pytest.raises(TypeError, match=r"Server\.reload: function must be callable, not None"):
        server.reload(None)
    for name in ("queue", "width"):
        with pytest.raises(ValueError, match=f"Server: {name} must be at least 1, not 0"):
            dy.Server(halvings, **{name: 0})
    for seconds in (0, -1.0, math.nan):
        with pytest.raises(ValueError, match="Server: longest_pass must be a positive number of seconds"):
            dy.Server(halvings, longest_pass=seconds)
    with pytest.raises(ValueError, match="Server: autobatching must be 0"):
        dy.Server(halvings, autobatching=3)
    for deadline in (0, -1.0, math.nan):
        with pytest.raises(ValueError, match="deadline must be a positive number of seconds"):
            dy.Server(halvings, deadline=deadline)
        with pytest.raises(ValueError, match="deadline must be a positive number of seconds"):
            server(1, deadline=deadline)
    with pytest.raises(TypeError):
        server(1, 2, 3)


def test_statistics(server: dy.Server) -> None:
    assert math.isnan(server.statistics().p50)
    for _ in range(20):
        server(100)
    found = server.statistics()
    assert found._replace(p50=0, p95=0, p99=0, nodes_per_pass=0) == dy.ServerStatistics(
        waiting=0,
        in_flight=0,
        finished=20,
        failed=0,
        cancelled=0,
        expired=0,
        refused=0,
        passes=140,
        nodes=found.nodes,
        nodes_per_pass=0,
        p50=0,
        p95=0,
        p99=0,
    )
    assert 0 < found.p50 <= found.p95 <= found.p99


def test_calls_that_wait_begin_together() -> None:
    """If many calls are running, new ones begin together, so that they batch, but none waits for many passes."""
    began = []

    def work(number: int) -> None:
        began.append(server.statistics().passes)
        for _ in range(5 + number % 37):
            (dy.scalarInput(number) + 1).value()

    with dy.Server(work, width=32, autobatching=1) as server:
        with server.paused():
            calls = [server.submit(number) for number in range(128)]
        for call in calls:
            call.result()
        assert sorted(began) == began
        assert len(set(began)) <= 1 + (128 - 32) // 6  # a fourth of the running calls, fewer if they wait too long


def test_a_call_does_not_wait_long_for_company(endless: Endless) -> None:
    with dy.Server(lambda name: endless(name) if name else (dy.scalarInput(2) + 1).value()) as server:
        with server.paused():
            calls = [server.submit(f"call {k}") for k in range(20)]
        assert endless.begun.wait(600)  # all, in one pass
        assert server.submit(None).result(timeout=600) == 3
        endless.over.set()
        for call in calls:
            call.result()


def test_prometheus() -> None:
    with dy.Server(lambda x: dy.tanh(dy.inputVector([x])).value()) as server:
        assert 'quantile="0.5"} NaN' in server.statistics().prometheus()
        server(1.0)
        statistics = server.statistics()
    text = statistics.prometheus(model='a "b"\\\n')
    parser = pytest.importorskip("prometheus_client.parser", reason="the text is read by prometheus_client")
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    samples = {
        (sample.name, sample.labels.get("outcome") or sample.labels.get("quantile")): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert {sample.labels["model"] for family in families.values() for sample in family.samples} == {'a "b"\\\n'}
    prefix = "dynet_cy_server_"
    assert samples[f"{prefix}calls_total", "finished"] == 1
    assert samples[f"{prefix}calls_total", "refused"] == 0
    assert samples[f"{prefix}nodes_total", None] == statistics.nodes
    assert samples[f"{prefix}call_seconds", "0.95"] == statistics.p95
    assert {family.type for family in families.values()} == {"counter", "gauge", "summary"}
    assert all(family.documentation for family in families.values())
