"""Sums of products that run as one affine map, on a GPU and on several devices."""

from __future__ import annotations

import numpy as np
import pytest
from arrays import all_close

import dynet_cy as dy
from dynet_cy.core import engine

pytestmark = pytest.mark.usefixtures("device")


def recurrent(device: str, other: str = "") -> tuple[list, list, list]:
    """Values and gradients of a small recurrent network; its output layer may be on another device."""
    rng = np.random.default_rng(3)
    pc = dy.ParameterCollection()
    shapes = ((40, 4), (40, 40), (40,), (3, 40), (3,))
    arrays = [rng.uniform(-0.3, 0.3, shape).astype(np.float32) for shape in shapes]
    W, U, b, V, c = (
        pc.parameters_from_numpy(a, device=(other or device) if k > 2 else device) for k, a in enumerate(arrays)
    )
    products, outputs = [], []
    for length in (3, 5, 4):
        h = dy.inputTensor(rng.uniform(-1, 1, 40), device=device)
        for _ in range(length):
            products.append(U * h)
            h = dy.tanh(b + W * dy.inputTensor(rng.uniform(-1, 1, 4), device=device) + products[-1])
        y = dy.to_device(h, other) if other else h
        outputs.append(dy.squared_norm(V * y + c))
    dy.esum(outputs).backward(full=True)
    gradients = [p.grad_as_array() for p in (W, U, b, V, c)] + [p.gradient() for p in products]
    return [x.npvalue() for x in outputs], gradients, [p.npvalue() for p in products]


@pytest.mark.parametrize("other", ["", "CPU"])
@pytest.mark.parametrize("autobatching", [0, 1, 2])
def test_the_same_as_on_the_cpu(autobatching: int, other: str) -> None:
    found = []
    for device, second, on in (("CPU", "", False), ("CPU", "", True), ("GPU:0", other, True)):
        with engine.tuned({"schedule.rewrite.sums.on": on}):
            dy.renew_cg(autobatching=autobatching)
            engine.stats("schedule.rewrite.sums", reset=True)
            found.append(recurrent(device, second))
            assert (engine.stats("schedule.rewrite.sums")["changed"] > 0) == on
    for result in found[1:]:
        for a, b in zip(found[0], result):
            all_close(a, b, rtol=1e-4, atol=1e-5)
    dy.renew_cg()
