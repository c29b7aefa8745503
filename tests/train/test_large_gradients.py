"""Gradients whose squares do not fit in a float are clipped like others."""

from __future__ import annotations

import numpy as np
import pytest

import dynet_cy as dy


@pytest.mark.parametrize("size", [1e15, 1e20, 1e30])
@pytest.mark.parametrize("threshold", [5.0, 0.0])
def test_updates_with_large_gradients(size: float, threshold: float) -> None:
    model = dy.ParameterCollection()
    p, table = model.add_parameters(4, init=0.0), model.add_lookup_parameters((3, 2), init=0.0)
    trainer = dy.SimpleSGDTrainer(model, 1.0)
    trainer.set_clip_threshold(threshold)
    dy.renew_cg()
    ((dy.sum_elems(p) + dy.sum_elems(table[1])) * size).backward()
    trainer.update()
    norm = size * np.sqrt(6)
    assert trainer.gradient_norm == pytest.approx(norm, rel=1e-5)
    step = size * (threshold / norm if threshold else 1)
    np.testing.assert_allclose(p.as_array(), -step, rtol=1e-5)
    np.testing.assert_allclose(table.as_array(), np.array([[0], [-step], [0]]).repeat(2, 1), rtol=1e-5)


@pytest.mark.parametrize("odd", [np.inf, np.nan])
def test_gradients_that_are_not_finite_are_still_an_error(odd: float) -> None:
    model = dy.ParameterCollection()
    p, q = model.add_parameters(4, init=0.0, name="p"), model.add_parameters(2, init=0.0, name="q")
    trainer = dy.SimpleSGDTrainer(model, 1.0)
    dy.renew_cg()
    (dy.dot_product(p, dy.inputVector([1, odd, 1, 1])) + dy.sum_elems(q) * 1e30).backward()
    with pytest.raises(RuntimeError, match="the gradients of /p are not finite"):
        trainer.update()


def test_second_derivatives_of_a_large_norm(graph) -> None:
    p = dy.ParameterCollection().add_parameters(2, init=np.array([3e20, 4e20]))
    (slopes,) = dy.gradients(dy.l2_norm(p), [p])
    np.testing.assert_allclose(slopes.npvalue(), [0.6, 0.8], rtol=1e-6)
