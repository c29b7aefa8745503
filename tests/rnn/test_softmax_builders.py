"""Softmax layers, compared with NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dynet_cy as dy

pytestmark = pytest.mark.usefixtures("on_each_device")

CLUSTERS = "A cat 10\nA dog\nB red\nB blue\nC only\nB\tgreen\n"
WORDS = {"cat": 3, "dog": 0, "red": 2, "blue": 1, "green": 5, "only": 4}


def log_softmax(z: np.ndarray) -> np.ndarray:
    return z - np.log(np.exp(z).sum(0))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "clusters").write_text(CLUSTERS, encoding="utf-8")
    return tmp_path / "clusters"


def build(kind: str, files: Path, bias: bool, rng: np.random.Generator) -> tuple[Any, Any]:
    """A layer with random parameters, and a function for log p of its 6 classes in NumPy."""
    model = dy.ParameterCollection()
    layer: Any
    if kind == "standard":
        layer = dy.StandardSoftmaxBuilder(4, 6, model, bias)
    else:
        layer = dy.ClassFactoredSoftmaxBuilder(4, files, WORDS, model, bias)
    parameters = layer.param_collection().parameters_list()
    for p in parameters:
        p.set_value(rng.normal(size=p.shape()))
    values = [p.as_array() for p in parameters]
    step = 2 if bias else 1
    layers = [(values[i], values[i + 1] if bias else 0.0) for i in range(0, len(values), step)]

    def logp(x: np.ndarray) -> np.ndarray:
        if kind == "standard":
            return log_softmax(layers[0][0] @ x + layers[0][1])
        clusters = log_softmax(layers[0][0] @ x + layers[0][1])
        found = np.zeros(6)
        for k, words, own in ((0, [3, 0], layers[1]), (1, [2, 1, 5], layers[2]), (2, [4], None)):
            found[words] = clusters[k] + (0 if own is None else log_softmax(own[0] @ x + own[1]))
        return found

    return layer, logp


both = pytest.mark.parametrize("kind", ["standard", "factored"])


@both
@pytest.mark.parametrize("bias", [True, False])
def test_values(kind: str, bias: bool, files: Path, rng: np.random.Generator) -> None:
    layer, logp = build(kind, files, bias, rng)
    xs = rng.normal(size=(4, 3)).astype(np.float32)
    dy.renew_cg()
    x = dy.inputVector(xs[:, 0])
    want = logp(xs[:, 0])
    np.testing.assert_allclose(layer.full_log_distribution(x).npvalue(), want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(log_softmax(layer.full_logits(x).npvalue()), want, rtol=1e-4, atol=1e-5)
    losses = [layer.neg_log_softmax(x, c).value() for c in range(6)]
    np.testing.assert_allclose(losses, -want, rtol=1e-4, atol=1e-5)
    batch = dy.inputTensor(xs, batched=True)
    loss = layer.neg_log_softmax_batch(batch, [5, 0, 4])
    assert loss.dim() == ((1,), 3)
    columns = np.stack([logp(xs[:, i]) for i in range(3)], 1)
    np.testing.assert_allclose(loss.npvalue()[0], -columns[[5, 0, 4], range(3)], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layer.full_log_distribution(batch).npvalue(), columns, rtol=1e-4, atol=1e-5)


@both
def test_gradients_and_constants(kind: str, files: Path, rng: np.random.Generator) -> None:
    layer, logp = build(kind, files, True, rng)
    x = rng.normal(size=4).astype(np.float32)
    parameters = layer.param_collection().parameters_list()
    dy.renew_cg()
    layer.neg_log_softmax(dy.inputVector(x), 5).backward()
    for p in parameters:
        have = p.grad_as_array()
        before = p.as_array()
        for place in np.ndindex(*before.shape):
            ends = []
            for step in (1e-2, -1e-2):
                moved = before.copy()
                moved[place] += step
                p.set_value(moved)
                dy.renew_cg()
                ends.append(layer.neg_log_softmax(dy.inputVector(x), 5).value())
            p.set_value(before)
            assert have[place] == pytest.approx((ends[0] - ends[1]) / 2e-2, abs=3e-3)
        p.scale_gradient(0.0)
    dy.renew_cg()
    e = dy.inputVector(x)
    (layer.neg_log_softmax(e, 5, update=False) + layer.neg_log_softmax_batch(e, [5], False)).backward(full=True)
    assert all(not p.grad_as_array().any() for p in parameters)


@both
def test_samples_follow_the_distribution(kind: str, files: Path, rng: np.random.Generator) -> None:
    layer, logp = build(kind, files, True, rng)
    x = rng.normal(size=4).astype(np.float32) / 2
    counts = np.zeros(6)
    for _ in range(1500):
        dy.renew_cg()
        counts[layer.sample(dy.inputVector(x))] += 1
    p = np.exp(logp(x))
    assert np.all(np.abs(counts / 1500 - p) < 5 * np.sqrt(p * (1 - p) / 1500) + 1e-3)
    with pytest.raises(ValueError, match="sample: x has batch size 2"):
        layer.sample(dy.inputTensor(np.ones((4, 2)), batched=True))


@both
def test_spec_and_collection(kind: str, files: Path, rng: np.random.Generator) -> None:
    layer, _ = build(kind, files, False, rng)
    model = dy.ParameterCollection()
    again = type(layer).from_spec(layer.spec, model)
    shapes = [p.shape() for p in layer.param_collection().parameters_list()]
    assert [p.shape() for p in again.param_collection().parameters_list()] == shapes
    name = "standard" if kind == "standard" else "class-factored"
    assert again.param_collection().name() == f"/{name}-softmax-builder/"


def test_clusters(files: Path, rng: np.random.Generator) -> None:
    layer, logp = build("factored", files, True, rng)
    x = rng.normal(size=4)
    dy.renew_cg()
    e = dy.inputVector(x)
    clusters = layer.class_log_distribution(e).npvalue()
    np.testing.assert_allclose(clusters, log_softmax(layer.class_logits(e).npvalue()), rtol=1e-4, atol=1e-5)
    words = layer.subclass_log_distribution(e, 1).npvalue()
    np.testing.assert_allclose(words + clusters[1], logp(x)[[2, 1, 5]], rtol=1e-4, atol=1e-5)
    assert layer.subclass_logits(e, 2).npvalue() == layer.subclass_log_distribution(e, 2).npvalue() == [0.0]


def test_errors(files: Path) -> None:
    model = dy.ParameterCollection()
    with pytest.raises(TypeError, match="argument pc: expected a ParameterCollection or a layer, got NoneType"):
        dy.StandardSoftmaxBuilder(3, 4, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="argument rep_dim: expected at least 1, got 0"):
        dy.StandardSoftmaxBuilder(0, 4, model)
    with pytest.raises(TypeError, match="argument word_dict: expected a dictionary, got list"):
        dy.ClassFactoredSoftmaxBuilder(3, files, [], model)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        dy.ClassFactoredSoftmaxBuilder(3, files.with_name("none"), {}, model)
    with pytest.raises(KeyError, match="line 1: word 'cat' is not in word_dict"):
        dy.ClassFactoredSoftmaxBuilder(3, files, {}, model)
    for text, error in [
        ("A cat\nB cat\n", "line 2: word 'cat' is there for"),
        ("\n", "has no words"),
        ("A\n", "line 1: a cluster and a word"),
    ]:
        files.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=error):
            dy.ClassFactoredSoftmaxBuilder(3, files, WORDS, model)
    files.write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match="has no words"):
        dy.ClassFactoredSoftmaxBuilder(3, files, WORDS, model)
    assert not model.parameters_list(), "a layer that could not be made leaves no parameters"
    files.write_text(CLUSTERS, encoding="utf-8")
    dy.renew_cg()
    x = dy.inputVector([1.0, 2.0, 3.0])
    standard = dy.StandardSoftmaxBuilder(3, 4, model)
    factored = dy.ClassFactoredSoftmaxBuilder(3, files, {**WORDS, "rare": 6}, model)
    with pytest.raises(IndexError, match="class 4 is not from 0 to 3"):
        standard.neg_log_softmax(x, 4)
    with pytest.raises(TypeError, match="a class must be a whole number, not 'a'"):
        standard.neg_log_softmax(x, "a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 classes for x with batch size 1"):
        standard.neg_log_softmax_batch(x, [1, 2])
    with pytest.raises(IndexError, match="word 6 is in no cluster"):
        factored.neg_log_softmax(x, 6)
    with pytest.raises(IndexError, match="class 3 is not from 0 to 2"):
        factored.subclass_logits(x, 3)
    with pytest.raises(ValueError, match="2 words for x with batch size 1"):
        factored.neg_log_softmax_batch(x, [1, 2])
    with pytest.raises(NotImplementedError, match="SoftmaxBuilder.sample"):
        dy.SoftmaxBuilder().sample(x)
