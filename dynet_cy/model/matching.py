"""Matches values of a file or another model with parameters, by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, Union

__all__ = ["Matched", "ParameterShape", "Renaming", "complaint", "matches"]

# Maps a name that is read to the name in the collection.
Renaming = Union[Mapping[str, str], Callable[[str], str], None]


class Matched(NamedTuple):
    """The result of loading named values into a collection."""

    loaded: list[str]
    """Names, in the collection, of the values that were loaded."""
    missing: list[str]
    """Names, in the collection, of parameters that got no value and are unchanged."""
    unexpected: list[str]
    """Given names that the collection does not have."""


class ParameterShape(tuple[int, ...]):
    """The shape of a parameter: a tuple that can also be called, as programs for DyNet do."""

    __slots__ = ()

    def __call__(self) -> tuple[int, ...]:
        return tuple(self)


def matches(
    given: Iterable[str], own: Collection[str], prefix: str, rename: Renaming
) -> tuple[dict[str, str], Matched]:
    """Match given names with the names of a collection.

    Args:
        given: names that are read.
        own: names of the collection.
        prefix: only names that begin with it are used; it is removed first.
        rename: a mapping or a function of names (without the prefix); names that the mapping lacks do not change.

    Returns:
        The given name for each name of the collection that was found; and the result.

    Raises:
        ValueError: two given names are renamed to the same name.
    """
    found: dict[str, str] = {}
    unexpected = []
    for name in given:
        if not name.startswith(prefix):
            continue
        own_name = name[len(prefix) :]
        to = rename.get(own_name, own_name) if isinstance(rename, Mapping) else rename(own_name) if rename else own_name
        if to in found:
            raise ValueError(f"{found[to]} and {name} are both renamed to {to}")
        if to in own:
            found[to] = name
        else:
            unexpected.append(name)
    return found, Matched([n for n in own if n in found], [n for n in own if n not in found], unexpected)


def complaint(found: Matched) -> str:
    """The missing and unexpected names, in words; "" if there are none."""
    parts = [("missing", found.missing), ("unexpected", found.unexpected)]
    return "; ".join(
        f"{what}: {', '.join(names[:10])}" + (f" and {len(names) - 10} more" if len(names) > 10 else "")
        for what, names in parts
        if names
    )
