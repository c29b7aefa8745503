"""Methods of expressions."""

from __future__ import annotations

import numpy as np
from case import name_of, one

METHODS = [
    one("method-T", (4, 3, 5), lambda dy, x: x.T, np.transpose),
    one("method-T-vector", (4,), lambda dy, x: 2 * x.T, lambda x: 2 * x),
    one("method-abs", (4,), lambda dy, x: abs(x), np.abs),
    one("method-reshape", (4, 6), lambda dy, x: x.reshape(-1, 3), lambda x: x.reshape((8, 3), order="F")),
    *[
        one(
            name_of("method", f, axis, keep),
            (4, 3, 5),
            lambda dy, x, f=f, a=axis, k=keep: getattr(x, f)(a, k),
            lambda x, f=f, a=axis, k=keep: np.atleast_1d(getattr(x, f)(axis=a, keepdims=k)),
        )
        for f in ("sum", "mean", "max", "min")
        for axis in (None, 0, -1, (0, 2))
        for keep in (False, True)
    ],
]

CASES = METHODS
