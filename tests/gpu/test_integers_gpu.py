"""Integers on a device: as exact as on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from integer_uses import ARITHMETIC, BITS, COMPARISONS, FAR, MOVES, OTHER

import dynet_cy as dy


def same(e, expected) -> None:
    found = e.npvalue()
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("strategy", [0, 1])
@pytest.mark.parametrize("name", MOVES)
def test_moved_bits_are_unchanged(on_device, name: str, strategy: int) -> None:
    """Of nodes that run alone, and in batches, whose arguments are gathered."""
    dy.renew_cg(autobatching=strategy)
    build, f = MOVES[name]
    arrays = [np.stack([np.roll(BITS, k), BITS[::-1]]) for k in range(5)]
    if name == "gather":                            # sorted as floats
        arrays = [np.where(np.abs(a) < 2**24, a, 9) for a in arrays]
    xs = [dy.input_indices(a) for a in arrays]
    ys = [build(x + 0 if k % 2 else x) for k, x in enumerate(xs)]
    dy.forward(ys)
    for y, a in zip(ys, arrays):
        same(y, f(a))


def test_moved_batches(on_device) -> None:
    a = np.stack([BITS, BITS[::-1]], 1)
    x = dy.input_indices(a, batched=True)
    same(dy.pick_batch_elems(x, [1, 0, 1]), a[:, [1, 0, 1]])
    same(dy.pick_batch_elems(x, dy.input_indices([1, 0, 1])), a[:, [1, 0, 1]])
    same(dy.concatenate_to_batch([x, dy.input_indices(BITS)]), np.stack([*a.T, BITS], 1))
    same(dy.pick_batch(x, [2, 5]), np.array([[BITS[2], BITS[::-1][5]]]))


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_is_exact(on_device, name: str) -> None:
    build, f = ARITHMETIC[name]
    same(build(dy.input_indices(FAR), dy.input_indices(OTHER)), f(FAR, OTHER))
    for number in (-1, 3, 2**31 - 1):
        same(build(dy.input_indices(FAR), dy.input_indices(number)), f(FAR, np.array(number)))
        if name != "*":
            same(build(dy.input_indices(FAR), number), f(FAR, np.array(number)))


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_are_exact(on_device, name: str) -> None:
    build, f = COMPARISONS[name]
    b = np.where(np.arange(len(FAR)) % 3, FAR, FAR + 1).clip(-(2**31), 2**31 - 1)
    np.testing.assert_array_equal(build(dy.input_indices(FAR), b).npvalue(), f(FAR, b))
    np.testing.assert_array_equal(build(dy.input_indices(FAR), 2**24 + 1).npvalue(), f(FAR, 2**24 + 1))


def test_conversions(on_device) -> None:
    same(dy.to_int(dy.inputVector([1.9, -1.9, 3e9, -3e9, np.nan])), [1, -1, 2**31 - 1, -(2**31), 0])
    np.testing.assert_array_equal(dy.to_float(dy.input_indices(FAR)).npvalue(), FAR.astype(np.float32))
    np.testing.assert_allclose((dy.input_indices([1, 2]) * 0.5 + dy.argmax(dy.ones(2))).npvalue(), [0.5, 1])


def test_what_gives_integers(on_device) -> None:
    x = np.array([[1, 5, 2], [3, 4, 6.0]])
    e = dy.inputTensor(x)
    same(dy.argmax(e), x.argmax(0))
    same(dy.argmin(e, d=1), x.argmin(1))
    same(dy.argsort(e, d=1), x.argsort(1))
    same(dy.topk(e, 1)[1], x.argmax(0)[None])
    same(dy.sample(e * 1000), x.argmax(0))


def test_errors_name_the_value(on_device) -> None:
    x = dy.inputVector([1, 2, 3])
    for bad in (2**24 + 1, -1, 3):
        with pytest.raises(IndexError, match=f"the index is {bad} at element 0; it must be .* from 0 to 2"):
            dy.pick(x, dy.input_indices(bad)).value()


def test_axes_longer_than_floats_reach(on_device) -> None:
    n = 2**24 + 3
    x = dy.concatenate([dy.zeros(n), dy.inputVector([7, 8, 9])])
    i = dy.to_int(dy.scalarInput(2**24)) + 5
    assert i.value() == n + 2
    assert [dy.pick(x, i - k).value() for k in range(3)] == [9, 8, 7]


def test_anomalies_are_not_looked_for_in_integers(on_device) -> None:
    with dy.detect_anomaly():
        same(dy.concatenate([dy.input_indices(BITS) + 0] * 2), np.tile(BITS, 2))
