"""Construction of layers: names follow attributes, a constructor that fails leaves nothing, and a layer that is made
again takes the place of the former one."""

from __future__ import annotations

import abc
import contextlib
import inspect
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np

from dynet_cy.core.cells import assignment, take_place_of_former
from dynet_cy.graph.origin import open_scopes
from dynet_cy.hints.equivalents import Elsewhere, of_arguments
from dynet_cy.model import LookupParameters, ParameterCollection, Parameters
from dynet_cy.model.collection import (
    are_beside,
    hold,
    is_unnamed,
    name_members,
    remove_unheld,
    rolled_back,
    stored,
    take_place,
)

__all__: list[str] = []

_Made = TypeVar("_Made")
_DEEPEST = 4  # how deep lists and dictionaries are searched for layers
_PLAIN = (str, bytes, int, float, bool, type(None), np.ndarray)  # what they mostly hold otherwise


def parts(value: Any, name: str, depth: int = 0) -> Iterator[tuple[Any, str]]:
    """The parameters, layers and builders in the value of an attribute, with their names: `encoder`, `layers/0`,
    `heads/tags`."""
    if isinstance(value, _PLAIN) or depth > _DEEPEST:
        return
    if isinstance(value, (Parameters, LookupParameters)):
        yield value, name
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from parts(item, f"{name}/{i}", depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from parts(item, f"{name}/" + re.sub(r"[/#.\s]", "-", str(key)), depth + 1)
    elif isinstance(stored(value), ParameterCollection):
        yield value, name


def attributes(layer: Any) -> dict[str, Any]:
    """The attributes of a layer, in the order in which they were set first."""
    names = layer._attributes
    return vars(layer) if names is None else {name: getattr(layer, name) for name in names if hasattr(layer, name)}


def all_parts(layer: Any) -> Iterator[tuple[Any, str]]:
    """The parameters, layers and builders in all attributes of a layer, with their names."""
    for name, value in attributes(layer).items():
        yield from parts(value, name)


def note_parts(layer: Any) -> None:
    """Let the collection of a layer know all that the layer holds, wherever it was made."""
    held: dict[str, Any] = {}
    for part, name in all_parts(layer):
        held.setdefault(layer._saved_name(name), stored(part))
    hold(layer.collection, held)


def note_all_parts(layer: Any, seen: set[int] | None = None) -> None:
    """Call `note_parts` for a layer and all layers in it, whose lists may have changed."""
    seen = set() if seen is None else seen
    if id(layer) in seen:
        return
    seen.add(id(layer))
    note_parts(layer)
    for part, _ in all_parts(layer):
        if isinstance(type(part), LayerType):
            note_all_parts(part, seen)


def replace_part(layer: Any, name: str, before: Any, value: Any, meant: bool) -> None:
    """Name what has become an attribute of a finished layer, and remove from its collection what it replaces, with a
    warning unless that is meant.
    """
    if _exchanged(layer, name, before, value) and not meant:
        message = f"{type(layer).__name__}.{name} was made again: its former parameters are removed from the model"
        warnings.warn(message, stacklevel=3)


def put_part(layer: Any, name: str, value: Any) -> None:
    """Set an attribute of a layer in place of another one on purpose: without the warning."""
    before = getattr(layer, name)
    object.__setattr__(layer, name, value)
    _exchanged(layer, name, before, value)


def _exchanged(layer: Any, name: str, before: Any, value: Any) -> bool:
    """Name what has become an attribute, and remove what it replaces; whether something was removed.

    What the layer still holds elsewhere, such as the former layer within the new one, stays.
    """
    new = [(stored(part), layer._saved_name(to)) for part, to in parts(value, name)]
    old = [stored(part) for part, _ in parts(before, name)]
    if not new and not old:
        return False
    collection = layer.collection
    held = list(collection._parts.values())
    note_parts(layer)
    unnamed = [(part, to) for part, to in new if is_unnamed(collection, part)]
    came = unnamed or any(not any(part is other for other in held) for part, _ in new)
    replaced = came and remove_unheld(collection, old)
    name_members(collection, unnamed)
    return bool(replaced)


# ---- constructors

_local = threading.local()


def begin_in(model: ParameterCollection) -> None:
    """Note the collection of a layer under construction, before anything is added to it."""
    _local.stacks[-1].enter_context(rolled_back(model))


class LayerType(abc.ABCMeta):
    """The class of layer classes."""

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(name, bases, namespace, **kwargs)
        open_scopes(cls)

    def __dir__(cls) -> list[str]:
        """Without the names that only say what to write, which `help` would list otherwise."""
        return [
            name for name in super().__dir__() if not isinstance(inspect.getattr_static(cls, name, None), Elsewhere)
        ]

    @property
    def __signature__(cls) -> inspect.Signature:
        """The signature of the constructor, which `__call__` would hide."""
        own = inspect.signature(cls.__init__)  # type: ignore[misc]  # cls is not an instance
        return own.replace(parameters=list(own.parameters.values())[1:])

    def __call__(cls: type[_Made], *args: Any, **kwargs: Any) -> _Made:
        if kwargs:
            wrong = of_arguments(cls, kwargs)
            if wrong:
                raise TypeError(wrong)
        stacks = _local.__dict__.setdefault("stacks", [])
        place = None if stacks else assignment(sys._getframe(1))
        with contextlib.ExitStack() as stack:
            stacks.append(stack)
            try:
                for given in (*args, *kwargs.values()):
                    if isinstance(given, ParameterCollection):
                        begin_in(given)
                try:
                    made: _Made = super().__call__(*args, **kwargs)  # type: ignore[misc]
                except TypeError:
                    wrong = of_arguments(cls, kwargs, given=len(args))
                    if wrong:
                        raise TypeError(wrong) from None
                    raise
                layer: Any = made
                if "collection" not in attributes(layer):
                    raise TypeError(not_begun(cls))
            finally:
                stacks.pop()
        name_members(layer.collection, [(stored(part), layer._saved_name(name)) for part, name in all_parts(layer)])
        note_parts(layer)
        object.__setattr__(layer, "_constructed", True)
        if place is not None:
            take_place_of_former(layer, place, stored, are_beside, take_place)
        return made


def not_begun(cls: type) -> str:
    """Advice for a layer whose `Layer.__init__` was not called."""
    return f"{cls.__name__}: the constructor must call super().__init__(model, ...) before it makes parameters"


class NotBegun:
    """The collection of a layer until `Layer.__init__` makes it."""

    def __get__(self, layer: Any, cls: type) -> Any:
        raise AttributeError(not_begun(cls))
