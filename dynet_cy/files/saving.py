"""`save` and `load`: lists of parameters and builders in DyNet's files.

`save("model", objects)` writes two files. `model.data` is a text model file with the parameters of one object after the
other. `model.meta` has a pickle for each object:

- ``("Parameters", name)`` or ``("LookupParameters", name)``
- ``(class, spec, name of its collection)`` for builders and classes like them; the library's own classes are named as
  DyNet names them, such as ``_dynet.VanillaLSTMBuilder``

A pickle can make Python import and call anything. So .meta files are read by a reader for plain data (`unpickling`),
with rules for the classes that a file may name (`restoring`). See docs/files.md.

The two files belong together: `model.meta` begins with a hash of the content of `model.data`, which other readers skip.
`model.data` is renamed first. Before that, the new `model.meta` is stored next to the old one, under a name that `load`
knows. So at any time there is a matching pair. Processes that save one pair at once rename their files one after the
other, under a lock.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import reprlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from dynet_cy import nn, rnn
from dynet_cy.files.reading import FileName, opened, wanted
from dynet_cy.files.replacing import Replacement, locked
from dynet_cy.files.restoring import Forbidden, Restorer, calling_package, may_be_a_class
from dynet_cy.files.textfile import Entry, Header, ModelFileError, ModelMismatchError, scan_text_model
from dynet_cy.files.unpickling import Name, unpickle
from dynet_cy.graph import Expression
from dynet_cy.model import LookupParameters, ParameterCollection, Parameters
from dynet_cy.model.collection import adding, fill_by_name, rolled_back
from dynet_cy.model.given import collection_of
from dynet_cy.model.parameters import add_entry, fill_entries
from dynet_cy.model.whole import CollectionOrLayer, as_collection
from dynet_cy.rnn import softmax_builders

if TYPE_CHECKING:
    from hashlib import blake2b


_KINDS = ("Parameters", "LookupParameters")


class ForbiddenClassError(ModelFileError):
    """A .meta file names a class that it must not, and the caller has not allowed it."""


def _own_classes() -> dict[str, Any]:
    """The library's classes that a file may name.

    `ClassFactoredSoftmaxBuilder` is not among them: its spec has the name of a file, which it would read.
    """
    known = {name: getattr(module, name) for module in (rnn, nn) for name in module.__all__ if not name.startswith("_")}
    known = {name: cls for name, cls in known.items() if hasattr(cls, "from_spec") and cls is not nn.Layer}
    return {**known, "StandardSoftmaxBuilder": softmax_builders.StandardSoftmaxBuilder}


def _mapped(x: Any, change: Callable[[Any], Any]) -> Any:
    """Plain data with `change` applied to everything that is not a container."""
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


def save(basename: FileName, objects: Iterable[Any]) -> None:
    """Write parameters and builders to two files, `basename.data` and `basename.meta`, which DyNet reads too.

    An object is

    - `Parameters` or `LookupParameters`, or
    - a builder, or any object like one: with a method `param_collection()` that returns its collection, an
      attribute `spec` of plain data, and a class method `from_spec(spec, model)` that returns a new object.

    The files are replaced after both have been written completely. After an interrupted save, even if the process was
    killed, `load` reads all of the old objects or all of the new ones.

    Args:
        basename: the names of the files without `.data` and `.meta`.
        objects: the objects, in the order in which `load` returns them.

    Raises:
        TypeError: something else is among the objects, a spec cannot be pickled, or the constructor of a layer does not
            take its spec.
        OSError: a file cannot be written.

    Example:
        >>> W = model.add_parameters((2, 2))
        >>> dy.save("model", [W])
        >>> (V,) = dy.load("model", dy.ParameterCollection())
        >>> bool((V.npvalue() == W.npvalue()).all())
        True
    """
    base = os.fspath(basename)
    if isinstance(objects, (str, Expression, ParameterCollection)) or not isinstance(objects, Iterable):
        raise TypeError(f"save: the objects must be a list of parameters and builders, not {type(objects).__name__}")
    with contextlib.ExitStack() as lock, Replacement(base + ".data") as data, Replacement(base + ".meta") as meta:
        items = io.BytesIO()
        hashed = _Hashed(data.file)
        for x in objects:
            if isinstance(x, (Parameters, LookupParameters)):
                part: Any = x
                item: tuple[Any, ...] = type(x).__name__, x.name()
            else:
                part = _collection_of(x)
                plain = _mapped(x.spec, lambda y: y.item() if isinstance(y, np.generic) else y)
                item = type(x), plain, part.name()
            try:
                _Pickler(items, type(x).__name__).dump(item)
            except (pickle.PicklingError, AttributeError) as error:
                raise TypeError(f"save: {type(x).__name__} with spec {x.spec!r}: {error}") from error
            part.save(hashed)
        if items.tell():
            meta.file.write(_mark(hashed.hash.hexdigest()))
        meta.file.write(items.getbuffer())
        data.finish()
        meta.finish()
        lock.enter_context(locked(meta.target))  # until the new files are in place, or removed
        meta.move(_waiting(meta.target))
        data.move()
        meta.keep()
        meta.move()


class _Hashed:
    """A file for writing that hashes what is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.hash = _hash()

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        return self.file.write(data)


def _hash() -> blake2b:
    from hashlib import blake2b  # with OpenSSL, it would add 8 ms to `import dynet_cy`

    return blake2b(digest_size=32)


# The beginning of a .meta file: instructions of a pickle that put a string on the stack and drop it again.
_MARK = b"\x80\x04\x8c\x51dynet_cy:blake2b:"
_MARK_END = b"0"


def _mark(digest: str) -> bytes:
    return _MARK + digest.encode() + _MARK_END


def _marked(meta: bytes) -> str | None:
    """The hash of the .data file that a .meta file belongs to, or None if it has none."""
    if not meta:
        return _hash().hexdigest()
    end = len(_MARK) + 64
    whole = meta.startswith(_MARK) and meta[end : end + 1] == _MARK_END
    return meta[len(_MARK) : end].decode("ascii", "replace") if whole else None


def _waiting(meta: str) -> str:
    """The name of a new .meta file until the new .data file has been renamed."""
    folder, name = os.path.split(os.path.realpath(meta))
    return os.path.join(folder, f".{name[:100]}.new")


def _collection_of(x: Any) -> ParameterCollection:
    for attribute in ("param_collection", "spec", "from_spec"):
        if not hasattr(x, attribute):
            message = f"save: {type(x).__name__} objects cannot be saved: they have no {attribute}"
            raise TypeError(f"{message}; parameters, tables, builders and classes with builders' methods can")
    part = x.param_collection()
    if not isinstance(part, ParameterCollection):
        message = f"save: {type(x).__name__}.param_collection must return a ParameterCollection"
        raise TypeError(f"{message}, not {type(part).__name__}")
    if isinstance(x, nn.Layer):
        try:
            x._check_spec()
        except TypeError as error:
            raise TypeError(f"save: {error}") from None
    return part


# ---- loading


class _Outline(reprlib.Repr):
    """A short description of data from a file, made without calling methods of the objects."""

    def repr_instance(self, x: Any, level: int) -> str:
        if x is None or type(x) in (bool, float, complex):
            return repr(x)
        return x.__qualname__ if isinstance(x, type) else f"<{type(x).__qualname__}>"


_outline = _Outline().repr


class _TrustingUnpickler(pickle.Unpickler):
    """Reads any pickle, and replaces DyNet's classes by ours."""

    def __init__(self, file: IO[bytes], restorer: Restorer) -> None:
        super().__init__(file)
        self.restorer = restorer

    def find_class(self, module: str, name: str) -> Any:
        found = self.restorer.known(Name(module, name))
        return super().find_class(module, name) if found is None else found


# A spec has at most as many elements as the builder has arguments.
_LONGEST_SPEC = 8
_TRIES = 5  # attempts to read files that another process is replacing


class _Loader:
    """Reads one pair of files."""

    def __init__(self, basename: FileName, classes: Iterable[Any], trusted: bool, strict: bool, package: str) -> None:
        base = os.fspath(basename)
        self.meta, self.data = base + ".meta", base + ".data"
        self.strict = strict
        self.trusted = trusted or os.environ.get("DYNET_CY_TRUSTED_FILES") == "1"
        self.own = _own_classes()
        allowed = list(classes)
        for cls in allowed:
            if not hasattr(cls, "__qualname__"):
                raise TypeError(f"load: classes must hold classes, not {cls!r}")
        self.vouched = {cls for cls in allowed if isinstance(cls, type)}
        self.restorer = Restorer(self.own, allowed, package)

    def forbidden(self, name: Name, reason: str) -> ForbiddenClassError:
        way = ""
        if may_be_a_class(name):
            way = (
                "If it is a class of yours, import it, or pass it: "
                f"load(basename, params, classes=[{name.name:.100}]). "
            )
        return ForbiddenClassError(
            f"it names {name!r:.200}, {reason}; nothing was loaded. {way}load(basename, params, trusted=True), and the "
            "environment variable DYNET_CY_TRUSTED_FILES=1, import and call whatever the file says: only for files "
            "from where you trust all programs",
            self.meta,
        )

    # ---- the pair of files

    def pair(self) -> tuple[list[tuple[Any, ...]], IO[bytes]]:
        """The entries of the .meta file, and the .data file that belongs to it."""
        seen = None
        if not os.path.exists(_waiting(self.meta)):
            with wanted(self.meta, "the .meta file of a model that dy.save has written"):
                os.stat(self.meta)
        for attempt in range(_TRIES):
            with (
                contextlib.ExitStack() as stack,
                locked(self.meta, shared=True) if attempt else contextlib.nullcontext(),
            ):
                data = stack.enter_context(opened(self.data, "the .data file of a model that dy.save has written"))
                digest = _hash()
                while block := data.read(1 << 20):
                    digest.update(block)
                meta = self.belonging(digest.hexdigest())
                if meta is not None:
                    items = self.items(meta)
                    stack.pop_all()
                    return items, data
                # Another process may be replacing the files, unless they do not change meanwhile.
                there = os.fstat(data.fileno()), os.stat(self.meta)
                state = [(x.st_dev, x.st_ino, x.st_size, x.st_mtime_ns) for x in there]
                if state == seen:
                    break
                seen = state
        raise ModelMismatchError(
            f"is not the file that {self.meta} was written with: they are of two models, or it was changed since",
            self.data,
        )

    def belonging(self, digest: str) -> bytes | None:
        """The content of the .meta file of a .data file; None if there is none."""
        # If a save was killed after .data had been renamed, the new .meta is still under its temporary name.
        with contextlib.suppress(OSError), open(_waiting(self.meta), "rb") as file:
            waiting = file.read()
            if _marked(waiting) == digest:
                return waiting
        with opened(self.meta, "the .meta file of a model that dy.save has written") as file:
            meta = file.read()
        return meta if _marked(meta) in (digest, None) else None

    # ---- the .meta file

    def items(self, meta: bytes) -> list[tuple[Any, ...]]:
        """The entries of the .meta file."""
        found = []
        at = 0
        while at < len(meta):
            item, at = self.item(meta, at)
            found.append(item)
        return found

    def item(self, meta: bytes, at: int) -> tuple[tuple[Any, ...], int]:
        try:
            if self.trusted:
                file = io.BytesIO(meta)
                file.seek(at)
                item, at = _TrustingUnpickler(file, self.restorer).load(), file.tell()
            else:
                item, at = unpickle(meta, at, self.restorer)
        except Forbidden as error:
            raise self.forbidden(*error.args) from error
        except Exception as error:  # an incomplete pickle can raise almost anything
            message = f"not a .meta file of a saved model: {error or type(error).__name__}"
            raise ModelFileError(message, self.meta) from error
        if isinstance(item, tuple) and all(isinstance(x, str) for x in item) and len(item) == 2 and item[0] in _KINDS:
            return item, at
        if isinstance(item, tuple) and len(item) == 3 and isinstance(item[2], str) and hasattr(item[0], "from_spec"):
            self.check_spec(item[0], item[1])
            return item, at
        raise ModelFileError(f"not an entry of a saved model: {_outline(item)}", self.meta)

    def check_spec(self, cls: Any, spec: Any) -> None:
        """Check the spec of a library builder, which consists of a few numbers and classes."""
        if cls not in self.own.values():
            return
        if issubclass(cls, nn.Layer):
            if not isinstance(spec, (tuple, list)) or not self.describes_layers(spec):
                raise ModelFileError(f"{cls.__name__} cannot be made with spec {_outline(spec)}", self.meta)
            return
        simple = isinstance(spec, (tuple, list)) and len(spec) <= _LONGEST_SPEC
        if simple and cls is rnn.BiRNNBuilder and len(spec) == 5 and not spec[4] and type(spec[4]) in (list, tuple):
            spec = spec[:4]
        if not simple or not all(x is None or type(x) in (int, float, bool) or callable(x) for x in spec):
            raise ModelFileError(f"{cls.__name__} cannot be made with spec {_outline(spec)}", self.meta)

    def describes_layers(self, x: Any) -> bool:
        """Whether it may be part of a layer's spec: a number, a name, a class of layers, or a tuple of these."""
        if type(x) in (tuple, list):
            return all(map(self.describes_layers, x))
        if isinstance(x, type):
            return issubclass(x, nn.Layer)
        return x is None or type(x) in (int, float, bool, str)

    # ---- the objects

    def objects(self, params: ParameterCollection) -> Iterator[Any]:
        """The objects, one after the other, with their parameters from the .data file."""
        made = self._objects(*self.pair(), params)
        next(made)  # so that it closes the file, even if no object is requested
        return made

    def _objects(self, items: list[tuple[Any, ...]], file: IO[bytes], params: ParameterCollection) -> Iterator[Any]:
        with file:
            yield None
            headers, entries = scan_text_model(file, self.data)
            numbers = sum(header.n_numbers for header in headers)
            at = 0
            for item in items:
                if len(item) == 2:
                    kind, name = item
                    (entry,) = self.next_entries(entries, 1, name)
                    at += 1
                    if entry.name != name or entry.kind + "s" != kind:
                        message = f"{entry.kind} {entry.name} stands where {self.meta} has {kind} {name}"
                        raise ModelMismatchError(message, self.data)
                    yield self.added(params, entry)
                else:
                    cls, spec, name = item
                    x = self.made(cls, spec, params, len(headers), numbers)
                    part = x.param_collection()
                    count = len(part.parameters_list()) + len(part.lookup_parameters_list())
                    if isinstance(x, nn.Layer):
                        count = self.below(headers[at:], name) or count
                    found = self.next_entries(entries, count, f"{cls.__name__} {name}")
                    at += count
                    stray = next((entry.name for entry in found if not entry.name.startswith(name)), None)
                    if stray is not None:
                        message = f"{stray} stands where {self.meta} has {cls.__name__} {name} of {count} parameters"
                        raise ModelMismatchError(message, self.data)
                    if isinstance(x, nn.Layer):
                        self.fill_layer(part, found, f"{cls.__name__} {name}", name)
                    else:
                        fill_entries(part, found, self.data)
                    yield x
            left = next(entries, None)
            if left is not None:
                message = f"there is more than {self.meta} lists: {left.name}"
                raise ModelMismatchError(message, self.data)

    def below(self, headers: list[Header], name: str) -> int:
        """The number of entries of a layer that follow; 0 if it has its own root, whose name others have too."""
        seen: set[str] = set()
        for header in headers if name != "/" else ():
            if not header.name.startswith(name) or header.name in seen:
                break
            seen.add(header.name)
        return len(seen)

    def fill_layer(self, part: ParameterCollection, entries: list[Entry], what: str, name: str) -> None:
        """Fill a layer, by the names of its parameters."""
        try:
            fill_by_name(part, entries, self.data, name)
        except ModelMismatchError as error:
            if self.strict or error.parameter is not None:
                raise
            warnings.warn(f"{what}: {error}", stacklevel=2)
            fill_by_name(part, entries, self.data, name, strict=False)

    def added(self, params: ParameterCollection, entry: Entry) -> Any:
        try:
            return add_entry(params, entry)
        except ValueError as error:
            raise ModelFileError(f"cannot be added: {error}", self.data, parameter=entry.name) from error

    def made(self, cls: Any, spec: Any, params: ParameterCollection, count: int, numbers: int) -> Any:
        """An object of a class, made from a spec with sizes that cannot be trusted.

        A builder may have parameters that are not saved: those of layer normalization. But it cannot have many more
        parameters than the file.
        """
        if cls in self.vouched:
            return cls.from_spec(spec, params)
        message = f"{cls.__name__} of {self.meta}, with spec {_outline(spec)}, has more parameters than the file"
        with adding(params, 4 * count + 64, 4 * numbers + (1 << 16), ModelMismatchError(message, self.data)):
            try:
                return cls.from_spec(spec, params)
            except (TypeError, ValueError, OverflowError) as error:
                if isinstance(error, ModelFileError) or cls not in self.own.values():
                    raise
                message = f"{cls.__name__} cannot be made with spec {_outline(spec)}: {error}"
                raise ModelFileError(message, self.meta) from error

    def next_entries(self, entries: Iterator[Entry], count: int, what: str) -> list[Entry]:
        found = list(islice(entries, count))
        if len(found) < count:
            message = f"it ends where {what} begins" if not found else f"it ends within {what}"
            raise ModelMismatchError(f"{message}: {count} parameters are needed, {len(found)} are there", self.data)
        return found


def load_generator(
    basename: FileName,
    params: CollectionOrLayer,
    *,
    classes: Iterable[Any] = (),
    trusted: bool = False,
    strict: bool = True,
) -> Iterator[Any]:
    """Like `load`, but yields the objects one by one.

    `basename.meta` is read and checked at once, the parameters when their objects are requested.

    Args:
        basename: the names of the files without `.data` and `.meta`.
        params, classes, trusted, strict: see `load`.

    Example:
        >>> dy.save("model", [model.add_parameters(2), model.add_parameters(3)])
        >>> [p.shape() for p in dy.load_generator("model", dy.ParameterCollection())]
        [(2,), (3,)]
    """
    collection = collection_of(params, "load", "params")
    return _Loader(basename, classes, trusted, strict, calling_package(2)).objects(collection)


def load(
    basename: FileName,
    params: CollectionOrLayer,
    *,
    classes: Iterable[Any] = (),
    trusted: bool = False,
    strict: bool = True,
) -> list[Any]:
    """Read files written by `save`, or by DyNet's `save`; all parameters are added to `params`.

    No file can make this function run its code: `basename.meta` is read as plain data. It may name the library's
    builders, imported classes with `param_collection` and `from_spec`, data classes of the program's own modules, whose
    objects are made without calling anything, and `classes`. A class in `classes` must have the name that is in the
    file, and the module, unless either module is `__main__`. docs/files.md lists what a file can and cannot do.

    Args:
        basename: the names of the files without `.data` and `.meta`.
        params: the collection or layer to which the parameters are added.
        classes: further classes (and factory functions) that the file may name. Classes with `from_spec` may also have
            many more parameters than the file.
        trusted: whether to unpickle `basename.meta` without any check. The file can then run any code. The environment
            variable ``DYNET_CY_TRUSTED_FILES=1`` does the same for programs that cannot be edited. Default: False.
        strict: whether the names of a layer's parameters must be those of the file (default: True). If not, those that
            are missing keep their initial values, and a warning names them. Shapes must be equal all the same.

    Returns:
        The objects in the order in which they were saved.

    Raises:
        FileNotFoundError: there is no such file.
        ForbiddenClassError: the file names any other class, or asks to call one.
        ModelFileError: a file is truncated or of another kind, or they do not belong together. `params` is left
            unchanged.
        ModelMismatchError: a layer's parameters have other names or shapes than in the file.

    Example:
        >>> rnn = dy.LSTMBuilder(1, 2, 3, model)
        >>> dy.save("model", [rnn])
        >>> (same,) = dy.load("model", dy.ParameterCollection())
        >>> type(same).__name__, same.spec[:3]
        ('VanillaLSTMBuilder', (1, 2, 3))
    """
    objects = load_generator(basename, params, classes=classes, trusted=trusted, strict=strict)
    with rolled_back(as_collection(params)):
        return list(objects)
