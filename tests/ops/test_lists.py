"""Ops of lists: each argument gets its gradient.  tests/test_growth.py counts their work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dynet_cy as dy


@pytest.mark.parametrize("needed", [range(6), [0, 5], [1, 3], [4]])
@pytest.mark.parametrize("op", ["concatenate", "concatenate_cols", "rows", "concatenate_to_batch"])
def test_only_some_arguments_get_gradients(graph: Any, strategy: int, op: str, needed: Any) -> None:
    """Each gradient reaches its argument, even if the arguments before it need none."""
    pc = dy.ParameterCollection()
    ps = [pc.add_parameters((2, 1 + i % 2), init=1.0) for i in range(6)]
    if op == "rows":
        ps = [pc.add_parameters((1 + i % 3, 2), init=1.0) for i in range(6)]
    if op == "concatenate_to_batch":
        ps = [pc.add_parameters((2, 2), init=1.0) for i in range(6)]
    xs = [p if i in needed else dy.const_parameter(p) for i, p in enumerate(ps)]
    join = {"concatenate": lambda es: dy.concatenate(es, 1), "rows": dy.concatenate}.get(op) or getattr(dy, op)
    y = join([x * 1.0 for x in xs])
    weights = np.arange(y.npvalue().size, dtype=float).reshape(y.npvalue().shape, order="F") + 1
    dy.sum_batches(dy.sum_elems(dy.cmult(y, dy.inputTensor(weights, batched=y.dim()[1] > 1)))).backward()
    axis = {"rows": 0, "concatenate_to_batch": 2}.get(op, 1)
    parts = np.split(weights, np.cumsum([1 if axis == 2 else p.shape()[axis] for p in ps])[:-1], axis)
    for i, (p, part) in enumerate(zip(ps, parts)):
        np.testing.assert_array_equal(p.grad_as_array(), part.reshape(p.shape(), order="F") * (i in needed))


def test_the_first_of_equal_ones_has_the_gradient(graph: Any, strategy: int) -> None:
    xs = [dy.inputTensor(np.array(v)) for v in ([1.0, 5, np.nan, 2], [3.0, 5, 0, 2], [3.0, 4, 0, 2])]
    y = dy.emax(xs)
    dy.sum_elems(y).backward(full=True)
    gradients = [x.gradient() for x in xs]
    np.testing.assert_array_equal(gradients, [[0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]])
