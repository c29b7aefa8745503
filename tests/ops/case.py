"""One row of the table of ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Case:
    """One use of an op.

    Attributes:
        id: name of the op, then what is special about this use.
        shapes: shape of one batch element of each argument.
        build: makes the expression: ``build(dy, xs)``, with the package dy and expressions xs.
        reference: the same in NumPy: ``reference(xs)``, with float64 arrays of one batch element.
        low, high: range of the arguments' elements; one number, or one for each argument.
        batches: batch sizes to run with, one tuple with a number for each argument; if None:
            all 1, all 3, and each argument 1 while the others are 3.
        whole_batch: whether reference takes the whole batch at once; then the batch is the last
            axis of each argument and of the result.
        grad: whether there is a gradient; False for ops that have none, a tuple of
            bools if only some arguments have one.
        tol: greatest difference from the reference, relative to the magnitude of the values.
        leaves: the leaf ops that this case covers besides inputs.
        long: whether the op (the first word of the id) sums, and `build` and `reference` also take one long vector:
            test_long_sums_of_ops.py gives them a million terms.
    """

    id: str
    shapes: Sequence[tuple[int, ...]]
    build: Callable
    reference: Callable
    low: float | Sequence[float] = -1.0
    high: float | Sequence[float] = 1.0
    batches: Sequence[tuple[int, ...]] | None = None
    whole_batch: bool = False
    grad: bool | tuple[bool, ...] = True
    tol: float = 1e-5
    leaves: tuple[str, ...] = ()
    long: bool = False

    def batch_sizes(self) -> list[tuple[int, ...]]:
        """The batch sizes to run with, without repetition."""
        if self.batches is not None:
            return list(dict.fromkeys(tuple(b) for b in self.batches))
        n = len(self.shapes)
        every = [(1,) * n, (3,) * n]
        every += [tuple(1 if k == i else 3 for k in range(n)) for i in range(n)] if n > 1 else []
        return list(dict.fromkeys(every))

    def has_gradient(self, i: int) -> bool:
        return self.grad if isinstance(self.grad, bool) else self.grad[i]

    def sample(self, rng: np.random.Generator, sizes: Sequence[int]) -> list[np.ndarray]:
        """Random arguments, with the batch as the last axis."""
        out = []
        for i, (shape, size) in enumerate(zip(self.shapes, sizes)):
            low = self.low if np.isscalar(self.low) else self.low[i]
            high = self.high if np.isscalar(self.high) else self.high[i]
            out.append(rng.uniform(low, high, (*shape, size)).astype(np.float32))
        return out

    def expected(self, xs: Sequence[np.ndarray], dtype: type = np.float64) -> np.ndarray:
        """The result in float64, or another type of floats, with the batch as the last axis."""
        xs = [np.asarray(x, dtype) for x in xs]
        if self.whole_batch:
            return np.asarray(self.reference(xs), dtype)
        size = max((x.shape[-1] for x in xs), default=1)
        parts = [np.asarray(self.reference([x[..., min(b, x.shape[-1] - 1)] for x in xs]), dtype) for b in range(size)]
        return np.stack(parts, axis=-1)


def logistic(x):
    return 1 / (1 + np.exp(-x))


def one(case: str, shape, build: Callable, f: Callable, **more) -> Case:
    """A case of one argument."""
    return Case(case, [shape], lambda dy, xs: build(dy, xs[0]), lambda xs: f(xs[0]), **more)


def many(case: str, shapes, build: Callable, f: Callable, **more) -> Case:
    """A case of several arguments."""
    return Case(case, shapes, lambda dy, xs: build(dy, *xs), lambda xs: f(*xs), **more)


def whole(case: str, shape, build: Callable, f: Callable, batches=((1,), (3,)), **more) -> Case:
    """A case of one argument whose batch elements depend on each other."""
    return one(case, shape, build, f, batches=list(batches), whole_batch=True, **more)


def beside_a_sum(case: str, shapes, build: Callable, f: Callable, **more) -> Case:
    """A case without a gradient, to which the sum of the first argument is added, so that graphs with it have one."""
    return many(
        case,
        shapes,
        lambda dy, *xs: build(dy, *xs) + dy.sum_elems(xs[0]),
        lambda *xs: f(*xs) + xs[0].sum(),
        grad=(True, *[False] * (len(shapes) - 1)),
        **more,
    )


def one_batch(f: Callable) -> Callable:
    """A reduction over the batch, the last axis, which is kept with size 1."""
    return lambda x: f(x)[..., None]


def name_of(*parts) -> str:
    """An id made of names, shapes and numbers."""
    return "-".join(str(p).replace(" ", "").strip("()[]").replace(",", "x") for p in parts)


def shapes_id(shapes) -> str:
    return "-".join(["x".join(map(str, s)) or "scalar" for s in shapes])
