"""Amounts in reports and errors: three digits, a unit, no exponent."""

from __future__ import annotations

import pytest

from dynet_cy.core.amounts import size_text, time_text


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (588, "588 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1020 * 1024, "1,020 KiB"),
        (2**20 - 1, "1,024 KiB"),
        (0.5 * 2**20, "512 KiB"),
        (2**30, "1 GiB"),
        (2000 * 2**30, "2,000 GiB"),
    ],
)
def test_sizes(n: float, text: str) -> None:
    assert size_text(n) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 ms"), (0.0015, "1.5 ms"), (0.9999, "1,000 ms"), (1.5, "1.5 s"), (4000, "4,000 s")]
)
def test_times(seconds: float, text: str) -> None:
    assert time_text(seconds) == text
