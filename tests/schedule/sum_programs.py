"""Programs of sums of products, compared with a graph in which each node is computed by itself, when it is made."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import dynet_cy as dy

Value = dy.Expression


class Program:
    """A program whose outputs are added up to the loss.

    Attributes:
        nodes: all nodes but those of parameters and those that a forward-only graph has dropped, by their places.
        again: makes the same program in the current graph.
    """

    nodes: dict[int, Value]
    again: Callable[[], Program]

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.pc = dy.ParameterCollection()
        self.outputs: list[Value] = []

    def parameter(self, *shape: int) -> Value:
        return self.pc.parameters_from_numpy(self.rng.uniform(-0.5, 0.5, shape).astype(np.float32)).expr(True)

    def input(self, *shape: int, batch: int = 1) -> Value:
        array = self.rng.uniform(-1, 1, (*shape, batch)).astype(np.float32)
        return dy.inputTensor(array, batched=True) if batch > 1 else dy.inputTensor(array[..., 0])

    def loss(self) -> Value:
        """The sum of all elements of the outputs, each output with another factor."""
        return dy.esum([dy.sum_batches(dy.sum_elems(x)) * (1 + 0.25 * k) for k, x in enumerate(self.outputs)])

    def gradients(self) -> list[np.ndarray]:
        return [p.grad_as_array() for p in self.pc.parameters_list()]

    @functools.cached_property
    def expected(self) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray], list[np.ndarray]]:
        """Values and gradients of nodes, and gradients of parameters."""
        with dy.ComputationGraph() as graph:
            graph.renew(autobatching=0, immediate_compute=True)
            twin = self.again()
            twin.loss().backward(full=True)
            values, slopes = ({k: f(x) for k, x in twin.nodes.items()} for f in (Value.npvalue, Value.gradient))
            return values, slopes, twin.gradients()

    def check(self, tolerance: float = 2e-5) -> None:
        """Compare the values of all nodes, in this order."""
        for k, x in self.nodes.items():
            np.testing.assert_allclose(x.npvalue(), self.expected[0][k], rtol=tolerance, atol=tolerance)

    def check_gradients(self, of_nodes: bool = True) -> None:
        """Equal up to rounding: where large terms cancel out, the error is relative to them."""
        pairs = list(zip(self.gradients(), self.expected[2]))
        pairs += [(x.gradient(), self.expected[1][k]) for k, x in self.nodes.items()] if of_nodes else []
        for found, expected in pairs:
            np.testing.assert_allclose(found, expected, rtol=5e-5, atol=max(5e-5, 4e-6 * np.abs(expected).max()))


def program_of(make: Callable[..., Program]) -> Callable[..., Program]:
    """A function that makes programs, which can be made again."""

    @functools.wraps(make)
    def made(*args: Any, **more: Any) -> Program:
        first = len(dy.cg())
        q = make(*args, **more)
        names = dy.cg().op_names()
        q.nodes = {}
        for k in (k for k in range(first, len(names)) if names[k] != "parameter"):
            with contextlib.suppress(IndexError):
                q.nodes[k - first] = dy.cg()._node(k)
        q.again = functools.partial(made, *args, **more)
        return q

    return made


ORDERS: dict[str, Callable[..., Value]] = {
    "wub": lambda wx, uh, h, b, c: wx + uh + b,
    "bwu": lambda wx, uh, h, b, c: b + wx + uh,
    "wbu": lambda wx, uh, h, b, c: wx + (b + uh),
    "pairs": lambda wx, uh, h, b, c: (wx + b) + (uh + h),
    "two biases": lambda wx, uh, h, b, c: (wx + b) + (uh + c),
    "no bias": lambda wx, uh, h, b, c: wx + uh,
    "shared product": lambda wx, uh, h, b, c: wx + uh + b,
}


@program_of
def recurrent(seed: int, order: str, lengths: tuple[int, ...] = (4, 3, 6), n: int = 40, batch: int = 1) -> Program:
    """A recurrent network written as separate ops, over sequences of different lengths."""
    q = Program(seed)
    W, U, b, c = q.parameter(n, 4), q.parameter(n, n), q.parameter(n), q.parameter(n)
    for length in lengths:
        h = q.input(n, batch=batch)
        for _ in range(length):
            wx, uh = W * q.input(4, batch=batch), U * h
            s = ORDERS[order](wx, uh, h, b, c)
            if order == "shared product":  # the product and the sum have other users
                q.outputs += [dy.tanh(uh), dy.tanh(s)]
            h = dy.tanh(s)
        q.outputs.append(h)
    return q
