"""Strict mode: an error where PyTorch or NumPy would mean something else. `readings` has the table of these places."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

from dynet_cy.graph.expressions import Expression, set_consideration
from dynet_cy.graph.structs import give_attributes
from dynet_cy.hints.readings import AmbiguityError, Reading, Use, by_name, check
from dynet_cy.model import ParameterCollection
from dynet_cy.train.trainer import Trainer

__all__ = ["AmbiguityError", "strict"]

_ROWS = by_name()
# Where the functions and methods of the table are.
_PLACES: dict[str, Any] = {
    "": sys.modules["dynet_cy"],
    "Expression": Expression,
    "ParameterCollection": ParameterCollection,
    "Trainer": Trainer,
}
_OPERANDS = ("x", "y")

_lock = threading.Lock()
_depth = 0
_ready = False


@contextmanager
def strict() -> Iterator[None]:
    """While the block runs, raise an error where PyTorch or NumPy would mean something else.

    This finds what a ported program means differently without an error: ``A * B`` of square matrices, which is the
    matrix product here, ``{3,3} + {3}``, which adds to each column, `reshape`, which goes by columns, `value`, which is
    a float, a list or an array, and more; a table on the page for PyTorch users lists them all. An error names both
    readings, and what to write for each. Code that is written that way means the same with and without strict mode.

    Only calls of the program itself are checked, in all threads, and not those within `dynet_cy`. Functions that a
    program has imported by name (``from dynet_cy import softmax``) are checked if strict mode was on at that time: set
    ``DYNET_CY_STRICT=1`` or ``--dynet-strict`` for the whole program. ``dynet_cy.config.set(strict=True)`` starts it
    from then on. Without strict mode nothing is checked, and nothing costs time.

    Raises:
        AmbiguityError: in the block, where both readings are possible.

    Example:
        >>> A, b = dy.ones((2, 2)), dy.inputVector([1, 2])
        >>> with dy.strict():
        ...     y = A @ b + b               # the same in both
        ...     A + b
        Traceback (most recent call last):
            ...
        dynet_cy.AmbiguityError: `+`: in PyTorch and NumPy: adds the vector to each row (shapes align at ...
    """
    switch(True)
    try:
        yield
    finally:
        switch(False)


def switch(on: bool) -> None:
    """Start or stop strict mode. Calls nest: it ends when every start has had its stop."""
    global _depth
    with _lock:
        _depth += 1 if on else -1
        if _ready and _depth == int(on):
            (_install if on else _restore)()


def begin() -> None:
    """Let strict mode start, if it was requested before the module `dynet_cy` had its functions."""
    global _ready
    with _lock:
        _ready = True
        if _depth:
            _install()


_replaced: list[tuple[Any, str, Any]] = []


def _install() -> None:
    """Put functions that look first in the place of those of the module and the methods of classes."""
    for name, rows in _ROWS.items():
        owner, _, attribute = name.rpartition(".")
        place = _PLACES.get(owner)
        if place is not None and attribute.isidentifier():
            original = vars(place)[attribute]
            _replaced.append((place, attribute, original))
            _put(place, attribute, _looking(attribute, original, rows))
    set_consideration(_consider)


def _restore() -> None:
    set_consideration(None)
    while _replaced:
        _put(*_replaced.pop())


def _put(place: Any, name: str, value: Any) -> None:
    if place is Expression:
        give_attributes(place, {name: value})
    else:
        setattr(place, name, value)


def _looking(name: str, original: Callable[..., Any], rows: list[Reading]) -> Callable[..., Any]:
    """A function that looks at its arguments before it calls the original one."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def look(*args: Any, **kwargs: Any) -> Any:
        if _depth and _is_the_program():
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError:
                return original(*args, **kwargs)  # whose error says what is wrong
            check(rows, Use(name, args, given))
        return original(*args, **kwargs)

    return look


def _consider(name: str, *operands: Any) -> None:
    """Look at an operator or an index of an expression."""
    if _is_the_program():
        check(_ROWS[name], Use(name, operands, dict(zip(_OPERANDS, operands))))


def _is_the_program() -> bool:
    """Whether the program has made the call, rather than another module of dynet_cy."""
    caller = sys._getframe(2).f_globals.get("__name__", "")
    return not str(caller).startswith("dynet_cy.")
