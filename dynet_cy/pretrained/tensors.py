"""The tensors of a model in files: safetensors, in one file or several, or files of `torch.save`."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from dynet_cy.files.reading import opened
from dynet_cy.files.textfile import ModelFileError
from dynet_cy.model.weights import TYPES, widened
from dynet_cy.pretrained.config import read_json
from dynet_cy.pretrained.torch_files import read_torch

Array = npt.NDArray[Any]

_TYPES = {**TYPES, "BF16": "<u2", "BOOL": "?"}

_CHUNK = 4096


class Stored(NamedTuple):
    """A tensor in a file, which is read when its numbers are needed."""

    shape: tuple[int, ...]
    kind: str
    data: Any

    def floats(self) -> npt.NDArray[np.float32]:
        """Its numbers."""
        return self._floats(np.frombuffer(self.data, _TYPES[self.kind])).reshape(self.shape)

    def halves(self) -> npt.NDArray[np.uint16]:
        """The numbers of a matrix in bfloat16, rounded to even."""
        numbers = np.frombuffer(self.data, _TYPES[self.kind]).reshape(self.shape)
        if self.kind == "BF16":
            return numbers.astype(np.uint16)
        found = np.empty(self.shape, np.uint16)
        for begin in range(0, len(numbers), _CHUNK):  # the floats of few rows at a time
            bits = self._floats(numbers[begin : begin + _CHUNK]).view(np.uint32)
            rounded = bits + np.uint32(0x7FFF) + (bits >> 16 & 1)
            found[begin : begin + _CHUNK] = np.where(bits << 1 > np.uint32(0xFF000000), bits | 1 << 22, rounded) >> 16
        return found

    def _floats(self, numbers: Array) -> npt.NDArray[np.float32]:
        return widened(numbers) if self.kind == "BF16" else numbers.astype(np.float32, copy=False)


class Tensors(Mapping[str, Stored]):
    """Tensors by name.

    Args:
        stored: the tensors
        files: the names of the files that hold them
    """

    def __init__(self, stored: dict[str, Stored], files: list[str]) -> None:
        self.stored = stored
        self.files = files

    def __getitem__(self, name: str) -> Stored:
        return self.stored[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)

    def numbers(self) -> int:
        """The number of numbers in all."""
        return sum(int(np.prod(x.shape, dtype=object)) for x in self.stored.values())


def find_files(folder: Path) -> Path:
    """The file in a folder that holds the tensors, or the list of those that do.

    Raises:
        FileNotFoundError: there is none
    """
    names = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
    for name in names:
        if (folder / name).exists():
            return folder / name
    raise FileNotFoundError(f"{folder} has no {', '.join(names[:-1])} or {names[-1]}")


def open_tensors(path: Path) -> Tensors:
    """The tensors of a file, or of those that an index lists.

    Args:
        path: a safetensors file, one of `torch.save`, or a `*.index.json`

    Raises:
        ModelFileError: a file is incomplete or something else, or a tensor is missing that the index lists
        OSError: a file cannot be read
    """
    if path.name.endswith(".json"):
        return _indexed(path)
    read = _safetensors if path.suffix == ".safetensors" else _torch
    return Tensors(read(path), [path.name])


def _indexed(path: Path) -> Tensors:
    places = read_json(path, "an index of files with tensors").get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()) or not places:
        raise ModelFileError("weight_map is no list of tensors and files", os.fspath(path))
    found: dict[str, Stored] = {}
    files = sorted(set(places.values()))
    for name in files:
        if name != os.path.basename(name):
            raise ModelFileError(f"{name} is not the name of a file beside it", os.fspath(path))
        found |= open_tensors(path.parent / name).stored
    missing = sorted(set(places) - set(found))
    if missing:
        raise ModelFileError(f"{places[missing[0]]} has no {missing[0]}, but the index lists it", os.fspath(path))
    return Tensors({name: found[name] for name in places}, files)


def _safetensors(path: Path) -> dict[str, Stored]:
    opening: Any = safe_open
    with opened(path, "a safetensors file") as file:
        try:
            opening(path, "numpy")  # compares the header with the size of the file
        except SafetensorError as error:
            raise ModelFileError(f"not a safetensors file, or not all of one: {error}", os.fspath(path)) from error
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    header.pop("__metadata__", None)
    found = {}
    for name, tensor in header.items():
        begin, end = (8 + length + offset for offset in tensor["data_offsets"])
        if tensor["dtype"] not in _TYPES:
            raise ModelFileError(f"{name} holds numbers of type {tensor['dtype']}", os.fspath(path))
        found[name] = Stored(tuple(tensor["shape"]), tensor["dtype"], data[begin:end])
    return found


def _torch(path: Path) -> dict[str, Stored]:
    return {name: Stored(*tensor) for name, tensor in read_torch(path).items()}
