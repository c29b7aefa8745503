"""Prints the public names of the installed DyNet with their signatures, as stored in surface.json.

    python tests/peer/record_surface.py > tests/peer/surface.json

A signature is a list of parameters, "name" or "name=default"; it is null if something is no function or has no
signature. Constructors of extension types have none; for them, the arguments in their documentation are recorded.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from typing import Any


def signature_of(value: Any) -> list[str] | None:
    """The parameters of a function, without self; None if it has no signature."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return None
    parameters = [p for p in found.parameters.values() if p.name not in ("self", "cls")]
    if [p.kind for p in parameters] == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]:
        return None  # the default of extension types
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [
        stars.get(p.kind, "") + p.name + ("" if p.default is inspect.Parameter.empty else f"={p.default!r}")
        for p in parameters
    ]


def documented(cls: type) -> list[str]:
    """The arguments of the constructor, from the lines "name(type): ..." in the documentation of a class."""
    text = inspect.getdoc(cls) or ""
    return re.findall(r"^ +(\w+) ?\([\w., ]*\):", text, re.M)


def members(cls: type) -> dict[str, Any]:
    """The public members of a class, including inherited ones and operators, with the constructor as __init__."""
    found = {}
    for name in sorted(dir(cls)):
        special = name.startswith("__") and name.endswith("__")
        if name.endswith("_cython__") or (name.startswith("_") and not special) or (special and not is_own(cls, name)):
            continue
        value = getattr(cls, name)
        found[name] = signature_of(value) if callable(value) else None
    return found


def is_own(cls: type, name: str) -> bool:
    """Whether a special method is not just the one of every object or extension type."""
    ordinary = {"__init__", "__new__", "__reduce__", "__setstate__", "__dict__", "__weakref__", "__module__", "__doc__"}
    if name in ordinary or name.startswith("__pyx") or name in ("__hash__", "__repr__", "__str__"):
        return False
    return getattr(cls, name) is not getattr(object, name, None) and not hasattr(object, name)


def surface(module: Any) -> dict[str, Any]:
    """The public names of a module: functions with signatures, classes with their members."""
    functions: dict[str, Any] = {}
    classes: dict[str, Any] = {}
    for name in dir(module):
        if name.startswith("_"):
            continue
        value = getattr(module, name)
        if inspect.isclass(value):
            told = signature_of(value)
            classes[name] = {"constructor": documented(value) if told is None else told, "members": members(value)}
        else:
            functions[name] = signature_of(value) if callable(value) else None
    return {"functions": functions, "classes": classes}


def all_modules() -> dict[str, Any]:
    """The surface of the installed DyNet."""
    import dynet
    import dynet_config

    return {"dynet": surface(dynet), "dynet_config": surface(dynet_config)}


def as_text(modules: dict[str, Any]) -> str:
    """JSON with one name per line."""
    text = json.dumps(modules, indent=1, sort_keys=True)
    lists = re.compile(r"\[\s+([^\[\]]*?)\s+\]")
    return lists.sub(lambda match: "[" + re.sub(r"\s*\n\s*", " ", match[1]) + "]", text) + "\n"


if __name__ == "__main__":
    sys.stdout.write(as_text(all_modules()))
