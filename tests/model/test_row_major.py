"""Arrays that a program gets are row-major, as some writers of files assume, whatever the layout in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import dynet_cy as dy
from dynet_cy import nn


def arrays() -> dict[str, Any]:
    """Of each way to get an array: the array, and the numbers that it must have."""
    dy.renew_cg()
    model = dy.ParameterCollection()
    numbers = {shape: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for shape in ((3, 4), (2, 3, 4))}
    found: dict[str, Any] = {}
    for shape, x in numbers.items():
        W, E = model.parameters_from_numpy(x), model.lookup_parameters_from_numpy(x)
        (dy.dot_product(dy.reshape(W, (x.size,)), dy.ones(x.size)) + dy.sum_elems(dy.square(E[1]))).backward()
        rows = np.zeros_like(x)
        rows[1] = 2 * x[1]
        y = dy.inputTensor(x)
        found |= {
            f"as_array {shape}": (W.as_array(), x),
            f"npvalue {shape}": (W.npvalue(), x),
            f"grad_as_array {shape}": (W.grad_as_array(), np.ones_like(x)),
            f"table {shape}": (E.as_array(), x),
            f"rows {shape}": (E.rows_as_array([1, 0]), x[[1, 0]]),
            f"row {shape}": (E.row_as_array(1), x[1]),
            f"gradient of a table {shape}": (E.grad_as_array(), rows),
            f"gradient of a row {shape}": (E.row_grad_as_array(1), rows[1]),
            f"expression {shape}": ((y + 1).npvalue(), x + 1),
            f"npvalues {shape}": (dy.npvalues([y + 3])[0], x + 3),
            f"minibatch {shape}": ((dy.inputTensor(x, batched=True) + 1).npvalue(), x + 1),
            f"integers {shape}": (dy.to_int(y).npvalue(), x.astype(np.int32)),
        }
    layer = nn.Linear(4, 3, model)
    W = layer.W
    found["state_dict of a layer"] = (layer.state_dict()["W"], W.as_array())
    found["state_dict of a collection"] = (model.state_dict()["linear/W"], W.as_array())
    rnn = dy.LSTMBuilder(1, 3, 2, model)
    found["weights for PyTorch"] = (rnn.pytorch_state_dict()["weight_ih_l0"], None)
    return found


CASES = arrays()


@pytest.mark.parametrize("name", CASES)
def test_row_major(name: str, tmp_path: Path) -> None:
    array, want = CASES[name]
    assert array.flags.c_contiguous
    want = array if want is None else want
    np.testing.assert_allclose(array, want)
    save_file({"x": array}, tmp_path / "x.safetensors")
    np.testing.assert_allclose(load_file(tmp_path / "x.safetensors")["x"], want)
    np.save(tmp_path / "x.npy", array)
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), want)
    array.tofile(tmp_path / "x.bin")
    np.testing.assert_allclose(np.fromfile(tmp_path / "x.bin", array.dtype).reshape(array.shape), want)


def test_a_layer_written_by_others(tmp_path: Path) -> None:
    dims: list[Any] = [(nn.Linear, 3, 5), "tanh", (nn.Linear, 5, 2)]
    one, other = (nn.Sequential(dims, dy.ParameterCollection()) for _ in range(2))
    save_file(one.state_dict(), tmp_path / "m.safetensors")
    other.load_state_dict(load_file(tmp_path / "m.safetensors"))
    for name, array in one.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[name], array)
