"""Amounts as people read them: bytes and seconds with a unit, and without exponents."""

from __future__ import annotations


def time_text(seconds: float) -> str:
    """A duration for people, such as "1.5 ms"."""
    return f"{_three_digits(seconds)} s" if seconds >= 1 else f"{_three_digits(1e3 * seconds)} ms"


def size_text(n: float) -> str:
    """A number of bytes for people, such as "1.5 MiB"."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n >= size:
            return f"{_three_digits(n / size)} {unit}"
    return f"{n:.0f} B"


def _three_digits(x: float) -> str:
    return f"{x:.3g}" if x < 999.5 else f"{x:,.0f}"
