"""The inputs of an exported function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

__all__ = ["Axis", "Floats", "Indices"]

Axis = Union[int, str]


class Floats:
    """An input of real numbers: the function gets an expression, an input of this shape.

    Args:
        shape: its shape, without a batch: a tuple or one number. A string instead of a size is the name of an axis
            whose length is known only when the file runs

    Raises:
        ValueError: a size is less than 1, a name is empty, or there are more than 7 axes

    Example:
        >>> dy.onnx.Floats((64, "words"))
        Floats((64, 'words'))
    """

    def __init__(self, shape: Axis | Sequence[Axis]) -> None:
        self.shape = _checked_shape(shape, "Floats")

    def __repr__(self) -> str:
        return f"Floats({self.shape!r})"


class Indices:
    """An input of whole numbers, such as words: the function gets a list of ints, or one int.

    The function may use them as indices (in `lookup`, `nn.Embedding`, `pick`, `select_cols`, losses). Anything else,
    such as ``if word == 0``, is not part of a graph. It is an error if `export` notices it, that is, if its calls with
    random numbers lead to different graphs.

    Args:
        shape: how many numbers there are: a number, or a string, the name of an axis whose length is known only when
            the file runs; ``()`` for one number, which the function gets as an int
        count: the numbers are from 0 to ``count - 1``

    Raises:
        ValueError: a size or the count is less than 1, a name is empty, or there are more axes than one

    Example:
        >>> dy.onnx.Indices("words", 10000)
        Indices(('words',), 10000)
    """

    def __init__(self, shape: Axis | Sequence[Axis], count: int) -> None:
        self.shape = _checked_shape(shape, "Indices")
        if len(self.shape) > 1:
            raise ValueError(f"Indices: argument shape: expected one axis or none, got {shape!r}")
        if count < 1:
            raise ValueError(f"Indices: argument count: expected at least 1, got {count!r}")
        self.count = int(count)

    def __repr__(self) -> str:
        return f"Indices({self.shape!r}, {self.count})"


def _checked_shape(shape: Axis | Sequence[Axis], what: str) -> tuple[Axis, ...]:
    axes = (shape,) if isinstance(shape, (int, str)) else tuple(shape)
    if len(axes) > 7:
        raise ValueError(f"{what}: argument shape: {shape!r} has {len(axes)} axes, at most 7 are possible")
    for axis in axes:
        if not axis or (not isinstance(axis, str) and (axis != int(axis) or axis < 1)):
            raise ValueError(f"{what}: argument shape: expected sizes from 1 on and names, got {axis!r} in {shape!r}")
    return tuple(axis if isinstance(axis, str) else int(axis) for axis in axes)
