"""Checks that refuse tables where a function expects a sequence of items."""

from __future__ import annotations

from typing import Any


def check_no_table(function: str, data: Any, argument: str = "data") -> None:
    """Refuse a table of pandas, Polars or PyArrow: its items are columns, not rows.

    Args:
        function, argument: the names of both, for the error.
        data: what was given.

    Raises:
        TypeError: it is a table.
    """
    rows = {"iloc": "to_dict('records')", "to_dicts": "to_dicts()", "to_pylist": "to_pylist()"}
    if hasattr(data, "columns"):
        for method, way in rows.items():
            if hasattr(data, method):
                raise TypeError(_refusal(function, data, argument, f"{argument}.{way}, or choose a column"))


def check_items(function: str, data: Any, argument: str = "data") -> None:
    """Refuse a table, and a series of pandas, whose items are found by label, but are gone through by position.

    Args:
        function, argument: the names of both, for the error.
        data: what was given.

    Raises:
        TypeError: it is one of these.
    """
    check_no_table(function, data, argument)
    index = getattr(data, "index", None)
    if hasattr(data, "iloc") or (index is not None and not callable(index) and hasattr(data, "tolist")):
        raise TypeError(_refusal(function, data, argument, f"{argument}.tolist()"))


def _refusal(function: str, data: Any, argument: str, way: str) -> str:
    return f"{function}: {argument} must be a sequence or an iterable, not {type(data).__name__}; write {way}"
