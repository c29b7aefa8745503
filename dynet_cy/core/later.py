"""Modules that are loaded when one of their names is used."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from threading import RLock
from types import ModuleType
from typing import Any

LATER: list[str] = []
"""The modules that `later` has made."""

_waiting: set[str] = set()  # those of them that nobody has asked for
_loading = RLock()


class _Later(ModuleType):
    """A module that is loaded when an attribute is asked for, while other threads wait for it.

    The class that `importlib.util.LazyLoader` makes has them find half of a module, before Python 3.12.
    """

    def __getattribute__(self, name: str) -> Any:
        get = super().__getattribute__
        spec = get("__spec__")
        # Imports of the module read its `__spec__`; those of its parts its `__path__`, also while it is loaded.
        if name != "__spec__" and (name != "__path__" or spec.name in _waiting):
            with _loading:
                if spec.name in _waiting:
                    _waiting.remove(spec.name)
                    try:
                        spec.loader.exec_module(self)
                    except BaseException:
                        _waiting.add(spec.name)
                        raise
                    self.__class__ = ModuleType  # type: ignore[assignment]  # no slower than others from now on
        return get(name)


def later(name: str) -> ModuleType:
    """A module that is there, and is loaded with the first use of an attribute.

    A package that has a `__getattr__` instead would make every other name of it slower; see `ElsewhereInModule`.
    """
    package, *above, _ = name.split(".")  # not of `importlib.util`, which would load what is above it
    spec = PathFinder.find_spec(name, [os.path.join(path, *above) for path in sys.modules[package].__path__])
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__class__ = _Later
    sys.modules[name] = module
    LATER.append(name)
    _waiting.add(name)
    return module
