"""DyNet's weight decay, as its programs see it.

DyNet multiplies values by a factor when it reads them. Each update multiplies that factor, and not the values, by
1 - lambda; when it falls below a quarter, it is multiplied into the values. Arrays hold values without the factor.

Here every value is what it is. So in a program written for DyNet, arrays are divided by the factor when they are read,
and multiplied by it when they are written. In other programs the factor is 1.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


_ONE = np.float32(1)
_LEAST = np.float32(0.25)


class DynetDecay:
    """The factors of the parameters of one root collection, by their ids; those that are left out are 1."""

    def __init__(self) -> None:
        self._factors: dict[int, np.float32] = {}
        self._of_new = _ONE  # of parameters that are added now

    def shown(self, number: int, values: Array) -> Array:
        """The array that a program sees for these values of a parameter."""
        factor = self._factors.get(number, _ONE)
        return values if factor == 1 else values / factor

    def meant(self, number: int, array: Array) -> Array:
        """The values that a program means by an array."""
        factor = self._factors.get(number, _ONE)
        return array if factor == 1 else array * factor

    def added(self, number: int) -> None:
        """Note a new parameter."""
        if self._of_new != 1:
            self._factors[number] = self._of_new

    def updated(self, shares: Iterable[tuple[int, float]], share: float) -> None:
        """Note an update.

        Args:
            shares: the share by which each parameter decayed; frozen ones are left out.
            share: the share by which parameters without settings of their own decay.
        """
        for number, taken in shares:
            self._factors[number] = _shrunk(self._factors.get(number, _ONE), taken)
        self._of_new = _shrunk(self._of_new, share)


def _shrunk(factor: np.float32, share: float) -> np.float32:
    factor = np.float32(factor * (_ONE - np.float32(share)))
    return _ONE if factor < _LEAST else factor
