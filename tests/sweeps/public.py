"""The public functions that make expressions, and what their parameters take, from signatures and stubs."""

from __future__ import annotations

import ast
import inspect
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import dynet_cy as dy
from dynet_cy import functions
from dynet_cy.ops import api


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function.

    Attributes:
        name: its name; of ``*xs``, with the star.
        type: its type as in the stub.
        default: its default, or `inspect.Parameter.empty`.
        by_name: whether it can only be given by name.
    """

    name: str
    type: str
    default: object
    by_name: bool

    empty = inspect.Parameter.empty

    @property
    def is_needed(self) -> bool:
        return self.default is inspect.Parameter.empty


@cache
def stub_types() -> dict[object, dict[str, str]]:
    """The types of the parameters of all functions of compiled modules, from their stubs."""
    found = {}
    for name, module in list(sys.modules.items()):
        if not name.startswith("dynet_cy.") or not getattr(module, "__file__", None):
            continue
        file = Path(module.__file__)
        stub = file.with_name(f"{file.name.partition('.')[0]}.pyi")
        for node in ast.parse(stub.read_text(encoding="utf-8")).body if stub.exists() else ():
            if isinstance(node, ast.FunctionDef):
                args = [*node.args.args, *node.args.kwonlyargs, *filter(None, [node.args.vararg])]
                types = {a.arg: ast.unparse(a.annotation) for a in args if a.annotation}
                found[getattr(module, node.name)] = types
    return found


def parameters(function: object) -> list[Parameter]:
    """The parameters of a public function."""
    signature = inspect.signature(function)
    types = {} if any(p.annotation is not p.empty for p in signature.parameters.values()) else stub_types()[function]
    found = []
    for p in signature.parameters.values():
        star = "*" if p.kind is p.VAR_POSITIONAL else ""
        type_ = str(p.annotation) if p.annotation is not p.empty else types[p.name]
        found.append(Parameter(star + p.name, type_, p.default, p.kind is p.KEYWORD_ONLY))
    return found


def public_functions() -> dict[str, list[Parameter]]:
    """All public functions that make expressions, and their parameters."""
    names = sorted({*api.__all__, *functions.__all__})
    return {name: parameters(getattr(dy, name)) for name in names if inspect.isroutine(getattr(dy, name))}


# ---- what to call them with --------------------------------------------------------


class Shape(tuple):
    """Stands for an expression of that shape."""


def alternatives(type_: str) -> list[str]:
    """The members of a union."""
    found, depth = [""], 0
    for character in type_:
        depth += (character in "[(") - (character in "])")
        if character == "|" and not depth:
            found.append("")
        else:
            found[-1] += character
    return [part.strip() for part in found]


def placed(value: Any, xs: Iterator[dy.Expression]) -> Any:
    """The value with the next expressions in the places of shapes."""
    if isinstance(value, Shape):
        return next(xs)
    return [placed(v, xs) for v in value] if isinstance(value, list) else value


def shapes_in(value: Any) -> list[Shape]:
    if isinstance(value, Shape):
        return [value]
    return [s for v in value for s in shapes_in(v)] if isinstance(value, list) else []


def values_of(p: Parameter, pools: dict[str, list[Any]], strings: dict[str, list[str]]) -> list[Any]:
    """The gradient that a table passes to a parameter.

    Args:
        p: the parameter.
        pools: the values by type; a `Shape` stands for an expression.
        strings: the values of strings, by the name of the parameter.
    """
    if p.type == "str":
        return strings[p.name]
    found: list[Any] = [] if p.is_needed else [p.default]
    for kind in alternatives(p.type):
        if kind == "str":
            found += strings[p.name]
        elif "np.integer" not in kind:
            assert kind in pools, f"which values does a parameter of type {kind} take?"
            found += pools[kind]
        elif kind.startswith("Sequence"):
            found += pools["Sequence[Sequence[int]]"]
    return found


def samples(
    name: str, ps: list[Parameter], pools: dict[str, list[Any]], strings: dict[str, list[str]], most: int
) -> Iterator[tuple[Any, ...]]:
    """All tuples of values for the parameters of a function, or a sample of at most so many: the same each time."""
    values = [values_of(p, pools, strings) for p in ps]
    total = math.prod(len(pool) for pool in values)
    choose = random.Random(name)
    for number in range(total) if total <= most else sorted({choose.randrange(total) for _ in range(most)}):
        found = []
        for pool in values:
            number, i = divmod(number, len(pool))
            found.append(pool[i])
        yield tuple(found)
