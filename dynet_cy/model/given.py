"""Arguments that are a collection, or a layer in its place."""

from __future__ import annotations

from typing import Any

from dynet_cy.model.collection import ParameterCollection
from dynet_cy.model.whole import as_collection


def collection_of(given: Any, where: str, argument: str = "model") -> ParameterCollection:
    """The collection that was given, or that of a layer, with all its parameters.

    Raises:
        TypeError: it is something else; programs of PyTorch pass parameters, or a list or generator of them; others an
            object of a class of theirs
    """
    collection: Any = as_collection(given)
    if isinstance(collection, ParameterCollection):
        return collection
    hint = ""
    if hasattr(given, "__iter__"):
        hint = "; write the collection or the layer that holds the parameters"
    elif hasattr(given, "__dict__") and type(given).__module__ != "builtins":
        hint = f"; pass its collection, or derive {type(given).__name__} from dy.nn.Layer"
    kind = type(given).__name__
    raise TypeError(f"{where}: argument {argument}: expected a ParameterCollection or a layer, got {kind}{hint}")
