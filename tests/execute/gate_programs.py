"""Random programs of gates: elementwise ops and ranges of long vectors, compared with nodes that are computed alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import dynet_cy as dy

N = 48  # length of a vector; a node of `gates` holds several, side by side

OPS: list[Callable[[dy.Expression, dy.Expression], dy.Expression]] = [
    lambda a, b: dy.tanh(a),
    lambda a, b: dy.logistic(a),
    dy.cmult,
    lambda a, b: a + b,
    lambda a, b: a - b,
]


class Program:
    """`cells` cells of gates with random choices: all expressions, the last of which is the loss."""

    def __init__(self, seed: int, cells: int, *, overlapping: bool = False, same_shape: bool = True) -> None:
        self.again = functools.partial(Program, seed, cells, overlapping=overlapping, same_shape=same_shape)
        self.choose = np.random.default_rng(seed)
        self.fill = np.random.default_rng(seed + 1)
        self.nodes: list[dy.Expression] = []
        self.starts = [0, N // 2, N] if overlapping else [0, N, 2 * N]
        values = self.fill.uniform(-0.3, 0.3, (3 * N, N)).astype(np.float32)
        self.parameter = dy.ParameterCollection().parameters_from_numpy(values)
        outputs: list[dy.Expression] = []
        shape = self.choose.integers(100)
        for _ in range(cells):
            if same_shape:
                self.choose = np.random.default_rng(shape)
            outputs.append(self.cell(outputs))
        self.loss = self.node(dy.esum([self.node(dy.dot_product(o, outputs[0])) for o in outputs]))

    def node(self, expression: dy.Expression) -> dy.Expression:
        self.nodes.append(expression)
        return expression

    def cell(self, before: list[dy.Expression]) -> dy.Expression:
        x = self.node(dy.inputVector(self.fill.uniform(-1, 1, N).astype(np.float32)))
        gates = self.node(self.parameter * x)
        pool = [self.node(dy.pick_range(gates, s, s + N)) for s in self.choose.permutation(self.starts)]
        if before:
            pool.append(before[-1 - int(self.fill.integers(min(3, len(before))))])
        for _ in range(9):
            a, b = (pool[int(self.choose.integers(len(pool)))] for _ in range(2))
            pool.append(self.node(OPS[int(self.choose.integers(5))](a, b)))
        return self.node(dy.esum(pool[-4:]))

    @functools.cached_property
    def expected(self) -> list[tuple[Any, Any]]:
        """The value and the gradient of each node."""
        with dy.ComputationGraph() as graph:
            graph.renew(autobatching=0, immediate_compute=True)
            twin = self.again()
            twin.loss.backward(full=True)
            return [(x.npvalue(), x.gradient()) for x in twin.nodes]

    def check(self, gradients: bool = True) -> None:
        """Compare all values and gradients, after `backward(full=True)` of the loss."""
        for node, (value, gradient) in zip(self.nodes, self.expected):
            np.testing.assert_allclose(node.npvalue(), value, rtol=1e-4, atol=1e-4)
            if gradients:
                scale = max(1.0, float(np.abs(gradient).max()))
                np.testing.assert_allclose(node.gradient() / scale, gradient / scale, rtol=1e-4, atol=1e-4)
