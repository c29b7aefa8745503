"""States of the random generators of Python and NumPy, as plain data for checkpoints."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from dynet_cy.files.schema import COUNT, between, check, every, one_of

__all__ = ["Generator", "generators_of", "set_state", "state_of"]

Generator = Union[random.Random, np.random.Generator, np.random.RandomState]


def generators_of(generators: Sequence[Generator], function: str) -> list[Any]:
    """The global generators of Python and NumPy, then the program's own."""
    for g in generators:
        if not isinstance(g, (random.Random, np.random.Generator, np.random.RandomState)):
            raise TypeError(
                f"{function}: generators must be random.Random, numpy.random.Generator or RandomState, "
                f"not {type(g).__name__}"
            )
    return [random, np.random, *generators]


def state_of(generator: Any) -> Any:
    """The state as plain data."""
    if isinstance(generator, np.random.Generator):
        return _plain(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState) or generator is np.random:
        return _plain(generator.get_state(legacy=False))
    version, numbers, gauss = generator.getstate()
    return [version, list(numbers), gauss]


def set_state(generator: Any, state: Any) -> None:
    """Restore what `state_of` returned."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = _with_arrays(state)
    elif isinstance(generator, np.random.RandomState) or generator is np.random:
        generator.set_state(_with_arrays(state))
    else:
        version, numbers, gauss = state
        generator.setstate((version, tuple(numbers), gauss))


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    if isinstance(state, np.ndarray):
        return {"dtype": str(state.dtype), "numbers": state.tolist()}
    return state.item() if isinstance(state, np.generic) else state


# Positions in buffers of numbers drawn in advance, with their largest values, for MT19937 and Philox.
_POSITIONS = {"pos": 624, "buffer_pos": 4}


def _with_arrays(state: Any) -> Any:
    if isinstance(state, dict):
        if state.keys() == {"dtype", "numbers"}:
            check(state["dtype"], one_of("uint32", "uint64"), "a type of numbers")
            check(state["numbers"], every(COUNT), "numbers")
            return np.array(state["numbers"], state["dtype"])
        for key, most in _POSITIONS.items():  # NumPy reads at this position without a check
            check(state.get(key, 0), between(0, most), key)
        return {key: _with_arrays(value) for key, value in state.items()}
    return state
