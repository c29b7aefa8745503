"""Custom ops and GPUs: an error that names the op, and the way through the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.graph.expressions import set_default_device

failing = {"on": False}


def backward(dy, y, x, w):
    if failing["on"]:
        raise ZeroDivisionError("backward")
    return w * dy, x * dy


times = dy.custom_op("times", lambda x, w: x * w, backward)


def test_an_error_by_name(on_device) -> None:
    dy.renew_cg()
    y = times(dy.inputVector([1, 2]), dy.inputVector([3, 4]))
    with pytest.raises(NotImplementedError, match=r"times: it is not implemented on GPU:0 yet.*to_device\(x, 'CPU'\)"):
        y.npvalue()
    np.testing.assert_allclose(dy.tanh(dy.inputVector([1, 2])).npvalue(), np.tanh([1, 2]), rtol=1e-6)


def test_through_the_cpu(device) -> None:
    """With copies to the CPU, values and gradients are right, and an exception in backward changes no gradient."""
    set_default_device(0)
    model = dy.ParameterCollection()
    w = model.add_parameters(2, init=dy.NumpyInitializer(np.array([3, 4], np.float32)), device="GPU:0")
    dy.renew_cg()
    ys = []
    for i in range(3):
        x = dy.to_device(dy.inputVector([1, i]), "GPU:0")
        ys.append(dy.to_device(times(dy.to_device(dy.square(x), "CPU"), dy.to_device(w, "CPU")), "GPU:0"))
    loss = dy.sum_elems(dy.esum(ys))
    assert loss.value() == 3 * 3 + 4 * (0 + 1 + 4)
    failing["on"] = True
    try:
        with pytest.raises(ZeroDivisionError):
            loss.backward()
    finally:
        failing["on"] = False
    np.testing.assert_array_equal(w.grad_as_array(), [0, 0])
    loss.backward()
    np.testing.assert_array_equal(w.grad_as_array(), [3, 5])
    dy.renew_cg()
