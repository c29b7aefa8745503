"""Plans of passes as text: a line for each batch, with the lifetimes of its values and gradients."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import NamedTuple

from dynet_cy.core.amounts import size_text
from dynet_cy.graph.origin import shown_file
from dynet_cy.watch.lifetimes import BatchLifetime, RecordedPlan

__all__ = ["BatchLifetime", "PassPlan"]

_WIDTH = 100  # characters of a line
_MOST_ROWS = 60  # of batches
_LEAST = {"reads": 9, "operation": 14}  # characters to which columns are cut
_TO_THE_LEFT = {"operation", "shape", "form", "device", "reads", "values", "gradients", "line"}

# What the entries of the last columns mean, by a word that tells their kind.
_VALUES = {
    "held": ("held", "kept: the program refers to it"),
    "requested": ("asked for", "kept: the program has asked for it, or nodes read it that the plan does not compute"),
    "for": ("for B'", "kept: backward reads it, and of batches that do so B' comes last"),
    "once": ("once", "kept: it draws random numbers or runs Python (a stretch can run it again)"),
    "viewed": ("viewed", "kept: another value is a part of it"),
    "beside": ("beside", "kept: a batch may read it in place, together with values beside it"),
    "small": ("small", "kept: too small to pay"),
    "past": ("past B", "kept: a batch reads it past the end of its stretch, batch B"),
    "chosen": ("chosen", "kept, though its stretch is dropped: it takes long to compute again, or has views"),
    "kept": ("kept", "no shorter lifetime was looked for: values are few or small, or the graph drops stretches"),
    "view": ("in B", "its value and gradient are parts of those of batch B, with no memory of their own"),
    "transient": ("until B", "transient: no backward reads it; its memory is free once batch B has run"),
    "dropped": (
        "until [A,B]",
        'dropped within the stretch of batches A to B; "again": and computed again for backward',
    ),
    "donated": ("free B'", "its memory is donated: once B' has run, gradients use it"),
}
_READS = {"back": ("B*", "backward reads the values of batch B, too")}
_GRADIENTS = {
    "loss": ("1", "it is 1: that of the loss, with which backward begins"),
    "freed": ("A' to B'", "A' gives the first contribution; the memory is free once B' has run"),
    "kept": ("A' on", "the same, but it is kept: the program can ask for it"),
    "over": ("over", "it is written over the values of its batch, which nothing reads any more"),
    "place": ("over A", "it is written over the gradient of batch A, whose place it takes"),
}


class _Row(NamedTuple):
    """A line of the table, and the kinds of its reads and lifetimes."""

    cells: dict[str, str]
    reads: list[str]
    values: list[str]
    gradients: list[str]


class PassPlan:
    """The plan of a pass: batches in the order of execution, with the lifetimes of their values and gradients.

    Backward runs the batches from the last one to the first, and 7' stands for the backward of batch 7. Recorded by
    `profiling.measure(plan=1)`; ``python -m dynet_cy plan PROGRAM`` prints that of a program. As text it is a table of
    at most 60 batches and 100 columns; `text` has them all.

    Args:
        recorded: the plan as the engine has recorded it

    Attributes:
        batches: the batches, a list of BatchLifetime
        passes: the number of the first batch of each forward pass
        target: the batch of the loss; None if that is no result of an operation
        kept, transient, dropped, donated: bytes of values of each lifetime; `kept` counts those that were donated, too
        block: bytes that the transient values take at a time
        values, gradients, scratch: bytes of the graph when it held most
        peak: the batch after which it held most; None if nothing ran
        peak_back: whether that was in backward

    Example:
        >>> with profiling.measure(plan=1) as profile:
        ...     x = dy.tanh(dy.inputVector([1, 2]))
        ...     dy.sum_elems(x * 2).backward()
        >>> [batch.op for batch in profile.plan.batches]
        ['tanh', 'scale', 'sum']
    """

    def __init__(self, recorded: RecordedPlan) -> None:
        self.batches = recorded.batches
        self.passes = recorded.passes
        self.target = recorded.target
        self.block = recorded.transient
        self.values, self.gradients, self.scratch = recorded.values, recorded.gradients, recorded.scratch
        self.peak, self.peak_back = recorded.peak, recorded.peak_back
        self.kept = sum(batch.bytes for batch in self.batches if batch.value == "kept")
        self.transient = sum(batch.bytes for batch in self.batches if batch.value == "transient")
        self.dropped = sum(batch.bytes for batch in self.batches if batch.value == "dropped")
        self.donated = sum(batch.bytes for batch in self.batches if batch.donated is not None)

    def __repr__(self) -> str:
        nodes = sum(batch.nodes for batch in self.batches)
        return f"<PassPlan of {nodes:,} nodes in {len(self.batches):,} batches>"

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        """The table, for notebooks."""
        return f"<pre>{html.escape(self.text())}</pre>"

    def text(self, all: bool = False) -> str:
        """The plan as a table, with a legend and sums.

        Args:
            all: show all batches, whole columns, and lines of the program if they were recorded. Default: 60 batches
                at most, and 100 columns

        Example:
            >>> with profiling.measure(plan=1) as profile:
            ...     dy.sum_elems(dy.tanh(dy.inputVector([1, 2]))).backward()
            >>> print(profile.plan.text())
            # operation  nodes shape form reads bytes values ...
        """
        rows = [_row(batch, self) for batch in self.batches]
        first = len(rows) if all or len(rows) <= _MOST_ROWS else _MOST_ROWS * 2 // 3
        shown = [*range(first), *range(max(first, len(rows) - (_MOST_ROWS - first)), len(rows))]
        lines = _table([rows[i].cells for i in shown], self._columns(all), None if all else _WIDTH)
        lines[1:] = self._with_passes(lines[1:], shown)
        return "\n".join([*lines, "", *_legend([rows[i] for i in shown]), "", *self._sums()])

    def _columns(self, all: bool) -> list[str]:
        """The columns: devices where there are several, lines of the program if all is shown."""
        names = ["#", "operation", "nodes", "shape", "form", "device", "reads", "bytes", "values", "gradients"]
        if len({batch.device for batch in self.batches}) < 2:
            names.remove("device")
        return [*names, "line"] if all and any(batch.origin for batch in self.batches) else names

    def _with_passes(self, lines: list[str], shown: list[int]) -> Iterator[str]:
        """The lines of batches, with notes where a forward pass begins and where lines are left out."""
        before = -1
        for line, number in zip(lines, shown):
            if number > before + 1:
                yield f"... {number - before - 1:,} batches more: --all, or PassPlan.text(all=True)"
            passes = [k for k, begin in enumerate(self.passes) if before < begin <= number and begin]
            if passes:
                yield f"---- forward pass {passes[-1] + 1}"
            yield line
            before = number

    def _sums(self) -> Iterator[str]:
        kept = f"{size_text(self.kept)} kept" + (
            f", {size_text(self.donated)} of them donated in backward" if self.donated else ""
        )
        # Where all of them are in stretches, dropped values lie among them.
        at_a_time = f", {size_text(self.block)} at a time" if self.block else ""
        others = [f"{size_text(self.transient)} transient{at_a_time}"] if self.transient else []
        others += [f"{size_text(self.dropped)} dropped"] if self.dropped else []
        yield f"values: {'; '.join([kept, *others])}"
        total = size_text(self.values + self.gradients + self.scratch)
        after = "" if self.peak is None else f" after {_back(self.peak) if self.peak_back else self.peak}"
        gradients = "gradients" if self.peak_back or not self.transient else "transient values"
        yield (
            f"most memory: {total}{after}: values {size_text(self.values)}, {gradients} {size_text(self.gradients)}, "
            f"scratch {size_text(self.scratch)}"
        )


# ---- lifetimes in words ---------------------------------------------------------------------------------------------


def _back(number: int | None) -> str:
    return f"{number}'"


def _values(batch: BatchLifetime) -> dict[str, str]:
    """The lifetime of the values of a batch, by the kinds that it consists of."""
    if batch.value == "transient":
        return {"transient": f"until {batch.number if batch.last is None else batch.last}"}
    if batch.value == "view":
        return {"view": f"in {batch.reads[0]}" if batch.reads else "in an input"}
    if batch.value == "dropped":
        a, b = batch.stretch or ("?", "?")
        return {"dropped": f"until [{a},{b}]" + (" again" if batch.again else "")}
    if batch.stretch is not None and "requested" not in batch.why:
        past = batch.last is not None and batch.last > batch.stretch[1]
        return {"past": f"past {batch.stretch[1]}"} if past else {"chosen": "chosen"}
    words: dict[str, str] = {name: _VALUES[name][0] for name in ("held", "requested", "once") if name in batch.why}
    if "held" in words:
        words.pop("requested", None)
    if batch.read is not None:
        words["for"] = f"for {_back(batch.read)}"
    for name, why in (("viewed", "view"), ("beside", "beside"), ("small", "small")):
        if not words and why in batch.why:
            words[name] = name
    words = words or {"kept": "kept"}
    if batch.donated is not None:
        words["donated"] = f"free {_back(batch.donated)}"
    return words


def _gradients(batch: BatchLifetime, plan: PassPlan) -> dict[str, str]:
    """The lifetime of the gradients of a batch, in the same way."""
    if batch.gradient is None:
        return {"loss": "1"} if batch.number == plan.target else {}
    begin = _back(batch.gradient)
    words = {"kept": f"{begin} on"} if batch.free is None else {"freed": f"{begin} to {_back(batch.free)}"}
    if batch.over == "value":
        words["over"] = "over"
    elif batch.over is not None:
        words["place"] = f"over {batch.over}"
    return words


def _row(batch: BatchLifetime, plan: PassPlan) -> _Row:
    values, gradients = _values(batch), _gradients(batch, plan)
    cells = {
        "#": str(batch.number),
        "operation": batch.op,
        "nodes": f"{batch.nodes:,}",
        "shape": "{" + ",".join(map(str, batch.shape)) + "}",
        "form": batch.form,
        "device": batch.device,
        "reads": ",".join(_ranges(batch.reads, set(batch.reads_back))),
        "bytes": size_text(batch.bytes),
        "values": ", ".join(values.values()),
        "gradients": " ".join(gradients.values()),
        "line": f"{shown_file(batch.origin.file)}:{batch.origin.line}" if batch.origin else "",
    }
    return _Row(cells, ["back"] if batch.reads_back else [], list(values), list(gradients))


def _ranges(numbers: list[int], marked: set[int]) -> Iterator[str]:
    """Numbers in rising order, some of them with a mark, with three or more in a row as a range."""
    i = 0
    while i < len(numbers):
        end = i
        star = "*" if numbers[i] in marked else ""
        while numbers[end + 1 : end + 2] == [numbers[end] + 1] and (numbers[end + 1] in marked) == bool(star):
            end += 1
        if end - i < 2:
            end = i
        yield (str(numbers[i]) if end == i else f"{numbers[i]}-{numbers[end]}") + star
        i = end + 1


# ---- tables ---------------------------------------------------------------------------------------------------------


def _table(rows: list[dict[str, str]], columns: list[str], most: int | None) -> list[str]:
    """Rows in aligned columns below their names; some columns are cut if lines were longer than `most`."""
    table = [{name: name for name in columns}, *rows]
    widths = {name: max(len(row[name]) for row in table) for name in columns}
    for name, least in _LEAST.items():
        too_long = sum(widths.values()) + len(columns) - 1 - most if most else 0
        widths[name] -= max(0, min(too_long, widths[name] - least))
    lines = []
    for row in table:
        cells = [_cut(row[name], widths[name]) for name in columns]
        lines.append(
            " ".join(
                cell.ljust(widths[name]) if name in _TO_THE_LEFT else cell.rjust(widths[name])
                for name, cell in zip(columns, cells)
            ).rstrip()
        )
    return lines


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 2] + ".."


def _legend(rows: list[_Row]) -> Iterator[str]:
    """What the entries of some columns mean, of those kinds that occur."""
    for title, words, kinds in (
        ("reads", _READS, {kind for row in rows for kind in row.reads}),
        ("values", _VALUES, {kind for row in rows for kind in row.values}),
        ("gradients", _GRADIENTS, {kind for row in rows for kind in row.gradients}),
    ):
        for kind, (entry, meaning) in words.items():
            if kind in kinds:
                yield f"{title:9}  {entry:11}  {meaning}"
                title = ""
