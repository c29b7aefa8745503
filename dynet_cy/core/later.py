"""Modules that are loaded when one of their names is used."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from types import ModuleType

LATER: list[str] = []
"""The modules that `later` has made."""


def later(name: str) -> ModuleType:
    """A module that is there, and is loaded with the first use of an attribute.

    A package that has a `__getattr__` instead would make every other name of it slower; see `ElsewhereInModule`.
    """
    package, *above, _ = name.split(".")  # not of `importlib.util`, which would load what is above it
    spec = PathFinder.find_spec(name, [os.path.join(path, *above) for path in sys.modules[package].__path__])
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    LATER.append(name)
    spec.loader.exec_module(module)
    return module
