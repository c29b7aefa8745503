"""Elementwise ops, gates, pooling and losses that threads divide have the same bits on any number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Callable

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.core import engine

IMAGES = 91


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    config.set(threads=0)
    dy.renew_cg()


def lstm_gates(x: dy.Expression, y: dy.Expression) -> dy.Expression:
    p, h = dy.reshape(x, (1020,), batch_size=IMAGES * 4), dy.reshape(y, (255,), batch_size=IMAGES * 16)
    return dy.vanilla_lstm_gates_projected(p, dy.pick_batch_elems(h, range(IMAGES * 4)), dy.ones((1020, 255)) * 0.01)


# Functions of two images of 30 x 34 x 4 per batch element: large enough to wake threads.
OPS: dict[str, Callable[[dy.Expression, dy.Expression], dy.Expression]] = {
    "one argument": lambda x, y: dy.tanh(x),
    "two arguments": lambda x, y: dy.cmult(x, y),
    "windows of 2 x 2": lambda x, y: dy.maxpooling2d(x, [2, 2], [2, 2]),
    "windows that overlap": lambda x, y: dy.maxpooling2d(x, [3, 4], [2, 1], False),
    "losses": lambda x, y: dy.pickneglogsoftmax_batch(dy.reshape(x, (4080,), batch_size=IMAGES), [3] * IMAGES),
    "gates": lstm_gates,
    "biases": lambda x, y: dy.affine_transform(
        [dy.ones(4080), dy.ones((4080, 1)), dy.pick_range(dy.reshape(x, (4080,), batch_size=IMAGES), 5, 6)]
    ),
}


def results(op: Callable[[dy.Expression, dy.Expression], dy.Expression]) -> list[bytes]:
    """The value and both gradients."""
    rng = np.random.default_rng(1)
    dy.renew_cg()
    arguments = [
        dy.inputTensor(rng.uniform(-1, 1, (30, 34, 4, IMAGES)).astype(np.float32), batched=True) * 1.0 for _ in range(2)
    ]
    result = op(*arguments)
    loss = dy.sum_batches(dy.sum_elems(dy.square(result))) + sum(dy.sum_batches(dy.sum_elems(a)) for a in arguments)
    loss.backward(full=True)
    return [result.npvalue().tobytes(), *(a.gradient().tobytes() for a in arguments)]


@pytest.mark.parametrize("name", OPS)
def test_the_same_bits_on_any_number_of_threads(name: str) -> None:
    config.set(threads=1)
    desired = results(OPS[name])
    for threads in (2, 3, 8):
        config.set(threads=threads)
        assert results(OPS[name]) == desired


@pytest.mark.parametrize("name", OPS)
def test_large_calls_are_divided(name: str) -> None:
    """The same graph without the op needs fewer jobs."""

    def jobs(op: Callable[[dy.Expression, dy.Expression], dy.Expression]) -> int:
        before = engine.stats("kernels.pool")["jobs"]
        results(op)
        return engine.stats("kernels.pool")["jobs"] - before

    config.set(threads=2)
    assert jobs(OPS[name]) > jobs(lambda x, y: dy.sum_elems(x) + dy.sum_elems(y))


def test_small_calls_are_not_divided() -> None:
    config.set(threads=2)
    before = engine.stats("kernels.pool")["jobs"]
    dy.renew_cg()
    x = dy.inputTensor(np.ones((100, 100))) * 1.0
    dy.sum_elems(dy.cmult(dy.tanh(x), x)).backward(full=True)
    assert engine.stats("kernels.pool")["jobs"] == before
