"""Sizes that differ between traces, as formulas of the named axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Union

# A number in each trace: the size of an axis, or one of the words of a node.
Size = tuple[int, ...]


class Affine(NamedTuple):
    """factor * axis + summand"""

    axis: str
    factor: int
    summand: int


class Product(NamedTuple):
    """factor * first * second"""

    first: str
    second: str
    factor: int


Formula = Union[int, Affine, Product]


def constant(size: Size) -> int | None:
    """The size, if it is the same in all traces, else None."""
    return size[0] if len(set(size)) == 1 else None


def is_one(size: Size) -> bool:
    return constant(size) == 1


def formula(size: Size, axes: Mapping[str, Size]) -> Formula | None:
    """A size as a formula of the named axes, inferred from the traces; None if there is no simple one."""
    number = constant(size)
    if number is not None:
        return number
    for name, of in axes.items():
        run = of[0] - of[-1]
        if run and (size[0] - size[-1]) % run == 0:
            found = Affine(name, (size[0] - size[-1]) // run, 0)
            found = found._replace(summand=size[0] - found.factor * of[0])
            if all(found.factor * a + found.summand == s for a, s in zip(of, size)):
                return found
    names = list(axes)
    for i, first in enumerate(names):
        for second in names[i:]:
            areas = [a * b for a, b in zip(axes[first], axes[second])]
            if size[0] % areas[0] == 0 and all(s == size[0] // areas[0] * area for s, area in zip(size, areas)):
                return Product(first, second, size[0] // areas[0])
    return None


def text(found: Formula | None) -> str | int | None:
    """A formula as the name of an axis in a file."""
    if isinstance(found, Affine):
        scaled = found.axis if found.factor == 1 else f"{found.factor}*{found.axis}"
        return f"{scaled}{found.summand:+d}" if found.summand else scaled
    if isinstance(found, Product):
        area = f"{found.first}*{found.second}"
        return area if found.factor == 1 else f"{found.factor}*{area}"
    return found
