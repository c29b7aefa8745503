"""Sources of fused kernels: several elementwise ops as one launch, forward or all of backward.

A signature says which ops, and where each argument comes from. Sizes, addresses and constants are arguments of the
kernel, which `cuda/fused.cuh` describes. The formulas are those of `unary.def` and `binary.def`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["FusedNode", "source_of"]

_ENTRIES = """
extern "C" __global__ void fused(size_t n, size_t size, const uint64_t *__restrict__ table) { run(n, size, table); }

extern "C" __global__ void few_fused(size_t n, size_t size, const __grid_constant__ dy_group table) {
    run(n, size, table.words);
}
"""


@dataclass(frozen=True)
class FusedNode:
    """A node of the ops: `kind` is "unary", "binary", "copy" or "sum", `name` that of the row of the `.def` file, and
    `args` are the numbers of its arguments among the nodes, or None for those from elsewhere. `reads` and
    `reads_result` say what its gradients are computed from: which arguments, all if there is none, and whether the
    result."""

    kind: str
    name: str
    args: tuple[int | None, ...]
    reads: tuple[bool, ...] = ()
    reads_result: bool = True

    def reads_argument(self, i: int) -> bool:
        return not self.reads or self.reads[i]

    def value(self, number: int, x: Sequence[str]) -> str:
        """The value, as a formula of its arguments."""
        if self.kind == "unary":
            return f"value_{self.name}({x[0]}, {_constants(number)})"
        if self.kind == "binary":
            return f"value2_{self.name}({x[0]}, {x[1]})"
        return " + ".join(x)

    def gradient(self, number: int, i: int, x: Sequence[str]) -> str:
        """Its contribution to the gradient of argument i."""
        if self.kind == "unary":
            return f"d{number} * slope_{self.name}({x[0]}, v{number}, {_constants(number)})"
        if self.kind == "binary":
            return f"d{number} * slope_{'ab'[i]}_{self.name}({x[0]}, {x[1]}, v{number})"
        return f"d{number}"


def _constants(number: int) -> str:
    return ", ".join(f"constant(table[{2 * number + 1}], {which})" for which in (0, 1))


def _outside(nodes: Sequence[FusedNode]) -> dict[tuple[int, int], int]:
    """The numbers of the arguments from elsewhere, by node and argument."""
    found = [(s, i) for s, node in enumerate(nodes) for i, arg in enumerate(node.args) if arg is None]
    return {place: number for number, place in enumerate(found)}


def _forward(nodes: Sequence[FusedNode], names: Sequence[Sequence[str]]) -> Iterator[str]:
    for s, node in enumerate(nodes):
        yield f"const float v{s} = {node.value(s, names[s])};"
    for s in range(len(nodes)):
        yield f"place(table[{2 * s}])[k] = v{s};"


def _backward(
    nodes: Sequence[FusedNode], names: Sequence[Sequence[str]], outside: dict[tuple[int, int], int], grads: list[int]
) -> Iterator[str]:
    for s, node in enumerate(nodes):
        uses = [user.reads_argument(i) for user in nodes for i, arg in enumerate(user.args) if arg == s]
        yield f"const float v{s} = {f'place(table[{2 * s}])[k]' if node.reads_result or any(uses) else '0.f'};"
    begin = 2 * len(outside)
    for s in range(len(nodes)):
        yield f"float d{s} = {f'gradient(line[{begin + grads.index(s)}], j)' if s in grads else '0.f'};"
    for s in reversed(range(len(nodes))):
        for i, arg in enumerate(nodes[s].args):
            grad = nodes[s].gradient(s, i, names[s])
            yield f"const float e{outside[s, i]} = {grad};" if arg is None else f"d{arg} += {grad};"
    for s in grads:
        yield f"keep(line[{begin + grads.index(s)}], j, d{s});"
    for s in reversed(range(len(nodes))):
        for i, arg in enumerate(nodes[s].args):
            if arg is None:
                yield f"pass_on(line[{len(outside) + outside[s, i]}], j, e{outside[s, i]});"
    yield "".join(f"(void)v{s}; " for s in range(len(nodes))) + "".join(f"(void)x{x}; " for x in range(len(outside)))


def source_of(nodes: Sequence[FusedNode], grads: Sequence[int] | None = None) -> str:
    """The source of a kernel.

    Args:
        nodes: of one instance, each after its arguments.
        grads: backward; the nodes that may have a gradient from elsewhere, or whose gradient may be asked for. None:
            forward.

    Returns:
        The text. Its kernels are `fused`, whose table is on the device, and `few_fused`, whose table is small and
        passed by value. A line of the table has the addresses of the arguments from elsewhere, then, backward, of their
        gradients and of those of `grads`.

    Example:
        >>> from dynet_cy.gpu.fused_source import FusedNode, source_of
        >>> "value_tanh(x0" in source_of([FusedNode("unary", "tanh", (None,))])
        True
    """
    outside = _outside(nodes)
    names = [
        [f"x{outside[s, i]}" if arg is None else f"v{arg}" for i, arg in enumerate(node.args)]
        for s, node in enumerate(nodes)
    ]
    head = 2 * len(nodes)
    width = len(outside) if grads is None else 2 * len(outside) + len(grads)
    lines = [f"const uint64_t *line = table + {head} + {width} * at;"]
    for (s, i), x in outside.items():
        read = grads is None or nodes[s].reads_argument(i)
        lines.append(f"const float x{x} = {f'place(line[{x}])[j]' if read else '0.f'};")
    lines += _forward(nodes, names) if grads is None else _backward(nodes, names, outside, list(grads))
    body = "\n".join(f"        {line}" for line in lines)
    return (
        '#include "fused.cuh"\n\n'
        "static __device__ __forceinline__ void run(size_t n, size_t size, const uint64_t *table) {\n"
        "    for (EACH(k, n)) {\n"
        "        const size_t at = line_of(k, size), j = k - at * size;\n"
        f"{body}\n"
        "    }\n"
        "}\n" + _ENTRIES
    )
