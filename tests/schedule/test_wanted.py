"""Plans of few nodes that lie far apart among others."""

from __future__ import annotations

import numpy as np
import pytest

import dynet_cy as dy


@pytest.mark.parametrize("autobatching", [0, 1, 2])
def test_values_of_nodes_that_lie_apart(autobatching: int) -> None:
    """At all distances up to three of the steps in which plans pass over other nodes."""
    start = np.array([0.5, -1])
    expected = [start]
    for _ in range(5):
        expected.append(np.tanh(expected[-1]) * 2)
    for gap in range(200):
        dy.renew_cg(autobatching=autobatching)
        x = dy.inputVector(start)
        terms, others = [x], []
        for _ in range(5):
            terms.append(dy.tanh(terms[-1]) * 2)
            others += [dy.exp(x) for _ in range(gap)]
        np.testing.assert_allclose(
            dy.esum([terms[5], terms[5]]).npvalue(), 2 * expected[5], rtol=1e-5, err_msg=f"{gap}"
        )
        np.testing.assert_allclose(terms[3].npvalue(), expected[3], rtol=1e-5)
        for other in others[:: max(gap, 1)]:
            np.testing.assert_allclose(other.npvalue(), np.exp(start), rtol=1e-6)
