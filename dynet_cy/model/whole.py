"""Layers in place of collections: each has a collection of all its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Union, cast, runtime_checkable

if TYPE_CHECKING:
    from dynet_cy.model.collection import ParameterCollection

__all__ = ["CollectionOrLayer", "Holder", "as_collection", "refused"]


@runtime_checkable
class Holder(Protocol):
    """A holder of parameters from several collections: a layer."""

    def _whole_collection(self) -> ParameterCollection: ...


CollectionOrLayer = Union["ParameterCollection", Holder]


def as_collection(x: Any) -> ParameterCollection:
    """The collection of a layer, with all its parameters; anything else unchanged."""
    whole = getattr(type(x), "_whole_collection", None)
    return cast("ParameterCollection", x if whole is None else whole(x))


def refused(where: str, argument: str, given: Any) -> TypeError:
    """The error of an argument that is neither a collection nor a layer.

    Programs of PyTorch pass parameters, or a list or generator of them; others an object of a class of theirs.
    """
    hint = ""
    if hasattr(given, "__iter__"):
        hint = "; write the collection or the layer that holds the parameters"
    elif hasattr(given, "__dict__") and type(given).__module__ != "builtins":
        hint = f"; pass its collection, or derive {type(given).__name__} from dy.nn.Layer"
    kind = type(given).__name__
    return TypeError(f"{where}: argument {argument}: expected a ParameterCollection or a layer, got {kind}{hint}")
