"""Layers that are called on columns keep them apart: one word is a column, and so is none."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest
from layer_reference import LAYERS, D

import dynet_cy as dy
from dynet_cy import nn

WIDTH = 3
MORE: dict[str, Callable[[dy.ParameterCollection], Any]] = {
    "embedding": lambda m: nn.Embedding(9, D, m),
    "dropout": lambda m: nn.Dropout(0.5),
    "activation": lambda m: nn.Activation("tanh"),
    "sinusoids": lambda m: nn.SinusoidalPositions(D),
    "attention": lambda m: nn.MultiHeadAttention(D, 2, m),
    "attention without bias": lambda m: nn.MultiHeadAttention(D, 2, m, bias=False),
    "rotary": lambda m: nn.MultiHeadAttention(D, 2, m, positions="rotary"),
    "relative": lambda m: nn.MultiHeadAttention(D, 2, m, positions="relative"),
    "encoder layer": lambda m: nn.TransformerEncoderLayer(D, 2, 5, m),
    "encoder": lambda m: nn.TransformerEncoder(2, D, 2, 5, m, norm_first=True),
    "conv1d": lambda m: nn.Conv1d(D, 2, WIDTH, m, padding="same"),
    "conv1d, width 1": lambda m: nn.Conv1d(D, 2, 1, m),
    "conv1d without bias": lambda m: nn.Conv1d(D, 2, WIDTH, m, padding=1, bias=False),
    "conv1d in groups": lambda m: nn.Conv1d(D, 2, WIDTH, m, padding=1, groups=2),
    "conv transpose1d": lambda m: nn.ConvTranspose1d(D, 2, WIDTH, m, padding=1),
    "sequential": lambda m: nn.Sequential([(nn.Linear, D, 3), "tanh", (nn.GatedLinear, 3, 2)], m),
    "batch norm": lambda m: nn.BatchNorm(D, m).eval(),
}
# Layers that need a column, and what their errors say.
REFUSE_NONE = {
    "embedding": "Embedding: argument ids: expected numbers",
    **dict.fromkeys(
        ["conv1d", "conv1d without bias", "conv1d in groups"], "Conv1d: argument x: 2 columns, with padding"
    ),
    "conv1d, width 1": "Conv1d: argument x: 0 columns",
    "conv transpose1d": "conv_transpose2d: x and f must have rows and columns",
}
CASES = {name: lambda m, made=made: made[0].from_spec(made[1:], m) for name, (made, _) in LAYERS.items()} | MORE


def called(name: str, layer: Any, columns: int, batch: int = 1) -> dy.Expression:
    rng = np.random.default_rng(columns)
    if name == "embedding":
        return layer(rng.integers(9, size=(columns, batch) if batch > 1 else columns))
    shape = (D, columns, batch) if batch > 1 else (D, columns)
    return layer(dy.inputTensor(rng.normal(size=shape), batched=batch > 1))


@pytest.mark.parametrize("name", CASES)
def test_one_column(name: str) -> None:
    layer = CASES[name](dy.ParameterCollection())
    layer.eval()
    rows = called(name, layer, 5).dim()[0][0]
    for batch in (1, 3):
        if batch > 1 and name == "embedding":
            continue  # an array of shape (1, n) is an error
        y = called(name, layer, 1, batch)
        assert y.dim() == ((rows, 1), batch)
        assert np.isfinite(y.npvalue()).all()
        dy.sum_elems(dy.mean_batches(y)).backward()


@pytest.mark.parametrize("name", CASES)
def test_no_column(name: str) -> None:
    layer = CASES[name](dy.ParameterCollection())
    layer.eval()
    rows = called(name, layer, 5).dim()[0][0]
    if name in REFUSE_NONE:
        with pytest.raises((ValueError, dy.DimensionError), match=REFUSE_NONE[name]):
            called(name, layer, 0)
        return
    y = called(name, layer, 0)
    assert y.dim() == ((rows, 0), 1)
    assert y.npvalue().shape == (rows, 0)


@pytest.mark.parametrize("name", ["decoder layer", "decoder"])
@pytest.mark.parametrize(("columns", "memory"), [(1, 1), (1, 4), (4, 1)])
def test_one_column_of_decoders(name: str, columns: int, memory: int) -> None:
    m = dy.ParameterCollection()
    layer: Any = nn.TransformerDecoder(2, D, 2, 5, m) if name == "decoder" else nn.TransformerDecoderLayer(D, 2, 5, m)
    assert layer(dy.ones((D, columns)), dy.ones((D, memory))).dim() == ((D, columns), 1)


def test_one_column_of_others() -> None:
    m = dy.ParameterCollection()
    x = dy.ones((D, 1))
    assert nn.BiaffineAttention(D, D, m)(x, x).dim() == ((1, 1), 1)
    assert nn.PointerAttention(D, D, 5, m)(x, dy.ones(D)).dim() == ((1,), 1)
    assert nn.CRF(3, m).best(dy.ones((3, 1)))[0] in range(3)
    assert nn.TransformerEncoder(1, D, 2, 5, m).step(x)[0].dim() == ((D, 1), 1)
    # A vector stays one.
    assert nn.Linear(D, 2, m)(dy.ones(D)).dim() == ((2,), 1)
    assert nn.TransformerEncoder(1, D, 2, 5, m).step(dy.ones(D))[0].dim() == ((D,), 1)
