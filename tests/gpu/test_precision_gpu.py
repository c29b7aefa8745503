"""Products on a GPU are float32: with precision="bf16", it refuses to compute."""

from __future__ import annotations

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.kernels import kernels

pytestmark = pytest.mark.skipif(bool(kernels.bf16_missing()), reason=kernels.bf16_missing())


def test_a_pass_on_a_gpu_is_refused(on_device: str) -> None:
    w = dy.ParameterCollection().parameters_from_numpy(np.ones((128, 128)))
    x = dy.inputVector(np.ones(128))
    y = w * x
    config.set(precision="bf16")
    try:
        with pytest.raises(RuntimeError, match=r"GPU:0: precision='bf16' is for the CPU.*set precision='float32'"):
            y.value()
        assert dy.inputVector([2.0], device="CPU").value() == 2
    finally:
        config.set(precision="float32")
    assert y.npvalue()[5] == 128


def test_settings_that_exclude_each_other(device: str) -> None:
    before = config.get()
    config.set(precision="bf16")
    try:
        with pytest.raises(RuntimeError, match="precision='bf16' is for the CPU"):
            config.set_gpu()
        with pytest.raises(RuntimeError, match="precision='bf16' is for the CPU"):
            config.set(gpu_mask=[1])
        config.set(precision="float32", requested_gpus=1)
        with pytest.raises(RuntimeError, match="precision='bf16' is for the CPU"):
            config.set(precision="bf16")
        assert config.gpu()
        config.set(precision="bf16", requested_gpus=0)
        assert config.get()["precision"] == "bf16"
    finally:
        config.set(precision="float32", requested_gpus=0)
    assert config.get() == before
