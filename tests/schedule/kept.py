"""Programs whose values are dropped or kept: the same bits, and how much memory they take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.graph.expressions import arena_bytes

N = 64
Script = Callable[[dy.ComputationGraph, Any], Iterator[np.ndarray]]


class Stored:
    """A model whose parameters have the same values each time that it is made."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.collection = dy.ParameterCollection()

    def parameter(self, high: float, *shape: int) -> dy.Parameters:
        return self.collection.parameters_from_numpy(self.rng.uniform(-high, high, shape))

    def gradients(self) -> list[np.ndarray]:
        """Those of all parameters, which are set to zero."""
        stored = [*self.collection.parameters_list(), *self.collection.lookup_parameters_list()]
        found = [p.grad_as_array().copy() for p in stored]
        self.collection.zero_gradients()
        return found


class Weights(Stored):
    """A layer over the rows of a table."""

    def __init__(self, n: int = N) -> None:
        super().__init__(3)
        self.w, self.b = self.parameter(0.2, n, n), self.parameter(1, n)
        self.table = self.collection.lookup_parameters_from_numpy(self.rng.uniform(-1, 1, (20, n)))

    def sum(self, x: dy.Expression) -> dy.Expression:
        return dy.affine_transform([self.b, self.w, x])


def layers(weights: Weights, n: int) -> dy.Expression:
    """tanh(W x + b) n times over the words of a table, as three ops that are not made into one."""
    states = [weights.table[i] for i in range(20)]
    for _ in range(n):
        states = [dy.tanh(weights.sum(h)) for h in states]
    return dy.esum([dy.sum_elems(h) for h in states])


def node_of(graph: dy.ComputationGraph, op: str, i: int) -> dy.Expression:
    """Expression of the i-th node of an op."""
    return graph._node([k for k, name in enumerate(graph.op_names()) if name == op][i])


def same(a: list[np.ndarray], b: list[np.ndarray]) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b):
        np.testing.assert_array_equal(x, y)
    assert any(np.any(x) for x in a)


def with_and_without(
    drops: Callable[[bool], None], autobatching: int, script: Script, model: Callable[[], Any] = Weights
) -> tuple[list[dict[str, int]], list[int]]:
    """What a script finds has the same bits where graphs keep all values and where they drop some.

    Returns the bytes that both have taken, and how many nodes both have computed again.
    """
    found, taken, again = [], [], []
    for on in (False, True):
        drops(on)
        engine.stats("execute.rematerialize", reset=True)
        with dy.ComputationGraph(autobatching=autobatching) as graph:
            found.append(list(script(graph, model())))
            taken.append(arena_bytes())
        again.append(engine.stats("execute.rematerialize")["nodes"])
    same(*found)
    return taken, again
