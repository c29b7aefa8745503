"""Memory by kind: parameters, trainers, the current graph by operation and line."""

from __future__ import annotations

from typing import NamedTuple

from dynet_cy.core.amounts import size_text, time_text
from dynet_cy.core.devices import device_name
from dynet_cy.graph.expressions import cg
from dynet_cy.graph.origin import shown_file
from dynet_cy.memory.arena import limit, used_bytes
from dynet_cy.memory.storage import storage_usage
from dynet_cy.schedule.plan import cached_in
from dynet_cy.watch.usage import DroppedUsage, GraphUsage, ValueUsage, graph_usage

_MOST_VALUES = 20  # rows in texts and tables


class MemoryRow(NamedTuple):
    """One kind of memory.

    Attributes:
        kind: what it is for
        bytes: how much
    """

    kind: str
    bytes: int


class MemoryReport(NamedTuple):
    """The memory of this process by kind, and of the current graph by operation and line; see `memory_report`.

    Attributes:
        rows: the kinds of memory, a list of MemoryRow
        total: bytes of all graphs, parameters and trainers in the memory of the host, which count against the limit
        limit: the limit (``--dynet-mem``) in bytes; 0 if there is none
        values: the values of the current graph by operation and line of the program, the largest first: op, bytes,
            nodes, shape, origin and scope of each
        dropped: its values that were dropped after forward, by `checkpoint` or for a lack of memory, in the same way:
            `bytes` is what they would take, `again` how many were computed again
        again_seconds: how long computing them again has taken since the graph was renewed
        missing: how many more bytes would have let the graph keep all values; 0 if memory sufficed
        graph_limit: the limit of the current graph (``renew_cg(mem=...)``) in bytes; 0 if there is none

    Example:
        >>> W = model.add_parameters((100, 100))
        >>> y = dy.tanh(W * dy.inputVector([0.1] * 100))
        >>> y.forward()
        >>> report = dy.memory_report()
        >>> report.rows[0]
        MemoryRow(kind='parameters', bytes=...)
        >>> report.values[0].op, report.values[0].bytes
        ('input', 400)
    """

    rows: list[MemoryRow]
    total: int
    limit: int
    values: list[ValueUsage]
    dropped: list[DroppedUsage] = []
    again_seconds: float = 0.0
    missing: int = 0
    graph_limit: int = 0

    @property
    def hint(self) -> str:
        """Advice against computing dropped values again; empty if none were dropped.

        Example:
            >>> y = dy.checkpoint(dy.tanh, dy.inputVector([1, 2]))
            >>> dy.memory_report().hint
            ''
            >>> dy.squared_norm(dy.exp(y)).forward()
        """
        if not self.dropped:
            return ""
        return missing_hint(self.missing, self.graph_limit or self.limit) or (
            "dy.checkpoint has dropped them; dynet_cy.profiling.measure(lines=True) says which lines take longest"
        )

    def __str__(self) -> str:
        lines = [f"{size_text(row.bytes):>12}  {row.kind}" for row in self.rows]
        of = f" of {size_text(self.limit)} allowed" if self.limit else ""
        lines.append(f"{size_text(self.total):>12}  in all{of}")
        lines += [f"{size:>12}  {nodes} {op} {where}".rstrip() for size, nodes, op, where in value_rows(self.values)]
        if len(self.values) > _MOST_VALUES:
            lines.append(f"{'':12}  and {len(self.values) - _MOST_VALUES:,} rows more")
        lines += self._dropped_text()
        return "\n".join(lines)

    def _dropped_text(self) -> list[str]:
        if not self.dropped:
            return []
        lines = [f"{size_text(sum(x.bytes for x in self.dropped)):>12}  dropped after forward; {self._cost()}"]
        lines += [
            f"{size:>12}  {nodes} {op} {where}".rstrip() for size, nodes, _, op, where in dropped_rows(self.dropped)
        ]
        return [*lines, f"{'':12}  {self.hint}"]

    def _cost(self) -> str:
        nodes = sum(x.again for x in self.dropped)
        return f"{nodes:,} values computed again, {time_text(self.again_seconds)}"

    def _repr_html_(self) -> str:
        """The report as tables, for notebooks."""
        from html import escape  # with its entities, it would add 3 ms to `import dynet_cy`

        kinds = [[row.kind, size_text(row.bytes)] for row in [*self.rows, MemoryRow("in all", self.total)]]
        values = [[op, size, nodes, where] for size, nodes, op, where in value_rows(self.values)]
        page = html_table(["memory", "size"], kinds) + html_table(["values of", "size", "nodes", "where"], values)
        if self.dropped:
            rows = [[op, size, nodes, again, where] for size, nodes, again, op, where in dropped_rows(self.dropped)]
            page += html_table(["dropped values of", "size", "nodes", "computed again", "where"], rows)
            page += f"<p>{escape(f'{self._cost()}: {self.hint}')}</p>"
        return page


def html_table(head: list[str], rows: list[list[str]]) -> str:
    """A table for notebooks and pages."""
    from html import escape  # with its entities, it would add 3 ms to `import dynet_cy`

    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"


def memory_report() -> MemoryReport:
    """Report the memory of this process: parameters, trainers, and the current graph.

    The values of the current graph are listed by operation, and by line of the program if lines are recorded
    (`record_lines`). Take the report after `backward`, when a graph holds most. `profiling.measure` reports the same
    for the pass that held most (`Profile.memory`). Values that were dropped, and computed again in backward, follow,
    with what that has cost and what would help.

    Returns:
        A `MemoryReport`; as text it is a table.

    Raises:
        RuntimeError: another thread uses the current graph.

    Example:
        >>> with dy.record_lines():
        ...     x = dy.tanh(dy.inputTensor(np.zeros((100, 50))))
        >>> x.forward()
        >>> "19.5 KiB  1 tanh {100,50}" in str(dy.memory_report())
        True
    """
    graph = cg()
    usage = graph_usage(graph)
    rows = memory_rows(usage)
    rows.insert(-1, MemoryRow("plan cache", cached_in(graph)[1]))
    rows = [row for row in rows if row.bytes]
    return MemoryReport(
        rows, used_bytes(), limit(), usage.by_value, usage.dropped, usage.again_seconds, usage.missing, usage.limit
    )


def memory_rows(usage: GraphUsage) -> list[MemoryRow]:
    """The kinds of memory of a process, with those of one graph, and the remainder last."""
    rows, on_host = [], 0
    for kind, which in (
        ("parameters", "values"),
        ("gradients of parameters", "gradients"),
        ("states of trainers", "states"),
        ("packed weights", "packed"),
    ):
        by_device: dict[int, int] = {}
        for storage in storage_usage():
            by_device[storage.device] = by_device.get(storage.device, 0) + getattr(storage, which)
        for device, size in sorted(by_device.items()):
            rows.append(MemoryRow(f"{kind} on {device_name(device)}" if device else kind, size))
            on_host += 0 if device else size
    of_graph = [
        MemoryRow("values", usage.values),
        MemoryRow("gradients of values", usage.gradients),
        MemoryRow("scratch: gathered arguments, saved and temporary numbers", usage.scratch),
        MemoryRow("nodes and plan", usage.nodes),
        MemoryRow("kept for the next graph", usage.kept),
    ]
    rest = used_bytes() - on_host - sum(row.bytes for row in of_graph)
    return [*rows, *of_graph, MemoryRow("other graphs", max(rest, 0))]


def value_rows(values: list[ValueUsage]) -> list[tuple[str, str, str, str]]:
    """Size, nodes, operation with the largest shape, and line of the largest values, as texts."""
    return [(size_text(x.bytes), f"{x.nodes:,}", _shown_op(x), place_text(x)) for x in values[:_MOST_VALUES]]


def dropped_rows(dropped: list[DroppedUsage]) -> list[tuple[str, str, str, str, str]]:
    """Size, nodes, how many were computed again, operation with the largest shape, and line, as texts."""
    return [
        (size_text(x.bytes), f"{x.nodes:,}", f"{x.again:,}", _shown_op(x), place_text(x))
        for x in dropped[:_MOST_VALUES]
    ]


def _shown_op(x: ValueUsage | DroppedUsage) -> str:
    return f"{x.op} {{{','.join(map(str, x.shape))}}}"


def place_text(x: ValueUsage | DroppedUsage) -> str:
    """The line and the scope that made values; empty if neither is known."""
    where = f"{shown_file(x.origin.file)}:{x.origin.line} in {x.origin.function}" if x.origin else ""
    return where + (f" [{x.scope}]" if x.scope else "")


def missing_hint(missing: int, most: int) -> str:
    """Advice to keep values that were dropped for a lack of memory; empty if there were none."""
    if not missing:
        return ""
    return (
        f"memory was short: about {size_text(missing)} more than the limit of {size_text(most)}, or as much smaller a "
        "minibatch, would keep all values"
    )
