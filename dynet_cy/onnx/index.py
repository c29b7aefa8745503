"""Integers that stand for inputs while a function is exported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

__all__ = ["Index"]

_PACKAGE = __name__.partition(".")[0]


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
