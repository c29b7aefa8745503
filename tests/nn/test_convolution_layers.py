"""Convolutions and normalization of minibatches."""

from __future__ import annotations

import numpy as np
import pytest
from layer_checks import arrays, check_layer, check_minibatch, randomized, sentences
from layer_reference import conv1d

import dynet_cy as dy
from dynet_cy import nn


def test_conv1d_of_short_sentences() -> None:
    layer = randomized(nn.Conv1d(3, 4, 3, dy.ParameterCollection(), padding="same"))
    x = sentences(3, (1,))[0][0]
    want = conv1d(arrays(layer), x, 3, 1, "same", 1)[:, 0]
    np.testing.assert_allclose(layer(dy.inputVector(x[:, 0])).npvalue(), want, rtol=1e-5, atol=1e-5)
    layer = nn.Conv1d(3, 4, 3, dy.ParameterCollection())
    with pytest.raises(dy.DimensionError, match="2 columns, with padding, for windows of 3"):
        layer(dy.zeros((3, 2)))


def test_conv_errors() -> None:
    model = dy.ParameterCollection()
    for make, message in [
        (lambda: nn.Conv1d(3, 4, 3, model, 2, "same"), "'same' needs a stride of 1"),
        (lambda: nn.Conv1d(3, 4, 3, model, padding="full"), "expected a number from 0 on, 'same' or 'valid'"),
        (lambda: nn.Conv1d(3, 4, 3, model, padding=-1), "got -1"),
        (lambda: nn.Conv2d(3, 4, (1, 2, 3), model), "argument size: expected a whole number, or two"),
        (lambda: nn.Conv2d(3, 4, 3, model, padding="full"), "argument padding"),
        (lambda: nn.Conv2d(3, 4, 3, model, padding=(0, -1)), "expected numbers from 0 on"),
        (lambda: nn.Conv2d(3, 4, 3, model, groups=2), "Conv2d: argument groups: 3 inputs and 4 outputs"),
        (lambda: nn.Conv1d(4, 3, 3, model, groups=2), "Conv1d: argument groups: 4 inputs and 3 outputs"),
        (lambda: nn.Conv2d(4, 4, 3, model, dilation=0), "Conv2d: argument dilation"),
        (lambda: nn.ConvTranspose2d(3, 4, 3, model, groups=2), "ConvTranspose2d: argument groups"),
        (lambda: nn.ConvTranspose1d(3, 4, 3, model, padding=-1), "ConvTranspose1d: argument padding"),
        (lambda: nn.ConvTranspose2d(3, 4, 3, model, output_padding=-1), "ConvTranspose2d: argument output_padding"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
    assert model.parameter_count() == 0
    with pytest.raises(dy.DimensionError, match="expected 3 channels as third axis"):
        nn.Conv2d(3, 4, 2, model)(dy.zeros((4, 4)))
    with pytest.raises(dy.DimensionError, match="ConvTranspose2d: argument x: expected 3 channels as third axis"):
        nn.ConvTranspose2d(3, 4, 2, model)(dy.zeros((4, 4)))
    with pytest.raises(dy.DimensionError, match="ConvTranspose1d: nothing is left of 2 columns without 1 on both"):
        nn.ConvTranspose1d(3, 4, 2, model, padding=1)(dy.zeros((3, 1)))
    with pytest.raises(TypeError, match="argument x: expected an expression"):
        nn.Conv2d(3, 4, 2, model)("text")


# ---- BatchNorm

SHAPES = [((3,), 4, 0), ((3, 2), 3, 0), ((2, 4, 3), 2, -1), ((2, 4, 3), 1, 2)]


def over(axis, shape):
    """The axes other than `axis` of an array whose last axis is the batch."""
    return tuple(i for i in range(len(shape) + 1) if i != axis % len(shape))


def batch_norm(p, x, axis):
    """The batch is the last axis of x."""
    other = over(axis, x.shape[:-1])
    places = [1] * x.ndim
    places[axis % (x.ndim - 1)] = -1
    y = (x - x.mean(other, keepdims=True)) / np.sqrt(x.var(other, keepdims=True) + 1e-5)
    return y * p["g"].reshape(places) + p["b"].reshape(places) + 0 * (p["mean"].sum() + p["var"].sum())


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize(("shape", "batch", "axis"), SHAPES)
def test_batch_norm_in_training(shape, batch, axis) -> None:
    layer = randomized(nn.BatchNorm(3, dy.ParameterCollection(), axis))
    before = arrays(layer)
    x = np.random.default_rng(1).normal(2, 3, (*shape, batch)).astype(np.float32)
    found = layer(dy.inputTensor(x, batched=True))
    assert found.dim() == (shape, batch)
    want = batch_norm(before, x.astype(np.float64), axis)
    np.testing.assert_allclose(found.npvalue().reshape(want.shape), want, rtol=2e-5, atol=2e-5)
    other = over(axis, shape)
    np.testing.assert_allclose(layer.mean.as_array(), 0.9 * before["mean"] + 0.1 * x.mean(other), rtol=1e-5)
    np.testing.assert_allclose(layer.var.as_array(), 0.9 * before["var"] + 0.1 * x.var(other, ddof=1), rtol=1e-5)


@pytest.mark.parametrize(("shape", "batch", "axis"), SHAPES)
def test_batch_norm_in_evaluation(shape, batch, axis) -> None:
    layer = randomized(nn.BatchNorm(3, dy.ParameterCollection(), axis)).eval()
    layer.var.set_value(np.array([0.5, 1.5, 3.0]))
    before = arrays(layer)
    x = np.random.default_rng(1).normal(2, 3, (*shape, batch)).astype(np.float32)
    places = [1] * (len(shape) + 1)
    places[axis % len(shape)] = -1
    want = (x - before["mean"].reshape(places)) / np.sqrt(before["var"].reshape(places) + 1e-5)
    want = want * before["g"].reshape(places) + before["b"].reshape(places)
    found = layer(dy.inputTensor(x, batched=True)).npvalue()
    np.testing.assert_allclose(found.reshape(want.shape), want, rtol=1e-5, atol=1e-5)
    assert all((arrays(layer)[name] == before[name]).all() for name in before)
    if batch > 1:
        check_minibatch(layer, [(x[..., 0],), (x[..., 1],)], 1e-5)


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("axis", [0, -1])
def test_batch_norm_gradients(axis) -> None:
    layer = randomized(nn.BatchNorm(3, dy.ParameterCollection(), axis))
    # The positions of one call are a minibatch; two calls are two minibatches.
    examples = [(np.random.default_rng(i).normal(1, 2, (3, 5) if axis == 0 else (5, 3)),) for i in range(2)]
    examples = [(x.astype(np.float32),) for (x,) in examples]
    check_layer(
        layer, lambda p, x: batch_norm(p, x[..., None], axis)[..., 0], examples, tolerance=3e-5, minibatch=False
    )


def test_running_statistics_are_not_trained(tmp_path) -> None:
    model = dy.ParameterCollection()
    layer = nn.BatchNorm(2, model)
    layer.set_updated(False)
    layer.set_updated(True)
    assert [p.is_updated() for p in (layer.g, layer.b, layer.mean, layer.var)] == [True, True, False, False]
    trainer = dy.AdamTrainer(model)
    x = dy.inputTensor(np.array([[1.0, 2.0, 4.0], [0.0, 5.0, 1.0]]))
    dy.sum_elems(dy.square(layer(x) - 1)).backward()
    mean, var = layer.mean.as_array().copy(), layer.var.as_array().copy()
    trainer.update()
    np.testing.assert_array_equal(layer.mean.as_array(), mean)
    np.testing.assert_array_equal(layer.var.as_array(), var)
    assert not np.array_equal(layer.g.as_array(), [1, 1])
    dy.save(tmp_path / "m", [layer])
    (loaded,) = dy.load(tmp_path / "m", dy.ParameterCollection())
    np.testing.assert_allclose(loaded.mean.as_array(), mean)
    assert not loaded.mean.is_updated()


def test_batch_norm_errors() -> None:
    layer = nn.BatchNorm(3, dy.ParameterCollection())
    with pytest.raises(dy.DimensionError, match=r"expected 3 as axis 0, got \(4,\)"):
        layer(dy.zeros(4))
    with pytest.raises(ValueError, match="a channel needs more than one element"):
        layer(dy.zeros(3))
    with pytest.raises(TypeError, match="expected an expression"):
        layer(3)
    layer.eval()(dy.zeros(3)).value()
