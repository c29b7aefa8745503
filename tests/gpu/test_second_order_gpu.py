"""Gradients as expressions on the device, compared with the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import test_second_order
from table import Case

import dynet_cy as dy
from dynet_cy.graph.expressions import set_default_device


def one_for_each_op() -> list[Case]:
    """The first case of each operation that has a second order."""
    found: list[Case] = []
    seen: set[str] = set()
    for case in test_second_order.ABLE:
        ops = test_second_order.ops_of(case)
        if not ops <= seen:
            found.append(case)
            seen |= ops
    return found


@pytest.mark.parametrize("case", one_for_each_op(), ids=lambda c: c.id)
def test_as_on_the_cpu(case: Case, on_device: str) -> None:
    for strategy in (0, 1):
        set_default_device(1)
        found = test_second_order.mixed(case, strategy)
        set_default_device(0)
        desired = test_second_order.mixed(case, strategy)
        for actual, expected in zip(found, desired):
            scale = max(1, np.abs(expected).max(initial=0))
            np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=2e-4 * scale)


def test_several_devices(w: dy.Parameters, device: str) -> None:
    """Each gradient is where its expression is."""
    dy.renew_cg()
    x = dy.square(w)
    there = dy.to_device(x, device)
    loss = dy.to_device(dy.squared_norm(there), "CPU") + dy.sum_elems(x)
    slope = dy.gradients(loss, w)
    np.testing.assert_allclose(slope.npvalue(), 4 * np.array([1, 8, 27]) + 2 * np.array([1, 2, 3]))
    of_the_copy = dy.gradients(loss, there)
    np.testing.assert_allclose(of_the_copy.npvalue(), 2 * np.array([1, 4, 9]))
    dy.squared_norm(slope).backward()
    np.testing.assert_allclose(w.grad_as_array(), 2 * slope.npvalue() * (12 * np.array([1, 4, 9]) + 2), rtol=1e-5)
    dy.renew_cg()


def test_a_loss_on_another_device_than_the_default(device: str) -> None:
    """What the gradients begin with is where the loss is; so are vectors that are arrays where their expression is."""
    p = dy.ParameterCollection().parameters_from_numpy(np.array([1.0, 2.0, 3.0]), device=device)
    dy.renew_cg()
    loss = dy.sum_elems(dy.cube(p))
    np.testing.assert_allclose(dy.gradients(loss, p).npvalue(), 3 * np.array([1, 4, 9]))
    np.testing.assert_allclose(dy.gradients(-dy.pick(dy.square(p), 1), p).npvalue(), [0, -4, 0])
    for v in (np.array([1.0, 0.0, 1.0]), np.array([[1.0], [0.0], [1.0]])):
        np.testing.assert_allclose(dy.hessian_vector_product(loss, p, v).npvalue(), [6, 0, 18])
    dy.renew_cg()
