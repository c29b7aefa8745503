"""Inputs and constants: leaves of the graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from case import Case, one, whole


def inputs(case: str, make: Callable, value: Callable) -> Case:
    """A leaf, added to an argument so that there is something to differentiate."""
    return Case(f"input-{case}", [(3, 2)], lambda dy, xs: xs[0] + make(dy), lambda xs: xs[0] + value())


MATRIX = np.arange(6.0).reshape(3, 2) / 8

INPUTS = [
    inputs("zeros", lambda dy: dy.zeros((3, 2)), lambda: np.zeros((3, 2))),
    inputs("ones", lambda dy: dy.ones((3, 2)), lambda: np.ones((3, 2))),
    inputs("ones-batch", lambda dy: dy.ones((3, 2), batch_size=3), lambda: np.ones((3, 2))),
    inputs("constant", lambda dy: dy.constant((3, 2), 0.5), lambda: np.full((3, 2), 0.5)),
    inputs("constant-number", lambda dy: dy.constant(3, -0.5), lambda: np.full((3, 1), -0.5)),
    inputs("scalarInput", lambda dy: dy.scalarInput(1.25), lambda: 1.25),
    inputs("inputVector", lambda dy: dy.inputVector([1, 2, 3]), lambda: np.array([[1.0], [2.0], [3.0]])),
    inputs("vecInput", lambda dy: dy.vecInput(3), lambda: np.zeros((3, 1))),
    inputs("inputTensor", lambda dy: dy.inputTensor(MATRIX), lambda: MATRIX),
    inputs("inputTensor-rows", lambda dy: dy.inputTensor(MATRIX.tolist()), lambda: MATRIX),
    inputs("inputTensor-strided", lambda dy: dy.inputTensor(np.repeat(MATRIX, 2, 0)[::2]), lambda: MATRIX),
    inputs("inputMatrix", lambda dy: dy.inputMatrix(MATRIX.ravel(order="F"), (3, 2)), lambda: MATRIX),
    inputs(
        "inputTensorTranspose",
        lambda dy: dy.inputTensorTranspose(MATRIX.ravel(order="F"), (3, 2)),
        lambda: MATRIX,
    ),
    inputs(
        "sparse_inputTensor",
        lambda dy: dy.sparse_inputTensor(([0, 2], [1, 0]), [0.5, 2], (3, 2), defval=-1),
        lambda: np.array([[-1, 0.5], [-1, -1], [2, -1]]),
    ),
    inputs("matInput", lambda dy: dy.matInput(3, 2), lambda: np.zeros((3, 2))),
]

INPUTS[2] = Case(
    "input-ones-batch",
    [(3, 2)],
    lambda dy, xs: xs[0] + dy.ones((3, 2), batch_size=3),
    lambda xs: np.broadcast_to(xs[0] + 1, (3, 2, 3)),
    batches=[(1,), (3,)],
    whole_batch=True,
)

CASES = [
    *INPUTS,
    one("input-one_hot", (4,), lambda dy, x: x + dy.one_hot(4, 2), lambda x: x + np.eye(4)[2]),
    whole(
        "input-one_hot-batch",
        (4,),
        lambda dy, x: x + dy.one_hot(4, [2, 0, np.int64(3)]),
        lambda x: x + np.eye(4)[:, [2, 0, 3]],
    ),
]
