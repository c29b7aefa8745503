"""Schemas: check plain data from a file before it is used."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple


class SchemaError(ValueError):
    """The data do not fit the schema."""


class Schema(NamedTuple):
    """A requirement for a value: its description, and the check."""

    what: str
    holds: Callable[[Any, str], bool]
    """Called with a value and its place. It raises `SchemaError` where a part of the value is wrong."""


def check(value: Any, schema: Schema, place: str) -> None:
    """Compare data with a schema.

    Args:
        value: the data, of JSON's types.
        schema: the requirement.
        place: the name of the data in errors.

    Raises:
        SchemaError: the data do not fit.
    """
    if not schema.holds(value, place):
        raise SchemaError(f"{place} is {_shown(value)}, not {schema.what}")


def _shown(x: Any) -> str:
    if isinstance(x, (list, dict)):
        return f"a {type(x).__name__} of {len(x)}"
    return repr(x) if len(repr(x)) < 60 else f"{repr(x)[:60]}..."


def _is_int(x: Any) -> bool:
    return type(x) is int and -(1 << 63) <= x < 1 << 64


def _is_number(x: Any) -> bool:
    return type(x) is float or _is_int(x)


ANY = Schema("anything", lambda x, _: True)
TEXT = Schema("text", lambda x, _: type(x) is str)
FLAG = Schema("true or false", lambda x, _: type(x) is bool)
WHOLE = Schema("a whole number", lambda x, _: _is_int(x))
COUNT = Schema("a whole number of at least 0", lambda x, _: _is_int(x) and 0 <= x < 1 << 63)
NUMBER = Schema("a number", lambda x, _: _is_number(x))
SIZE = Schema("a number of at least 0", lambda x, _: _is_number(x) and x >= 0)
SHARE = Schema("a finite number of at least 0", lambda x, _: _is_number(x) and x >= 0 and math.isfinite(x))


def between(least: int, most: int) -> Schema:
    """A whole number within bounds."""
    return Schema(f"a whole number from {least} to {most}", lambda x, _: _is_int(x) and least <= x <= most)


def one_of(*values: str | int) -> Schema:
    """One of these values."""
    return Schema(f"one of {', '.join(map(repr, values))}", lambda x, _: type(x) in map(type, values) and x in values)


def maybe(schema: Schema) -> Schema:
    """A value of the given schema, or null."""
    return Schema(f"{schema.what} or null", lambda x, place: x is None or schema.holds(x, place))


def every(schema: Schema, least: int = 0) -> Schema:
    """A list of such values."""

    def holds(x: Any, place: str) -> bool:
        if type(x) is not list or len(x) < least:
            return False
        for i, item in enumerate(x):
            check(item, schema, f"{place}[{i}]")
        return True

    return Schema(f"a list, of {schema.what} each" + (f", at least {least}" if least else ""), holds)


def _list_of(what: str, *schemas: Schema) -> Schema:
    """A list of as many values."""

    def holds(x: Any, place: str) -> bool:
        if type(x) is not list or len(x) != len(schemas):
            return False
        for i, (item, schema) in enumerate(zip(x, schemas)):
            check(item, schema, f"{place}[{i}]")
        return True

    return Schema(what, holds)


def pair(first: Schema, second: Schema) -> Schema:
    """A list of two."""
    return _list_of(f"a list of {first.what} and {second.what}", first, second)


def mapping(schema: Schema) -> Schema:
    """A dictionary of such values."""

    def holds(x: Any, place: str) -> bool:
        if type(x) is not dict:
            return False
        for key, item in x.items():
            check(item, schema, f"{place}.{key:.60}")
        return True

    return Schema("a dictionary", holds)


def record(fields: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """A dictionary with these entries. Optional ones are checked if they are present; others are ignored."""

    def holds(x: Any, place: str) -> bool:
        if type(x) is not dict:
            return False
        for key, schema in fields.items():
            if key not in x:
                raise SchemaError(f"{place} has no {key}")
            check(x[key], schema, f"{place}.{key}")
        for key, schema in (optional or {}).items():
            if key in x:
                check(x[key], schema, f"{place}.{key}")
        return True

    return Schema("a dictionary", holds)


def like(example: Any) -> Schema:
    """A value of the same type as an example; anything if the example is None."""
    if example is None or isinstance(example, (list, dict)):
        return ANY if example is None else Schema(f"a {type(example).__name__}", lambda x, _: type(x) is type(example))
    if type(example) is bool:
        return FLAG
    if isinstance(example, (int, float)):
        return NUMBER
    if isinstance(example, tuple):
        return _list_of(f"a list of {len(example)}", *map(like, example))
    return TEXT if type(example) is str else ANY
