"""Benchmark programs on the device: losses, gradients and parameters equal the CPU's."""

from __future__ import annotations

import numpy as np
import pytest
import workloads
from workloads.common import Weights

import dynet_cy as dy
from dynet_cy.graph.expressions import set_autobatching, set_default_device

pytestmark = pytest.mark.usefixtures("on_the_cpu_again")


def updates(name: str, form: str, device: int) -> list[np.ndarray]:
    """Losses, gradients and parameters of three updates."""
    set_default_device(device)
    set_autobatching(int(form in ("autobatch", "fused")))
    workload = workloads.load(name, tiny=True)
    model = dy.ParameterCollection()
    loss = workload.dynet(dy, model)
    Weights().fill(model)
    trainer = dy.SimpleSGDTrainer(model, workload.learning_rate)
    trained = [*model.parameters_list(), *model.lookup_parameters_list()]
    found = []
    for _ in range(3):
        dy.renew_cg()
        expression = loss(form)
        found.append(expression.npvalue())
        if workload.mode != "forward":
            expression.backward()
            found += [p.grad_as_array() for p in trained]
        if workload.mode == "train":
            trainer.update()
    return found + [p.as_array() for p in trained]


@pytest.mark.parametrize("name", workloads.NAMES)
def test_every_form_computes_what_the_cpu_does(name: str) -> None:
    workload = workloads.load(name, tiny=True)
    for form in (*workload.dynet_forms, *workload.own_forms):
        for found, desired in zip(updates(name, form, 1), updates(name, form, 0)):
            assert found.shape == desired.shape
            bound = 1e-4 * max(1e-3, float(np.abs(desired).max()))
            np.testing.assert_allclose(found, desired, rtol=1e-3, atol=bound, err_msg=form)
