"""The CRF layer, compared with sums over all sequences of tags."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from layer_checks import arrays, check_layer, randomized, sentences

import dynet_cy as dy
from dynet_cy import nn

TAGS = 3


def score(p, x, tags):
    inner = sum(p["transitions"][a, b] for a, b in zip(tags, tags[1:]))
    return p["start"][tags[0]] + sum(x[tag, t] for t, tag in enumerate(tags)) + inner + p["end"][tags[-1]]


def all_scores(p, x):
    return {tags: score(p, x, tags) for tags in product(range(TAGS), repeat=x.shape[1])}


def test_loss() -> None:
    def tags_of(n):
        return [(2 * t + 1) % TAGS for t in range(n)]

    def reference(p, x):
        total = np.log(sum(np.exp(s) for s in all_scores(p, x).values()))
        return np.array([total - score(p, x, tags_of(x.shape[1]))])

    layer = randomized(nn.CRF(TAGS, dy.ParameterCollection()))

    def call(x):
        return layer.loss(x, tags_of((*x.dim()[0], 1)[1]))

    check_layer(layer, reference, sentences(TAGS, (3, 1, 4)), call, minibatch=False)


def test_best_and_marginals(tmp_path) -> None:
    layer = randomized(nn.CRF(TAGS, dy.ParameterCollection()), deviation=1.0)
    for (x,) in sentences(TAGS, (4, 2)):
        found = all_scores(arrays(layer), x)
        assert layer.best(dy.inputTensor(x)) == list(max(found, key=found.get))
        weights = {tags: np.exp(s) for tags, s in found.items()}
        want = np.zeros(x.shape)
        for tags, weight in weights.items():
            want[tags, range(len(tags))] += weight / sum(weights.values())
        np.testing.assert_allclose(layer.marginals(dy.inputTensor(x)).npvalue(), want, rtol=1e-4, atol=1e-5)
    dy.save(tmp_path / "m", [layer])
    (loaded,) = dy.load(tmp_path / "m", dy.ParameterCollection())
    np.testing.assert_array_equal(loaded.transitions.as_array(), layer.transitions.as_array())


@pytest.mark.parametrize("never", [-np.inf, -1e30])
def test_scores_that_forbid(never: float) -> None:
    """The best sequence, the marginals, the loss and its gradients, of first and second order."""
    rng, possible = np.random.default_rng(2), 0
    for trial in range(60):
        dy.renew_cg()
        layer = randomized(nn.CRF(TAGS, dy.ParameterCollection()))
        own = {name: np.where(rng.random(v.shape) < 0.25, never, v) for name, v in arrays(layer).items()}
        for name, values in own.items():
            getattr(layer, name).set_value(values)
        x = rng.normal(size=(TAGS, 1 + trial % 4))
        x[rng.random(x.shape) < 0.25] = never
        found = {tags: s for tags, s in all_scores(own, x).items() if s > -1e29}
        if not found:
            if never == -np.inf:
                with pytest.raises(ValueError, match="crf_viterbi: no sequence of tags is possible"):
                    layer.best(x)
            continue
        possible += 1
        assert layer.best(x) == list(max(found, key=found.get))
        gold = list(min(found, key=found.get))
        total = np.log(sum(np.exp(s) for s in found.values()))
        shares = np.zeros(x.shape)
        for tags, s in found.items():
            shares[tags, range(len(tags))] += np.exp(s - total)
        np.testing.assert_allclose(layer.marginals(x).npvalue().reshape(x.shape), shares, rtol=1e-4, atol=1e-5)
        e = dy.inputTensor(x)
        loss = layer.loss(e, gold)
        assert loss.value() == pytest.approx(total - found[tuple(gold)], abs=1e-4)
        shares[gold, range(len(gold))] -= 1
        (slopes,) = dy.gradients(loss, [e])
        np.testing.assert_allclose(slopes.npvalue().reshape(x.shape), shares, rtol=1e-4, atol=1e-5)
        dy.squared_norm(slopes).backward()
        assert all(np.isfinite(p.grad_as_array()).all() for p in (layer.transitions, layer.start, layer.end))
    assert possible > 20


@pytest.mark.parametrize("name", ["x", "transitions", "start", "end"])
def test_the_place_of_a_score_that_is_nan(name: str) -> None:
    layer, x = nn.CRF(TAGS, dy.ParameterCollection()), np.zeros((TAGS, 2))
    values = x if name == "x" else getattr(layer, name).as_array()
    values[(1,) * values.ndim] = np.nan
    if name != "x":
        getattr(layer, name).set_value(values)
    with pytest.raises(ValueError, match=f"crf_viterbi: {name} is NaN at element {1 if values.ndim == 1 else 4}\n"):
        layer.best(x)


def test_errors() -> None:
    layer = nn.CRF(TAGS, dy.ParameterCollection())
    with pytest.raises(dy.DimensionError, match="CRF: argument x: expected 3 rows"):
        layer.loss(dy.zeros((4, 2)), [0, 1])
    with pytest.raises(dy.DimensionError):
        layer.loss(dy.zeros((3, 2)), [0])
    with pytest.raises(IndexError):
        layer.loss(dy.zeros((3, 2)), [0, 3])
    with pytest.raises(ValueError, match="CRF: argument tags"):
        nn.CRF(0, dy.ParameterCollection())
