"""Timelines as files in the Trace Event format, which https://ui.perfetto.dev and chrome://tracing open.

The format is described in "Trace Event Format" (Chromium project).
"""

from __future__ import annotations

import gzip
import json
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dynet_cy.files.reading import FileName
from dynet_cy.files.replacing import write_file
from dynet_cy.parallel.runtime import launched, rank
from dynet_cy.watch.timeline import Span

_COLOURS = {
    "making nodes": "grey",
    "scheduling": "yellow",
    "again": "terrible",
    "forward pass": "thread_state_runnable",
    "backward pass": "thread_state_iowait",
    "update": "good",
    "exchange": "bad",
}


def described(span: Span) -> tuple[str, dict[str, Any]]:
    """The name of a span in the timeline, and its details."""
    args: dict[str, Any] = {}
    if span.nodes:
        args["nodes"] = span.nodes
    if span.op:
        args["shape"] = span.shape + (f" and {span.other_shapes} nodes of other shapes" if span.other_shapes else "")
        if span.arguments:
            args["arguments"] = ", ".join(span.arguments)
        args["bytes"] = span.bytes
        lines = [str(origin) for origin in span.origins if origin is not None]
        if lines:
            args["lines"] = "; ".join(lines) + (f"; {span.more_lines} nodes of other lines" if span.more_lines else "")
        if span.scope:
            args["scope"] = span.scope
    name = span.op or span.kind
    if span.op and span.kind == "backward":
        name = f"{span.op} (gradient)"
    elif span.op and span.kind == "again":
        name = f"{span.op} (again)"
    if span.nodes > 1 and span.op:
        name = f"{name} x {span.nodes}"
    return name, args


def events_of(spans: Sequence[Span]) -> Iterable[dict[str, Any]]:
    """The events of this process."""
    pid = rank() if launched() else os.getpid()
    program = os.path.basename(sys.argv[0]) or "python"
    name = f"rank {rank()} of {program}" if launched() else program
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": rank()}}
    for thread in sorted({span.thread for span in spans}):
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": thread, "args": {"name": "thread"}}
    for span in spans:
        name, args = described(span)
        event = {
            "ph": "X",
            "name": name,
            "cat": span.kind,
            "pid": pid,
            "tid": span.thread,
            "ts": round(span.begin * 1e6, 3),
            "dur": round((span.end - span.begin) * 1e6, 3),
        }
        if args:
            event["args"] = args
        if span.kind in _COLOURS:
            event["cname"] = _COLOURS[span.kind]
        yield event
        if span.op:
            parts = {"values": span.values, "gradients": span.gradients, "scratch": span.scratch}
            for name, sizes in (("memory of the graph", parts), ("memory", {"held": span.held})):
                args = {f"{what}, MiB": round(size / 2**20, 3) for what, size in sizes.items()}
                yield {"ph": "C", "name": name, "pid": pid, "ts": round(span.end * 1e6, 3), "args": args}


def write_timeline(spans: Sequence[Span], filename: FileName) -> None:
    """Write spans as a timeline; gzipped where the name ends in ".gz"."""
    _write(list(events_of(spans)), filename, _machine())


def _machine() -> str:
    """The machine since its last start: its processes share one clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return platform.node()


def _write(events: list[dict[str, Any]], filename: FileName, machine: str) -> None:
    whole = {"displayTimeUnit": "ms", "otherData": {"machine": machine}, "traceEvents": events}
    data = json.dumps(whole, separators=(",", ":"), ensure_ascii=False).encode()
    write_file(filename, gzip.compress(data, 6) if str(filename).endswith(".gz") else data)


def join_timelines(filename: FileName, *parts: FileName) -> None:
    """Join the timelines of several processes into one that shows them below each other.

    Processes on one machine share a clock. Timelines of different machines are shifted so that all machines begin at
    the same time.

    Args:
        filename: the file to write; gzipped where the name ends in ".gz"
        parts: the files that `Profile.save_timeline` has written, one for each process

    Raises:
        OSError: a file cannot be read or written
        ValueError: a file is not a timeline, or none is given

    Example:
        >>> with profiling.measure(timeline=True) as profile:
        ...     value = dy.tanh(dy.inputVector([1, 2])).npvalue()
        >>> profile.save_timeline("rank0.json.gz")
        >>> profiling.join_timelines("all.json", "rank0.json.gz")
    """
    if not parts:
        raise ValueError("join_timelines: no file to join is given")
    by_machine: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        data = Path(part).read_bytes()
        try:
            found = json.loads(gzip.decompress(data) if str(part).endswith(".gz") else data)
            by_machine.setdefault(found["otherData"]["machine"], []).extend(found["traceEvents"])
        except (ValueError, KeyError, TypeError, AttributeError, EOFError, OSError) as error:
            raise ValueError(f"join_timelines: {os.fspath(part)} is no timeline of dynet_cy: {error}") from None
    if len(by_machine) > 1:
        for events in by_machine.values():
            begin = min((event["ts"] for event in events if "ts" in event), default=0.0)
            for event in events:
                if "ts" in event:
                    event["ts"] = round(event["ts"] - begin, 3)
    _write([event for events in by_machine.values() for event in events], filename, " ".join(by_machine))
