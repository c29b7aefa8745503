"""Programs of sums of products, in dynet_cy and, with gradients, in float64."""

from __future__ import annotations

from typing import Callable

import numpy as np

import dynet_cy as dy


class Value:
    """A value in float64, its gradient, and the expression that must equal it."""

    def __init__(self, e: dy.Expression, v: np.ndarray, back: Callable | None = None) -> None:
        self.e, self.v, self.back = e, v, back
        self.g = np.zeros_like(v)


class Program:
    """Nodes in the order in which they are made; the batch is the last axis of arrays."""

    def __init__(self, seed: int, sizes: tuple[int, ...] = (5, 5)) -> None:
        self.rng = np.random.default_rng(seed)
        self.pc = dy.ParameterCollection()
        self.sizes = sizes
        self.nodes: list[Value] = []
        self.params: list[tuple[dy.Parameters, Value]] = []

    def parameter(self, *shape: int) -> Value:
        array = self.rng.uniform(-0.5, 0.5, shape).astype(np.float32)
        p = self.pc.parameters_from_numpy(array)
        v = Value(p.expr(True), array.astype(np.float64)[..., None])
        self.params.append((p, v))
        return v

    def input(self, *shape: int, batch: int = 1) -> Value:
        array = self.rng.uniform(-1, 1, (*shape, batch)).astype(np.float32)
        e = dy.inputTensor(array, batched=True) if batch > 1 else dy.inputTensor(array[..., 0])
        return self.add(Value(e, array.astype(np.float64)))

    def add(self, x: Value) -> Value:
        self.nodes.append(x)
        return x

    def times(self, w: Value, x: Value) -> Value:
        columns = x.v if x.v.ndim == 3 else x.v[:, None]

        def back(g: np.ndarray) -> None:
            gc = g if g.ndim == 3 else g[:, None]
            for b in range(gc.shape[2]):
                w.g[..., 0] += gc[..., b] @ columns[..., b].T
            gx = np.einsum("mk,mnb->knb", w.v[..., 0], gc)
            x.g += gx if x.v.ndim == 3 else gx[:, 0]

        y = np.einsum("mk,knb->mnb", w.v[..., 0], columns)
        return self.add(Value(w.e * x.e, y if x.v.ndim == 3 else y[:, 0], back))

    def plus(self, a: Value, b: Value) -> Value:
        def aligned(v: np.ndarray, ndim: int) -> np.ndarray:
            return v if v.ndim == ndim else v[:, None]

        ndim = max(a.v.ndim, b.v.ndim)

        def back(g: np.ndarray) -> None:
            for t in (a, b):
                own = aligned(t.v, ndim)
                axes = tuple(i for i in range(ndim) if own.shape[i] == 1 < g.shape[i])
                t.g += g.sum(axes, keepdims=True).reshape(t.v.shape)

        return self.add(Value(a.e + b.e, aligned(a.v, ndim) + aligned(b.v, ndim), back))

    def cmult(self, a: Value, b: Value) -> Value:
        """The product of two arrays of the same shape."""

        def back(g: np.ndarray) -> None:
            a.g += g * b.v
            b.g += g * a.v

        return self.add(Value(dy.cmult(a.e, b.e), a.v * b.v, back))

    def tanh(self, x: Value) -> Value:
        y = np.tanh(x.v)

        def back(g: np.ndarray) -> None:
            x.g += g * (1 - y * y)

        return self.add(Value(dy.tanh(x.e), y, back))

    def logistic(self, x: Value) -> Value:
        y = 1 / (1 + np.exp(-x.v))

        def back(g: np.ndarray) -> None:
            x.g += g * y * (1 - y)

        return self.add(Value(dy.logistic(x.e), y, back))

    def rectify(self, x: Value) -> Value:
        def back(g: np.ndarray) -> None:
            x.g += g * (x.v > 0)

        return self.add(Value(dy.rectify(x.e), np.maximum(x.v, 0), back))

    def loss(self, xs: list[Value]) -> dy.Expression:
        """The sum of all elements of some nodes, each node with another factor."""
        for k, x in enumerate(xs):
            x.g += 1 + 0.25 * k
        for node in reversed(self.nodes):
            if node.back is not None:
                node.back(node.g)
        return dy.esum([dy.sum_batches(dy.sum_elems(x.e)) * (1 + 0.25 * k) for k, x in enumerate(xs)])

    def check(self, tolerance: float = 2e-5) -> None:
        """Compare values of all nodes, in this order, and gradients of nodes and parameters."""
        for x in self.nodes:
            np.testing.assert_allclose(x.e.npvalue().reshape(x.v.shape), x.v, rtol=tolerance, atol=tolerance)

    def check_gradients(self, of_nodes: bool = True) -> None:
        for p, v in self.params:
            _assert_close(p.grad_as_array(), v.g[..., 0])
        for x in self.nodes if of_nodes else ():
            _assert_close(x.e.gradient().reshape(x.v.shape), x.g)


def _assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal up to rounding: where large terms cancel out, the error is relative to them."""
    np.testing.assert_allclose(found, expected, rtol=5e-5, atol=max(5e-5, 4e-6 * np.abs(expected).max()))


ORDERS = ("wub", "bwu", "wbu", "pairs", "two biases", "no bias", "shared product")


def recurrent(seed: int, order: str, lengths: tuple[int, ...] = (4, 3, 6), n: int = 40, batch: int = 1) -> Program:
    """A recurrent network written as separate ops, over sequences of different lengths."""
    q = Program(seed)
    W, U, b, c = q.parameter(n, 4), q.parameter(n, n), q.parameter(n), q.parameter(n)
    outputs = []
    for length in lengths:
        h = q.input(n, batch=batch)
        for _ in range(length):
            x = q.input(4, batch=batch)
            wx, uh = q.times(W, x), q.times(U, h)
            if order == "wub":
                s = q.plus(q.plus(wx, uh), b)
            elif order == "bwu":
                s = q.plus(q.plus(b, wx), uh)
            elif order == "wbu":
                s = q.plus(wx, q.plus(b, uh))
            elif order == "pairs":
                s = q.plus(q.plus(wx, b), q.plus(uh, h))
            elif order == "two biases":
                s = q.plus(q.plus(wx, b), q.plus(uh, c))
            elif order == "no bias":
                s = q.plus(wx, uh)
            else:  # the product and the sum have other users
                s = q.plus(q.plus(wx, uh), b)
                outputs.append(q.tanh(uh))
                outputs.append(q.tanh(s))
            h = q.tanh(s)
        outputs.append(h)
    q.outputs = outputs
    return q
