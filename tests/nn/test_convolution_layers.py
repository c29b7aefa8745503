"""Convolutions and normalization of minibatches."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from layer_checks import arrays, check_layer, check_minibatch, randomized, sentences

import dynet_cy as dy
from dynet_cy import nn

CONV1D = [
    (3, 1, "valid", 1, True),
    (3, 1, "same", 1, True),
    (2, 1, "same", 1, False),
    (3, 2, 1, 1, True),
    (2, 1, 2, 2, True),
    (1, 1, "valid", 1, True),
    (1, 2, "valid", 1, False),
]


def conv1d(p, x, width, stride, padding, dilation, groups=1):
    reach = dilation * (width - 1)
    before = {"valid": 0, "same": reach // 2}.get(padding, padding)
    after = {"valid": 0, "same": reach - reach // 2}.get(padding, padding)
    x = np.pad(x, ((0, 0), (before, after)))
    starts = range(0, x.shape[1] - reach, stride)
    parts = []
    for rows, W in zip(np.split(x, groups), np.split(p["W"], groups)):
        windows = [np.concatenate([rows[:, at + k * dilation] for k in range(width)]) for at in starts]
        parts.append(W @ np.stack(windows, 1))
    return np.concatenate(parts) + p.get("b", np.zeros(1))[:, None]


@pytest.mark.parametrize("options", CONV1D, ids=str)
def test_conv1d(options) -> None:
    width, stride, padding, dilation, bias = options
    layer = nn.Conv1d(3, 4, width, dy.ParameterCollection(), stride, padding, dilation, bias)
    check_layer(randomized(layer), lambda p, x: conv1d(p, x, width, stride, padding, dilation), sentences(3, (5, 3, 6)))


@pytest.mark.parametrize("options", CONV1D, ids=str)
def test_conv1d_in_groups(options) -> None:
    width, stride, padding, dilation, bias = options
    layer = nn.Conv1d(4, 6, width, dy.ParameterCollection(), stride, padding, dilation, bias, groups=2)
    assert layer.W.shape() == (6, 2 * width)
    check_layer(
        randomized(layer), lambda p, x: conv1d(p, x, width, stride, padding, dilation, 2), sentences(4, (5, 3, 6))
    )


def test_conv1d_of_short_sentences() -> None:
    layer = randomized(nn.Conv1d(3, 4, 3, dy.ParameterCollection(), padding="same"))
    x = sentences(3, (1,))[0][0]
    want = conv1d(arrays(layer), x, 3, 1, "same", 1)[:, 0]
    np.testing.assert_allclose(layer(dy.inputVector(x[:, 0])).npvalue(), want, rtol=1e-5, atol=1e-5)
    layer = nn.Conv1d(3, 4, 3, dy.ParameterCollection())
    with pytest.raises(dy.DimensionError, match="2 columns, with padding, for windows of 3"):
        layer(dy.zeros((3, 2)))


def conv2d(p, x, stride, around, dilation=(1, 1), groups=1):
    x = np.pad(x, ((around[0],) * 2, (around[1],) * 2, (0, 0)))
    f = p["W"]
    rows, columns = ((f.shape[d] - 1) * dilation[d] + 1 for d in range(2))
    found = np.empty(
        ((x.shape[0] - rows) // stride[0] + 1, (x.shape[1] - columns) // stride[1] + 1, f.shape[3]), dtype=x.dtype
    )
    for i, j in np.ndindex(*found.shape[:2]):
        window = x[i * stride[0] :, j * stride[1] :][: rows : dilation[0], : columns : dilation[1]]
        parts = zip(np.split(window, groups, 2), np.split(f, groups, 3))
        found[i, j] = np.concatenate([np.einsum("abc,abco->o", *part) for part in parts])
    return found + p.get("b", 0)


@pytest.mark.parametrize(
    ("size", "stride", "padding", "around", "bias"),
    [
        (2, 1, "valid", (0, 0), True),
        (3, 1, "same", (1, 1), False),
        ((2, 3), (1, 2), (1, 0), (1, 0), True),
        ((1, 2), 1, 1, (1, 1), True),
    ],
)
def test_conv2d(size, stride, padding, around, bias) -> None:
    layer = randomized(nn.Conv2d(2, 3, size, dy.ParameterCollection(), stride, padding, bias))
    steps = (stride, stride) if isinstance(stride, int) else stride
    rng = np.random.default_rng(0)
    images = [(rng.normal(size=(*shape, 2)).astype(np.float32),) for shape in [(4, 5), (4, 5), (3, 6)]]
    check_layer(layer, lambda p, x: conv2d(p, x, steps, around), images, tolerance=3e-5)


@pytest.mark.parametrize(("dilation", "groups"), [((2, 1), 1), (1, 2), (2, 4)])
def test_conv2d_dilated_and_in_groups(dilation, groups) -> None:
    layer = randomized(nn.Conv2d(4, 8, (2, 3), dy.ParameterCollection(), 1, (1, 1), True, dilation, groups))
    assert layer.W.shape() == (2, 3, 4 // groups, 8)
    apart = (dilation, dilation) if isinstance(dilation, int) else dilation
    rng = np.random.default_rng(0)
    images = [(rng.normal(size=(*shape, 4)).astype(np.float32),) for shape in [(4, 5), (4, 5), (3, 6)]]
    check_layer(layer, lambda p, x: conv2d(p, x, (1, 1), (1, 1), apart, groups), images, tolerance=3e-5)


def conv_transpose2d(p, x, stride, padding, more, dilation, groups):
    """Each pixel adds the filters of its group, times its value, to the result."""
    f = p["W"]
    shape = [(x.shape[d] - 1) * stride[d] + (f.shape[d] - 1) * dilation[d] + 1 for d in range(2)]
    y = np.zeros((*(shape[d] + more[d] for d in range(2)), f.shape[2] * groups), dtype=x.dtype)
    for i, j in np.ndindex(*x.shape[:2]):
        parts = zip(np.split(x[i, j], groups), np.split(f, groups, 3))
        put = np.concatenate([np.einsum("c,aboc->abo", *part) for part in parts], 2)
        at = y[i * stride[0] :, j * stride[1] :]
        at[: (f.shape[0] - 1) * dilation[0] + 1 : dilation[0], : (f.shape[1] - 1) * dilation[1] + 1 : dilation[1]] += (
            put
        )
    ends = [shape[d] - padding[d] + more[d] for d in range(2)]
    return y[padding[0] : ends[0], padding[1] : ends[1]] + p.get("b", 0)


TRANSPOSED = [
    ((1, 1), (0, 0), (0, 0), (1, 1), 1, True),
    ((2, 2), (1, 1), (1, 0), (1, 1), 1, False),
    ((3, 2), (0, 1), (2, 1), (2, 1), 2, True),
]


@pytest.mark.parametrize(("stride", "padding", "more", "dilation", "groups", "bias"), TRANSPOSED)
def test_conv_transpose2d(stride, padding, more, dilation, groups, bias) -> None:
    model = dy.ParameterCollection()
    layer = nn.ConvTranspose2d(4, 6, (3, 2), model, stride, padding, more, bias, dilation, groups)
    rng = np.random.default_rng(0)
    images = [(rng.normal(size=(*shape, 4)).astype(np.float32),) for shape in [(3, 4), (3, 4), (4, 3)]]
    check_layer(
        randomized(layer),
        lambda p, x: conv_transpose2d(p, x, stride, padding, more, dilation, groups),
        images,
        tolerance=3e-5,
    )


@pytest.mark.parametrize(("stride", "padding", "more", "dilation", "groups", "bias"), TRANSPOSED)
def test_conv_transpose1d(stride, padding, more, dilation, groups, bias) -> None:
    """ConvTranspose1d equals ConvTranspose2d along one axis."""
    stride, padding, more, dilation = stride[1], padding[1], more[1], dilation[0]
    model = dy.ParameterCollection()
    layer = nn.ConvTranspose1d(4, 6, 3, model, stride, padding, more, bias, dilation, groups)

    def formula(p, x):
        p = {**p, "W": p["W"].swapaxes(0, 1)[:, None]}
        pair = (stride, 1), (padding, 0), (more, 0), (dilation, 1)
        return conv_transpose2d(p, x.T[:, None], *pair, groups)[:, 0].T

    check_layer(randomized(layer), formula, sentences(4, (5, 3, 6)), tolerance=3e-5)


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


@pytest.mark.parametrize(
    "make",
    [
        lambda model: nn.Conv1d(3, 4, 3, model, 1, "same", 2),
        lambda model: nn.Conv2d(3, 6, (2, 1), model, dilation=2, groups=3),
        lambda model: nn.ConvTranspose2d(3, 6, (2, 1), model, 2, (1, 0), groups=3),
        lambda model: nn.Conv2d(3, 4, (2, 1), model, 1, (1, 0)),
        lambda model: nn.BatchNorm(3, model, -1, 0.2).eval(),
    ],
)
def test_files_pickles_and_copies(make, tmp_path) -> None:
    layer = randomized(make(dy.ParameterCollection()), deviation=0.01)
    x = dy.inputTensor(np.random.default_rng(0).normal(size=(3, 4, 3)[-2 if isinstance(layer, nn.Conv1d) else 0 :]))
    if isinstance(layer, nn.Conv1d):
        x = dy.reshape(x, (3, 4))
    dy.save(tmp_path / "m", [layer])
    (loaded,) = dy.load(tmp_path / "m", dy.ParameterCollection())
    for other in (loaded.eval(), pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
        assert other.spec == layer.spec
        np.testing.assert_array_equal(other(x).npvalue(), layer(x).npvalue())


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
