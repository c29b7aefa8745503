"""Sizes that differ between traces, as formulas of the named axes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations_with_replacement
from typing import NamedTuple

# A number in each trace: the size of an axis, or one of the words of a node.
Size = tuple[int, ...]


class Formula(NamedTuple):
    """factor * product of the axes + summand"""

    factor: int
    axes: tuple[str, ...]
    summand: int = 0


def constant(size: Size) -> int | None:
    """The size, if it is the same in all traces, else None."""
    return size[0] if len(set(size)) == 1 else None


def is_one(size: Size) -> bool:
    return constant(size) == 1


def formula(size: Size, axes: Mapping[str, Size]) -> int | Formula | None:
    """A size as a formula of one or two named axes, inferred from the traces; None if there is no simple one."""
    number = constant(size)
    if number is not None:
        return number
    for name, of in axes.items():
        run = of[0] - of[-1]
        if run and (size[0] - size[-1]) % run == 0:
            factor = (size[0] - size[-1]) // run
            summand = size[0] - factor * of[0]
            if all(factor * a + summand == s for a, s in zip(of, size)):
                return Formula(factor, (name,), summand)
    for names in combinations_with_replacement(axes, 2):
        areas = [a * b for a, b in zip(*(axes[name] for name in names))]
        if size[0] % areas[0] == 0 and all(s == size[0] // areas[0] * area for s, area in zip(size, areas)):
            return Formula(size[0] // areas[0], names)
    return None


def text(found: int | Formula | None) -> str | int | None:
    """A formula as the name of an axis in a file."""
    if not isinstance(found, Formula):
        return found
    scaled = "*".join([str(found.factor)] * (found.factor != 1) + [*found.axes])
    return f"{scaled}{found.summand:+d}" if found.summand else scaled
