"""Random ops: moments of the draws in both libraries, which draws are shared, and seeds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from extra_cases import OPS  # noqa: F401 - makes tests/ops importable
from libraries import Library, both

from cases_random import RANDOM  # isort: skip

pytestmark = pytest.mark.peer

ROWS, COLUMNS, BATCH, GRAPHS = 20, 30, 40, 8
# DyNet's takes no batches: it draws once for each graph.
WITHOUT_BATCH = {"block_dropout"}


def draws(library: Library, name: str) -> np.ndarray:
    """Draws as an array graphs x rows x columns x batch."""
    library.reset_random_seed(17)
    size = 1 if name in WITHOUT_BATCH else BATCH
    found = []
    for _ in range(GRAPHS * BATCH // size):
        library.renew_cg()
        library.kept.clear()
        x = library.ones((ROWS, COLUMNS), batch_size=size)
        found.append(RANDOM[name](library, x).npvalue().reshape(ROWS, COLUMNS, size))
    return np.array(found, np.float64)


def moments(x: np.ndarray) -> np.ndarray:
    """Mean, standard deviation, and deviations of the means along each axis, which show how draws are shared."""
    along = [x.mean(axis=tuple(k for k in range(4) if k != axis)).std() for axis in (1, 2)]
    return np.array([x.mean(), x.std(), *along, x.mean(axis=(1, 2)).std()])


@pytest.mark.parametrize("name", RANDOM)
def test_moments(name: str) -> None:
    theirs, ours = (draws(library, name) for library in both())
    assert theirs.std() > 0
    # Elements that share a draw count once: dropout of rows, batch elements, everything.
    independent = {"dropout_dim": GRAPHS * BATCH * COLUMNS, "dropout_batch": GRAPHS * BATCH}
    n = independent.get(name, GRAPHS * BATCH if name in WITHOUT_BATCH else theirs.size)
    tol = 6 * theirs.std() / math.sqrt(n)
    np.testing.assert_allclose(ours.mean(), theirs.mean(), atol=tol)
    np.testing.assert_allclose(ours.std(), theirs.std(), atol=2 * tol)
    for a, b in zip(moments(theirs)[2:], moments(ours)[2:]):
        assert b == pytest.approx(a, rel=0.5, abs=1e-9)
    if name not in ("random_normal", "noise", "random_gumbel"):  # these have no bounds
        np.testing.assert_allclose([ours.min(), ours.max()], [theirs.min(), theirs.max()], atol=1e-3)


QUANTILES = np.array([0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99])


@pytest.mark.parametrize("name", ["random_normal", "random_uniform", "random_gumbel", "noise"])
def test_quantiles(name: str) -> None:
    """The fraction of DyNet's numbers below a quantile of ours is that quantile, up to six standard errors."""
    theirs, ours = (draws(library, name).ravel() for library in both())
    below = (theirs[:, None] < np.quantile(ours, QUANTILES)).mean(0)
    error = np.sqrt(QUANTILES * (1 - QUANTILES) * (1 / ours.size + 1 / theirs.size))
    assert (np.abs(below - QUANTILES) < 6 * error).all()


DEFAULTS = {
    "random_normal": lambda dy: dy.random_normal((200, 200)),
    "random_normal-named": lambda dy: dy.random_normal((200, 200), mean=2.0, stddev=3.0, batch_size=2),
    "random_uniform-named": lambda dy: dy.random_uniform((200, 200), left=2.0, right=5.0, batch_size=2),
    "random_bernoulli": lambda dy: dy.random_bernoulli((200, 200), 0.4),
    "random_bernoulli-named": lambda dy: dy.random_bernoulli((200, 200), p=0.4, scale=2.5, batch_size=2),
    "random_gumbel": lambda dy: dy.random_gumbel((200, 200)),
    "random_gumbel-named": lambda dy: dy.random_gumbel((200, 200), mu=0.0, beta=1.0, batch_size=2),
    "number for a shape": lambda dy: dy.random_normal(40000),
    "dropout": lambda dy: dy.dropout(dy.ones((200, 200)), p=0.3),
    "dropout_dim": lambda dy: dy.dropout_dim(dy.ones((2, 20000)), d=0, p=0.3),
    "dropout_dim-1": lambda dy: dy.dropout_dim(dy.ones((20000, 2)), d=1, p=0.3),
    "noise": lambda dy: dy.noise(dy.ones((200, 200)), stddev=0.3),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_arguments(name: str) -> None:
    """Defaults and names of arguments, and which draws are shared."""
    seen: list[Any] = []
    for library in both():
        library.renew_cg()
        e = DEFAULTS[name](library)
        seen.append((e.dim(), np.array(e.npvalue(), np.float64)))
    (their_dim, theirs), (our_dim, ours) = seen
    assert their_dim == our_dim
    tol = 0.05 * theirs.std()
    np.testing.assert_allclose([ours.mean(), ours.std()], [theirs.mean(), theirs.std()], atol=tol)
    shared = [[bool((x == np.take(x, [0], k)).all()) for k in range(x.ndim)] for x in (theirs, ours)]
    assert shared[0] == shared[1]
