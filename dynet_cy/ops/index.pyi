# Written by tools/derive.py
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

ways: dict[str, str]

def read_places(
    name: str,
    x: tuple[tuple[int, ...], int],
    y: tuple[tuple[int, ...], int],
    attrs: Sequence[int],
    items: npt.NDArray[np.int64],
) -> npt.NDArray[np.int32]:
    """Which elements of its argument an op reads, counted over all batch elements: one number for each of its result."""
