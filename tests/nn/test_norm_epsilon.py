"""The epsilon of norms: gradients at columns of equal numbers, as in PyTorch, and DyNet's formula where it is meant."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Callable

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy import nn

EPS = 1e-5


def pytorch(x: np.ndarray, dy_: np.ndarray, centered: bool) -> tuple[np.ndarray, np.ndarray]:
    """Value and gradient of the columns' norm in float64, with g = 1 and b = 0."""
    middle = x.mean(0) if centered else 0
    factor = 1 / np.sqrt(((x - middle) ** 2).mean(0) + EPS)
    z = (x - middle) * factor
    slope = dy_ - z * (dy_ * z).mean(0) - (dy_.mean(0) if centered else 0)
    return z, slope * factor


NORMS: dict[str, tuple[bool, Callable[[Any, Any], dy.Expression]]] = {
    "LayerNorm": (True, lambda x, m: nn.LayerNorm(4, m)(x)),
    "layer_norm": (True, lambda x, m: dy.layer_norm(x, dy.ones(4), dy.zeros(4))),
    "residual_layer_norm": (True, lambda x, m: dy.residual_layer_norm(x, 0 * x, dy.ones(4), dy.zeros(4))),
    "after": (True, lambda x, m: nn.LayerNorm(4, m).after(x, 0 * x)),
    "RMSNorm": (False, lambda x, m: nn.RMSNorm(4, m)(x)),
    "rms_norm": (False, lambda x, m: dy.rms_norm(x, dy.ones(4))),
    "group_norm": (True, lambda x, m: dy.concatenate_cols([column(x, i) for i in range(5)])),
}


def column(x: dy.Expression, i: int) -> dy.Expression:
    own = dy.reshape(x[:, i], (1, 1, 4))
    return dy.reshape(dy.group_norm(own, 1, dy.ones(4), dy.zeros(4)), (4,))


@pytest.mark.parametrize("name", NORMS)
def test_columns_of_equal_numbers(name: str) -> None:
    centered, norm = NORMS[name]
    rng = np.random.default_rng(0)
    columns = [np.full(4, 3.0), np.zeros(4), *(size * rng.normal(size=4) for size in (1e-3, 1, 1e-7))]
    x, g = np.stack(columns, axis=1).astype(np.float32), rng.normal(size=(4, 5))
    model = dy.ParameterCollection()
    p = model.add_parameters(x.shape, init=x)
    y = norm(p, model)
    dy.dot_product(dy.reshape(y, (20,)), dy.inputTensor(g.ravel(order="F"))).backward()
    value, gradient = pytorch(x.astype(float), g, centered)
    np.testing.assert_allclose(y.npvalue(), value, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(p.grad_as_array(), gradient, rtol=1e-3, atol=1e-3)
    assert np.abs(p.grad_as_array()).max() < 2000


def test_lstm_with_norms_and_a_first_input_of_zeros() -> None:
    model = dy.ParameterCollection()
    rnn = dy.VanillaLSTMBuilder(1, 3, 4, model, ln_lstm=True)
    x = model.add_parameters(3, init=0.0)
    dy.sum_elems(rnn.transduce([x, x])[-1]).backward()
    assert np.abs(x.grad_as_array()).max() < 1e4


def test_one_such_column_leaves_the_update_of_the_others() -> None:
    model = dy.ParameterCollection()
    table, norm, W = model.add_lookup_parameters((3, 4)), nn.LayerNorm(4, model), model.add_parameters((2, 4))
    table.init_row(0, [0.0] * 4)
    dy.esum([dy.pickneglogsoftmax(W * norm(table[i]), i % 2) for i in range(3)]).backward()
    before = W.as_array()
    dy.SimpleSGDTrainer(model, 0.1).update()
    assert np.abs(W.as_array() - before).max() > 1e-3


def test_formula_of_dynet() -> None:
    """By eps=0, and by default in its programs."""
    x = np.array([1e-3, 2e-3, 4e-3])
    want = (x - x.mean()) / (x.std() + 1e-8)
    found = dy.layer_norm(dy.inputVector(x), dy.ones(3), dy.zeros(3), eps=0).npvalue()
    np.testing.assert_allclose(found, want, rtol=1e-4)
    np.testing.assert_allclose(nn.LayerNorm(3, dy.ParameterCollection(), 0)(x).npvalue(), want, rtol=1e-4)
    program = (
        "import dynet_cy.compat\ndynet_cy.compat.install()\nimport dynet as dy\n"
        "y = dy.layer_norm(dy.inputVector([1e-3, 2e-3, 4e-3]), dy.ones(3), dy.zeros(3))\n"
        "print(*y.npvalue())\n"
        "m = dy.ParameterCollection()\np = m.add_parameters(1, init=dy.ConstInitializer(0))\n"
        "t = dy.AdamTrainer(m, alpha=1.0)\ndy.sum_elems(p * 1e-6).backward()\nt.update()\nprint(p.as_array()[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    norm, adam = done.stdout.splitlines()
    np.testing.assert_allclose([float(v) for v in norm.split()], want, rtol=1e-4)
    # Adam's eps comes before the correction there: 24 % less than without eps, and 1 % here.
    assert float(adam) == pytest.approx(-0.7597, abs=1e-3)
    model = dy.ParameterCollection()
    p = model.add_parameters(1, init=0.0)
    trainer = dy.AdamTrainer(model, 1.0)
    dy.sum_elems(p * 1e-6).backward()
    trainer.update()
    assert p.value() == pytest.approx(-1 / 1.01, abs=1e-4)


@pytest.mark.parametrize("eps", [-1.0, float("nan"), float("inf")])
def test_errors(eps: float) -> None:
    with pytest.raises(ValueError, match="layer_norm: eps must be a number of at least 0"):
        dy.layer_norm(dy.ones(3), dy.ones(3), dy.zeros(3), eps=eps)
    with pytest.raises(ValueError, match="LayerNorm: argument eps: expected a number of at least 0"):
        nn.LayerNorm(3, dy.ParameterCollection(), eps)
