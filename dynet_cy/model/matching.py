"""Which values of a file or of another model belong to which parameters, by their names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, Union

__all__ = ["Matched", "ParameterShape", "Renaming", "complaint", "matches"]

# From a name that is read to the name in the collection.
Renaming = Union[Mapping[str, str], Callable[[str], str], None]


class Matched(NamedTuple):
    """The result of loading named values into a collection."""

    loaded: list[str]
    """Names, in the collection, of the values that were loaded."""
    missing: list[str]
    """Names, in the collection, of values that were not given and are unchanged."""
    unexpected: list[str]
    """Names, as they were given, that the collection does not have."""


class ParameterShape(tuple[int, ...]):
    """The shape of a parameter: a tuple, which may also be called, as DyNet's programs do."""

    __slots__ = ()

    def __call__(self) -> tuple[int, ...]:
        return tuple(self)


def matches(
    given: Iterable[str], own: Collection[str], prefix: str, rename: Renaming
) -> tuple[dict[str, str], Matched]:
    """Which of the names given are which of the collection's own.

    Args:
        given: names that are read.
        own: names of the collection.
        prefix: only names that begin so count; it is taken off first.
        rename: a mapping of names (without the prefix) or a function of one; names that the mapping lacks stay.

    Returns:
        The given name for each name of the collection that was found; and the result.

    Raises:
        ValueError: two of the names given are renamed to one.
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
