"""Checks that stale expressions cannot be used."""

from __future__ import annotations

import pytest

import dynet_cy as dy
from dynet_cy.graph import StaleExpressionError


def every_use(x):
    """Everything that can be done with an expression."""
    return [
        x.value,
        x.npvalue,
        x.vec_value,
        x.scalar_value,
        x.forward,
        x.backward,
        x.gradient,
        x.dim,
        lambda: len(x),
        lambda: dy.tanh(x),
        lambda: x + 1,
        lambda: -x,
        lambda: x * x,
        lambda: dy.zeros(3) + x,
        lambda: dy.esum([dy.zeros(3), x]),
    ]


def assert_stale(x, match: str) -> None:
    for use in every_use(x):
        with pytest.raises(StaleExpressionError, match=match):
            use()
