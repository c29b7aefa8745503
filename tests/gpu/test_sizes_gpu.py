"""Uses of ops that the table of ops does not cover: many arguments, several tiles and blocks, and arguments that many
nodes share. Values and gradients must equal the CPU's."""

from __future__ import annotations

from typing import Callable

import numpy as np
import pytest
from arrays import all_close

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.graph.expressions import set_default_device

Shapes = tuple[tuple[int, ...], ...]


def weighted(y: dy.Expression, seed: int) -> dy.Expression:
    """A loss: the sum of the elements of y with different weights."""
    shape, batch = y.dim()
    weights = np.random.default_rng(seed).uniform(0.5, 1.5, (*shape, batch))
    return dy.sum_batches(dy.sum_elems(dy.cmult(y, dy.inputTensor(weights, batched=True))))


def picks(xs: list[dy.Expression]) -> dy.Expression:
    """Many picks from a few vectors, scheduled as one batch."""
    return dy.concatenate([xs[k % 3][k * 7 % 40] for k in range(90)])


def ranges(xs: list[dy.Expression]) -> dy.Expression:
    return dy.esum([xs[k % 3][k : k + 10] for k in range(30)])


def rows(xs: list[dy.Expression]) -> dy.Expression:
    """Overlapping rows of a few matrices."""
    return dy.esum([dy.select_rows(xs[k % 2], [k % 5, 1, 1, k % 3]) for k in range(20)])


def shared_parts(xs: list[dy.Expression]) -> dy.Expression:
    """Concatenations of a part that all share with other parts."""
    return dy.esum([dy.concatenate([xs[0], xs[1 + k % 2], xs[0]]) for k in range(20)])


CASES: dict[str, tuple[Shapes, Callable[[list[dy.Expression]], dy.Expression]]] = {
    "concatenate 70": (((3,),) * 70, dy.concatenate),
    "concatenate columns": (((40, 20), (40, 1), (40, 7)), dy.concatenate_cols),
    "to batch 70": (((3, 2),) * 70, dy.concatenate_to_batch),
    "emax 70": (((5,),) * 70, dy.emax),
    "logsumexp 70": (((5,),) * 70, dy.logsumexp),
    "tree_lstm_c 70": (((2 * 73,), *((2,),) * 70), lambda xs: dy.tree_lstm_c(xs[0], xs[1:])),
    "transpose": (((70, 45),), lambda xs: dy.transpose(xs[0])),
    "transpose axes": (((5, 40, 33),), lambda xs: dy.transpose(xs[0], (2, 0, 1))),
    "softmax along rows": (((50, 40),), lambda xs: dy.softmax(xs[0], 1)),
    "softmax": (((1500, 2),), lambda xs: dy.softmax(xs[0])),
    "log_softmax": (((1500, 2),), lambda xs: dy.log_softmax(xs[0])),
    "sparsemax": (((1500,),), lambda xs: dy.sparsemax(xs[0])),
    "inverse": (((40, 40),), lambda xs: dy.inverse(xs[0] + dy.inputTensor(9 * np.eye(40)))),
    "logdet": (((3, 3),), lambda xs: dy.logdet(xs[0] + dy.inputTensor([[0, -9, 0], [9, 0, 0], [0, 0, 9]]))),
    "sort": (((2500, 2),), lambda xs: dy.sort(xs[0])),
    "sort descending": (((2, 1100),), lambda xs: dy.sort(xs[0], 1, True)),
    "picks": (((40,),) * 3, picks),
    "ranges": (((60,),) * 3, ranges),
    "rows": (((6, 30),) * 2, rows),
    "shared parts": (((17,), (33,), (33,)), shared_parts),
}


def gradients(name: str, batch: int) -> list[np.ndarray]:
    """The value of a case and the gradients of its arguments; the first argument has a batch."""
    shapes, build = CASES[name]
    rng = np.random.default_rng(7)
    dy.renew_cg(autobatching=True)
    model = dy.ParameterCollection()
    parameters = [model.add_parameters(s, init=rng.standard_normal(s)) for s in shapes]
    xs = [p * 1 for p in parameters]
    if batch > 1:
        scale = rng.uniform(0.5, 1.5, (*shapes[0], batch))
        xs[0] = dy.cmult(xs[0], dy.inputTensor(scale, batched=True))
    y = build(xs)
    weighted(y, 1).backward()
    return [y.npvalue(), *[p.grad_as_array() for p in parameters]]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_as_on_the_cpu(name: str, batch: int, on_device: str) -> None:
    before = engine.stats("gpu.0")
    found = gradients(name, batch)
    assert any(engine.stats("gpu.0")[key] > before[key] for key in ("launches", "replays"))
    set_default_device(0)
    desired = gradients(name, batch)
    all_close(found, desired, rtol=1e-3, atol=2e-5)
