"""`save` and `load` of lists of parameters and builders, in DyNet's files.

`save("model", objects)` writes two files. `model.data` is a text model file with the parameters of one object after the
other. `model.meta` has a pickle for each object:

- ``("Parameters", name)`` or ``("LookupParameters", name)``
- ``(class, spec, name of its collection)`` for builders and classes like them; the library's own classes are named as
  DyNet names them, such as ``_dynet.VanillaLSTMBuilder``

A pickle can make Python import and call anything. So the reader takes classes for names, and itself looks up what it
knows: the library's builders, and classes that the caller passes. See docs/files.md.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import IO, Any, NamedTuple, Union

import numpy as np

from dynet_cy import rnn
from dynet_cy.graph import Expression
from dynet_cy.model import LookupParameters, ParameterCollection, Parameters
from dynet_cy.model.parameters import add_entry, fill_entries
from dynet_cy.replacing import replacing
from dynet_cy.textfile import Entry, ModelFileError, ModelMismatchError, read_text_model

__all__ = ["ForbiddenClassError", "load", "load_generator", "save"]

BaseName = Union[str, "os.PathLike[str]"]

_PACKAGES = (rnn,)  # where the library's classes with `from_spec` are
_OUR_MODULES = {"_dynet", "_gdynet", "dynet", "dynet_cy"}
_KINDS = {"Parameters": Parameters, "LookupParameters": LookupParameters}


class ForbiddenClassError(ModelFileError):
    """A .meta file names a class that is not the library's, and the caller has not allowed it."""


class _Name(NamedTuple):
    """What stands for a class or function in a pickle. It cannot be called and has no attributes to set."""

    module: str
    name: str


def _own_classes() -> dict[str, Any]:
    """The library's classes that a file may name."""
    return {
        name: getattr(package, name)
        for package in _PACKAGES
        for name in package.__all__
        if hasattr(getattr(package, name), "from_spec") and not name.startswith("_")
    }


def _mapped(x: Any, change: Callable[[Any], Any]) -> Any:
    """Plain data with `change` applied to all that is not a container."""
    if type(x) in (tuple, list, set, frozenset):
        return type(x)(_mapped(item, change) for item in x)
    if type(x) is dict:
        return {_mapped(key, change): _mapped(value, change) for key, value in x.items()}
    return change(x)


# ---- saving


class _Pickler(pickle._Pickler):
    """Writes the library's classes under DyNet's names. (The pickler in C has no way to do that.)"""

    def __init__(self, file: IO[bytes], what: str) -> None:
        super().__init__(file, 4)
        self.what = what
        self.names = {cls: cls.__name__ for cls in _own_classes().values()}

    def save_global(self, obj: Any, name: str | None = None) -> None:
        if obj not in self.names:
            super().save_global(obj, name)  # type: ignore[misc]
            return
        self.save("_dynet")  # type: ignore[attr-defined]
        self.save(self.names[obj])  # type: ignore[attr-defined]
        self.write(pickle.STACK_GLOBAL)  # type: ignore[attr-defined]
        self.memoize(obj)  # type: ignore[attr-defined]

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (Expression, ParameterCollection)) or (hasattr(obj, "from_spec") and not callable(obj)):
            message = f"save: the spec of {self.what} holds {obj!r}, which has parameters of its own"
            raise TypeError(f"{message}; a spec must be data from which from_spec makes a new object")
        return NotImplemented


def save(basename: BaseName, objects: Iterable[Any]) -> None:
    """Write parameters and builders to two files, `basename.data` and `basename.meta`, which DyNet reads too.

    An object is

    - `Parameters` or `LookupParameters`, or
    - a builder, or anything that is like one: with a method `param_collection()` that returns its collection, an
      attribute `spec` of plain data, and a function `from_spec(spec, model)` of its class that returns a new one.

    Each file is replaced whole when both have been written; an interrupted save leaves the old ones.

    Args:
        basename: names of the files without `.data` and `.meta`.
        objects: the objects, in the order in which `load` returns them.

    Raises:
        TypeError: something else is among the objects, or a spec cannot be pickled.
        OSError: a file cannot be written.
    """
    base = os.fspath(basename)
    if isinstance(objects, (str, Expression)) or not isinstance(objects, Iterable):
        raise TypeError(f"save: the objects must be a list of parameters and builders, not {type(objects).__name__}")
    with contextlib.ExitStack() as stack:
        meta = stack.enter_context(replacing(base + ".meta"))
        data = stack.enter_context(replacing(base + ".data"))
        for x in objects:
            if isinstance(x, (Parameters, LookupParameters)):
                part: Any = x
                item: tuple[Any, ...] = type(x).__name__, x.name()
            else:
                part = _collection_of(x)
                plain = _mapped(x.spec, lambda y: y.item() if isinstance(y, np.generic) else y)
                item = type(x), plain, part.name()
            try:
                _Pickler(meta, type(x).__name__).dump(item)
            except (pickle.PicklingError, AttributeError) as error:
                raise TypeError(f"save: {type(x).__name__} with spec {x.spec!r}: {error}") from error
            part.save(data)


def _collection_of(x: Any) -> ParameterCollection:
    for attribute in ("param_collection", "spec", "from_spec"):
        if not hasattr(x, attribute):
            message = f"save: {type(x).__name__} objects cannot be saved: they have no {attribute}"
            raise TypeError(f"{message}; parameters, tables, builders and classes with builders' methods can")
    part = x.param_collection()
    if not isinstance(part, ParameterCollection):
        message = f"save: {type(x).__name__}.param_collection must return a ParameterCollection"
        raise TypeError(f"{message}, not {type(part).__name__}")
    return part


# ---- loading


class _NamesUnpickler(pickle.Unpickler):
    """Reads plain data; classes and functions become names, so nothing is imported or called."""

    def find_class(self, module: str, name: str) -> Any:
        self.last = _Name(module, name)
        return self.last


class _TrustingUnpickler(pickle.Unpickler):
    """Reads any pickle, and takes DyNet's classes for ours."""

    def __init__(self, file: IO[bytes], resolve: Callable[[_Name], Any]) -> None:
        super().__init__(file)
        self.resolve = resolve

    def find_class(self, module: str, name: str) -> Any:
        found = self.resolve(_Name(module, name))
        return super().find_class(module, name) if found is None else found


class _Loader:
    """Reads one pair of files."""

    def __init__(self, basename: BaseName, classes: Iterable[Any], trusted: bool) -> None:
        base = os.fspath(basename)
        self.meta, self.data = base + ".meta", base + ".data"
        self.trusted = trusted or os.environ.get("DYNET_CY_TRUSTED_FILES") == "1"
        self.own = _own_classes()
        self.allowed = list(classes)
        for cls in self.allowed:
            if not hasattr(cls, "__qualname__"):
                raise TypeError(f"load: classes must hold classes, not {cls!r}")

    def known(self, name: _Name) -> Any:
        """The class of that name, or None."""
        if name.module.partition(".")[0] in _OUR_MODULES and name.name in self.own:
            return self.own[name.name]
        for cls in self.allowed:
            # A program run as a script calls its classes __main__; imported, something else.
            same = cls.__module__ == name.module or "__main__" in (cls.__module__, name.module)
            if same and cls.__qualname__ == name.name:
                return cls
        return None

    def checked(self, x: Any) -> Any:
        """The class that a name stands for; anything else as it is."""
        if not isinstance(x, _Name):
            return x
        found = self.known(x)
        if found is None:
            raise self.forbidden(x)
        return found

    def forbidden(self, name: _Name) -> ForbiddenClassError:
        return ForbiddenClassError(
            f"it names {name.module}.{name.name}, which is not a builder of dynet_cy; nothing was loaded. If it is a "
            f"class of yours, pass it: load(basename, params, classes=[{name.name}]). load(basename, params, "
            "trusted=True), and the environment variable DYNET_CY_TRUSTED_FILES=1, import and call whatever the file "
            "says: only for files from where you trust all programs",
            self.meta,
        )

    def items(self) -> list[tuple[Any, ...]]:
        """What the .meta file lists."""
        found = []
        with open(self.meta, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            while file.tell() < size:
                found.append(self.item(file))
        return found

    def item(self, file: IO[bytes]) -> tuple[Any, ...]:
        unpickler = _TrustingUnpickler(file, self.known) if self.trusted else _NamesUnpickler(file)
        try:
            item = unpickler.load()
            if not self.trusted:
                item = _mapped(item, self.checked)
        except ModelFileError:
            raise
        except Exception as error:  # a pickle that is not whole raises almost anything
            name = getattr(unpickler, "last", None)
            if name is not None and self.known(name) is None:
                raise self.forbidden(name) from error
            raise ModelFileError(
                f"not a .meta file of a saved model: {error or type(error).__name__}", self.meta
            ) from (error)
        if isinstance(item, tuple) and len(item) == 2 and item[0] in _KINDS and isinstance(item[1], str):
            return item
        if isinstance(item, tuple) and len(item) == 3 and isinstance(item[2], str) and hasattr(item[0], "from_spec"):
            return item
        raise ModelFileError(f"not an entry of a saved model: {item!r}", self.meta)

    def objects(self, items: list[tuple[Any, ...]], params: ParameterCollection) -> Iterator[Any]:
        """The objects, one after the other, with their parameters from the .data file."""
        entries = read_text_model(self.data)
        for item in items:
            if len(item) == 2:
                kind, name = item
                (entry,) = self.take(entries, 1, name)
                if entry.name != name or entry.kind + "s" != kind:
                    message = f"{entry.kind} {entry.name} stands where {self.meta} has {kind} {name}"
                    raise ModelMismatchError(message, self.data)
                yield add_entry(params, entry)
            else:
                cls, spec, name = item
                x = self.made(cls, spec, params)
                part = x.param_collection()
                count = len(part.parameters_list()) + len(part.lookup_parameters_list())
                taken = self.take(entries, count, f"{cls.__name__} {name}")
                if not all(entry.name.startswith(name) for entry in taken):
                    stray = next(entry.name for entry in taken if not entry.name.startswith(name))
                    message = f"{stray} stands where {self.meta} has {cls.__name__} {name} of {count} parameters"
                    raise ModelMismatchError(message, self.data)
                fill_entries(part, taken, self.data)
                yield x
        left = next(entries, None)
        if left is not None:
            message = f"there is more than {self.meta} lists: {left.name}"
            raise ModelMismatchError(message, self.data)

    def made(self, cls: Any, spec: Any, params: ParameterCollection) -> Any:
        if cls not in self.own.values():
            return cls.from_spec(spec, params)
        try:
            return cls.from_spec(spec, params)
        except (TypeError, ValueError) as error:
            raise ModelFileError(f"{cls.__name__} cannot be made with spec {spec!r}: {error}", self.meta) from error

    def take(self, entries: Iterator[Entry], count: int, what: str) -> list[Entry]:
        taken = list(islice(entries, count))
        if len(taken) < count:
            message = f"it ends where {what} begins" if not taken else f"it ends within {what}"
            raise ModelMismatchError(f"{message}: {count} parameters are needed, {len(taken)} are there", self.data)
        return taken


def load_generator(
    basename: BaseName, params: ParameterCollection, *, classes: Iterable[Any] = (), trusted: bool = False
) -> Iterator[Any]:
    """`load`, but the objects come one after the other.

    `basename.meta` is read and checked at once, the parameters as the objects are asked for.
    """
    if not isinstance(params, ParameterCollection):
        raise TypeError(f"load: params must be a ParameterCollection, not {type(params).__name__}")
    loader = _Loader(basename, classes, trusted)
    return loader.objects(loader.items(), params)


def load(
    basename: BaseName, params: ParameterCollection, *, classes: Iterable[Any] = (), trusted: bool = False
) -> list[Any]:
    """Read what `save` has written, or DyNet's `save`; everything is added to `params`.

    No file can make this run its code: `basename.meta` is read as plain data, and of the classes that it names only the
    library's builders and those in `classes` are used. The name of a class in `classes` must be the one in the file;
    so must its module, unless one of both is `__main__`.

    Args:
        basename: names of the files without `.data` and `.meta`.
        params: where the parameters go.
        classes: further classes (and factory functions) that the file may name.
        trusted: unpickle `basename.meta` without any check. The file can then run any code. The environment variable
            ``DYNET_CY_TRUSTED_FILES=1`` says it for programs that cannot be edited.

    Returns:
        The objects in the order in which they were saved.

    Raises:
        FileNotFoundError: there is no such file.
        ForbiddenClassError: the file names another class; nothing was added.
        ModelFileError: a file is cut off or something else, or they do not belong together.
    """
    return list(load_generator(basename, params, classes=classes, trusted=trusted))
