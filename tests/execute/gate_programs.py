"""Random programs of gates: elementwise ops and ranges of long vectors, with their values and gradients in float64."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

import dynet_cy as dy

N = 48  # length of a vector; a node of `gates` holds several, side by side


class Reference:
    """A program in NumPy: the value of each node, and how its gradient is passed to its arguments."""

    def __init__(self) -> None:
        self.values: list[np.ndarray] = []
        self.back: list[list[tuple[int, Callable[[np.ndarray], np.ndarray]]]] = []

    def add(self, value: np.ndarray, *back: tuple[int, Callable]) -> int:
        self.values.append(value)
        self.back.append(list(back))
        return len(self.values) - 1

    def gradients(self, target: int) -> list[np.ndarray]:
        found = [np.zeros_like(v) for v in self.values]
        found[target] += 1
        for i in range(target, -1, -1):
            for argument, slope in self.back[i]:
                found[argument] = found[argument] + slope(found[i])
        return found


class Program:
    """`cells` cells of gates with random choices: expressions and their reference."""

    def __init__(self, seed: int, cells: int, *, overlapping: bool = False, same_shape: bool = True) -> None:
        self.choose = np.random.default_rng(seed)
        self.fill = np.random.default_rng(seed + 1)
        self.ref, self.nodes = Reference(), []
        self.overlapping = overlapping
        self.W = self.fill.uniform(-0.3, 0.3, (3 * N, N)).astype(np.float32)
        self.parameter = dy.ParameterCollection().parameters_from_numpy(self.W)
        outputs: list[int] = []
        shape = self.choose.integers(100)
        for _ in range(cells):
            if same_shape:
                self.choose = np.random.default_rng(shape)
            outputs.append(self.cell(outputs))
        self.loss = self.esum([self.dot(o, outputs[0]) for o in outputs])

    def node(self, expression: Any, value: np.ndarray, *back: tuple[int, Callable]) -> int:
        self.nodes.append(expression)
        return self.ref.add(value, *back)

    def cell(self, before: list[int]) -> int:
        x = self.fill.uniform(-1, 1, N).astype(np.float32)
        gates = self.product(self.node(dy.inputVector(x), x.astype(np.float64)))
        starts = [0, N // 2, N] if self.overlapping else [0, N, 2 * N]
        pool = [self.range(gates, s) for s in self.choose.permutation(starts)]
        if before:
            pool.append(before[-1 - int(self.fill.integers(min(3, len(before))))])
        for _ in range(9):
            a, b = (pool[int(self.choose.integers(len(pool)))] for _ in range(2))
            pool.append(
                [self.tanh, self.logistic, self.times, self.plus, self.minus][int(self.choose.integers(5))](a, b)
            )
        return self.esum(pool[-4:])

    def product(self, x: int) -> int:
        W = self.W.astype(np.float64)
        return self.node(self.parameter * self.nodes[x], W @ self.ref.values[x], (x, lambda d: W.T @ d))

    def range(self, x: int, start: int) -> int:
        def scattered(d: np.ndarray) -> np.ndarray:
            whole = np.zeros(3 * N)
            whole[start : start + N] = d
            return whole

        value = self.ref.values[x][start : start + N]
        return self.node(dy.pick_range(self.nodes[x], start, start + N), value, (x, scattered))

    def tanh(self, a: int, _: int) -> int:
        y = np.tanh(self.ref.values[a])
        return self.node(dy.tanh(self.nodes[a]), y, (a, lambda d: d * (1 - y * y)))

    def logistic(self, a: int, _: int) -> int:
        y = 1 / (1 + np.exp(-self.ref.values[a]))
        return self.node(dy.logistic(self.nodes[a]), y, (a, lambda d: d * y * (1 - y)))

    def times(self, a: int, b: int) -> int:
        u, v = self.ref.values[a], self.ref.values[b]
        return self.node(dy.cmult(self.nodes[a], self.nodes[b]), u * v, (a, lambda d: d * v), (b, lambda d: d * u))

    def plus(self, a: int, b: int) -> int:
        u, v = self.ref.values[a], self.ref.values[b]
        return self.node(self.nodes[a] + self.nodes[b], u + v, (a, lambda d: d), (b, lambda d: d))

    def minus(self, a: int, b: int) -> int:
        u, v = self.ref.values[a], self.ref.values[b]
        return self.node(self.nodes[a] - self.nodes[b], u - v, (a, lambda d: d), (b, lambda d: -d))

    def dot(self, a: int, b: int) -> int:
        u, v = self.ref.values[a], self.ref.values[b]
        value = np.array([u @ v])
        return self.node(
            dy.dot_product(self.nodes[a], self.nodes[b]), value, (a, lambda d: d * v), (b, lambda d: d * u)
        )

    def esum(self, xs: list[int]) -> int:
        value = np.sum([self.ref.values[x] for x in xs], axis=0)
        return self.node(dy.esum([self.nodes[x] for x in xs]), value, *[(x, lambda d: d) for x in xs])

    def check(self, gradients: bool = True) -> None:
        """Compare all values and gradients, after `backward(full=True)` of the loss."""
        wanted = self.ref.gradients(self.loss)
        for node, value, gradient in zip(self.nodes, self.ref.values, wanted):
            np.testing.assert_allclose(node.npvalue(), value, rtol=1e-4, atol=1e-4)
            if gradients:
                scale = max(1.0, float(np.abs(gradient).max()))
                np.testing.assert_allclose(node.gradient() / scale, gradient / scale, rtol=1e-4, atol=1e-4)
