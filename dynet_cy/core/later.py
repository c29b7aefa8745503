"""Modules that are loaded when one of their names is used."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

__all__ = ["later"]


def later(name: str) -> ModuleType:
    """A module that is there, and is loaded with the first use of an attribute.

    A package that has a `__getattr__` instead would make every other name of it slower; see `ElsewhereInModule`.
    """
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
