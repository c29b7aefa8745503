"""Uses of integers, and the same in NumPy."""

from __future__ import annotations

import numpy as np

import dynet_cy as dy

# As floats these are NaN that are quiet or not, infinities, numbers too small to be normal, and -0; and beyond 2^24.
BITS = np.array(
    [-1, -2, 1, 0, 7, -(2**31), 2**31 - 1, 0x7F800001, 0x7FC00001, 0x7F800000, -0x00800000, 0x00000123, 2**24 + 1],
    np.int64,
)

MOVES = {
    "reshape": (lambda x: dy.reshape(x, (13, 2)), lambda x: x.T.reshape(2, 13).T),
    "transpose": (lambda x: dy.transpose(x, (1, 0)), lambda x: x.T),
    "concatenate": (lambda x: dy.concatenate([x, x]), lambda x: np.concatenate([x, x])),
    "concatenate_cols": (lambda x: dy.concatenate_cols([x, x]), lambda x: np.concatenate([x, x], 1)),
    "pick": (lambda x: dy.pick(x, 1), lambda x: x[1]),
    "pick-1": (lambda x: dy.pick(x, 3, 1), lambda x: x[:, 3]),
    "pick_range": (lambda x: dy.pick_range(x, 1, 9, 1), lambda x: x[:, 1:9]),
    "select_rows": (lambda x: dy.select_rows(x, [1, 0, 1]), lambda x: x[[1, 0, 1]]),
    "select_cols": (lambda x: dy.select_cols(x, [3, 0, 12, 5]), lambda x: x[:, [3, 0, 12, 5]]),
    "strided": (lambda x: x[:, ::-2], lambda x: x[:, ::-2]),
    "take": (lambda x: x[:, dy.input_indices([5, 5, 6])], lambda x: x[:, [5, 5, 6]]),
    "take-one": (lambda x: dy.pick(x, dy.input_indices(1)), lambda x: x[1]),
    "gather": (lambda x: dy.gather(x, dy.argsort(dy.to_float(x), 1), 1), lambda x: np.sort(x, 1)),
    "nobackprop": (lambda x: dy.nobackprop(x), lambda x: x),
    "where": (lambda x: dy.where(x > 0, x, -1), lambda x: np.where(x > 0, x, -1)),
    "where-0": (lambda x: dy.where(x > 0, 0, x), lambda x: np.where(x > 0, 0, x)),
    "masked_fill": (lambda x: dy.masked_fill(x, x > 0, 5), lambda x: np.where(x > 0, 5, x)),
}

RNG = np.random.default_rng(2)
FAR = np.concatenate([RNG.integers(-(2**31), 2**31, 2000), BITS, RNG.integers(-30, 30, 500)])
OTHER = RNG.permutation(FAR)


def wrapped(x):
    return x.astype(np.int64).astype(np.int32)


def divided(f, a, b):
    return wrapped(np.where(b == 0, 0, f(a, np.where(b == 0, 1, b))))


ARITHMETIC = {
    "+": (lambda a, b: a + b, lambda a, b: wrapped(a + b)),
    "-": (lambda a, b: a - b, lambda a, b: wrapped(a - b)),
    "*": (dy.cmult, lambda a, b: wrapped(a.astype(np.uint64) * b.astype(np.uint64))),
    "//": (lambda a, b: a // b, lambda a, b: divided(np.floor_divide, a, b)),
    "%": (lambda a, b: a % b, lambda a, b: divided(np.remainder, a, b)),
    "bmin": (dy.bmin, np.minimum),
    "bmax": (dy.bmax, np.maximum),
}
COMPARISONS = {
    "<": (lambda a, b: a < b, np.less),
    "<=": (lambda a, b: a <= b, np.less_equal),
    ">": (lambda a, b: a > b, np.greater),
    ">=": (lambda a, b: a >= b, np.greater_equal),
    "equal": (dy.equal, np.equal),
    "not_equal": (dy.not_equal, np.not_equal),
}
