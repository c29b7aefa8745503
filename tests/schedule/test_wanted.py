"""Plans of few nodes that lie far apart among others."""

from __future__ import annotations

import numpy as np
import pytest

import dynet_cy as dy


@pytest.mark.parametrize("autobatching", [0, 1, 2])
@pytest.mark.parametrize("gap", [0, 1, 6, 7, 8, 55, 62, 63, 64, 65, 127, 128, 129, 300])
def test_values_of_nodes_that_lie_apart(gap: int, autobatching: int) -> None:
    dy.renew_cg(autobatching=autobatching)
    x = dy.inputVector([0.5, -1])
    terms, others = [], []
    for _ in range(5):
        terms.append(dy.tanh(terms[-1] if terms else x) * 2)
        others += [dy.exp(x) for _ in range(gap)]
    expected = np.array([0.5, -1])
    for _ in terms:
        expected = np.tanh(expected) * 2
    np.testing.assert_allclose(dy.esum([terms[4], terms[4]]).npvalue(), 2 * expected, rtol=1e-5)
    np.testing.assert_allclose(terms[2].npvalue(), np.tanh(np.tanh(np.tanh([0.5, -1]) * 2) * 2) * 2, rtol=1e-5)
    for other in others[:: max(gap, 1)]:
        np.testing.assert_allclose(other.npvalue(), np.exp([0.5, -1]), rtol=1e-6)
