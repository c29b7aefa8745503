"""Weights from PyTorch files: arrays by name, and their parameters.

A layer's `_take_pytorch` takes the arrays of the names and shapes that it expects, and assigns them to parameters.
Nothing is changed before every array of a file has been assigned.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dynet_cy.files.reading import FileName, opened
from dynet_cy.files.textfile import ModelFileError, ModelMismatchError, known_format
from dynet_cy.model import LookupParameters, ParameterCollection, Parameters
from dynet_cy.model.initializers import UniformInitializer
from dynet_cy.model.parameters import set_array

Array = npt.NDArray[Any]

TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1"}
"""From the type in a file to that of NumPy."""


def read_tensors(path: FileName) -> dict[str, Array]:
    """All arrays of a safetensors file.

    Raises:
        ModelFileError: not a whole safetensors file, or numbers of a type that NumPy has no name for.
        OSError: the file cannot be read.
    """
    with opened(path, "a safetensors file") as file:
        data = file.read()
    from safetensors import SafetensorError, deserialize

    parse: Any = deserialize  # has no types
    try:
        found = parse(data)
    except SafetensorError as error:
        known = known_format(data[:64])
        raise ModelFileError(f"not a safetensors file{known or f': {error}'}", os.fspath(path)) from error
    return {name: _array(name, tensor, path) for name, tensor in found}


def _array(name: str, tensor: dict[str, Any], path: FileName) -> Array:
    kind, shape = tensor["dtype"], tensor["shape"]
    if kind == "BF16":
        return widened(np.frombuffer(tensor["data"], "<u2")).reshape(shape)
    if kind not in TYPES:
        raise ModelFileError(f"{name} holds numbers of type {kind}", os.fspath(path))
    return np.frombuffer(tensor["data"], TYPES[kind]).reshape(shape)


def widened(halves: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The floats of which bfloat16 has the upper halves."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


def _plain(x: Any) -> Array:
    """An array, or a tensor of PyTorch on any device, as an array; bfloat16 as floats."""
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        x = (x.float() if x.is_floating_point() else x).numpy()
    return np.asarray(x)


class Weights:
    """Arrays whose names begin with a prefix, and the parameters whose values they will become.

    Args:
        arrays: the arrays, by their full names
        source: their name in messages
        prefix: the beginning of the names, such as `encoder.`
    """

    def __init__(self, arrays: Mapping[str, Array], source: str, prefix: str = "") -> None:
        self.arrays = arrays
        self.source = source
        self.prefix = prefix
        self.used: set[str] = set()
        self.values: list[tuple[Parameters | LookupParameters, Array]] = []

    @classmethod
    def of(cls, weights: Mapping[str, Any] | FileName | Any, prefix: str) -> Weights:
        """Those of a module of PyTorch, of arrays or tensors by name, or of a safetensors file."""
        if isinstance(weights, Mapping):
            return cls(weights, "the arrays", prefix)
        state = getattr(weights, "state_dict", None)
        if state is not None:
            return cls(state(), type(weights).__name__, prefix)
        return cls(read_tensors(weights), os.fspath(weights), prefix)

    def below(self, name: str) -> Weights:
        """The arrays whose names continue with `name.`."""
        part = Weights(self.arrays, self.source, f"{self.prefix}{name}.")
        part.used, part.values = self.used, self.values
        return part

    def pop(self, name: str, shape: tuple[int, ...]) -> Array:
        """One array, which must exist and have this shape."""
        full = self.prefix + name
        if full not in self.arrays:
            raise ModelMismatchError(f"there is no {full}", self.source, parameter=full)
        array = _plain(self.arrays[full])
        if array.shape != shape:
            raise ModelMismatchError(f"has shape {array.shape}, the layer needs {shape}", self.source, parameter=full)
        self.used.add(full)
        return array

    def has(self, name: str) -> bool:
        """Whether there is an array of this name."""
        return self.prefix + name in self.arrays

    def skip(self, name: str) -> None:
        """Ignore an array that has no counterpart here."""
        self.used.add(self.prefix + name)

    def put(self, parameter: Parameters | LookupParameters, array: Array) -> None:
        """Note the value that a parameter will get."""
        self.values.append((parameter, array))

    def take(self, parameter: Parameters | LookupParameters | None, name: str) -> None:
        """Note that a parameter, if it is there, gets the array of this name, which has its shape."""
        if parameter is not None:
            self.put(parameter, self.pop(name, parameter.shape))

    def finish(self) -> None:
        """Set the values, if no array is left."""
        left = sorted(name for name in self.arrays if name.startswith(self.prefix) and name not in self.used)
        if left:
            names = ", ".join(left[:8]) + (f" and {len(left) - 8} more" if len(left) > 8 else "")
            raise ModelMismatchError(f"the layer has no place for {names}", self.source)
        for parameter, array in self.values:
            set_array(parameter, np.asarray(array, dtype=np.float32))


def uniform(shape: tuple[int, ...], bound: float) -> Array:
    """Random numbers between -bound and bound, from the library's own source."""
    return ParameterCollection().add_parameters(shape, init=UniformInitializer(bound)).as_array()
