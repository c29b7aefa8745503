"""Comparisons and choices, products of tensors, indices by lists, methods of expressions."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
from case import Case


def one(case: str, shape, build: Callable, f: Callable, **more) -> Case:
    """A case of one argument."""
    return Case(case, [shape], lambda dy, xs: build(dy, xs[0]), lambda xs: f(xs[0]), **more)


def two(case: str, shapes, build: Callable, f: Callable, **more) -> Case:
    """A case of two arguments."""
    return Case(case, shapes, lambda dy, xs: build(dy, *xs), lambda xs: f(*xs), **more)


def name_of(*parts) -> str:
    return "-".join(str(p).replace(" ", "").strip("()[]").replace(",", "x") for p in parts)


# 0 where the place is even, for comparisons that are true in places.
STEPS = np.arange(12.0).reshape(4, 3) % 2
ODD = np.array([1.0, 0.0, 2.0, 0.0])

COMPARISONS = [
    one("less_const", (4, 3), lambda dy, x: x < 0.25, lambda x: x < 0.25),
    one("less_equal_const", (4, 3), lambda dy, x: x <= np.float32(0.25), lambda x: x <= 0.25),
    one("greater_const", (4, 3), lambda dy, x: x > 0.25, lambda x: x > 0.25),
    one("greater_equal_const", (4, 3), lambda dy, x: x >= 0.25, lambda x: x >= 0.25),
    one("equal_const", (4, 3), lambda dy, x: dy.equal((x > 0) * 2, 2), lambda x: x > 0),
    one("not_equal_const", (4, 3), lambda dy, x: dy.not_equal(x > 0, 1), lambda x: x <= 0),
    two("greater", [(4, 3), (4,)], lambda dy, a, b: a > b, lambda a, b: a > b[:, None]),
    two("greater_equal", [(4, 3), (4, 3)], lambda dy, a, b: dy.greater_equal(a, b), lambda a, b: a >= b),
    one("less-array", (4, 3), lambda dy, x: x < STEPS, lambda x: x < STEPS),
    one("greater-array-left", (4, 3), lambda dy, x: operator.gt(STEPS, x), lambda x: x < STEPS),
]

CHOICES = [
    Case(
        "where-all",
        [(4, 3), (4, 3), (4,)],
        lambda dy, xs: dy.where(xs[0] > 0, xs[1], xs[2]),
        lambda xs: np.where(xs[0] > 0, xs[1], xs[2][:, None]),
    ),
    two("where-number", [(4,), (4,)], lambda dy, a, b: dy.where(ODD, a, 2) + b, lambda a, b: np.where(ODD, a, 2) + b),
    two(
        "where-numbers",
        [(4,), (4,)],
        lambda dy, a, b: dy.where(a > 0, 3, -1) + b,
        lambda a, b: np.where(a > 0, 3, -1) + b,
    ),
    one("where-log", (4, 3), lambda dy, x: dy.where(x > 0, dy.log(x), x), lambda x: np.where(x > 0, np.log(abs(x)), x)),
    one("masked_fill", (4, 3), lambda dy, x: dy.masked_fill(x, ODD, 5), lambda x: np.where(ODD[:, None] != 0, 5, x)),
    one(
        "masked_fill-exp",
        (4, 3),
        lambda dy, x: dy.exp(dy.masked_fill(x, STEPS, -np.inf)),
        lambda x: np.where(STEPS != 0, 0, np.exp(x)),
    ),
]

PRODUCTS = [
    two(
        name_of("batched_matmul", a, b),
        [a, b],
        lambda dy, x, y: x @ y,
        lambda x, y: (
            np.einsum(
                "ij...,jk...->ik...", x.reshape(x.shape + (1,) * (5 - x.ndim)), y.reshape(y.shape + (1,) * (5 - y.ndim))
            )
            if x.ndim > 1 and y.ndim > 1
            else np.atleast_1d(np.tensordot(x, y, 1))
        ),
    )
    for a, b in [
        ((4, 3, 5), (3, 2, 5)),
        ((4, 3, 5), (3, 2)),
        ((4, 3, 1), (3, 2, 5)),
        ((4, 3, 2, 3), (3, 2, 1, 3)),
        ((2, 3, 1, 2), (3, 4, 3, 1)),
        ((17, 9, 4), (9, 33, 4)),
    ]
]
PRODUCTS += [
    two(name_of("product", a, b), [a, b], lambda dy, x, y: x @ y, f)
    for a, b, f in [
        ((4, 3), (3, 2), lambda x, y: x @ y),
        ((4, 3), (3,), lambda x, y: x @ y),
        ((3,), (3, 2), lambda x, y: x @ y),
        ((3,), (3,), lambda x, y: np.atleast_1d(x @ y)),
        ((4, 3), (3, 2, 5), lambda x, y: np.tensordot(x, y, 1)),
        ((3,), (3, 2, 5), lambda x, y: np.tensordot(x, y, 1)),
        ((4, 3, 5), (3,), lambda x, y: np.tensordot(y, x, (0, 1))),
    ]
]
PRODUCTS += [
    one("product-array", (3, 2), lambda dy, x: STEPS @ x, lambda x: STEPS @ x),
    one("product-array-right", (2, 4), lambda dy, x: x @ STEPS, lambda x: x @ STEPS),
]

ARRAYS = [
    one("add-array", (4, 3), lambda dy, x: STEPS + x, lambda x: STEPS + x),
    one("sub-array", (4, 3), lambda dy, x: x - STEPS, lambda x: x - STEPS),
    one("div-array", (4, 3), lambda dy, x: x / (STEPS + 1), lambda x: x / (STEPS + 1)),
    one("div-array-left", (4, 3), lambda dy, x: STEPS / x, lambda x: STEPS / x, low=0.5, high=2),
    one("mul-array", (3, 2), lambda dy, x: STEPS * x, lambda x: STEPS @ x),
    one("pow-array", (4, 3), lambda dy, x: x ** (STEPS + 1), lambda x: x ** (STEPS + 1), low=0.5, high=2),
]

T = (4, 3, 5)
KEYS = {
    "list": [0, 2, 2],
    "list-negative": [-1, 0],
    "list-second": (slice(None), [2, 0]),
    "list-after-number": (1, [2, 0]),
    "list-and-slice": (slice(1, 4, 2), [2, 1], slice(None, None, -2)),
    "places": ([0, 3, 0], [1, 2, 1]),
    "places-all": ([0, 3], [1, 2], [4, 0]),
    "table": (slice(None), np.array([[0, 1], [2, 0]])),
    "mask": np.array([True, False, True, True]),
    "mask-list": (slice(None), [True, False, True]),
    "mask-two": (slice(None), np.arange(15).reshape(3, 5) % 4 == 1),
    "mask-all": np.arange(60).reshape(4, 3, 5) % 7 == 2,
    "new": (None, 1),
    "new-last": (..., None),
    "new-between": (slice(None), None, [1, 0], None),
    "new-numbers": (1, 2, None, 3),
}
INDICES = [
    one(f"places-{name}", T, lambda dy, x, k=key: x[k], lambda x, k=key: np.atleast_1d(x[k]))
    for name, key in KEYS.items()
]

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

M = np.array([1.0, 0.0, 1.0, 1.0])


def softmax(x, d):
    e = np.exp(x)
    return e / e.sum(d, keepdims=True)


MASKED = [
    one("softmax-d-last", (4, 3, 2), lambda dy, x: dy.softmax(x, -1), lambda x: softmax(x, -1)),
    one("log_softmax-d-last", (4, 3, 2), lambda dy, x: dy.log_softmax(x, d=-1), lambda x: np.log(softmax(x, -1))),
    one("log_softmax-d-middle", (4, 3, 2), lambda dy, x: dy.log_softmax(x, d=1), lambda x: np.log(softmax(x, 1))),
    one(
        "softmax-mask",
        (4, 3),
        lambda dy, x: dy.softmax(x, mask=M),
        lambda x: softmax(np.where(M[:, None] != 0, x, -np.inf), 0),
    ),
    one(
        "softmax-mask-rows",
        (3, 4),
        lambda dy, x: dy.softmax(x, 1, mask=M[None]),
        lambda x: softmax(np.where(M != 0, x, -np.inf), 1),
    ),
    one(
        "log_softmax-without",
        (3, 4),
        lambda dy, x: dy.log_softmax(x, d=1, mask=M[None])[:, [0, 2, 3]],
        lambda x: np.log(softmax(x[:, [0, 2, 3]], 1)),
    ),
]

AXES = [
    one("cumsum-negative", (4, 3), lambda dy, x: dy.cumsum(x, -1), lambda x: x.cumsum(-1)),
    one("max_dim-negative", (4, 3), lambda dy, x: dy.max_dim(x, -1), lambda x: x.max(-1)),
    one("sum_dim-negative", (4, 3, 2), lambda dy, x: dy.sum_dim(x, [-1, 0]), lambda x: x.sum((0, 2))),
    one("pick-negative", (4, 3), lambda dy, x: dy.pick(x, 1, -1), lambda x: x[:, 1]),
    one("transpose-negative", (4, 3, 2), lambda dy, x: dy.transpose(x, (-1, 0, 1)), lambda x: x.transpose(2, 0, 1)),
    two(
        "concatenate-negative",
        [(4, 3), (4, 2)],
        lambda dy, a, b: dy.concatenate([a, b], -1),
        lambda a, b: np.concatenate([a, b], 1),
    ),
]

CASES = [*COMPARISONS, *CHOICES, *PRODUCTS, *ARRAYS, *INDICES, *METHODS, *MASKED, *AXES]
