"""residual_layer_norm beyond the table: dropout, addition and layer_norm in one op."""

from __future__ import annotations

import numpy as np
import pytest
from arrays import all_close

import dynet_cy as dy
from dynet_cy import profiling
from dynet_cy.ops.registry import DimensionError

ROWS, LENGTHS = 6, (3, 1, 4, 2, 7)
EPS = {"of PyTorch": 0.1, "of DyNet": 0.0}


def run(strategy: int, fused: bool, dropout: float, eps: float | None, batch: int = 1) -> list[np.ndarray]:
    """Values and gradients for sentences of different lengths; their x and r are parameters."""
    rng = np.random.default_rng(7)
    dy.reset_random_seed(3)
    dy.renew_cg(autobatching=strategy)
    model = dy.ParameterCollection()
    g, b = (model.add_parameters(ROWS, init=rng.standard_normal(ROWS)) for _ in range(2))
    pairs = [[model.add_parameters((ROWS, n), init=rng.standard_normal((ROWS, n))) for _ in "xr"] for n in LENGTHS]
    found = []
    for x, r in pairs:
        scale = dy.inputTensor(rng.uniform(0.5, 2, (1, 1, batch)), batched=True)
        r = dy.cmult(r, scale) if batch > 1 else r + 0
        if fused:
            found.append(dy.residual_layer_norm(x, r, g, b, dropout=dropout, eps=eps))
        else:
            found.append(dy.layer_norm(x + (dy.dropout(r, dropout) if dropout else r), g, b, eps=eps))
    weights = [dy.inputTensor(rng.standard_normal((ROWS, n))) for n in LENGTHS]
    loss = dy.sum_batches(dy.esum([dy.sum_elems(dy.cmult(y, w)) for y, w in zip(found, weights)]))
    loss.backward()
    parameters = [g, b, *(p for pair in pairs for p in pair)]
    return [*(y.npvalue() for y in found), *(p.grad_as_array() for p in parameters)]


@pytest.mark.parametrize("eps", EPS.values(), ids=EPS)
@pytest.mark.parametrize("dropout", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("strategy", [0, 1, 2])
def test_is_dropout_addition_and_layer_norm(strategy: int, batch: int, dropout: float, eps: float | None) -> None:
    """The masks are the same too: they depend on the number of the node."""
    all_close(run(strategy, True, dropout, eps, batch), run(0, False, dropout, eps, batch), rtol=2e-5, atol=2e-5)


def test_sentences_of_different_lengths_are_one_batch() -> None:
    """Without dropout, the columns of all sentences are one matrix; with it, each sentence has its own draw."""
    rng = np.random.default_rng(7)
    for dropout in (0.0, 0.4):
        dy.renew_cg()
        g, b = dy.ones(ROWS), dy.zeros(ROWS)
        ys = []
        for n in LENGTHS:
            x = dy.inputTensor(rng.standard_normal((ROWS, n)))
            ys.append(dy.residual_layer_norm(x, x, g, b, dropout=dropout))
        with profiling.measure() as profile:
            dy.forward(ys)
        (row,) = [row for row in profile if row.op.startswith("residual_layer_norm")]
        assert row.calls == 1


@pytest.mark.parametrize(
    "sizes", [((4, 2), (4, 3), 4, 4), ((4, 2), (4,), 4, 4), ((4, 2), (4, 2), 3, 4), ((4,), (4,), 4, 1)]
)
def test_shapes_that_do_not_fit(sizes) -> None:
    dy.renew_cg()
    with pytest.raises(DimensionError, match="residual_layer_norm: .*(shape of x|4 elements)"):
        dy.residual_layer_norm(*map(dy.ones, sizes))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"dropout": 1.5}, "dropout must be a probability, not 1.5"),
        ({"eps": -1.0}, "eps must be a number of at least 0, not -1.0"),
    ],
)
def test_numbers_out_of_range(more, message: str) -> None:
    dy.renew_cg()
    with pytest.raises(ValueError, match=f"residual_layer_norm: {message}"):
        dy.residual_layer_norm(dy.ones(3), dy.ones(3), dy.ones(3), dy.ones(3), **more)
