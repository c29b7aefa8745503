"""The weight decay of new collections."""

from __future__ import annotations

import math

# Smaller shares are collected: applied one by one, much of them would be lost to rounding.
LEAST_DECAY = 2.0**-20

_default = 0.0


def checked_weight_decay(value: float) -> float:
    """A weight decay as a float.

    Raises:
        TypeError: it is not a number.
        ValueError: it is negative or not finite.
    """
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"weight decay must be a number of at least 0, not {value!r}")
    return float(value)


def set_default_weight_decay(value: float) -> None:
    """Set the weight decay of root collections that are made from now on."""
    global _default
    _default = checked_weight_decay(value)


def get_default_weight_decay() -> float:
    """The weight decay of new root collections."""
    return _default
