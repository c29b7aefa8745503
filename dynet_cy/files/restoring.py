"""Objects from .meta files: the allowed classes, and construction without running code from the file.

A file may name

- the library's builders, and classes that the caller of `load` passes;
- model classes: classes with `param_collection` and `from_spec`, whose `from_spec` `load` calls;
- data classes of the program's own modules: their objects are made by `object.__new__` (or that of `tuple`, `dict`...)
  and get their state as attributes, bypassing `__new__`, `__init__`, `__setattr__`, properties and `__reduce__`;
- some data types of Python and NumPy, with constructors defined in this module.

Classes are looked up only in modules that are imported already, in their dictionaries, so that no `__getattr__` runs.
docs/files.md says what a file can do with all that.
"""

from __future__ import annotations

import collections
import enum
import functools
import importlib
import math
import os
import re
import sys
import types
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from dynet_cy.files.unpickling import Name


class Forbidden(Exception):
    """A file names something that is not allowed, or uses it in a way that is not allowed: the name, and the reason."""


# Types that a spec may have as values, such as the factory of a defaultdict.
_TYPES = {t.__name__: t for t in (int, float, str, bool, list, dict, tuple, set, frozenset)}

# Classes of plain data in the standard library whose objects are restored like those of the program.
_PLAIN = {
    *(("builtins", name) for name in ("set", "frozenset", "bytearray", "bytes")),
    *(("collections", name) for name in ("OrderedDict", "defaultdict", "Counter", "deque")),
    *(("argparse", "Namespace"), ("optparse", "Values"), ("types", "SimpleNamespace")),
}

# Modules that base classes of the program's classes may come from.
_BASES = {"builtins", "abc", "typing", "typing_extensions", "collections", "collections.abc", "enum"}
_BASES |= {"argparse", "optparse", "types"}


def _dictionary(x: Any) -> Any:
    """The dictionary of a module or an object, bypassing overrides of its class."""
    return object.__getattribute__(x, "__dict__")


def _lines(cls: type) -> tuple[type, ...]:
    """A class and its bases."""
    found: tuple[type, ...] = type.__dict__["__mro__"].__get__(cls)
    return found


def _own(cls: type) -> Any:
    """The dictionary of a class."""
    return type.__dict__["__dict__"].__get__(cls)


def _attribute(cls: type, name: str) -> tuple[type | None, Any]:
    """The class that defines an attribute, and the attribute."""
    for line in _lines(cls):
        if name in _own(line):
            return line, _own(line)[name]
    return None, None


def is_model_class(x: Any) -> bool:
    """Whether it is a class whose objects have parameters."""
    return isinstance(x, type) and all(_attribute(x, name)[0] for name in ("from_spec", "param_collection"))


def _top(module: str) -> str:
    return module.partition(".")[0]


def _module(name: str) -> Any:
    """The dictionary of a module that is imported, or None."""
    module = sys.modules.get(name)
    return _dictionary(module) if issubclass(type(module), types.ModuleType) else None


_SYSTEM = ("stdlib", "platstdlib")
_INSTALLED = ("purelib", "platlib")


@functools.cache
def _folders(keys: tuple[str, ...]) -> set[str]:
    """Folders of this Python."""
    import sysconfig  # with its data, it would add 2 ms to `import dynet_cy`

    return {os.path.realpath(sysconfig.get_path(key)) for key in keys}


def _lies_in(module: str, keys: tuple[str, ...]) -> bool:
    """Whether a module is built into Python, or its file is in one of these folders of it."""
    found = _module(module)
    if found is None or _top(module) in sys.builtin_module_names:
        return True
    file = found.get("__file__")
    if not isinstance(file, str):
        return getattr(found.get("__spec__"), "origin", None) in ("built-in", "frozen")
    path = os.path.realpath(file)
    return any(path.startswith(folder + os.sep) for folder in _folders(keys))


def may_be_a_class(name: Name) -> bool:
    """Whether a name may be that of a class of the program: not that of a known function or of anything in Python."""
    inside = _module(name.module)
    found = None if inside is None else inside.get(name.name.partition(".")[0])
    standard = getattr(sys, "stdlib_module_names", sys.builtin_module_names)  # from Python 3.10 on
    return (found is None or isinstance(found, type)) and _top(name.module) not in {"builtins", *standard}


def _is_installed(module: str) -> bool:
    """Whether a module came with Python or was installed: then it is not the program's own."""
    if _lies_in(module, _SYSTEM + _INSTALLED):
        return True
    parts = os.path.realpath(str((_module(module) or {}).get("__file__") or "")).split(os.sep)
    return "site-packages" in parts or "dist-packages" in parts


def calling_package(depth: int) -> str:
    """The package of the code that called this library; "" if that is part of Python.

    Args:
        depth: how many frames up to begin; 1 is the caller of this function.
    """
    frame: types.FrameType | None = sys._getframe(depth)
    while frame is not None and _top(frame.f_globals.get("__name__", "")) == "dynet_cy":
        frame = frame.f_back
    module = "" if frame is None else frame.f_globals.get("__name__", "")
    if module == "__main__" and frame is not None and frame.f_globals.get("__spec__") is not None:
        module = frame.f_globals["__spec__"].name  # for python -m
    return "" if _lies_in(module, _SYSTEM) else _top(module)


class Restorer:
    """Decides which names a file may use; a `Maker` of `dynet_cy.files.unpickling`.

    Args:
        builders: the library's classes, by name.
        allowed: the classes passed by the caller of `load`.
        package: the package that called `load`: its modules count as the program's own, even if installed.
    """

    def __init__(self, builders: dict[str, Any], allowed: Sequence[Any], package: str) -> None:
        self.builders = builders
        self.allowed = allowed
        self.package = package

    # ---- finding

    def known(self, name: Name) -> Any:
        """The library's class of that name, or one that the caller has passed; None if there is none."""
        if _top(name.module) in ("_dynet", "_gdynet", "dynet", "dynet_cy") and name.name in self.builders:
            return self.builders[name.name]
        for x in self.allowed:
            # A program run as a script calls its classes __main__; imported, something else.
            same = x.__module__ == name.module or "__main__" in (x.__module__, name.module)
            if same and x.__qualname__ == name.name:
                return x
        return None

    def is_own(self, module: str) -> bool:
        """Whether a module is one of the program's own."""
        if module == "__main__":
            return True
        if _top(module) in ("dynet_cy", "numpy", "safetensors"):  # wherever they are installed
            return False
        return (self.package != "" and _top(module) == self.package) or not _is_installed(module)

    def found(self, name: Name) -> type:
        """The class of that name in an imported module."""
        inside = _module(name.module)
        if inside is None:
            raise Forbidden(name, f"and module {name.module} is not imported")
        x: Any = None
        for part in name.name.split("."):
            x = inside.get(part)
            if not isinstance(x, type):
                what = "not there" if x is None else "no class"
                raise Forbidden(name, f"which is {what}")
            inside = _own(x)
        cls: type = x
        # A class may be found under a name that was imported: its own module says what it is.
        home = _own(cls).get("__module__")
        if not isinstance(home, str):
            raise Forbidden(name, "which has no module")
        return cls

    def value(self, name: Name) -> Any:
        known = self.known(name)
        if known is not None:
            return known
        if name.module == "builtins" and name.name in _TYPES:
            return _TYPES[name.name]
        cls = self.found(name)
        if not is_model_class(cls) or _top(cls.__module__) == "dynet_cy":
            raise Forbidden(name, "which is not a builder of dynet_cy nor a model class")
        return cls

    # ---- objects

    def data_class(self, name: Name) -> type:
        """The class of that name, if objects of it may be made."""
        known = self.known(name)
        if known is not None:
            if not isinstance(known, type) or is_model_class(known):
                raise Forbidden(name, "which is not a class of plain data")
            return known
        if (name.module, name.name) in _PLAIN:
            plain: type = getattr(importlib.import_module(name.module), name.name)
            return plain
        cls = self.found(name)
        if not self.is_own(cls.__module__):
            raise Forbidden(name, "which is not a class of the program's own modules")
        if is_model_class(cls):
            raise Forbidden(name, "an object of which has parameters of its own")
        for line in _lines(cls):
            if line.__module__ not in _BASES and not self.is_own(line.__module__):
                raise Forbidden(name, f"which is derived from {line.__module__}.{line.__qualname__}")
        if _attribute(cls, "__del__")[0]:
            raise Forbidden(name, "which has a method __del__")
        return cls

    def new(self, name: Name, arguments: tuple[Any, ...]) -> Any:
        cls = self.data_class(name)
        kind = next((kind for kind in _CONTAINERS if kind in _lines(cls)), None)
        if issubclass(cls, enum.Enum) or (arguments and kind is None):
            raise Forbidden(name, "which the file wants to be called")
        if kind is not None:
            return _CONTAINERS[kind](cls, *map(self._value, arguments))
        try:
            return object.__new__(cls)
        except TypeError as error:
            raise Forbidden(name, f"which is no class of plain data ({error})") from error

    def call(self, name: Name, arguments: tuple[Any, ...]) -> Any:
        key = name.module, name.name
        inner = arguments[0] if arguments and isinstance(arguments[0], Name) else None
        if inner is not None and key == ("builtins", "getattr") and len(arguments) == 2:  # a class within a class
            return Name(inner.module, f"{inner.name}.{_checked(arguments[1], str)}")
        if inner is not None and key == ("copyreg", "__newobj__"):
            return self.new(inner, arguments[1:])
        if inner is not None and key == ("copyreg", "_reconstructor") and len(arguments) == 3:
            state = arguments[2]
            if state is None:
                return self.new(inner, ())
            return self.new(inner, state if type(state) is tuple and _fields(self.data_class(inner)) else (state,))
        if key in _FUNCTIONS:
            return _FUNCTIONS[key](*arguments)
        cls = self.data_class(name)
        if issubclass(cls, enum.Enum):
            return _member(cls, *map(self._value, arguments))
        if any(kind in _lines(cls) for kind in _CONTAINERS):
            return self.new(name, arguments)
        raise Forbidden(name, "which the file wants to be called")

    def _value(self, x: Any) -> Any:
        return self.value(x) if isinstance(x, Name) else x

    def set_state(self, made: Any, state: Any) -> None:
        cls = type(made)
        if isinstance(made, np.ndarray):
            return _set_array(made, *state)
        if isinstance(made, np.dtype):
            return _set_order(made, *state)
        name = Name(cls.__module__, cls.__qualname__)
        where, method = _attribute(cls, "__setstate__")
        if where is not None:
            vouched = cls in self.allowed or self.is_own(where.__module__)
            if not vouched or not isinstance(method, types.FunctionType):
                raise Forbidden(name, f"which has {where.__module__}.{where.__qualname__}.__setstate__")
            method(made, state)
            return None
        slots: Any = None
        if isinstance(state, tuple) and len(state) == 2:
            state, slots = state
        for attributes in (state, slots):
            if attributes is not None and type(attributes) is not dict:
                raise ValueError(f"the state of {name} is no dictionary")
            for key in attributes or ():
                if type(key) is not str or (key.startswith("__") and key.endswith("__")):
                    raise Forbidden(name, f"and gives it an attribute {key!r:.100}")
        if state:
            _dictionary(made).update(state)
        for key, value in (slots or {}).items():
            _, slot = _attribute(cls, key)
            if isinstance(slot, types.MemberDescriptorType):
                slot.__set__(made, value)
            else:
                _dictionary(made)[key] = value
        return None


# ---- constructors, which take what pickles have as arguments


def _checked(x: Any, *kinds: type) -> Any:
    if type(x) not in kinds:
        raise TypeError(f"{type(x).__name__} stands where {kinds[0].__name__} must be")
    return x


def _fields(cls: type) -> tuple[str, ...]:
    """The fields of a named tuple; nothing for others."""
    fields = _attribute(cls, "_fields")[1]
    return fields if isinstance(fields, tuple) else ()


def _tuple(cls: Any, *items: Any) -> Any:
    if fields := _fields(cls):
        if len(items) != len(fields):
            raise TypeError(f"{cls.__name__} takes {len(fields)} fields, not {len(items)}")
        return tuple.__new__(cls, items)
    return tuple.__new__(cls, _checked(items[0], list, tuple) if items else ())


def _like(base: Any, *kinds: tuple[type, ...]) -> Callable[..., Any]:
    """What makes objects of a class derived from `base`, from arguments of these kinds."""

    def make(cls: Any, *given: Any) -> Any:
        if len(given) > len(kinds):
            raise TypeError(f"{cls.__name__} takes {len(kinds)} arguments, not {len(given)}")
        arguments = [_checked(x, *kind) for x, kind in zip(given, kinds)]
        made = base.__new__(cls, *arguments)
        if base.__init__ is not object.__init__:
            base.__init__(made, *arguments)
        return made

    return make


def _ordered(cls: Any, items: Any = ()) -> Any:
    """As Python 2 pickles them, with a list of pairs."""
    made = collections.OrderedDict.__new__(cls)
    for key, value in _checked(items, list, tuple):
        collections.OrderedDict.__setitem__(made, key, value)
    return made


def _default(cls: Any, factory: Any = None, *items: Any) -> Any:
    if factory is not None and factory not in _TYPES.values():
        raise TypeError(f"defaultdict with the factory {factory!r:.100}")
    made = collections.defaultdict.__new__(cls)
    collections.defaultdict.__init__(made, factory, *[_checked(x, dict) for x in items])
    return made


def _bytearray(cls: Any, x: Any = b"", encoding: Any = None) -> Any:
    made = bytearray.__new__(cls)
    made += _encode(x, encoding) if type(x) is str else _checked(x, bytes, bytearray)
    return made


# Base types that hold elements or a value, the most specific first.
_CONTAINERS: dict[type, Callable[..., Any]] = {
    collections.OrderedDict: _ordered,
    collections.defaultdict: _default,
    collections.Counter: _like(dict, (dict,)),
    collections.deque: _like(collections.deque, (list, tuple), (int, type(None))),
    types.SimpleNamespace: types.SimpleNamespace.__new__,
    tuple: _tuple,
    list: _like(list, (list, tuple)),
    dict: _like(dict, (dict,)),
    set: _like(set, (list, tuple, set)),
    frozenset: _like(frozenset, (list, tuple, frozenset)),
    bytearray: _bytearray,
    **{kind: _like(kind, (kind,)) for kind in (str, bytes, int, float)},
}


def _member(cls: Any, value: Any) -> Any:
    """The member of an enumeration that has a value, or the members of a flag together."""
    members = list(_own(cls)["_member_map_"].values())
    for member in members:
        if type(member._value_) is type(value) and member._value_ == value:
            return member
    if issubclass(cls, enum.Flag) and type(value) is int:
        inside = [member for member in members if member._value_ and member._value_ & value == member._value_]
        if inside:
            found = inside[0]
            for member in inside[1:]:
                found = found | member
            if found._value_ == value:
                return found
    raise ValueError(f"{cls.__name__} has no member of the value {value!r:.100}")


def _encode(text: Any, encoding: Any) -> bytes:
    if _checked(encoding, str) not in ("latin1", "latin-1"):
        raise ValueError(f"bytes in the encoding {encoding!r:.100}")
    return str.encode(_checked(text, str), "latin-1")


def _dtype(code: Any, align: Any = False, copy: Any = True) -> Any:
    if not re.fullmatch(r"[<>=|]?(b1|[iu][1248]|f[248]|c8|c16|[SU][0-9]{1,6})", _checked(code, str)):
        raise ValueError(f"numbers of type {code!r:.100}")
    if type(align) not in (int, bool) or type(copy) not in (int, bool):
        raise ValueError("a type of numbers with other arguments")
    return np.dtype(code, False, True)


def _set_order(made: Any, version: Any, order: Any, *rest: Any) -> None:
    """The state of a dtype: its byte order, and for strings their size."""
    if version != 3 or order not in ("<", ">", "|", "=") or (None, None, None, *made.__reduce__()[2][5:]) != rest:
        raise ValueError("a type of numbers with parts, or of another size")
    made.__setstate__((version, order, *rest))


def _number(dtype: Any, data: Any) -> Any:
    """A NumPy number."""
    if not isinstance(dtype, np.dtype) or len(_checked(data, bytes)) != dtype.itemsize:
        raise ValueError("a NumPy number of another size")
    return np.frombuffer(data, dtype)[0]


def _array(cls: Any, shape: Any, code: Any) -> Any:
    """An array that is still empty; `_set_array` gives it its shape and numbers."""
    if repr(_checked(cls, Name)) != "numpy.ndarray" or shape != (0,) or code not in (b"b", "b"):
        raise ValueError(f"an array of the class {cls}")
    return np.empty(0, np.int8)


def _set_array(made: Any, version: Any, shape: Any, dtype: Any, fortran: Any, data: Any) -> None:
    if version != 1 or not isinstance(dtype, np.dtype) or type(data) not in (bytes, str):
        raise ValueError("an array of other things than numbers")
    if type(data) is str:  # from Python 2
        data = data.encode("latin-1")
    _checked(shape, tuple)
    if any(type(n) is not int or n < 0 for n in shape) or math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError("an array of another size")
    made.__setstate__((1, shape, dtype, bool(fortran), data))


def _array_of(data: Any, dtype: Any, shape: Any, order: Any) -> Any:
    """An array as protocol 5 pickles it."""
    made = np.empty(0, np.int8)
    _set_array(made, 1, shape, dtype, order == "F", bytes(_checked(data, bytes, bytearray)))
    return made


_FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    ("_codecs", "encode"): _encode,
    ("builtins", "complex"): functools.partial(_like(complex, (float,), (float,)), complex),
    ("builtins", "range"): functools.partial(_like(range, *[(int,)] * 3), range),
    ("numpy", "dtype"): _dtype,
}
for _package in ("numpy.core", "numpy._core"):
    _FUNCTIONS[f"{_package}.multiarray", "_reconstruct"] = _array
    _FUNCTIONS[f"{_package}.multiarray", "scalar"] = _number
    _FUNCTIONS[f"{_package}.numeric", "_frombuffer"] = _array_of
