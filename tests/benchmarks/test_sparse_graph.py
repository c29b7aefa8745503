"""The benchmark of sparse graphs computes what it says."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import sparse_graph

sys.path.pop(0)


def test_a_step() -> None:
    rng = np.random.default_rng(1)
    states = rng.standard_normal((3, 5)).astype(np.float32)
    weights = [rng.standard_normal((3, 3)).astype(np.float32) for _ in range(sparse_graph.LAYERS)]
    sources, targets = rng.integers(5, size=(2, 20))
    h = states
    for w in weights:
        added = np.zeros_like(h)
        np.add.at(added, (slice(None), targets), (w @ h)[:, sources])
        h = np.maximum(added, 0)
    step = sparse_graph.with_dynet(states, weights, sources, targets)
    np.testing.assert_allclose(step(), h.sum(), rtol=1e-5)
