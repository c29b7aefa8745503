"""Profiles: the number of nodes, the number of calls and the time of each operation.

``--dynet-profiling 1``, or ``dynet_cy.config.set(profiling=1)``, measures from then on and writes a report to stderr
when the process ends; with 2 every batch is listed as well, after it has run.  From a program::

    with dynet_cy.profiling.measure() as profile:
        ...
    print(profile)

If lines of the program are recorded (``measure(lines=True)``, `record_lines`, `detect_anomaly`, ``--dynet-check``), the
time of each line is measured too.  A batch of nodes from several lines is divided among them.

To see what ran when, use ``measure(timeline=True)``: it records every batch, pass, update and exchange between
processes, for a timeline and a report that browsers show::

    with dynet_cy.profiling.measure(timeline=True) as profile:
        ...
    profile.save_timeline("timeline.json")      # open it in https://ui.perfetto.dev or chrome://tracing
    profile.save_report("report.html")          # open it in any browser

Passes that the program causes, by `value` and the like, are counted for the line that asks, with a hint if several
values could have been requested together.

On a GPU, measuring waits for each call, so that the times are those of the device. Waiting slows the program down, as
it does not wait otherwise.
"""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from dynet_cy.core import engine as _engine
from dynet_cy.core.amounts import size_text as _size_text
from dynet_cy.core.amounts import time_text as _time_text
from dynet_cy.files.places import name_all
from dynet_cy.files.reading import FileName
from dynet_cy.graph import origin as _origin
from dynet_cy.graph.origin import shown_file as _shown
from dynet_cy.memory.arena import limit as _limit
from dynet_cy.ops.registry import describe as _describe
from dynet_cy.profiling.plans import BatchLifetime, PassPlan
from dynet_cy.profiling.report import tables, write_report
from dynet_cy.profiling.timelines import join_timelines, write_timeline
from dynet_cy.watch import instruments as _watch
from dynet_cy.watch import lifetimes as _lifetimes
from dynet_cy.watch import timeline as _timeline
from dynet_cy.watch import usage as _usage
from dynet_cy.watch.memory import dropped_rows as _dropped_rows
from dynet_cy.watch.memory import memory_rows as _memory_rows
from dynet_cy.watch.memory import missing_hint as _missing_hint
from dynet_cy.watch.memory import value_rows as _value_rows
from dynet_cy.watch.timeline import Span
from dynet_cy.watch.usage import GraphUsage

__all__ = [
    "BatchLifetime",
    "LineProfile",
    "OpProfile",
    "PassPlan",
    "Profile",
    "RequestProfile",
    "ScopeProfile",
    "Span",
    "join_timelines",
    "measure",
    "profile",
    "set_level",
]


_MOST_LINES = 20  # in the text of a profile
_OFTEN = 4  # from this many passes of one line in one graph on, a hint is printed


class OpProfile(NamedTuple):
    """The totals of one operation in one direction.

    Attributes:
        op: its name; "weight gradients" are the products of collected factors
        backward: whether it is the backward direction
        nodes: how many nodes ran
        calls: how many batches they ran in; nodes of different sizes may form one batch, though each is run separately
        seconds: how long that took, including gathering the arguments
        alone_because: why its nodes never batch; empty if nodes with equal shapes and shared arguments do
        again: whether it is forward for a second time, of values that were dropped (`checkpoint`, a limit of memory)
    """

    op: str
    backward: bool
    nodes: int
    calls: int
    seconds: float
    alone_because: str
    again: bool = False

    @property
    def way(self) -> str:
        """ "forward", "backward" or "again".

        Example:
            >>> with profiling.measure() as profile:
            ...     value = dy.tanh(dy.scalarInput(1)).value()
            >>> profile[0].way
            'forward'
        """
        return _way(self)


def _way(row: OpProfile | LineProfile) -> str:
    return "backward" if row.backward else "again" if row.again else "forward"


class LineProfile(NamedTuple):
    """The totals of one line of the program, for one operation in one direction.

    Attributes:
        file, line, function: where it is; the work of dynet_cy's builders counts for the line that called them
        op: the operation
        backward: whether it is the backward direction; weight gradients summed over many nodes belong to no line
        nodes: how many nodes ran
        calls: how many batches contained nodes of the line
        seconds: its share of the time of these batches
        scope: the scopes in which it ran (`name_scope`); empty outside of any
        again: whether it is forward for a second time, of values that were dropped (`checkpoint`, a limit of memory)
    """

    file: str
    line: int
    function: str
    op: str
    backward: bool
    nodes: int
    calls: int
    seconds: float
    scope: str = ""
    again: bool = False

    @property
    def way(self) -> str:
        """ "forward", "backward" or "again".

        Example:
            >>> with profiling.measure(lines=True) as profile:
            ...     value = dy.tanh(dy.scalarInput(1)).value()
            >>> profile.lines[0].way
            'forward'
        """
        return _way(self)


class ScopeProfile(NamedTuple):
    """The totals of the nodes in one scope.

    Attributes:
        scope: its name, with those of the scopes around it: "encoder/attention"
        nodes: how many nodes ran, forward
        seconds: how long they took, forward and backward, without scopes nested in it
        forward, backward: the time of each direction; values that were dropped count as forward again
    """

    scope: str
    nodes: int
    seconds: float
    forward: float
    backward: float


class RequestProfile(NamedTuple):
    """The passes caused by one line of the program, which read values before they were computed.

    Attributes:
        file, line, function: where it is; empty and 0 if no line of Python asked
        passes: how many passes it caused
        values: how many values were computed together, summed over passes; more than `passes` if the program requested
            a list, if items of a batched map waited, or if the engine computed further values in advance
        nodes: how many nodes ran
        seconds: how long that took, including scheduling
        waited: passes for a value that already existed when an earlier one was requested, and could have run with it
        graphs: in how many graphs, or renewals of them, it happened
        of_map: whether the requests came from `batched_map`
    """

    file: str
    line: int
    function: str
    passes: int
    values: int
    nodes: int
    seconds: float
    waited: int
    graphs: int
    of_map: bool

    @property
    def hint(self) -> str:
        """Advice on how to compute its values together; empty if there is none.

        Example:
            >>> with dy.ComputationGraph(), profiling.measure() as profile:
            ...     for i in range(10):
            ...         value = dy.tanh(dy.inputVector([i])).value()
            >>> profile.requests[0].hint
            'one after the other: ...'
        """
        if self.waited * 2 >= self.passes >= _OFTEN:
            return f"{self.waited:,} could have run with the one before: dy.forward([...]) before the values are taken"
        if not self.of_map and self.values == self.passes >= _OFTEN * self.graphs:
            return "one after the other: if this is done for several examples, dy.batched_map runs them together"
        return ""


class Profile(list["OpProfile"]):
    """A list of operations, the slowest first; as text it is a table.

    Args:
        iterable: the operations; see `profile`.

    Attributes:
        lines: lines of the program, the slowest first, if they were recorded; the text has the first 20
        scopes: the scopes of the program (`name_scope`) and of builders, the slowest first
        timeline: what ran when, in the order in which it ended, if a timeline was requested
        dropped: how many entries of the timeline did not fit, after the first 524,288
        requests: lines of the program that requested values, the most costly first; the text has the first 20
        schedules: how many graphs, or parts of graphs, were scheduled in batches
        reused: how many were not, because the cache had the plan of a graph of the same structure
        elapsed: seconds from the beginning of the measurement to its end; 0 if that is not known
        memory: what the graph held that held most, in bytes: `values`, `gradients`, `scratch`, `nodes`, and `by_value`,
            the values by operation and line, the largest first; None if nothing ran
        plan: the plan of a pass with the lifetimes of all values, if it was requested and has run; else None

    Example:
        >>> with profiling.measure(lines=True) as profile:
        ...     value = dy.tanh(dy.inputVector([1, 2])).npvalue()
        >>> profile[0].nodes, profile.lines[0].function
        (1, '<module>')
    """

    lines: list[LineProfile] = []
    scopes: list[ScopeProfile] = []
    requests: list[RequestProfile] = []
    timeline: list[Span] = []
    dropped: int = 0
    schedules: int = 0
    reused: int = 0
    elapsed: float = 0.0
    memory: GraphUsage | None = None
    plan: PassPlan | None = None

    def save_timeline(self, filename: FileName) -> None:
        """Write a timeline to a file in the Trace Event format, for https://ui.perfetto.dev or chrome://tracing.

        Each thread has a row: graph construction, scheduling, passes with their batches (operation, nodes, shapes,
        bytes and lines of the program), updates, exchanges between processes. Memory use is shown below the rows.
        `join_timelines` joins the timelines of several processes.

        Args:
            filename: the file, which is compressed if its name ends in ".gz"

        Raises:
            OSError: the file cannot be written
            ValueError: no timeline was measured

        Example:
            >>> with profiling.measure(timeline=True) as profile:
            ...     value = dy.tanh(dy.inputVector([1, 2])).npvalue()
            >>> profile.save_timeline("timeline.json")
        """
        if not self.timeline:
            raise ValueError("save_timeline: there is no timeline: measure it with measure(timeline=True)")
        write_timeline(self.timeline, filename)

    def beside(self) -> dict[str, float]:
        """Seconds spent outside operations, by kind, if a timeline was recorded.

        Returns:
            A dictionary with the kinds that occurred: "building graphs", "scheduling", "updates" and "exchanges".

        Example:
            >>> with profiling.measure(timeline=True) as profile:
            ...     value = dy.tanh(dy.scalarInput(1)).value()
            >>> "building graphs" in profile.beside()
            True
        """
        names = {
            "making nodes": "building graphs",
            "scheduling": "scheduling",
            "update": "updates",
            "exchange": "exchanges",
        }
        found: dict[str, float] = {}
        for span in self.timeline:
            if span.kind in names:
                found[names[span.kind]] = found.get(names[span.kind], 0.0) + span.end - span.begin
        return {name: found[name] for name in names.values() if name in found}

    @property
    def outside(self) -> float:
        """Seconds in the program's own Python, outside of operations and the kinds in `beside`. Without a timeline the
        making of nodes, scheduling and updates are in it, too.

        Example:
            >>> with profiling.measure() as profile:
            ...     value = dy.tanh(dy.inputVector([1, 2])).npvalue()
            >>> 0 < profile.outside < profile.elapsed
            True
        """
        return max(0.0, self.elapsed - sum(row.seconds for row in self) - sum(self.beside().values()))

    def outside_text(self) -> str:
        """`outside` in words, with its share of the time; empty if that is not known.

        Example:
            >>> with profiling.measure() as profile:
            ...     value = dy.tanh(dy.inputVector([1, 2])).npvalue()
            >>> profile.outside_text()
            "...% of the time is the program's own Python, with the making of nodes, scheduling and updates"
        """
        if not self.elapsed:
            return ""
        more = "" if self.timeline else ", with the making of nodes, scheduling and updates"
        return f"{self.outside / self.elapsed:.0%} of the time is the program's own Python{more}"

    def save_report(self, filename: FileName, title: str = "Profile") -> None:
        """Write a report that any browser shows, with no server and no network.

        It has flame graphs of operations and of lines of the program, the memory over time, and the tables.

        Args:
            filename: the HTML file
            title: its heading (default: "Profile")

        Raises:
            OSError: the file cannot be written

        Example:
            >>> with profiling.measure(timeline=True) as profile:
            ...     value = dy.tanh(dy.inputVector([1, 2])).npvalue()
            >>> profile.save_report("report.html", title="One value")
        """
        write_report(self, filename, title)

    def __repr__(self) -> str:
        calls, nodes = sum(row.calls for row in self), sum(row.nodes for row in self)
        milliseconds = 1e3 * sum(row.seconds for row in self)
        return f"<Profile of {len(self)} operations, {nodes:,} nodes in {calls:,} calls, {milliseconds:.3f} ms>"

    def _repr_html_(self) -> str:
        """Its tables, for notebooks."""
        return tables(self)

    def __str__(self) -> str:
        total = sum(row.seconds for row in self)
        lines = [f"{'ms':>12} {'share':>7} {'nodes':>10} {'calls':>10} {'per call':>9}  operation"]

        def shared(row: OpProfile | LineProfile | ScopeProfile) -> str:
            return f"{1e3 * row.seconds:12.3f} {row.seconds / total if total else 0.0:7.1%} {row.nodes:10,}"

        def called(row: OpProfile | LineProfile) -> str:
            return f"{shared(row)} {row.calls:10,} {row.nodes / row.calls:9.1f} "

        for row in self:
            why = f" (alone: {row.alone_because})" if row.alone_because and row.nodes > 1 else ""
            lines.append(f"{called(row)} {row.way} {row.op}{why}")
        lines.append(f"{1e3 * total:12.3f}          in all")
        lines += [f"{1e3 * seconds:12.3f}          {name}" for name, seconds in self.beside().items()]
        if self.elapsed:
            lines.append(f"{1e3 * self.outside:12.3f}          outside of them: {self.outside_text()}")
        for line in self.lines[:_MOST_LINES]:
            where = f"{_shown(line.file)}:{line.line} in {line.function}"
            within = f" [{line.scope}]" if line.scope else ""
            lines.append(f"{called(line)} {where}: {line.way} {line.op}{within}")
        if len(self.lines) > _MOST_LINES:
            lines.append(f"{'':12} and {len(self.lines) - _MOST_LINES:,} lines more")
        if self.scopes:
            lines.append(f"{'ms':>12} {'share':>7} {'nodes':>10} {'forward':>10} {'backward':>9}  scope")
        for scope in self.scopes[:_MOST_LINES]:
            lines.append(f"{shared(scope)} {1e3 * scope.forward:10.3f} {1e3 * scope.backward:9.3f}  {scope.scope}")
        lines += self._requests_text()
        if self.schedules or self.reused:
            lines.append(f"schedules: {self.schedules:,} made, {self.reused:,} taken from the plan cache")
        lines += self._memory_text()
        return "\n".join(lines)

    def _memory_text(self) -> list[str]:
        if self.memory is None:
            return []
        lines = [f"{'size':>12}  memory when the graph held most"]
        lines += [f"{_size_text(row.bytes):>12}  {row.kind}" for row in _memory_rows(self.memory) if row.bytes]
        lines.append(f"{'size':>12} {'nodes':>10}  values at that time")
        lines += [
            f"{size:>12} {nodes:>10}  {op} {where}".rstrip()
            for size, nodes, op, where in _value_rows(self.memory.by_value)
        ]
        if self.memory.dropped:
            lines.append(f"{'size':>12} {'nodes':>10}  values that were dropped")
        lines += [
            f"{size:>12} {nodes:>10}  {op} {where}".rstrip()
            for size, nodes, _, op, where in _dropped_rows(self.memory.dropped)
        ]
        return lines + ([f"{'':12} {self.again_hint}"] if self.again_hint else [])

    @property
    def again_hint(self) -> str:
        """The cost of computing dropped values again, the line that took longest, and what would help.

        Empty if nothing was computed again.

        Example:
            >>> W = model.add_parameters((64, 64))
            >>> with profiling.measure(lines=True) as profile:
            ...     x = dy.inputVector([0.1] * 64)
            ...     for _ in range(2):
            ...         x = dy.checkpoint(lambda x: dy.tanh(W * dy.tanh(W * x)), x)
            ...         _ = x.forward()
            ...     dy.squared_norm(x).backward()
            >>> profile.again_hint
            '... values were computed again in backward, ... of the time...'
        """
        rows = [row for row in self if row.again]
        if not rows:
            return ""
        nodes, seconds = sum(row.nodes for row in rows), sum(row.seconds for row in rows)
        share = seconds / (sum(row.seconds for row in self) or 1.0)
        words = [f"{nodes:,} values were computed again in backward, in {_time_text(seconds)}, {share:.1%} of the time"]
        slowest = max((line for line in self.lines if line.again), key=lambda line: line.seconds, default=None)
        if slowest is not None:
            place = f"{_shown(slowest.file)}:{slowest.line} in {slowest.function}"
            words.append(f"{slowest.op} of {place} took longest, {_time_text(slowest.seconds)}")
        missing, most = (self.memory.missing, self.memory.limit or _limit()) if self.memory is not None else (0, 0)
        words.append(
            _missing_hint(missing, most)
            or "what is made outside of dy.checkpoint, or read outside of it, is kept and saves that time"
        )
        return "; ".join(words)

    def _advice(self, row: RequestProfile) -> str:
        """The hint of a line that requested values, after the share of the time that `batched_map` does not save."""
        own = self.outside_text() if "batched_map" in row.hint else ""
        return f"{own}; {row.hint}" if own else row.hint

    def _requests_text(self) -> list[str]:
        if not self.requests:
            return []
        lines = [f"{'ms':>12} {'passes':>7} {'values':>10} {'nodes':>10} {'per pass':>9}  asked for by"]
        for row in self.requests[:_MOST_LINES]:
            where = f"{_shown(row.file)}:{row.line} in {row.function}" if row.file else "no line of the program"
            lines.append(
                f"{1e3 * row.seconds:12.3f} {row.passes:7,} {row.values:10,} {row.nodes:10,} "
                f"{row.nodes / row.passes:9.1f}  {where}"
            )
            if row.hint:
                lines.append(f"{'':53}{self._advice(row)}")
        if len(self.requests) > _MOST_LINES:
            lines.append(f"{'':12} and {len(self.requests) - _MOST_LINES:,} lines more")
        return lines

    def _measured(self) -> Profile:
        """This profile with the measurements so far."""
        reasons = {op["name"]: op["alone_because"] for op in _describe()}
        rows = [OpProfile(*x[:5], reasons.get(x.op, ""), x.again) for x in _watch.counts()]
        self.extend(sorted(rows, key=lambda row: -row.seconds))
        counted = _watch.line_counts()
        lines = [
            LineProfile(*row.origin, row.op, row.backward, row.nodes, row.calls, row.seconds, row.scope, row.again)
            for row in counted
            if row.origin is not None
        ]
        self.lines = sorted(lines, key=lambda line: -line.seconds)
        scopes: dict[str, ScopeProfile] = {}
        for row in counted:
            if row.scope:
                so_far = scopes.get(row.scope, ScopeProfile(row.scope, 0, 0.0, 0.0, 0.0))
                there, back = (0.0, row.seconds) if row.backward else (row.seconds, 0.0)
                nodes = so_far.nodes + (0 if row.backward or row.again else row.nodes)
                scopes[row.scope] = ScopeProfile(
                    row.scope, nodes, so_far.seconds + row.seconds, so_far.forward + there, so_far.backward + back
                )
        self.scopes = sorted(scopes.values(), key=lambda scope: -scope.seconds)
        requests = []
        for x in _watch.request_counts():
            file, line, function = x.origin or ("", 0, "")
            numbers = (x.passes, x.values, x.nodes, x.seconds, x.waited, x.graphs)
            requests.append(RequestProfile(file, line, function, *numbers, x.of_map))
        self.requests = sorted(requests, key=lambda row: -row.seconds)
        plans = _engine.stats("schedule.plan")
        self.schedules, self.reused = plans["made"], plans["reused"]
        self.memory = _usage.peak()
        return self


def profile() -> Profile:
    """The measurements so far.

    Example:
        >>> isinstance(profiling.profile(), profiling.Profile)
        True
    """
    return _since(Profile()._measured(), _began)


def _since(profile: Profile, began: float) -> Profile:
    """The profile, with the time that has passed since then."""
    profile.elapsed = time.perf_counter() - began if began else 0.0
    return profile


@contextmanager
def measure(lines: bool = False, timeline: bool = False, plan: int = 0) -> Iterator[Profile]:
    """Measure the graphs of all threads while the block runs; its profile is complete at the end of the block.

    Args:
        lines: whether to record which line of the program makes each node, and measure lines too. If something else
            records lines already, they are measured in any case. Default: False
        timeline: whether to record when each batch, pass, update and exchange ran, for `Profile.save_timeline` and
            `Profile.save_report`; lines are recorded too. At most 524,288 entries are kept, about 140 MB.
            Default: False
        plan: the number of a backward pass, counted from 1, to record in `Profile.plan`: its batches, and how long
            each value and gradient lives. Default: 0, none

    Raises:
        RuntimeError: a timeline is being measured already
        ValueError: `plan` is negative

    Example:
        >>> with profiling.measure(lines=True) as profile:
        ...     value = dy.tanh(dy.inputVector([1, 2])).npvalue()
        >>> profile[0].op
        'tanh'
    """
    if plan < 0:
        raise ValueError(f"measure: the number of a backward pass must be at least 1, or 0 for none, not {plan}")
    lines = lines or timeline
    before = _watch.level()
    result = Profile()
    _watch.reset()
    _engine.stats("schedule.plan", reset=True)
    if timeline:
        _timeline.switch(True)
    _watch.set_level(max(before, 1))
    if lines:
        _origin.switch(True)
    if plan:
        _lifetimes.record(plan)
    began = time.perf_counter()
    try:
        yield result
    finally:
        _since(result, began)
        if lines:
            _origin.switch(False)
        _watch.set_level(before)
        result._measured()
        if timeline:
            result.timeline, result.dropped = _timeline.recorded_spans()
            _timeline.switch(False)
        if plan:
            recorded = _lifetimes.recorded_plan()
            result.plan = PassPlan(recorded) if recorded is not None else None
            _lifetimes.stop()


_at_exit = False
_began = 0.0  # when measuring began for the whole process


def set_level(level: int) -> None:
    """Set the level of ``--dynet-profiling``.

    Args:
        level: 0 to measure nothing, 1 for a report at the end of the process, 2 or more to list each batch as well

    Raises:
        ValueError: `level` is negative

    Example:
        >>> profiling.set_level(1)
        >>> value = dy.tanh(dy.inputVector([1, 2])).npvalue()
        >>> profiling.set_level(0)
    """
    global _at_exit, _began
    if level < 0:
        raise ValueError(f"the level of profiling must be at least 0, not {level}")
    _watch.set_level(level)
    if not level or not _began:
        _began = time.perf_counter() if level else 0.0
    if level and not _at_exit:
        atexit.register(_report)
        _at_exit = True


def _report() -> None:
    if _watch.level():
        print(f"Timing Info:\n{profile()}", file=sys.stderr)


name_all(__name__)
