"""DLPack with parameters and graphs on a device."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import dynet_cy as dy

sys.path.insert(0, str(Path(__file__).parents[1] / "onnx"))


def test_values_come_to_the_cpu(on_device: str) -> None:
    W = dy.ParameterCollection().parameters_from_numpy(np.eye(3))
    y = W * dy.inputVector([1, 2, 3])
    assert y.__dlpack_device__() == (1, 0)
    np.testing.assert_array_equal(np.from_dlpack(y), [1, 2, 3])


def test_parameters_are_not_shared(on_device: str) -> None:
    W = dy.ParameterCollection().parameters_from_numpy(np.eye(3))
    with pytest.raises(BufferError, match="parameter /_0 is on GPU:0; only memory of the CPU can be shared"):
        np.from_dlpack(W)
    assert "dltensor" in repr(W.__dlpack__(copy=True))
    dy.squared_norm(W).backward()  # training still works
    np.testing.assert_array_equal(W.grad_as_array(), 2 * np.eye(3))


def test_models_on_a_device_are_exported(on_device: str, tmp_path: Path) -> None:
    running = pytest.importorskip("running", reason="files are written by onnx and run by onnxruntime")
    model = dy.ParameterCollection()
    W, table = model.add_parameters((4, 3)), model.add_lookup_parameters((9, 3))
    inputs = {"word": dy.onnx.Indices((), 9), "x": dy.onnx.Floats((3, "n"))}
    batches = [[[w, np.full((3, n), w, np.float32)] for w in (2, 8)] for n in (1, 5)]
    running.check(lambda w, x: dy.softmax(W * (x + table[w])), inputs, tmp_path / "model.onnx", batches)
    there = dy.ParameterCollection().parameters_from_numpy(np.eye(3), device="CPU")
    running.check(
        lambda x: dy.to_device(there, on_device) * x,
        {"x": dy.onnx.Floats(3)},
        tmp_path / "b.onnx",
        [[[np.arange(3, dtype=np.float32)]]],
    )
