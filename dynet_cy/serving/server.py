"""A server for calls from many threads and tasks, which batches the values that they request.

A `Server` has one thread that runs calls as fibers on a graph of its own. When all calls under way wait for values, one
pass computes them together, and calls that have arrived meanwhile join the next pass. See docs/serving.md.
"""

from __future__ import annotations

import contextvars
import heapq
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as WaitedTooLong  # the builtin one from Python 3.11 on
from contextlib import contextmanager
from typing import Any, Callable, Generic, NamedTuple, TypeVar, cast

import numpy as np

from dynet_cy.graph.expressions import ComputationGraph
from dynet_cy.hints.equivalents import KnownArguments
from dynet_cy.serving.fibers import Fibers

R = TypeVar("R")

# A graph can renumber its nodes 2**28 times; after this many calls, the next ones get a new graph.
CALLS_OF_A_GRAPH = 1 << 16
LATENCIES = 4096  # the percentiles are of the last this many calls
# The first computations of a call, such as the states of a BiLSTM, batch best with calls that begin at the same time.
# So calls begin when there is one for every so many in progress, or when they have waited for a pass for each so many.
UNDER_WAY_TO_ONE = 4
UNDER_WAY_TO_A_PASS = 3


class ServerClosed(RuntimeError):
    """A call came after `Server.close`, or was still under way when the server was closed without waiting for it.

    Example:
        >>> server = dy.Server(lambda x: x)
        >>> server.close()
        >>> server(1)
        Traceback (most recent call last):
            ...
        dynet_cy.serving.server.ServerClosed: the server is closed
    """


class ServerFull(RuntimeError):
    """The queue of the server is full, and the call was made with ``wait=False``.

    Example:
        >>> issubclass(dy.ServerFull, Exception)
        True
    """


class ServerStatistics(NamedTuple):
    """Counts of a server's calls and passes; see `Server.statistics`.

    Example:
        >>> with dy.Server(lambda x: dy.tanh(dy.inputVector(x)).value()) as server:
        ...     _ = server([0])
        ...     server.statistics().finished
        1
    """

    waiting: int  # calls that have not started
    in_flight: int  # calls under way
    finished: int  # calls that have returned
    failed: int  # calls that have raised an exception
    cancelled: int
    expired: int  # calls whose deadline has passed
    refused: int  # calls that were refused because the queue was full
    passes: int  # passes over the graph
    nodes: int  # nodes made for these passes
    nodes_per_pass: float
    p50: float  # percentiles of the seconds from call to result, of the last 4,096 calls; nan before the first result
    p95: float
    p99: float

    def prometheus(self, **labels: str) -> str:
        """The numbers in Prometheus' text format (version 0.0.4), as a web service returns them for ``/metrics``.

        Args:
            labels: names and values that tell this server from others, such as ``model="tagger"``

        Example:
            >>> with dy.Server(lambda x: dy.tanh(dy.inputVector(x)).value()) as server:
            ...     _ = server([0])
            ...     print(server.statistics().prometheus(model="tanh"))
            # HELP dynet_cy_server_calls_total Calls that have ended, by outcome.
            # TYPE dynet_cy_server_calls_total counter
            dynet_cy_server_calls_total{model="tanh",outcome="finished"} 1
            ...
        """
        lines: list[str] = []

        def family(name: str, kind: str, text: str, samples: Mapping[str, float], label: str = "") -> None:
            lines.append(f"# HELP dynet_cy_server_{name} {text}\n# TYPE dynet_cy_server_{name} {kind}")
            for key, value in samples.items():
                pairs = {**labels, label: key} if label else labels
                shown = ",".join(f'{k}="{_escaped(v)}"' for k, v in pairs.items())
                number = "NaN" if value != value else f"{value}"
                braces = f"{{{shown}}}" if shown else ""
                lines.append(f"dynet_cy_server_{name}{braces} {number}")

        outcomes = ("finished", "failed", "cancelled", "expired", "refused")
        ended = {name: getattr(self, name) for name in outcomes}
        family("calls_total", "counter", "Calls that have ended, by outcome.", ended, "outcome")
        family("calls_waiting", "gauge", "Calls that have not started.", {"": self.waiting})
        family("calls_in_flight", "gauge", "Calls under way.", {"": self.in_flight})
        family("passes_total", "counter", "Passes over the graph.", {"": self.passes})
        family("nodes_total", "counter", "Nodes made for these passes.", {"": self.nodes})
        seconds = {"0.5": self.p50, "0.95": self.p95, "0.99": self.p99}
        family("call_seconds", "summary", "Seconds from call to result, of the last 4,096 calls.", seconds, "quantile")
        return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    """A label's value in Prometheus' text format."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class ServerCall(Future[R]):
    """A call made by `Server.submit`: a `concurrent.futures.Future`.

    `cancel` also works while the call is under way: `GreenletExit` ends its function and runs its ``finally`` blocks.

    Example:
        >>> with dy.Server(lambda x: dy.tanh(dy.inputVector(x)).value()) as server:
        ...     call = server.submit([0])
        ...     call.result()
        0.0
    """

    def __init__(self, engine: _Engine, arguments: tuple[Any, ...], deadline: float | None) -> None:
        super().__init__()
        self._engine = engine
        self._arguments = arguments
        self._context = contextvars.copy_context()
        self._came = time.monotonic()
        self._deadline = None if deadline is None else self._came + deadline
        self._accepted = False  # it is in the queue, or was
        self._settled = False  # its outcome is decided
        self._version: _Version | None = None  # the version that it runs on
        self._item: Any = None

    def cancel(self) -> bool:
        """End the call; its waiters get a CancelledError.

        Returns:
            Whether the call was cancelled; False if it had ended before.

        Example:
            >>> with dy.Server(lambda x: dy.tanh(dy.inputVector(x)).value()) as server:
            ...     call = server.submit([0])
            ...     value = call.result()
            ...     call.cancel()           # too late
            False
        """
        if not self._engine.decide(self, "cancelled"):
            return self.cancelled()
        return super().cancel()

    def result(self, timeout: float | None = None) -> R:
        """The result of the function.

        Args:
            timeout: how many seconds to wait; None (default) for as long as it takes.

        Raises:
            TimeoutError: the deadline of the call or the timeout has passed.
            CancelledError: the call was cancelled.
            ServerClosed: the server was closed before the call had ended.
            RuntimeError: this is the thread of a server, which must not wait.
            Exception: the exception of the function.

        Example:
            >>> with dy.Server(lambda x: dy.tanh(dy.inputVector(x)).value()) as server:
            ...     server.submit([0]).result(timeout=60)
            0.0
        """
        try:
            if not self.done():
                refuse_to_wait()
            return super().result(timeout)
        finally:
            del self  # else the exception would refer to it through its traceback

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The exception that the function raised; None if it returned. See `result` for what is raised if the call has
        not ended.

        Args:
            timeout: how many seconds to wait; None (default) for as long as it takes.

        Example:
            >>> with dy.Server(lambda x: 1 / x) as server:
            ...     server.submit(0).exception()
            ZeroDivisionError('division by zero')
        """
        if not self.done():
            refuse_to_wait()
        return super().exception(timeout)

    def _settle(self, what: str, result: Any, error: BaseException | None) -> None:
        if self._engine.decide(self, what):
            if error is None:
                self.set_result(result)
            else:
                self.set_exception(error)

    def _receive(self, result: Any, error: BaseException | None) -> None:
        """Take the result or exception of the function."""
        if self._version is not None:
            self._version.calls.discard(self)
        self._version = self._item = None
        if isinstance(error, StopIteration):  # asyncio tasks cannot raise it
            stop, error = error, RuntimeError("Server: the function raised StopIteration")
            error.__cause__ = stop
        self._settle("finished" if error is None else "failed", result, error)


class _Version:
    """A function, and the graph that calls of it run on."""

    def __init__(self, function: Callable[..., Any], number: int, autobatching: int | None, longest: float) -> None:
        self.function = function
        self.number = number
        self.graph = ComputationGraph(autobatching)
        self.graph.renew(forward_only=True, autobatching=autobatching)
        self.fibers = Fibers(self.graph, longest)
        self.calls: set[ServerCall[Any]] = set()
        self.begun = 0

    def begin_call(self, call: ServerCall[Any]) -> None:
        self.begun += 1
        self.calls.add(call)
        call._version = self
        call._context.run(self.graph.__enter__)  # the caller may have entered another graph
        with self.graph:
            item = self.fibers.begin_call(self.function, call._arguments, call._context, call._receive)
        if call in self.calls:
            call._item = item

    def stop(self, call: ServerCall[Any]) -> None:
        self.calls.discard(call)
        item, call._version, call._item = call._item, None, None
        if item is not None:
            with self.graph:
                self.fibers.stop(item)

    def turn(self) -> None:
        """Continue all calls, and compute the values they then wait for."""
        with self.graph:
            self.fibers.turn()

    def finish(self) -> None:
        """Compute the rest of a pass that was cut short."""
        with self.graph:
            self.fibers.finish()

    def leave(self, error: BaseException | None) -> None:
        """End all calls."""
        for call in list(self.calls):
            self.stop(call)
            call._settle("failed", None, error)
        self.fibers.leave()


_here = threading.local()  # engine: set in the thread of a server


def refuse_to_wait() -> None:
    """Raise if this is the thread of a server: all of its calls would wait, perhaps for each other."""
    if getattr(_here, "engine", None) is not None:
        raise RuntimeError(
            "Server: a call of a server must not wait for another call: all calls would stand still; "
            "call the function itself, or batched_map for several"
        )


class _Engine:
    """The queue of a server and its thread.  `changed` guards everything except what only the thread uses."""

    def __init__(
        self, function: Callable[..., Any], queue: int, width: int, longest: float, autobatching: int | None, name: str
    ) -> None:
        self.function = function
        self.loads = 0  # how often the function was replaced
        self.capacity = queue
        self.width = width
        self.longest = longest
        self.autobatching = autobatching
        self.process = os.getpid()
        self.changed = threading.Condition()
        self.queue: deque[ServerCall[Any]] = deque()
        self.arriving: deque[ServerCall[Any]] = deque()  # waiting because the queue is full
        self.deadlines: list[tuple[float, int, ServerCall[Any]]] = []  # a heap
        self.dropped: list[ServerCall[Any]] = []  # cancelled or expired, to be ended by the thread
        self.offered = 0
        self.open_calls = 0  # offered, outcome not yet decided
        self.pausing = 0
        self.computing = False
        self.closed = False
        self.held = 0  # for how many passes calls in the queue have waited for others to start with
        self.asked = False  # another thread has changed something since the thread last looked
        self.counts = dict.fromkeys(("finished", "failed", "cancelled", "expired", "refused"), 0)
        self.latencies: deque[float] = deque(maxlen=LATENCIES)
        self.versions: list[_Version] = []  # the newest last
        self.passes = self.nodes = 0  # of versions that have been closed
        self.thread = threading.Thread(target=self.run, name=name, daemon=True)
        self.thread.start()

    def check_process(self) -> None:
        """Raise in a forked child, before taking any lock: another thread of the parent may have held it."""
        if os.getpid() != self.process:
            raise RuntimeError(
                "Server: made before this process was forked, which leaves its thread behind; make one in each process"
            )

    # -- from any thread -------------------------------------------------------------------------

    def offer(self, call: ServerCall[Any], wait: bool) -> None:
        """Put a call into the queue, or make it wait if the queue is full."""
        with self.changed:
            if self.closed:
                raise ServerClosed("Server: it has been closed")
            if len(self.queue) < self.capacity and not self.arriving:
                self.queue.append(call)
                call._accepted = True
            elif wait:
                self.arriving.append(call)
            else:
                self.counts["refused"] += 1
                raise ServerFull(f"Server: {len(self.queue)} calls wait already")
            self.offered += 1
            self.open_calls += 1
            if call._deadline is not None:
                heapq.heappush(self.deadlines, (call._deadline, self.offered, call))
            self.look()

    def look(self) -> None:
        """Notify the thread and all waiters of a change."""
        self.asked = True
        self.changed.notify_all()

    def await_capacity(self, call: ServerCall[Any]) -> None:
        with self.changed:
            while not call._accepted and not call._settled:
                self.changed.wait()

    def decide(self, call: ServerCall[Any], what: str) -> bool:
        """Decide the outcome of a call; False if it was decided before."""
        with self.changed:
            if call._settled:
                return False
            call._settled = True
            self.counts[what] += 1
            self.open_calls -= 1
            if what == "finished":
                self.latencies.append(time.monotonic() - call._came)
            elif what in ("cancelled", "expired"):
                self.dropped.append(call)
                self.asked = True
            self.changed.notify_all()
            return True

    def expire(self, call: ServerCall[Any]) -> None:
        assert call._deadline is not None
        call._settle("expired", None, TimeoutError(f"Server: no result within {call._deadline - call._came:g} s"))

    def load(self, function: Callable[..., Any], wait: bool) -> None:
        with self.changed:
            if self.closed:
                raise ServerClosed("Server: it has been closed")
            self.function = function
            self.loads += 1
            number = self.loads
            self.asked = True  # the present version may have no calls
            while wait and any(version.number < number and version.calls for version in self.versions):
                self.changed.wait()

    @contextmanager
    def paused(self) -> Iterator[None]:
        with self.changed:
            self.pausing += 1
            self.asked = True
            try:
                while self.computing:
                    self.changed.wait()
            except BaseException:
                self.resume()
                raise
        try:
            yield
        finally:
            with self.changed:
                self.resume()

    def resume(self) -> None:
        self.pausing -= 1
        self.look()

    def statistics(self) -> ServerStatistics:
        with self.changed:
            counts, latencies = dict(self.counts), list(self.latencies)
            waiting = sum(not call._settled for calls in (self.queue, self.arriving) for call in calls)
            in_flight = sum(len(version.calls) for version in self.versions)
            passes = self.passes + sum(version.fibers.passes for version in self.versions)
            nodes = self.nodes + sum(version.fibers.nodes for version in self.versions)
        p50, p95, p99 = np.percentile(latencies, [50, 95, 99]).tolist() if latencies else [float("nan")] * 3
        return ServerStatistics(
            waiting=waiting,
            in_flight=in_flight,
            passes=passes,
            nodes=nodes,
            nodes_per_pass=nodes / passes if passes else 0.0,
            p50=p50,
            p95=p95,
            p99=p99,
            **counts,
        )

    def close(self, drain: bool, timeout: float | None) -> bool:
        """Close the server; returns whether the thread has ended within the timeout."""
        if os.getpid() != self.process:
            return True
        with self.changed:
            self.closed = True
            left = [] if drain else self.calls()
            self.look()
        for call in left:
            call._settle("cancelled", None, ServerClosed("Server: closed before the call has ended"))
        if threading.current_thread() is not self.thread:
            self.thread.join(timeout)
        return not self.thread.is_alive()

    def calls(self) -> list[ServerCall[Any]]:
        """All calls that wait or are under way."""
        return [*self.queue, *self.arriving, *(call for version in self.versions for call in version.calls)]

    # -- the thread ------------------------------------------------------------------------------

    def run(self) -> None:
        _here.engine = self
        error: BaseException = ServerClosed("Server: closed before the call has ended")
        try:
            while self.step():
                while self.may_go_on():
                    self.compute()
        except BaseException as failure:  # a bug in this module must not let callers wait forever
            error = failure
            raise
        finally:
            with self.changed:
                self.closed, self.computing = True, False
                left = self.calls()
                self.changed.notify_all()
            for version in self.versions:
                version.leave(error)
            for call in left:
                call._settle("failed", None, error)

    def step(self) -> bool:
        """Handle requests, then run one pass; False when the server is closed and all calls have ended."""
        while self.must_finish():
            self.compute(_Version.finish)
        with self.changed:
            if self.must_finish():
                return True
            self.computing = self.asked = False
            self.changed.notify_all()
            while not (expired := self.pop_expired()) and not self.dropped and not self.can_compute():
                if self.closed and not self.open_calls:
                    return False
                self.changed.wait(self.deadlines[0][0] - time.monotonic() if self.deadlines else None)
            dropped, self.dropped = self.dropped, []
            self.computing = not self.pausing
            begin = self.admit_calls() if self.computing else []
            function, loads, computing = self.function, self.loads, self.computing
        for call in expired:
            self.expire(call)
        for call in dropped:
            self.end(call)
        for call in begin:
            self.begin_call(call, function, loads)
        if computing:
            self.compute()
        return True

    def can_compute(self) -> bool:
        return not self.pausing and bool(self.queue or any(version.calls for version in self.versions))

    def may_go_on(self) -> bool:
        """Whether there is nothing to do but another pass.  The check takes no lock, as most passes are short."""
        return (
            self.computing
            and not self.asked
            and not self.queue
            and len(self.versions) == 1
            and bool(self.versions[0].calls)
            and not (self.deadlines and self.deadlines[0][0] <= time.monotonic())
        )

    def pop_expired(self) -> list[ServerCall[Any]]:
        """The calls whose deadline has passed."""
        now, expired = time.monotonic(), []
        if len(self.deadlines) > 2 * self.open_calls + 64:  # most are of calls that ended in time
            self.deadlines = [entry for entry in self.deadlines if not entry[2]._settled]
            heapq.heapify(self.deadlines)
        while self.deadlines and (self.deadlines[0][0] <= now or self.deadlines[0][2]._settled):
            call = heapq.heappop(self.deadlines)[2]
            if not call._settled:
                expired.append(call)
        return expired

    def admit_calls(self) -> list[ServerCall[Any]]:
        """Remove the calls that start now from the queue, and refill it with calls that waited."""
        under_way = sum(len(version.calls) for version in self.versions)
        count = min(len(self.queue), self.width - under_way)
        if 0 < count * UNDER_WAY_TO_ONE < under_way and self.held * UNDER_WAY_TO_A_PASS < under_way:
            self.held += 1
            count = 0
        elif count:
            self.held = 0
        admitted = [self.queue.popleft() for _ in range(count)]
        while self.arriving and len(self.queue) < self.capacity:
            call = self.arriving.popleft()
            call._accepted = True
            self.queue.append(call)
        return [call for call in admitted if not call._settled]

    def begin_call(self, call: ServerCall[Any], function: Callable[..., Any], loads: int) -> None:
        try:
            if not self.versions or self.versions[-1].number != loads or self.versions[-1].begun >= CALLS_OF_A_GRAPH:
                version = _Version(function, loads, self.autobatching, self.longest)
                with self.changed:
                    self.versions.append(version)
            self.versions[-1].begin_call(call)
        except Exception as error:  # no memory for a graph or a fiber
            call._receive(None, error)

    def end(self, call: ServerCall[Any]) -> None:
        """End a call that was cancelled or has expired."""
        if call._version is not None:
            call._version.stop(call)
            return
        with self.changed:
            for calls in (self.queue, self.arriving):
                if call in calls:
                    calls.remove(call)

    def must_finish(self) -> bool:
        """Whether a pass that was cut short must be completed before the parameters change."""
        return bool(self.pausing) and any(version.fibers.cut for version in self.versions)

    def compute(self, go_on: Callable[[_Version], None] = _Version.turn) -> None:
        gone = []
        for version in self.versions:
            try:
                go_on(version)
            except BaseException as error:  # such as no memory to schedule: the next calls get another graph
                version.leave(error)
                gone.append(version)
            else:
                if version is not self.versions[-1] and not version.calls:
                    version.leave(None)
                    gone.append(version)
        if gone:
            with self.changed:
                for version in gone:
                    self.versions.remove(version)
                    self.passes += version.fibers.passes
                    self.nodes += version.fibers.nodes


class Server(KnownArguments, Generic[R]):
    """Calls a function for requests from any thread or task, and computes the values that these calls need together.

    The function is written as for `batched_map`: for one request, in plain Python, asking for values wherever it needs
    them. One thread runs all calls on a forward-only graph; a new call joins at the next pass over the graph, without
    waiting for earlier calls to end (cellular batching).

    Threads call the server as they would call the function; asyncio tasks use ``await server.call_async(...)``. Each
    call runs in a copy of its caller's context variables.

    Other threads may train the parameters that the function uses: update them within `paused`, or serve a copy and
    `reload`. A function that waits for anything but values (a file, a lock, another server) holds up all calls: read
    the data first and then call the server.

    Args:
        function: the function to serve.
        queue: how many calls may wait to start, 1,024 by default. When the queue is full, further calls wait, or are
            refused (``wait=False``).
        width: how many calls may be under way at once, 256 by default; a smaller number needs less memory.
        longest_pass: seconds, 0.005 by default, after which a pass over the graph ends early, between two operations,
            so that new calls can join; the next pass computes the rest.
        deadline: the default deadline of calls, in seconds; None, the default, for no limit.
        autobatching: how passes are scheduled; None, the default, for the global setting.
        name: the name of the thread (default: "dynet_cy.Server").

    Raises:
        TypeError: `function` is not callable.
        ValueError: `queue` or `width` is less than 1, or `longest_pass` or `deadline` is not positive.

    Example:
        >>> import dynet_cy as dy
        >>> def halvings(number):
        ...     x, steps = dy.scalarInput(number), 0
        ...     while x.value() > 1:
        ...         x, steps = x * 0.5, steps + 1
        ...     return steps
        >>> with dy.Server(halvings) as server:
        ...     server(100)
        7

    Method: Gao, Yu, Wu and Li 2018, "Low latency RNN inference with cellular batching" (EuroSys).
    """

    def __init__(
        self,
        function: Callable[..., R],
        *,
        queue: int = 1024,
        width: int = 256,
        longest_pass: float = 0.005,
        deadline: float | None = None,
        autobatching: int | None = None,
        name: str = "dynet_cy.Server",
    ) -> None:
        check_function(function, "Server")
        for what, number in [("queue", queue), ("width", width)]:
            if number < 1:
                raise ValueError(f"Server: {what} must be at least 1, not {number}")
        check_deadline(deadline)
        if not longest_pass > 0:
            raise ValueError(f"Server: longest_pass must be a positive number of seconds, not {longest_pass!r}")
        if autobatching not in (None, 0, 1, 2):
            raise ValueError(
                f"Server: autobatching must be 0 (off), 1 (by agenda) or 2 (by depth), not {autobatching!r}"
            )
        self._deadline = deadline
        self._engine = _Engine(function, queue, width, longest_pass, autobatching, name)
        self._closing = weakref.finalize(self, self._engine.close, False, 5.0)

    def __call__(self, *arguments: Any, deadline: float | None = None, wait: bool = True) -> R:
        """Call the function with these arguments, and return its result.

        Args:
            arguments: the arguments of the function.
            deadline: seconds within which the call must end; None for the server's default.
            wait: whether to wait if the queue is full (default) or raise ServerFull.

        Raises:
            TimeoutError: the deadline has passed; the call is ended.
            ServerFull: the queue is full.
            ServerClosed: the server has been closed.
            RuntimeError: the caller is itself a call of a server, or this process was forked after the server was made.
            Exception: the exception of the function.
        """
        refuse_to_wait()
        call = self._offer(arguments, deadline, wait)
        try:
            try:
                return call.result(None if call._deadline is None else max(call._deadline - time.monotonic(), 0.0))
            except WaitedTooLong:  # the server is in a long pass or paused; or the function has raised it
                if not call.done():
                    self._engine.expire(call)
                return call.result()
        except BaseException:
            call.cancel()  # after an interrupt; has no effect if the call has ended
            raise
        finally:
            del call  # which the traceback of what was raised would refer to

    def submit(self, *arguments: Any, deadline: float | None = None, wait: bool = True) -> ServerCall[R]:
        """Queue a call, and return a `concurrent.futures.Future` for its result.

        It returns when the call is in the queue; see `__call__` for what it raises.

        Args:
            arguments: the arguments of the function.
            deadline: seconds within which it must have ended; None for the server's default.
            wait: wait where the queue is full (default: yes), or raise.

        Example:
            >>> with dy.Server(lambda x: dy.tanh(dy.inputVector(x)).value()) as server:
            ...     call = server.submit([0])
            ...     call.result()
            0.0
        """
        if wait:
            refuse_to_wait()
        call = self._offer(arguments, deadline, wait)
        try:
            self._engine.await_capacity(call)
        except BaseException:
            call.cancel()
            raise
        return call

    async def call_async(self, *arguments: Any, deadline: float | None = None, wait: bool = True) -> R:
        """Call the function from an asyncio task; other tasks run meanwhile. Cancelling the task ends the call. See
        `__call__` for what it raises.

        Args:
            arguments: the arguments of the function.
            deadline: seconds within which it must have ended; None for the server's default.
            wait: wait where the queue is full (default: yes), or raise.

        Example:
            >>> import asyncio
            >>> async def ask():
            ...     with dy.Server(lambda x: dy.tanh(dy.inputVector(x)).value()) as server:
            ...         return await server.call_async([0])
            >>> asyncio.run(ask())
            0.0
        """
        import asyncio  # here, as it takes a tenth of the time of `import dynet_cy`

        call = self._offer(arguments, deadline, wait)
        return cast(R, await asyncio.wrap_future(call))

    def _offer(self, arguments: tuple[Any, ...], deadline: float | None, wait: bool) -> ServerCall[R]:
        check_deadline(deadline)
        self._engine.check_process()
        call: ServerCall[R] = ServerCall(self._engine, arguments, self._deadline if deadline is None else deadline)
        self._engine.offer(call, wait)
        return call

    def reload(self, function: Callable[..., R], *, wait: bool = False) -> None:
        """Use another function, such as one with a new model, for calls that start from now on.

        Calls under way finish with the function that they started with, on a graph of their own; none is dropped.

        Args:
            function: the new function.
            wait: whether to return only when no call of the old function is left (default: False).

        Raises:
            TypeError: `function` is not callable.
            ServerClosed: the server has been closed.

        Example:
            >>> with dy.Server(lambda x: dy.tanh(dy.inputVector(x)).value()) as server:
            ...     server.reload(lambda x: dy.exp(dy.inputVector(x)).value())
            ...     server([0])
            1.0
        """
        check_function(function, "Server.reload")
        self._engine.check_process()
        if wait:
            refuse_to_wait()
        self._engine.load(function, wait)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the server during a block, so that parameters can be changed; calls wait for its end.

        So each value is computed from the parameters before the block, or from those after it. A call that requests
        several values may see both: where that matters, serve a copy and `reload`.

        Example:
            >>> w = model.add_parameters(1, init=1.0)
            >>> trainer = dy.SimpleSGDTrainer(model, learning_rate=0.5)
            >>> with dy.Server(lambda: (w * 2.0).value()) as server:
            ...     with server.paused():
            ...         dy.squared_norm(w).backward()
            ...         trainer.update()
            ...     server()
            0.0
        """
        self._engine.check_process()
        refuse_to_wait()
        with self._engine.paused():
            yield

    def statistics(self) -> ServerStatistics:
        """Count calls that wait, run and have ended, and passes; with latencies.

        Example:
            >>> with dy.Server(lambda x: dy.tanh(dy.inputVector(x)).value()) as server:
            ...     answers = [server([x]) for x in range(3)]
            ...     server.statistics().finished
            3
        """
        self._engine.check_process()
        return self._engine.statistics()

    def close(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Accept no more calls, and end the thread.

        Args:
            drain: whether calls that wait or are under way may finish (default); False ends them with ServerClosed.
            timeout: how many seconds to wait for that; None (default) for as long as it takes.

        Raises:
            TimeoutError: the thread has not ended within the timeout; it continues to run.
            RuntimeError: the caller is itself a call of a server.

        Example:
            >>> server = dy.Server(lambda x: dy.tanh(dy.inputVector(x)).value())
            >>> server([0])
            0.0
            >>> server.close()
        """
        refuse_to_wait()
        if not self._engine.close(drain, timeout):
            raise TimeoutError(f"Server.close: calls are still under way after {timeout:g} s")

    def __enter__(self) -> Server[R]:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.close(drain=error is None)


def check_function(function: Any, where: str) -> None:
    if not callable(function):
        raise TypeError(f"{where}: function must be callable, not {type(function).__name__}")


def check_deadline(deadline: float | None) -> None:
    if deadline is not None and not deadline > 0:
        raise ValueError(f"Server: deadline must be a positive number of seconds, not {deadline!r}")
