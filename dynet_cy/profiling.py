"""Where the time of graphs goes: for each operation the nodes that ran, the calls they ran in, and the time.

``--dynet-profiling 1``, or ``dynet_cy.config.set(profiling=1)``, measures from then on and writes a report to stderr
when the process ends; with 2 every batch is listed too when it has run.  From a program::

    with dynet_cy.profiling.measure() as profile:
        ...
    print(profile)

Where lines of the program are recorded (``measure(lines=True)``, `record_lines`, `detect_anomaly`, ``--dynet-check``),
the time of each line is measured too.  A batch of nodes from several lines is divided among them.

The passes that a program asks for, by `value` and its like, are counted by the line that asks, with a hint where values
could have been asked for together.

On a GPU each call is waited for while calls are measured, so that times are those of the device. What is measured is
slower for that: nothing waits otherwise.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from dynet_cy.execute import profile as _profile
from dynet_cy.graph import origin as _origin
from dynet_cy.ops.registry import describe as _describe
from dynet_cy.schedule import kept as _kept

__all__ = ["LineProfile", "OpProfile", "Profile", "RequestProfile", "measure", "profile", "set_level"]


_MOST_LINES = 20  # in the text of a profile
_OFTEN = 4  # passes of one line in one graph, from which on something is to be gained


class OpProfile(NamedTuple):
    """What one operation did in one direction.

    Attributes:
        op: its name; "weight gradients" stands for the products of factors that were collected
        backward: whether it is the gradients
        nodes: how many nodes ran
        calls: how many batches they ran in; nodes that differ in sizes may be one, though each is called by itself
        seconds: how long that took, laying out of arguments included
        alone_because: why its nodes never batch; empty where they do if their shapes and shared arguments are equal
    """

    op: str
    backward: bool
    nodes: int
    calls: int
    seconds: float
    alone_because: str


class LineProfile(NamedTuple):
    """What one line of the program did with one operation in one direction.

    Attributes:
        file, line, function: where it is; what builders of dynet_cy do belongs to the line that called them
        op: the operation
        backward: whether it is the gradients; products of factors that were collected are of no line
        nodes: how many nodes ran
        calls: how many batches had nodes of the line
        seconds: its part of the time of these batches
    """

    file: str
    line: int
    function: str
    op: str
    backward: bool
    nodes: int
    calls: int
    seconds: float


class RequestProfile(NamedTuple):
    """What one line of the program asked for: values that were not computed yet, each time a pass.

    Attributes:
        file, line, function: where it is; empty and 0 where no line of Python asked
        passes: how often
        values: how many values were computed for it at once, summed over passes; more than `passes` where a list was
            asked for, the items of a batched map waited, or the engine computed values beside the one asked for
        nodes: how many nodes ran
        seconds: how long that took, scheduling included
        waited: passes for a value that waited beside one that was asked for before, and could have run with it
        graphs: how many graphs, or renewals of them, it was
        of_map: whether it is of `batched_map`
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
        """What would let its values run together; empty where nothing is known to."""
        if self.waited * 2 >= self.passes >= _OFTEN:
            return f"{self.waited:,} could have run with the one before: dy.forward([...]) before the values are taken"
        if not self.of_map and self.values == self.passes >= _OFTEN * self.graphs:
            return "one after the other: if this is done for several examples, dy.batched_map runs them together"
        return ""


class Profile(list["OpProfile"]):
    """Operations, the slowest first; as text it is a table.

    Attributes:
        lines: lines of the program, the slowest first, where they were recorded; the text has the first 20
        requests: lines of the program that asked for values, the most costly first; the text has the first 20
        schedules: how many graphs, or parts of them, were scheduled in batches
        reused: how many were not, because an equal structure had been: its schedule was kept
    """

    lines: list[LineProfile] = []
    requests: list[RequestProfile] = []
    schedules: int = 0
    reused: int = 0

    def __str__(self) -> str:
        total = sum(row.seconds for row in self)
        lines = [f"{'ms':>12} {'share':>7} {'nodes':>10} {'calls':>10} {'per call':>9}  operation"]
        for row in self:
            way = "backward" if row.backward else "forward"
            why = f" (alone: {row.alone_because})" if row.alone_because and row.nodes > 1 else ""
            share = row.seconds / total if total else 0.0
            lines.append(
                f"{1e3 * row.seconds:12.3f} {share:7.1%} {row.nodes:10,} {row.calls:10,} {row.nodes / row.calls:9.1f}  "
                f"{way} {row.op}{why}"
            )
        lines.append(f"{1e3 * total:12.3f}          in all")
        for line in self.lines[:_MOST_LINES]:
            way = "backward" if line.backward else "forward"
            share = line.seconds / total if total else 0.0
            lines.append(
                f"{1e3 * line.seconds:12.3f} {share:7.1%} {line.nodes:10,} {line.calls:10,} "
                f"{line.nodes / line.calls:9.1f}  {line.file}:{line.line} in {line.function}: {way} {line.op}"
            )
        if len(self.lines) > _MOST_LINES:
            lines.append(f"{'':12} and {len(self.lines) - _MOST_LINES:,} lines more")
        lines += self._requests_text()
        if self.schedules or self.reused:
            lines.append(f"schedules: {self.schedules:,} made, {self.reused:,} kept ones used again")
        return "\n".join(lines)

    def _requests_text(self) -> list[str]:
        if not self.requests:
            return []
        lines = [f"{'ms':>12} {'passes':>7} {'values':>10} {'nodes':>10} {'per pass':>9}  asked for by"]
        for row in self.requests[:_MOST_LINES]:
            where = f"{row.file}:{row.line} in {row.function}" if row.file else "no line of the program"
            lines.append(
                f"{1e3 * row.seconds:12.3f} {row.passes:7,} {row.values:10,} {row.nodes:10,} "
                f"{row.nodes / row.passes:9.1f}  {where}"
            )
            if row.hint:
                lines.append(f"{'':53}{row.hint}")
        if len(self.requests) > _MOST_LINES:
            lines.append(f"{'':12} and {len(self.requests) - _MOST_LINES:,} lines more")
        return lines

    def _measured(self) -> Profile:
        """This profile with what has been measured so far."""
        reasons = {op["name"]: op["alone_because"] for op in _describe()}
        rows = [OpProfile(*counts, reasons.get(counts.op, "")) for counts in _profile.counts()]
        self.extend(sorted(rows, key=lambda row: -row.seconds))
        lines = [
            LineProfile(*row.origin, row.op, row.backward, row.nodes, row.calls, row.seconds)
            for row in _profile.line_counts()
        ]
        self.lines = sorted(lines, key=lambda line: -line.seconds)
        requests = []
        for x in _profile.request_counts():
            file, line, function = x.origin or ("", 0, "")
            counted = (x.passes, x.values, x.nodes, x.seconds, x.waited, x.graphs)
            requests.append(RequestProfile(file, line, function, *counted, x.of_map))
        self.requests = sorted(requests, key=lambda row: -row.seconds)
        self.schedules, self.reused = _kept.counts()
        return self


def profile() -> Profile:
    """What has been measured so far."""
    return Profile()._measured()


@contextmanager
def measure(lines: bool = False) -> Iterator[Profile]:
    """Measure the graphs of all threads while the block runs; its profile is complete at the end of the block.

    Args:
        lines: record which line of the program makes each node, and measure lines too; they are measured without that
            where they are recorded already
    """
    before = _profile.level()
    result = Profile()
    _profile.reset()
    _kept.reset()
    _profile.set_level(max(before, 1))
    if lines:
        _origin.switch(True)
    try:
        yield result
    finally:
        if lines:
            _origin.switch(False)
        _profile.set_level(before)
        result._measured()


_at_exit = False


def set_level(level: int) -> None:
    """Set what ``--dynet-profiling`` sets.

    Args:
        level: 0 for nothing, 1 for a report at the end of the process, from 2 on a line for each batch as well

    Raises:
        ValueError: `level` is negative
    """
    global _at_exit
    if level < 0:
        raise ValueError(f"the level of profiling must be at least 0, not {level}")
    _profile.set_level(level)
    if level and not _at_exit:
        atexit.register(_report)
        _at_exit = True


def _report() -> None:
    if _profile.level():
        print(f"Timing Info:\n{profile()}", file=sys.stderr)
