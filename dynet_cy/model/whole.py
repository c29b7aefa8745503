"""Layers in place of collections: each has a collection of all its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Union, cast, runtime_checkable

if TYPE_CHECKING:
    from dynet_cy.model.collection import ParameterCollection


@runtime_checkable
class Holder(Protocol):
    """A holder of parameters from several collections: a layer."""

    def _whole_collection(self) -> ParameterCollection: ...


CollectionOrLayer = Union["ParameterCollection", Holder]


def as_collection(x: Any) -> ParameterCollection:
    """The collection of a layer, with all its parameters; anything else unchanged."""
    whole = getattr(type(x), "_whole_collection", None)
    return cast("ParameterCollection", x if whole is None else whole(x))
