"""Finds recurrent networks in a graph: the nodes of a step, and consecutive steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dynet_cy.graph.nodes import GraphNode

__all__ = ["Chain", "Kind", "chains"]

Array = npt.NDArray[np.float32]
Attributes = Sequence[tuple[int, ...]]


class Cell(NamedTuple):
    """One step of a recurrent network.

    Attributes:
        kind: the kind of network.
        weights: the numbers of the nodes of its weights; the last ones are absent in a first step without a state.
        x: the input.
        h, c: the nodes of the state after the step; c is None if there are no cells, and h if nothing needs it.
        h_before, c_before: the state before it; None where there is none.
        inside: all nodes of the step.
    """

    kind: Kind
    weights: tuple[int, ...]
    x: int
    h: int | None
    c: int | None
    h_before: int | None
    c_before: int | None
    inside: tuple[int, ...]


class Kind(NamedTuple):
    """A kind of network that ONNX has an operator for.

    Attributes:
        operator: its name in ONNX.
        reset_after: whether a GRU multiplies by the reset gate after the product with the matrix.
        arrays: makes the operator's W, R and B of one direction from the values of the weights.
    """

    operator: str
    reset_after: bool
    arrays: Callable[[Sequence[Array]], tuple[Array, Array, Array]]


@dataclass
class Chain:
    """Steps of one network, each after the one before; `weights` are those of the whole network."""

    kind: Kind
    weights: tuple[int, ...]
    cells: list[Cell]


# ---- weights in ONNX's order of gates


def _lstm_arrays(weights: Sequence[Array]) -> tuple[Array, Array, Array]:
    """The gates i, f, o, g become i, o, f, c; the operation adds 1 in the forget gate."""
    b, w_x, w_h = weights
    n = w_h.shape[1]
    i, f, o, g = (slice(k * n, (k + 1) * n) for k in range(4))
    order = np.r_[i, o, f, g]
    bias = b.copy()
    bias[f] += 1
    return w_x[order], w_h[order], np.concatenate([bias[order], np.zeros(4 * n, np.float32)])


def _gru_arrays(weights: Sequence[Array]) -> tuple[Array, Array, Array]:
    """z is 1 - z in ONNX, which is the sigmoid of the opposite number."""
    b_z, w_z, b_g, w_g, u_z, u_g, b_r, w_r, u_r = weights
    bias = np.concatenate([-b_z, b_r, b_g, np.zeros(3 * len(b_g), np.float32)])
    return np.concatenate([-w_z, w_r, w_g]), np.concatenate([-u_z, u_r, u_g]), bias


def _reset_after_arrays(weights: Sequence[Array]) -> tuple[Array, Array, Array]:
    """Arrays of a GRU with a further bias of g, which the reset gate multiplies."""
    b_z, w_z, b_g, w_g, c_g, b_r, w_r, u_z, u_g, u_r = weights
    zeros = np.zeros(2 * len(b_g), np.float32)
    bias = np.concatenate([-b_z, b_r, b_g, zeros, c_g])
    return np.concatenate([-w_z, w_r, w_g]), np.concatenate([-u_z, u_r, u_g]), bias


def _simple_arrays(weights: Sequence[Array]) -> tuple[Array, Array, Array]:
    b, w_x, w_h = weights
    return w_x, w_h, np.concatenate([b, np.zeros_like(b)])


LSTM = Kind("LSTM", False, _lstm_arrays)
GRU = Kind("GRU", False, _gru_arrays)
GRU_RESET_AFTER = Kind("GRU", True, _reset_after_arrays)
RNN = Kind("RNN", False, _simple_arrays)


# ---- the steps


class _Graph:
    """Nodes, and their patterns; a pattern that does not fit is None."""

    def __init__(self, nodes: Sequence[GraphNode], attrs: Attributes) -> None:
        self.nodes = nodes
        self.attrs = attrs
        self.hidden = {node.args: k for k, node in enumerate(nodes) if node.op == "vanilla_lstm_h"}

    def args(self, number: int, op: str, count: int) -> tuple[int, ...] | None:
        node = self.nodes[number]
        return node.args if node.op == op and len(node.args) == count else None

    def activation(self, number: int, logistic: bool) -> tuple[int, ...] | None:
        """The arguments of one gate: b, then perhaps a matrix and a vector."""
        node = self.nodes[number]
        wanted = (1, 1, 0) if logistic else (1, 0, 1)
        return node.args if node.op == "gated_affine" and self.attrs[number][:3] == wanted else None

    def cell(self, number: int) -> Cell | None:
        """The step whose state is this node."""
        for pattern in (self._lstm, self._gru, self._first_gru, self._simple):
            found = pattern(number)
            if found is not None:
                return found
        return None

    def _lstm(self, number: int) -> Cell | None:
        before = self.args(number, "vanilla_lstm_c", 2)
        if not before:
            return None
        hidden = self.hidden.get((number, before[1]))
        gates = self.nodes[before[1]]
        inside: tuple[int, ...] = (number, before[1], *([] if hidden is None else [hidden]))
        if gates.op == "vanilla_lstm_gates_projected" and len(gates.args) == 3:
            sums, w_h, h = gates.args
            projected = self.args(sums, "affine_transform", 3)
            if not projected:
                return None
            b, w_x, x = projected
            inside = (*inside, sums)
        elif gates.op == "vanilla_lstm_gates" and len(gates.args) == 5:
            b, w_h, h, w_x, x = gates.args
        else:
            return None
        return Cell(LSTM, (b, w_x, w_h), x, hidden, number, h, before[0], inside)

    def _gate(self, number: int, logistic: bool) -> tuple[tuple[int, int, int], int, int, int] | None:
        """A gate of W x + b and U h: (b, W, U), x, h, and the node of the sum."""
        args = self.activation(number, logistic)
        projected = args and len(args) == 3 and self.args(args[0], "affine_transform", 3)
        if not args or not projected:
            return None
        b, w, x = projected
        return (b, w, args[1]), x, args[2], args[0]

    def _gru(self, number: int) -> Cell | None:
        args = self.args(number, "gru_h", 3)
        if not args:
            return None
        h, z_node, g_node = args
        z = self._gate(z_node, True)
        if not z or z[2] != h:
            return None
        (b_z, w_z, u_z), x, _, sums = z
        inside = (number, z_node, sums, g_node)
        after = self._reset_after(g_node, h, x)
        if after:
            (b_g, w_g, c_g, b_r, w_r), (u_g, u_r), more = after
            known = b_z, w_z, b_g, w_g, c_g, b_r, w_r
            return Cell(GRU_RESET_AFTER, (*known, u_z, u_g, u_r), x, number, None, h, None, (*inside, *more))
        g = self._gate(g_node, False)
        left = g and self.args(g[2], "mul", 2)
        r = left and self._gate(left[0], True)
        if not g or not left or not r or not r[2] == left[1] == h or not x == g[1] == r[1]:
            return None
        (b_g, w_g, u_g) = g[0]
        weights = (b_z, w_z, b_g, w_g, u_z, u_g, *r[0])
        return Cell(GRU, weights, x, number, None, h, None, (*inside, g[2], left[0], g[3], r[3]))

    def _reset_after(self, number: int, h: int | None, x: int) -> Any:
        """The vector tanh(W x + b + r * (U h + c)): its weights, those of h, and the nodes inside."""
        outer = self.args(number, "tanh", 1)
        summed = outer and self.args(outer[0], "add", 2)
        scaled = summed and self.args(summed[1], "mul", 2)
        new = summed and self.args(summed[0], "affine_transform", 3)
        if not outer or not summed or not scaled or not new or new[2] != x:
            return None
        inside = (outer[0], summed[0], summed[1], scaled[0])
        if h is None:
            gate = self.activation(scaled[0], True)
            r = gate and len(gate) == 1 and self.args(gate[0], "affine_transform", 3)
            return ((*new[:2], scaled[1], *r[:2]), (), (*inside, gate[0])) if gate and r and r[2] == x else None
        r_gate, left = self._gate(scaled[0], True), self.args(scaled[1], "affine_transform", 3)
        if not r_gate or not left or not r_gate[2] == left[2] == h or r_gate[1] != x:
            return None
        (b_r, w_r, u_r), _, _, sums = r_gate
        return (*new[:2], left[0], b_r, w_r), (left[1], u_r), (*inside, scaled[1], sums)

    def _first_gru(self, number: int) -> Cell | None:
        args = self.args(number, "mul", 2)
        z_gate = args and self.activation(args[0], True)
        z = z_gate and len(z_gate) == 1 and self.args(z_gate[0], "affine_transform", 3)
        if not args or not z_gate or not z:
            return None
        inside, x = (number, *args, z_gate[0]), z[2]
        after = self._reset_after(args[1], None, x)
        if after:
            weights, _, more = after
            return Cell(GRU_RESET_AFTER, (*z[:2], *weights), x, number, None, None, None, (*inside, *more))
        gate = self.activation(args[1], False)
        g = gate and len(gate) == 1 and self.args(gate[0], "affine_transform", 3)
        if not gate or not g or g[2] != x:
            return None
        return Cell(GRU, (*z[:2], *g[:2]), x, number, None, None, None, (*inside, gate[0]))

    def _simple(self, number: int) -> Cell | None:
        args = self.activation(number, False)
        projected = args and len(args) in (1, 3) and self.args(args[0], "affine_transform", 3)
        if not args or not projected:
            return None
        b, w_x, x = projected
        weights, h = ((b, w_x, args[1]), args[2]) if len(args) == 3 else ((b, w_x), None)
        return Cell(RNN, weights, x, number, None, h, None, (number, args[0]))


def chains(nodes: Sequence[GraphNode], attrs: Attributes) -> list[Chain]:
    """The recurrent networks in a graph, in the order of their first steps.

    A state from which several steps continue ends a chain for all of them but the first.
    """
    graph = _Graph(nodes, attrs)
    last: dict[int, Chain] = {}  # by the hidden vector after the last step
    found: list[Chain] = []
    for number in range(len(nodes)):
        cell = graph.cell(number)
        if cell is None:
            continue
        chain = None if cell.h_before is None else last.get(cell.h_before)
        if chain is not None and _follows(cell, chain):
            del last[cell.h_before]  # type: ignore[arg-type]
            chain.cells.append(cell)
            chain.weights = cell.weights
        else:
            chain = Chain(cell.kind, cell.weights, [cell])
            found.append(chain)
        if cell.h is not None:
            last[cell.h] = chain
    return [chain for chain in found if len(chain.cells) > 1]


def _follows(cell: Cell, chain: Chain) -> bool:
    known = chain.weights
    return cell.kind is chain.kind and cell.c_before == chain.cells[-1].c and cell.weights[: len(known)] == known
