"""Indices that are not Python integers."""

from __future__ import annotations

import numpy as np


class Integers:
    """An integer tensor of another library: an array for NumPy, and an index if it has a single element."""

    def __init__(self, values) -> None:
        self.values = np.asarray(values, np.int64)
        self.ndim = self.values.ndim

    def __array__(self, dtype=None, copy=None):
        return self.values if dtype is None else self.values.astype(dtype)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self):
        return (Integers(v) for v in self.values)

    def __getitem__(self, i):
        return Integers(self.values[i])

    def __index__(self) -> int:
        if self.ndim:
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(self.values)

    def __int__(self) -> int:
        return int(self.values)
