"""Random ops: the expected moments, and the same numbers for every schedule and batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cases_random import RANDOM

import dynet_cy as dy
from dynet_cy import profiling

N = 40_000
EULER = 0.5772156649

# Mean and standard deviation of each op for an input of ones.
MOMENTS = {
    "dropout": (1, math.sqrt(0.3 / 0.7)),
    "dropout_dim": (1, math.sqrt(0.3 / 0.7)),
    "dropout_batch": (1, math.sqrt(0.3 / 0.7)),
    "block_dropout": (1, math.sqrt(0.3 / 0.7)),
    "noise": (1, 0.5),
    "random_normal": (1, 0.5),
    "random_uniform": (1, 4 / math.sqrt(12)),
    "random_bernoulli": (1, math.sqrt(0.3 / 0.7)),
    "random_gumbel": (EULER, math.pi / math.sqrt(6)),
}


@pytest.fixture(autouse=True)
def seeded() -> None:
    dy.reset_random_seed(11)


def test_all_random_ops_have_moments() -> None:
    assert MOMENTS.keys() == RANDOM.keys()


@pytest.mark.parametrize("name", RANDOM)
def test_moments(name: str) -> None:
    dy.renew_cg()
    x = dy.ones((4, 2), batch_size=N)
    # Elements that are dropped together count once.
    independent = {"dropout_dim": 2 * N, "dropout_batch": N, "block_dropout": N}.get(name, 8 * N)
    y = RANDOM[name](dy, x).npvalue().astype(np.float64)
    mean, deviation = MOMENTS[name]
    assert y.mean() == pytest.approx(mean, abs=5 * deviation / math.sqrt(independent))
    assert y.std() == pytest.approx(deviation, rel=0.03)


@pytest.mark.parametrize("name", RANDOM)
def test_schedules_agree(name: str) -> None:
    found = []
    for strategy in (0, 1, 2):
        dy.reset_random_seed(5)
        dy.renew_cg(autobatching=strategy)
        xs = [dy.inputTensor(np.full((3, 2), k + 1.0)) for k in range(5)]
        found.append(np.stack(dy.npvalues([RANDOM[name](dy, x) for x in xs])))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    if name not in ("block_dropout", "dropout_batch"):  # all or nothing: two of five may well agree
        assert not np.array_equal(found[0][0], found[0][1])


@pytest.mark.parametrize("name", ["dropout", "dropout_dim", "dropout_batch", "block_dropout"])
def test_gradient_has_the_mask_of_forward(name: str) -> None:
    collection = dy.ParameterCollection()
    p = collection.parameters_from_numpy(np.ones((4, 2)))
    dy.renew_cg()
    y = RANDOM[name](dy, p * 1.0)
    dy.sum_elems(y).backward()
    np.testing.assert_array_equal(p.grad_as_array(), y.npvalue())


def test_dropout_of_sentences_of_different_lengths_is_one_batch() -> None:
    found = []
    for strategy in (0, 1):
        dy.reset_random_seed(5)
        dy.renew_cg(autobatching=strategy)
        xs = [dy.inputTensor(np.ones((3, n))) for n in (2, 5, 1, 4)]
        ys = [dy.dropout(x, 0.5) for x in xs]
        with profiling.measure() as profile:
            found.append([y.ravel() for y in dy.npvalues(ys)])
        assert [row.calls for row in profile if row.op == "dropout"] == [1 if strategy else 4]
    np.testing.assert_array_equal(*map(np.concatenate, found))


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
@pytest.mark.parametrize("name", ["dropout", "dropout_batch", "block_dropout", "random_bernoulli"])
def test_probabilities_are_checked(name: str, p: float, graph) -> None:
    x = 3 if name == "random_bernoulli" else dy.ones(3)
    with pytest.raises(ValueError, match=f"{name}: p must be a probability"):
        getattr(dy, name)(x, p)
