"""Finds recurrent networks in a graph: the nodes of a step, and consecutive steps."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dynet_cy.graph.nodes import GraphNode

Array = npt.NDArray[np.float32]
Weights = Mapping[str, Array]
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
        arrays: makes the operator's W, R and B of one direction from the values of the weights, by their names.
        weights: their names in `STEPS`, in order; the last ones are absent in a first step without a state.
    """

    operator: str
    reset_after: bool
    arrays: Callable[[Weights], tuple[Array, Array, Array]]
    weights: str


@dataclass
class Chain:
    """Steps of one network, each after the one before; `weights` are those of the whole network."""

    kind: Kind
    weights: tuple[int, ...]
    cells: list[Cell]


# ---- weights in ONNX's order of gates


def _lstm_arrays(w: Weights) -> tuple[Array, Array, Array]:
    """The gates i, f, o, g become i, o, f, c; the operation adds 1 in the forget gate."""
    n = w["U"].shape[1]
    i, f, o, g = (slice(k * n, (k + 1) * n) for k in range(4))
    order = np.r_[i, o, f, g]
    bias = w["b"].copy()
    bias[f] += 1
    return w["W"][order], w["U"][order], np.concatenate([bias[order], np.zeros(4 * n, np.float32)])


def _gru_arrays(w: Weights) -> tuple[Array, Array, Array]:
    """z is 1 - z in ONNX, which is the sigmoid of the opposite number; cg is a bias that the reset gate multiplies."""
    zeros = np.zeros_like(w["bg"])
    bias = np.concatenate([-w["bz"], w["br"], w["bg"], zeros, zeros, w.get("cg", zeros)])
    return np.concatenate([-w["Wz"], w["Wr"], w["Wg"]]), np.concatenate([-w["Uz"], w["Ur"], w["Ug"]]), bias


def _simple_arrays(w: Weights) -> tuple[Array, Array, Array]:
    return w["W"], w["U"], np.concatenate([w["b"], np.zeros_like(w["b"])])


LSTM = Kind("LSTM", False, _lstm_arrays, "b W U")
GRU = Kind("GRU", False, _gru_arrays, "bz Wz bg Wg Uz Ug br Wr Ur")
GRU_RESET_AFTER = Kind("GRU", True, _gru_arrays, "bz Wz bg Wg cg br Wr Uz Ug Ur")
RNN = Kind("RNN", False, _simple_arrays, "b W U")


# ---- the steps

# The steps of each kind, with a state before them or without, as operations of weights, the input x and the state h, c.
STEPS = [
    (kind, ast.parse(text, mode="eval").body)
    for kind, text in (
        (LSTM, "vanilla_lstm_c(c, vanilla_lstm_gates_projected(A(b, W, x), U, h))"),
        (LSTM, "vanilla_lstm_c(c, vanilla_lstm_gates(b, U, h, W, x))"),
        (GRU, "gru_h(h, S(A(bz, Wz, x), Uz, h), T(A(bg, Wg, x), Ug, mul(S(A(br, Wr, x), Ur, h), h)))"),
        (GRU, "mul(S(A(bz, Wz, x)), T(A(bg, Wg, x)))"),
        (
            GRU_RESET_AFTER,
            "gru_h(h, S(A(bz, Wz, x), Uz, h), tanh(add(A(bg, Wg, x), mul(S(A(br, Wr, x), Ur, h), A(cg, Ug, h)))))",
        ),
        (GRU_RESET_AFTER, "mul(S(A(bz, Wz, x)), tanh(add(A(bg, Wg, x), mul(S(A(br, Wr, x)), cg))))"),
        (RNN, "T(A(b, W, x), U, h)"),
        (RNN, "T(A(b, W, x))"),
    )
]

# Short names of operations in steps, and what their attributes begin with.
SHORT = {"A": ("affine_transform", ()), "S": ("gated_affine", (1, 1, 0)), "T": ("gated_affine", (1, 0, 1))}


class _Graph:
    """Nodes, and the steps that they are the state after."""

    def __init__(self, nodes: Sequence[GraphNode], attrs: Attributes) -> None:
        self.nodes = nodes
        self.attrs = attrs
        self.hidden = {node.args: k for k, node in enumerate(nodes) if node.op == "vanilla_lstm_h"}

    def cell(self, number: int) -> Cell | None:
        """The step whose state is this node."""
        for kind, step in STEPS:
            found: dict[str, int] = {}
            inside: list[int] = []
            if self._fits(step, number, found, inside):
                weights = tuple(found[name] for name in kind.weights.split() if name in found)
                x, before, c = found["x"], found.get("h"), found.get("c")
                if kind is not LSTM:
                    return Cell(kind, weights, x, number, None, before, None, tuple(inside))
                hidden = self.hidden.get((number, self.nodes[number].args[1]))
                inside += [] if hidden is None else [hidden]
                return Cell(kind, weights, x, hidden, number, before, c, tuple(inside))
        return None

    def _fits(self, step: ast.expr, number: int, found: dict[str, int], inside: list[int]) -> bool:
        """Whether a node is that of a step; sets what its variables stand for, and the nodes of its operations."""
        if isinstance(step, ast.Name):
            return found.setdefault(step.id, number) == number
        assert isinstance(step, ast.Call)
        assert isinstance(step.func, ast.Name)
        node = self.nodes[number]
        op, attrs = SHORT.get(step.func.id, (step.func.id, ()))
        inside.append(number)
        alike = node.op == op and self.attrs[number][: len(attrs)] == attrs and len(node.args) == len(step.args)
        return alike and all(self._fits(part, arg, found, inside) for part, arg in zip(step.args, node.args))


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
