"""The inputs of an exported function, and what stands for indices while it is called."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

_PACKAGE = __name__.partition(".")[0]

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
    such as ``if word == 0``, ``word // 2`` or a NumPy array of them, is not part of a graph, and is an `ExportError`.

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


class Each:
    """Applies another function at each position: the exported function gets the list of its results.

    So a loop inside of a loop is one file: a function that reads the letters of one word, and one that gets their
    vectors and reads the words of a sentence. The file has the inputs of both; those of the other function have an axis
    for the positions, after that of the examples. What is computed for padding has no meaning, but the lengths of
    padding are at least 1 too.

    Args:
        function: takes an argument for each of its inputs, and returns an expression, a vector
        inputs: for each argument of it, in order, a name and `Floats` or `Indices`
        axis: the name of the axis of positions, which other inputs may have too
        lengths: as for `export`, where the inputs at several positions are padded to one length

    Raises:
        ValueError: there is no input, or the name of the axis is empty, or an input has this axis itself

    Example:
        >>> letters = model.add_lookup_parameters((30, 4))
        >>> def spell(word):
        ...     return dy.esum([letters[letter] for letter in word])
        >>> dy.onnx.Each(spell, {"word": dy.onnx.Indices("letters", 30)}, "words")
        Each(spell, {'word': Indices(('letters',), 30)}, 'words')
    """

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Mapping[str, Floats | Indices],
        axis: str,
        lengths: Mapping[str, str] | None = None,
    ) -> None:
        if not inputs:
            raise ValueError("Each: argument inputs: expected at least one")
        if not axis or any(axis in x.shape for x in inputs.values()):
            raise ValueError(f"Each: argument axis: expected a name that no axis of its inputs has, got {axis!r}")
        self.function, self.inputs, self.axis, self.lengths = function, dict(inputs), axis, dict(lengths or {})

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", repr(self.function))
        return f"Each({name}, {self.inputs!r}, {self.axis!r})"


def _checked_shape(shape: Axis | Sequence[Axis], what: str) -> tuple[Axis, ...]:
    axes = (shape,) if isinstance(shape, (int, str)) else tuple(shape)
    if len(axes) > 7:
        raise ValueError(f"{what}: argument shape: {shape!r} has {len(axes)} axes, at most 7 are possible")
    for axis in axes:
        if not axis or (not isinstance(axis, str) and (axis != int(axis) or axis < 1)):
            raise ValueError(f"{what}: argument shape: expected sizes from 1 on and names, got {axis!r} in {shape!r}")
    return tuple(axis if isinstance(axis, str) else int(axis) for axis in axes)


class Index(int):
    """A whole number that a function can use as an index, and for nothing else.

    A file holds what the function does for any number, so no decision of a program may depend on it: whatever in Python
    compares it, computes with it or makes another object of it calls `refuse` instead, except within this library.

    Attributes:
        refuse: called with what the program does with the number; raises an error
    """

    refuse: Callable[[str], None]

    def __new__(cls, number: int, refuse: Callable[[str], None]) -> Index:
        made = super().__new__(cls, number)
        made.refuse = refuse
        return made


def _refused(name: str, what: str) -> Callable[..., Any]:
    def method(self: Index, *args: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.partition(".")[0] != _PACKAGE:
            self.refuse(what)
        return getattr(int(int.__int__(self)), name)(*args)

    method.__name__ = name
    return method


for _names, _what in {
    "eq ne lt le gt ge": "compares",
    "bool": "decides by",
    "hash": "looks up",
    "str format": "writes",
    "int float complex round trunc floor ceil": "converts",
    "abs neg pos invert add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod divmod rdivmod pow "
    "rpow lshift rlshift rshift rrshift and rand or ror xor rxor": "computes with",
}.items():
    for _name in _names.split():
        if hasattr(int, f"__{_name}__") or _name == "complex":
            setattr(Index, f"__{_name}__", _refused(f"__{_name}__", _what))
