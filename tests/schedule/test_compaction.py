"""Forward-only graphs within a limit of memory: nodes of a batch are freed one by one, and values move into holes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from arrays import all_equal

import dynet_cy as dy
from dynet_cy.graph.expressions import arena_bytes

SIZE = 64


@pytest.fixture(autouse=True)
def renewed() -> Iterator[None]:
    yield
    dy.renew_cg()


def grown(mem: float | None) -> tuple[list[np.ndarray], int]:
    """Sequences that grow by a column at a time; those that have ended stay.  Also the most bytes of their values."""
    dy.renew_cg(forward_only=True, mem=mem)
    rng = np.random.default_rng(3)
    ends = rng.integers(2, 40, 32)
    state = [dy.tanh(dy.inputTensor(rng.normal(size=(SIZE, 1)))) for _ in ends]
    most = 0
    for step in range(int(ends.max())):
        going = [i for i, end in enumerate(ends) if step < end]
        for i in going:
            state[i] = dy.concatenate_cols([state[i], dy.tanh(dy.inputTensor(rng.normal(size=(SIZE, 1))))])
        dy.forward([state[i] for i in going])
        most = max(most, arena_bytes()["values"])
    return [x.npvalue() for x in state], most


def test_ended_sequences_do_not_hold_the_others() -> None:
    free, most = grown(None)
    limited, most_limited = grown(1)
    all_equal(free, limited)
    assert most_limited < most / 2


@pytest.mark.parametrize("seed", range(8))
def test_values_stay_what_they_were(seed: int) -> None:
    dy.renew_cg(forward_only=True, mem=1.5)
    rng = np.random.default_rng(seed)
    pool = [dy.tanh(dy.inputVector(rng.normal(size=16 * int(n)))) for n in rng.integers(1, 80, 40)]
    dy.forward(pool)
    expected = [x.npvalue() for x in pool]
    for _ in range(60):
        made = [dy.logistic(x) if rng.random() < 0.5 else dy.concatenate([x, x[:16]]) for x in pool]
        dy.forward(made)
        # Of each, the old or the new value stays; long ones begin anew.
        for i, x in enumerate(made):
            if x.dim()[0][0] > 1600:
                x = dy.tanh(dy.inputVector(rng.normal(size=16)))
            if rng.random() < 0.4:
                pool[i], expected[i] = x, x.npvalue()
        del made, x
        for x, y in zip(pool, expected):
            np.testing.assert_array_equal(x.npvalue(), y)


def test_nodes_that_share_blocks_stay() -> None:
    """Vectors of three numbers share blocks of memory, so their batches are not parted."""
    dy.renew_cg(forward_only=True, mem=1)
    x = [dy.inputVector([i, i + 1, i + 2]) for i in range(64)]
    kept = []
    for k in range(300):
        x = [dy.cmult(y, y) if k % 50 else dy.tanh(y) for y in x]
        dy.forward(x)
        kept.append((x[k % 64], x[k % 64].npvalue()))
    for y, values in kept:
        np.testing.assert_array_equal(y.npvalue(), values)


def test_what_does_not_fit_raises() -> None:
    dy.renew_cg(forward_only=True, mem=1)
    held: list[dy.Expression] = []

    def fill() -> None:
        for i in range(40):
            held.extend(dy.tanh(dy.inputVector(np.full(1024, i + j))) for j in range(16))
            dy.forward(held)

    with pytest.raises(MemoryError, match="out of memory for the values of the graph"):
        fill()
    for k, x in enumerate(held[:64]):
        np.testing.assert_allclose(x.npvalue(), np.tanh(k // 16 + k % 16), rtol=1e-6)
