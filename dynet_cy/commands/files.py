"""Model files of all kinds, read as lists of parameters; nothing in them is executed."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from dynet_cy.files.checkpoint import stored_state
from dynet_cy.files.reading import opened, unpacked
from dynet_cy.files.textfile import LOOKUP, PARAMETER, Entry, ModelFileError, read_text_model
from dynet_cy.files.unpickling import Name, unpickle

TEXT = "text"
PAIR = "pair"
SAFETENSORS = "safetensors"

_KINDS = {"Parameters": PARAMETER, "LookupParameters": LOOKUP}


class Object(NamedTuple):
    """An object as described in a .meta file.

    Attributes:
        kind: "Parameters", "LookupParameters", or the name of a class
        spec: what `dy.load` would construct it from, as text; empty for parameters
        name: the name of the parameter or of the object's collection
    """

    kind: str
    spec: str
    name: str


def kind_of(path: str) -> str:
    """The kind of a file, judged by its contents.

    Raises:
        ModelFileError: the format is unknown
        OSError: the file cannot be read
    """
    if path.endswith(".meta") or (not os.path.exists(path) and os.path.exists(path + ".meta")):
        return PAIR
    with unpacked(path, "a model file") as file:
        head = file.read(64).removeprefix(codecs.BOM_UTF8)
    if head[:1] == b"#":
        return PAIR if path.endswith(".data") and os.path.exists(path[:-5] + ".meta") else TEXT
    if len(head) > 8 and head[8:].lstrip()[:1] == b"{" and int.from_bytes(head[:8], "little") <= os.path.getsize(path):
        return SAFETENSORS
    raise ModelFileError("neither a text model file, nor one of dy.save, nor a safetensors file", path)


def pair(path: str) -> tuple[str, str]:
    """The names of both files of `dy.save`, from one of them or from their base name."""
    base = path[:-5] if path.endswith((".meta", ".data")) else path
    return base + ".data", base + ".meta"


def entries(path: str) -> Iterator[Entry]:
    """The parameters of a file of any kind.

    Raises:
        ModelFileError: the file is damaged
    """
    kind = kind_of(path)
    if kind == SAFETENSORS:
        return _tensors(path)
    return read_text_model(pair(path)[0] if kind == PAIR else path)


def _tensors(path: str) -> Iterator[Entry]:
    kinds = stored_state(path).get("kinds", {})
    try:
        with safe_open(path, "numpy") as file:
            # For the library's own files: the parameters in their order, without gradients and the state of a trainer.
            for name in kinds or file.keys():
                values = file.get_tensor(name)
                kind = _KINDS[kinds.get(name, "Parameters")]
                if kind == LOOKUP:
                    values = np.moveaxis(values, 0, -1)
                yield Entry(kind, name, values.shape, values.astype(np.float32).ravel(order="F"))
    except (SafetensorError, TypeError) as error:
        raise ModelFileError(f"cannot be read: {error}", path) from error


def objects(path: str) -> Iterator[Object]:
    """The objects in files of `dy.save`; classes and functions that the file names are not looked up.

    Raises:
        ModelFileError: the file is damaged
    """
    meta = pair(path)[1]
    with opened(meta, "the .meta file of a model that dy.save has written") as file:
        data = file.read()
    at = 0
    while at < len(data):
        try:
            found, at = unpickle(data, at, _Describer())
        except Exception as error:  # an incomplete pickle can raise almost anything
            raise ModelFileError(f"not a .meta file of a saved model: {error or type(error).__name__}", meta) from error
        if not isinstance(found, tuple) or len(found) not in (2, 3):
            raise ModelFileError(f"it holds {found!r:.100}, which is no object of dy.save", meta)
        spec = repr(found[1]) if len(found) == 3 else ""
        yield Object(str(found[0]), spec, str(found[-1]))


class _Description:
    """Stands in for an object: a description of how it would be made."""

    def __init__(self, name: Name, arguments: tuple[Any, ...]) -> None:
        self.text = f"{name}({', '.join(map(repr, arguments))})"

    def __repr__(self) -> str:
        return self.text


class _Describer:
    """Describes the objects of a pickle instead of making them."""

    def value(self, name: Name) -> Any:
        return name

    def new(self, name: Name, arguments: tuple[Any, ...]) -> Any:
        return _Description(name, arguments)

    def call(self, name: Name, arguments: tuple[Any, ...]) -> Any:
        return _Description(name, arguments)

    def set_state(self, made: Any, state: Any) -> None:
        if isinstance(made, _Description):
            made.text += f" with {state!r}"
