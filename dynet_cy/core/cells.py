"""Notebook cells that run again: new layers and parameters replace those of the earlier run.

The variable that a statement will assign is known from its bytecode, and what it held before from its namespace. Cells
that run again have new code objects, so two statements of one run are told from one that runs twice.
"""

from __future__ import annotations

import dis
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, NamedTuple

_ENDS = ("POP_TOP", "RETURN_VALUE", "STORE_SUBSCR", "STORE_ATTR")  # of a statement that assigns no variable
_ONLY_THE_VARIABLE = 3  # references to an object that a variable, another one here, and a call refer to
# The module's code, or that of a cell, by which something was made, for collections of layers and for parameters.
_executions: weakref.WeakKeyDictionary[Any, CodeType] = weakref.WeakKeyDictionary()


class Assignment(NamedTuple):
    """A statement of a module, or of a cell, that is running and will assign variables."""

    variables: tuple[str, ...]
    namespace: Any
    code: CodeType
    at: int
    """The position in the code where the variables are assigned."""
    is_own: bool
    """Whether the statement makes the object itself, and no function that it calls."""


def assignment(frame: Any) -> Assignment | None:
    """The assignment that a module's own code, or a cell, is computing; None if it is another statement."""
    is_own = frame is not None and frame.f_code.co_name == "<module>"
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    if frame is None:
        return None
    code, argument, found = frame.f_code.co_code, 0, []
    first, before = 0, ""
    for at in range(frame.f_lasti, len(code), 2):
        argument = argument << 8 | code[at + 1]
        name = dis.opname[code[at]]
        if name in ("STORE_NAME", "STORE_GLOBAL"):
            first = first or at
            found.append(frame.f_code.co_names[argument])
        # The end of the statement; a POP_TOP after END_FOR pops the iterator of an inlined comprehension.
        elif found and name != "EXTENDED_ARG" or name in _ENDS and before != "END_FOR":
            break
        if name not in ("EXTENDED_ARG", "CACHE"):
            argument, before = 0, name
    if not found:
        return None
    # Within a comprehension, Python 3.13 gives a view of the variables of the comprehension alone.
    namespace = frame.f_locals if isinstance(frame.f_locals, dict) else frame.f_globals
    return Assignment(tuple(found), namespace, frame.f_code, first, is_own)


def take_place_of_former(
    made: Any,
    place: Assignment,
    stored: Callable[[Any], Any],
    beside: Callable[..., bool],
    replace: Callable[..., None],
) -> None:
    """Replace what is in the variable that `made` is about to be assigned to, if another cell, or the same one at
    another time, assigned it, and both belong to the same collection.

    In one run of a program or cell the model may have both: a warning, if only the variable refers to the former one.

    Args:
        stored: the collection of a layer or builder; a parameter itself; None for anything else
        beside: whether two of them belong to the same collection
        replace: lets the first one take the place of the second one
    """
    own = stored(made)
    _executions[own] = place.code
    variable = place.variables[0]
    former = place.namespace.get(variable)
    same = (type(former).__module__, type(former).__qualname__) == (type(made).__module__, type(made).__qualname__)
    old = stored(former) if same else None
    if old is None or not beside(own, old):
        return
    what = f"{type(made).__name__} {variable} was made again"
    if _executions.get(old, place.code) is not place.code:
        replace(own, old)
        parameters = "which is" if old is former else "whose parameters are"
        message = f"{what}: it takes the place of the former one, {parameters} removed from the model"
    elif sys.getrefcount(former) <= _ONLY_THE_VARIABLE:
        message = (
            f"{what}, and the model has the parameters of the former one too, to which nothing refers any more; "
            f"`collection.remove({variable})` before this line removes them"
        )
    else:
        return
    warnings.warn(message, stacklevel=3)


# ---- parameters and builders that are made by hand

# For each code and place of an assignment: where the statement has made what it assigns, in the order of variables.
_sites: weakref.WeakKeyDictionary[CodeType, dict[int, set[int]]] = weakref.WeakKeyDictionary()
# For a variable and the kind of what is made: which code last looked through what the variable held, and the id of
# that; once is enough for a long list. (Codes of the same text are equal, so that they cannot be keys.)
_looked_through: dict[tuple[str, type], tuple[weakref.ref[CodeType], int]] = {}


def settle(
    made: Any, frame: Any, stored: Callable[[Any], Any], beside: Callable[..., bool], replace: Callable[..., None]
) -> None:
    """Replace a parameter or builder that a statement makes itself, as in ``W, b = ...``; for one within what it
    makes, such as a list or an object with parameters, a warning that the former ones stay in the model.

    Args:
        frame: what has called the function or constructor
        stored, beside, replace: see `take_place_of_former`
    """
    place = assignment(frame)
    if place is None:
        return
    own = stored(made)
    _executions[own] = place.code
    if place.is_own:
        sites = _sites.setdefault(place.code, {}).setdefault(place.at, set())
        sites.add(frame.f_lasti)
        variables = place.variables[sorted(sites).index(frame.f_lasti) :][:1]
        if variables and type(place.namespace.get(variables[0])) is type(made):
            take_place_of_former(made, place._replace(variables=variables), stored, beside, replace)
            return
    for variable in place.variables:
        former = place.namespace.get(variable)
        by, looked = _looked_through.get((variable, type(made)), (None, 0))
        if by is not None and by() is place.code and looked == id(former):
            continue
        _looked_through[variable, type(made)] = weakref.ref(place.code), id(former)
        parts = [former] if type(former) is type(made) else _within(former)
        left = [x for x in map(stored, parts) if x is not None and beside(own, x)]
        if any(_executions.get(old, place.code) is not place.code for old in left):
            message = (
                f"{variable} was made again, and the model has its former parameters too; make the model again before, "
                "or let it be a dynet_cy.nn.Layer, which takes the place of the former one"
            )
            warnings.warn(message, stacklevel=3)


def _within(value: Any) -> Iterator[Any]:
    """The contents of a list, a dictionary or a plain object."""
    if isinstance(value, (list, tuple)):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        yield from vars(value).values()
