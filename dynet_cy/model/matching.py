"""Matches values from a file or another model with parameters, by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Union

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
    given: Iterable[str], own: Collection[str], prefix: str, rename: Renaming, first: Mapping[str, str] | None = None
) -> tuple[dict[str, str], Matched]:
    """Match given names with the names of a collection.

    Args:
        given: names that are read.
        own: names of the collection.
        prefix: only names that begin with it are used; it is removed first.
        rename: a mapping or a function of names (without the prefix); names that the mapping lacks do not change.
        first: names of the collection by those under which its parameters were made, as older files have them. These
            are used if more of the given names are among them than among the names now.

    Returns:
        The given name for each name of the collection that was found; and the result.

    Raises:
        ValueError: two given names are renamed to the same name.
    """
    goals: dict[str, str] = {}
    for name in given:
        if name.startswith(prefix):
            to = name[len(prefix) :]
            goals[name] = rename.get(to, to) if isinstance(rename, Mapping) else rename(to) if rename else to
    goals = now(goals, own, first or {})
    found: dict[str, str] = {}
    unexpected = []
    for name, to in goals.items():
        if to in found:
            raise ValueError(f"renames: both {found[to]} and {name} become {to}")
        if to in own:
            found[to] = name
        else:
            unexpected.append(name)
    return found, Matched([n for n in own if n in found], [n for n in own if n not in found], unexpected)


def now(goals: dict[str, str], own: Collection[str], first: Mapping[str, str]) -> dict[str, str]:
    """Names with those of older files replaced by the names now, if the older ones fit better: `goals` with other
    values. See `matches`."""
    older = sum(to in first for to in goals.values()) > sum(to in own for to in goals.values())
    return {name: first.get(to, to) for name, to in goals.items()} if older else goals


def complaint(
    found: Matched,
    prefix: str = "",
    given: Mapping[str, Sequence[int]] | None = None,
    own: Mapping[str, Sequence[int]] | None = None,
) -> str:
    """The names that are missing, unexpected, or perhaps renamed, in words; "" if there are none.

    Args:
        found: the result of `matches`.
        prefix: that of the given names.
        given: shapes of unexpected names, and perhaps others.
        own: shapes of missing names, and perhaps others.
    """
    parts = [("missing", found.missing), ("unexpected", found.unexpected)]
    if given and own:
        parts.append(("perhaps renamed", _renamed(found, prefix, given, own)))
    return "; ".join(
        f"{what}: {', '.join(names[:10])}" + (f" and {len(names) - 10} more" if len(names) > 10 else "")
        for what, names in parts
        if names
    )


def _renamed(
    found: Matched, prefix: str, given: Mapping[str, Sequence[int]], own: Mapping[str, Sequence[int]]
) -> list[str]:
    """Pairs of an unexpected and a missing name that no others could be: by last part and shape, and then by shape."""
    unexpected, missing = list(found.unexpected), list(found.missing)
    pairs = []
    for by_last_part in (True, False):
        sorts: dict[tuple[str, tuple[int, ...]], tuple[list[str], list[str]]] = {}
        for side, (names, shapes) in enumerate([(unexpected, given), (missing, own)]):
            for name in names:
                last = re.split(r"[/.]", name)[-1] if by_last_part else ""
                sorts.setdefault((last, tuple(shapes[name])), ([], []))[side].append(name)
        for old, new in sorts.values():
            if len(old) == len(new) == 1:
                pairs.append(f"{old[0][len(prefix) :]} to {new[0]}")
                unexpected.remove(old[0])
                missing.remove(new[0])
    return pairs
