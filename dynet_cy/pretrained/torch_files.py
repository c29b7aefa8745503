"""Reads tensors from files of `torch.save`, such as `pytorch_model.bin`, without running code.

Such a file is a pickle, and a pickle may call any function. The reader of `dynet_cy.files.unpickling` calls none: the
names in the file stand for the few things that state dictionaries consist of, and any other name is an error.

Two formats are read: since PyTorch 1.6 a zip archive, which holds the pickle and a member for each storage; before,
some pickles one after the other, followed by the storages.
"""

from __future__ import annotations

import collections
import math
import mmap
import os
import zipfile
from pathlib import Path
from typing import Any, Union

import numpy as np

from dynet_cy.files.reading import opened
from dynet_cy.files.textfile import ModelFileError
from dynet_cy.files.unpickling import Name, PickleError, unpickle

Tensor = tuple[tuple[int, ...], str, Any]  # shape, type as in safetensors, bytes in row-major order
Buffer = Union[bytes, memoryview]

_MAGIC = 0x1950A86A20F9469CFC6C
_LONGEST_PICKLE = 1 << 24
_STORAGES = {
    "DoubleStorage": ("F64", 8),
    "FloatStorage": ("F32", 4),
    "HalfStorage": ("F16", 2),
    "BFloat16Storage": ("BF16", 2),
    "LongStorage": ("I64", 8),
    "IntStorage": ("I32", 4),
    "ShortStorage": ("I16", 2),
    "CharStorage": ("I8", 1),
    "ByteStorage": ("U8", 1),
    "BoolStorage": ("BOOL", 1),
}


class _Storage:
    """The numbers of tensors; several may share them."""

    def __init__(self, key: str, kind: str, width: int, size: int) -> None:
        self.key, self.kind, self.width, self.size = key, kind, width, size


class _View:
    """A tensor: which numbers of a storage it has."""

    def __init__(self, storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.storage, self.offset, self.shape, self.strides = storage, offset, shape, strides

    def numbers(self, data: Buffer) -> Buffer:
        """Its numbers in row-major order, from those of the storage."""
        width, count = self.storage.width, math.prod(self.shape)
        last = self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.strides)) if count else self.offset
        if last >= max(len(data) // width, 1):
            raise PickleError(f"a tensor of shape {self.shape} reaches beyond its storage")
        whole, step = True, 1
        for n, stride in zip(self.shape[::-1], self.strides[::-1]):
            whole, step = whole and (stride == step or n == 1), step * n
        if whole:
            return data[self.offset * width : (self.offset + count) * width]
        flat = np.frombuffer(data, f"V{width}")[self.offset :]
        return np.lib.stride_tricks.as_strided(flat, self.shape, [s * width for s in self.strides]).tobytes()


class _Maker:
    """The meaning of names in such a file; a `Maker` of `dynet_cy.files.unpickling`."""

    def __init__(self) -> None:
        self.storages: dict[str, _Storage] = {}

    def value(self, name: Name) -> Any:
        raise PickleError(f"it names {name}, which tensors do not need")

    def new(self, name: Name, arguments: tuple[Any, ...]) -> Any:
        return self.call(name, arguments)

    def call(self, name: Name, arguments: tuple[Any, ...]) -> Any:
        key = name.module, name.name
        if key == ("collections", "OrderedDict") and not arguments:
            return collections.OrderedDict()
        if key == ("torch._utils", "_rebuild_tensor_v2") and len(arguments) >= 4:
            return _tensor(*arguments[:4])
        if key == ("torch._utils", "_rebuild_parameter") and arguments and isinstance(arguments[0], _View):
            return arguments[0]
        return self.value(name)

    def set_state(self, made: Any, state: Any) -> None:
        """The versions of modules, which state dictionaries have as an attribute, are of no use here."""

    def persistent(self, identity: tuple[Any, ...]) -> Any:
        """A storage, which lies outside of the pickle."""
        kind = identity[1] if len(identity) >= 5 and identity[0] == "storage" else None
        if not isinstance(kind, Name) or kind.module != "torch" or kind.name not in _STORAGES:
            raise PickleError(f"it refers to {kind or 'something'}, not to a storage of numbers")
        key, size = identity[2], identity[4]
        if type(key) is not str or type(size) is not int or size < 0 or any(identity[5:]):
            raise PickleError("a storage without a name or a size")
        return self.storages.setdefault(key, _Storage(key, *_STORAGES[kind.name], size))


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any) -> _View:
    sizes = [offset, *shape, *strides] if isinstance(shape, tuple) and isinstance(strides, tuple) else [None]
    if not isinstance(storage, _Storage) or any(type(n) is not int or n < 0 for n in sizes):
        raise PickleError("a tensor without a storage or a shape")
    if len(shape) != len(strides):
        raise PickleError(f"a tensor of shape {shape} with {len(strides)} strides")
    return _View(storage, offset, shape, strides)


def read_torch(path: Path) -> dict[str, Tensor]:
    """The tensors of a file of `torch.save`, by name.

    Raises:
        ModelFileError: not such a file, an incomplete one, or one that needs more than tensors
        OSError: the file cannot be read
    """
    with opened(path, "a file of torch.save") as file:
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.path.getsize(path) else b""
    try:
        read = _zipped if whole[:4] == b"PK\x03\x04" else _older
        found, storages = read(memoryview(whole), path)
        if isinstance(found, dict) and set(found) == {"state_dict"}:
            found = found["state_dict"]
        if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
            raise PickleError(f"it holds a {type(found).__name__} instead of tensors by name")
        tensors = {name: view for name, view in found.items() if isinstance(view, _View)}
        return {
            name: (view.shape, view.storage.kind, view.numbers(storages[view.storage.key]))
            for name, view in tensors.items()
        }
    except (PickleError, zipfile.BadZipFile, KeyError, UnicodeError, ValueError, OverflowError) as error:
        raise ModelFileError(f"not a file with tensors of torch.save: {error}", os.fspath(path)) from error


def _zipped(whole: memoryview, path: Path) -> tuple[Any, dict[str, Buffer]]:
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        pickled = members["data.pkl"]
        if pickled.file_size > _LONGEST_PICKLE:
            raise PickleError(f"a pickle of {pickled.file_size} bytes")
        if "byteorder" in members and archive.read(members["byteorder"]) != b"little":
            raise PickleError("its numbers are big-endian")
        maker = _Maker()
        found, _ = unpickle(archive.read(pickled), 0, maker)
        return found, {key: _member(whole, members[f"data/{key}"]) for key in maker.storages}


def _member(whole: memoryview, info: zipfile.ZipInfo) -> memoryview:
    """The bytes of a member, which is not compressed."""
    head = info.header_offset
    begin = head + 30 + int.from_bytes(whole[head + 26 : head + 28], "little")
    begin += int.from_bytes(whole[head + 28 : head + 30], "little")
    found = whole[begin : begin + info.file_size]
    if info.compress_type != zipfile.ZIP_STORED or len(found) != info.file_size:
        raise PickleError(f"{info.filename} is compressed, or incomplete")
    return found


def _older(whole: memoryview, path: Path) -> tuple[Any, dict[str, Buffer]]:
    pickles, maker = bytes(whole[:_LONGEST_PICKLE]), _Maker()
    parts, at = [], 0
    for _ in range(5):  # a number, the version of the format, the machine, the tensors, the names of storages
        part, at = unpickle(pickles, at, maker)
        parts.append(part)
        if parts[0] != _MAGIC:
            raise PickleError("it does not begin as one")
    storages: dict[str, Buffer] = {}
    for key in parts[4]:
        storage = maker.storages[key]
        size = storage.size * storage.width
        stated = int.from_bytes(whole[at : at + 8], "little")
        if stated != storage.size or at + 8 + size > len(whole):
            raise PickleError(f"it ends within storage {key}")
        storages[key] = whole[at + 8 : at + 8 + size]
        at += 8 + size
    return parts[3], storages
