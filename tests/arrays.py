"""Comparisons of as many arrays as are expected."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


def all_equal(found: Iterable[Any], desired: Iterable[Any]) -> None:
    all_close(found, desired, rtol=0)


def all_close(found: Iterable[Any], desired: Iterable[Any], what: object = "", **tolerance: Any) -> None:
    found, desired = list(found), list(desired)
    assert len(found) == len(desired)
    for k, (a, b) in enumerate(zip(found, desired)):
        np.testing.assert_allclose(a, b, err_msg=f"{what} number {k}", **tolerance)
