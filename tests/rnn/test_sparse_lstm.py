"""The LSTM with pruned weights."""

from __future__ import annotations

import numpy as np
import pytest

import dynet_cy as dy

pytestmark = pytest.mark.usefixtures("on_each_device")


def run(builder: dy.VanillaLSTMBuilder) -> dy.Expression:
    dy.renew_cg()
    return builder.initial_state().transduce([dy.inputVector([1.0, -0.5]), dy.inputVector([0.3, 2.0])])[-1]


def fill(builder: dy.VanillaLSTMBuilder, values: list[np.ndarray]) -> None:
    weights = [p for layer in builder.get_parameters() for p in layer[:3]]
    for p, value in zip(weights, values):
        p.set_value(value)


@pytest.mark.parametrize("ln_lstm", [False, True])
def test_pruned_weights_count_as_zero(rng: np.random.Generator, ln_lstm: bool) -> None:
    model = dy.ParameterCollection()
    sparse = dy.SparseLSTMBuilder(2, 2, 3, model, ln_lstm, 0.5)
    plain = dy.VanillaLSTMBuilder(2, 2, 3, model, ln_lstm, 0.5)
    values = [rng.normal(size=p.shape()) for layer in plain.get_parameters() for p in layer]
    fill(sparse, values)
    fill(plain, values)
    np.testing.assert_allclose(run(sparse).npvalue(), run(plain).npvalue(), rtol=1e-5)
    for part in (0.25, 0.5, 0.9, 1.0):
        sparse.set_sparsity(part)
        size = np.sort(np.abs(np.concatenate([v.ravel() for v in values if v.ndim == 2])))[::-1]
        kept = int(len(size) * (1 - part))
        least = size[kept - 1] if kept else np.inf
        pruned = [v if v.ndim == 1 else v * (np.abs(v) >= least) for v in values]
        fill(plain, pruned)
        np.testing.assert_allclose(run(sparse).npvalue(), run(plain).npvalue(), rtol=1e-4, atol=1e-6)
        for have, want in zip(sparse.get_parameters(), (pruned[:3], pruned[3:])):
            for mask, weights in zip(have[3:], want[:2]):
                np.testing.assert_array_equal(mask.as_array(), weights != 0)
    sparse.set_sparsity(0)
    np.testing.assert_array_equal(sparse.get_parameters()[0][3].as_array(), 1)


def test_masks_are_not_trained(rng: np.random.Generator) -> None:
    model = dy.ParameterCollection()
    builder = dy.SparseLSTMBuilder(1, 2, 3, model)
    builder.set_sparsity(0.5)
    w_x, w_h, _, mask_x, mask_h = builder.get_parameters()[0]
    before = [p.as_array() for p in (w_x, w_h, mask_x, mask_h)]
    dy.sum_elems(run(builder)).backward()
    dy.SimpleSGDTrainer(model, 1.0).update()
    after = [p.as_array() for p in (w_x, w_h, mask_x, mask_h)]
    np.testing.assert_array_equal(after[2], before[2])
    np.testing.assert_array_equal(after[3], before[3])
    for was, now, mask in zip(before[:2], after[:2], before[2:]):
        np.testing.assert_array_equal((was != now) <= (mask == 1), True)
        assert (was != now).any()


def test_file_spec_and_errors() -> None:
    model = dy.ParameterCollection()
    builder = dy.SparseLSTMBuilder(1, 2, 3, model, True, 0.5)
    shapes = [p.shape() for p in builder.param_collection().parameters_list()]
    assert shapes == [(12, 2), (12, 3), (12, 2), (12, 3), (12,)]
    assert builder.spec == (1, 2, 3, True, 0.5)
    again = dy.SparseLSTMBuilder.from_spec(builder.spec, model)
    assert again.param_collection().name() == "/vanilla-lstm-builder_1/"
    for part in (-0.1, 1.1):
        with pytest.raises(ValueError, match="set_sparsity: argument sparsity"):
            builder.set_sparsity(part)
