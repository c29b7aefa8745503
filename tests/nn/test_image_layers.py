"""Pooling of images, group norms, and residual blocks."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy import nn

NO_TORCH = "" if importlib.util.find_spec("torch") else "PyTorch is not installed"


@pytest.mark.skipif(bool(NO_TORCH), reason=NO_TORCH or "-")
def test_means_with_zeros_around_are_those_of_pytorch() -> None:
    """As docs/dynet-cy-for-pytorch-users.md says: its default counts zeros beyond the image, and the layer does not."""
    import torch

    x = np.random.default_rng(0).normal(size=(5, 6, 2)).astype(np.float32)
    padded = dy.pad(dy.inputTensor(x), [(1, 1), (1, 1), (0, 0)])
    for counted, found in [(True, nn.AvgPool2d(3, 2)(padded)), (False, nn.AvgPool2d(3, 2, 1)(x))]:
        there = torch.nn.AvgPool2d(3, 2, 1, count_include_pad=counted)(torch.tensor(x.transpose(2, 0, 1)))
        np.testing.assert_allclose(found.npvalue(), there.numpy().transpose(1, 2, 0), atol=1e-6)


@pytest.mark.skipif(bool(NO_TORCH), reason=NO_TORCH or "-")
@pytest.mark.parametrize("axes", [1, 2])
def test_flattening_after_convolutions_is_that_of_pytorch(axes) -> None:
    """With its weights in the linear layer below, for single examples and a minibatch."""
    import torch
    from torch import nn as there

    conv, size = f"Conv{axes}d", 3 * 4 if axes == 1 else 3 * 4 * 5
    net = there.Sequential(getattr(there, conv)(2, 3, 2), there.ReLU(), there.Flatten(), there.Linear(size, 2))
    layers = [(getattr(nn, conv), 2, 3, 2), "relu", (nn.Flatten,), (nn.Linear, size, 2)]
    ours = nn.Sequential(layers, dy.ParameterCollection())
    ours.load_pytorch(net)
    x = np.random.default_rng(0).normal(size=(3, 2, 5, 6)[: axes + 2]).astype(np.float32)
    with torch.no_grad():
        expected = net(torch.tensor(x)).numpy()
    batch = x.transpose(1, 2, 0) if axes == 1 else x.transpose(2, 3, 1, 0)
    np.testing.assert_allclose(ours(dy.inputTensor(batch, batched=True)).npvalue(), expected.T, atol=1e-5)
    for i in range(3):
        np.testing.assert_allclose(ours(dy.inputTensor(batch[..., i])).npvalue(), expected[i], atol=1e-5)


@pytest.mark.skipif(bool(NO_TORCH), reason=NO_TORCH or "-")
@pytest.mark.parametrize("inner", [None, 2])
def test_residual_blocks_are_those_of_pytorch(inner) -> None:
    """In both modes, with the running statistics."""
    import torch
    from torch import nn as there

    sizes = [(4, 6, 3, 2), (6, 6, 3, 1)] if inner is None else [(4, 2, 1, 1), (2, 2, 3, 2), (2, 6, 1, 1)]
    block = there.Module()
    for i, (n, m, size, stride) in enumerate(sizes, 1):
        setattr(block, f"conv{i}", there.Conv2d(n, m, size, stride, size // 2, bias=False))
        setattr(block, f"bn{i}", there.BatchNorm2d(m))
    block.downsample = there.Sequential(there.Conv2d(4, 6, 1, 2, bias=False), there.BatchNorm2d(6))

    def call(x):
        y = x
        for i in range(1, len(sizes) + 1):
            y = getattr(block, f"bn{i}")(getattr(block, f"conv{i}")(torch.relu(y) if i > 1 else y))
        return torch.relu(y + block.downsample(x))

    ours = nn.ResidualBlock(4, 6, dy.ParameterCollection(), 2, inner)
    ours.load_pytorch(block)
    x = np.random.default_rng(0).normal(size=(3, 4, 7, 6)).astype(np.float32)
    for training in (True, False):
        dy.renew_cg()
        ours.train(training)
        block.train(training)
        with torch.no_grad():
            expected = call(torch.tensor(x)).numpy()
        found = ours(dy.inputTensor(x.transpose(2, 3, 1, 0), batched=True)).npvalue()
        np.testing.assert_allclose(found, expected.transpose(2, 3, 1, 0), atol=1e-5)
    np.testing.assert_allclose(ours.bn1.mean.as_array(), block.bn1.running_mean.numpy(), atol=1e-6)
    np.testing.assert_allclose(ours.bn2.var.as_array(), block.bn2.running_var.numpy(), atol=1e-5)


def test_a_network_in_sequence_is_trained() -> None:
    """Blocks as descriptions; group norms need no minibatch, so images of different sizes are computed together."""
    dy.reset_random_seed(1)
    net = nn.Sequential(
        [
            (nn.Conv2d, 1, 4, 3, 1, 1),
            (nn.MaxPool2d, 3, 2, 1),
            (nn.ResidualBlock, 4, 8, 2, None, 2),
            (nn.ResidualBlock, 8, 8, 1, 4, 2),
            (nn.GlobalAvgPool2d,),
            (nn.Linear, 8, 2),
        ],
        dy.ParameterCollection(),
    )
    trainer, rng, losses = dy.AdamTrainer(net, 0.02), np.random.default_rng(0), []
    examples = []
    for i, size in enumerate([(8, 8), (9, 6), (8, 8), (6, 10)] * 2):
        image = rng.normal(size=(*size, 1)) + (2 if i % 2 else -2) * (np.arange(size[1]) < 3)[None, :, None]
        examples.append((image, i % 2))
    for _ in range(25):
        dy.renew_cg()
        loss = dy.esum([dy.pickneglogsoftmax(net(dy.inputTensor(image)), label) for image, label in examples])
        losses.append(loss.value())
        loss.backward()
        trainer.update()
    assert losses[-1] < 0.3 * losses[0]


def test_errors() -> None:
    model = dy.ParameterCollection()
    for make, message in [
        (lambda: nn.MaxPool2d(0), "MaxPool2d: argument size"),
        (lambda: nn.MaxPool2d((2, 2, 2)), "MaxPool2d: argument size: expected a whole number, or two"),
        (lambda: nn.MaxPool2d(3, 0), "MaxPool2d: argument stride"),
        (lambda: nn.MaxPool2d(3, 2, 2), "MaxPool2d: argument padding: expected at most half of size, 3, got 2"),
        (lambda: nn.AvgPool2d(3, 2, -1), "AvgPool2d: argument padding: expected numbers from 0 on"),
        (lambda: nn.GroupNorm(3, 4, model), "GroupNorm: argument groups: 4 channels cannot be divided into 3 groups"),
        (lambda: nn.GroupNorm(2, 4, model, eps=0), "GroupNorm: argument eps"),
        (lambda: nn.ResidualBlock(4, 4, model, 0), "ResidualBlock: argument stride"),
        (lambda: nn.ResidualBlock(4, 4, model, 1, 0), "ResidualBlock: argument inner_channels"),
        (lambda: nn.ResidualBlock(4, 6, model, norm_groups=4), "6 channels cannot be divided into 4 groups"),
        (lambda: nn.ResidualBlock(4, 4, model, activation="swoosh"), "argument activation"),
        (lambda: dy.maxpooling2d(dy.zeros((4, 4, 1)), [2, 2], [1, 1], padding=[2, 0]), "at most half of ksize"),
        (lambda: dy.maxpooling2d(dy.zeros((4, 4, 1)), [2, 2], [1, 1], padding=[-1, 0]), "padding must be at least 0"),
        (lambda: dy.avgpooling2d(dy.zeros((4, 4, 1)), [2, 2], [1, 1], False, [1, 0]), "is_valid=False chooses it"),
        (lambda: dy.maxpooling2d(dy.zeros((4, 4, 1)), [2, 2], [1, 1], padding=[1]), "padding must have two numbers"),
        (lambda: dy.maxpooling2d(dy.zeros((4, 4, 1)), [2, 2], [1, 1 << 16]), "stride must be at most 65535"),
        (
            lambda: dy.conv2d(dy.zeros((4, 4, 1)), dy.zeros((2, 2, 1, 1)), [1, 1], padding=[1 << 15, 0]),
            "padding must be at most 32767",
        ),
        (
            lambda: dy.conv2d(dy.zeros((4, 4, 1)), dy.zeros((2, 2, 1, 1)), [1, 1], False, padding=[1, 1]),
            "padding is .* is_valid=False chooses it",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
    assert model.parameter_count() == 0
    for make, message in [
        (lambda: nn.MaxPool2d(5, padding=1)(dy.zeros((2, 4, 3))), "5 x 5 is larger than the image of 2 x 4 and a padd"),
        (lambda: nn.GlobalAvgPool2d()(dy.zeros((4, 4))), "expected rows, columns and channels, got"),
        (lambda: nn.Flatten()(dy.zeros((2, 2, 2, 2))), "Flatten: argument x: expected rows, columns and channels, got"),
        (lambda: nn.GroupNorm(2, 4, model)(dy.zeros((4, 4, 3))), "GroupNorm: argument x: expected 4 as axis -1"),
        (lambda: nn.ResidualBlock(4, 4, model)(dy.zeros((4, 4, 3))), "Conv2d: argument x: expected 4 channels"),
        (
            lambda: dy.conv2d(dy.zeros((0, 4, 1)), dy.zeros((2, 2, 1, 1)), [1, 1], padding=[2, 0]),
            "is larger than the image of 0 x 4",
        ),
    ]:
        with pytest.raises(dy.DimensionError, match=message):
            make()
    for layer in (nn.MaxPool2d(2), nn.GlobalAvgPool2d(), nn.Flatten(), nn.GroupNorm(1, 1, model)):
        with pytest.raises(TypeError, match="expected an expression"):
            layer("text")


def test_resized_tables() -> None:
    model = dy.ParameterCollection()
    words = nn.Embedding(5, 3, model)
    trainer = dy.AdamTrainer(model)

    def step(ids):
        dy.renew_cg()
        dy.sum_elems(words(ids)).backward()
        trainer.update()

    step([1, 4])
    before = words.table.as_array()
    dy.renew_cg()
    words.resize(7)
    assert words.table.shape == (7, 3)
    assert [name for name, _ in words.named_parameters()] == ["table"]
    np.testing.assert_array_equal(words.table.as_array()[:5], before)
    new = words.table.as_array()[5:]
    assert (new != 0).all()
    assert np.abs(new - before.mean(0)).max() < 6 * before.std(0).max()
    step([1, 6])
    moved = words.table.as_array()
    assert ((moved[[1, 6]] != np.concatenate([before[1:2], new[1:]])).all(1)).all()
    np.testing.assert_array_equal(moved[2], before[2])
    # With values; then the same size; then fewer.
    words.resize(9, np.arange(6).reshape(2, 3))
    np.testing.assert_array_equal(words.table.as_array()[7:], np.arange(6).reshape(2, 3))
    table = words.table
    words.resize(9)
    assert words.table is table
    words.resize(2)
    np.testing.assert_array_equal(words.table.as_array(), moved[:2])
    words.resize(3, 0.5)
    np.testing.assert_array_equal(words.table.as_array()[2], 0.5)
    assert nn.Embedding.from_spec(words.spec, model).table.shape == (3, 3)
    dy.renew_cg()
    with pytest.raises(IndexError):
        words(3)
    frozen = nn.Embedding(4, 2, model, padding=3, frozen=True)
    frozen.resize(6)
    assert not frozen.table.is_updated()
    assert not frozen(3).npvalue().any()
    for size, init, error, message in [
        (0, None, ValueError, "argument size"),
        ("7", None, TypeError, "argument size"),
        (3, None, ValueError, "leave none for padding=3"),
        (8, np.zeros((3, 2)), ValueError, r"expected a number, or an array of shape \(2, 2\), got \(3, 2\)"),
    ]:
        with pytest.raises(error, match=message):
            frozen.resize(size, init)
    assert frozen.table.shape == (6, 2)
