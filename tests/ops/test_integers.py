"""Integers (int32) are exact: moved, computed with, read as indices, whatever their bits mean as floats."""

from __future__ import annotations

import numpy as np
import pytest
from integer_uses import ARITHMETIC, BITS, COMPARISONS, FAR, MOVES, OTHER, wrapped

import dynet_cy as dy

pytestmark = pytest.mark.usefixtures("on_each_device")


def same(e, expected) -> None:
    found = e.npvalue()
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("strategy", [0, 1])
@pytest.mark.parametrize("name", MOVES)
def test_moved_bits_are_unchanged(name: str, strategy: int) -> None:
    dy.renew_cg(autobatching=strategy)
    build, f = MOVES[name]
    arrays = [np.stack([np.roll(BITS, k), BITS[::-1]]) for k in range(5)]
    if name == "gather":  # sorted as floats
        arrays = [np.where(np.abs(a) < 2**24, a, 9) for a in arrays]
    xs = [dy.input_indices(a) for a in arrays]
    ys = [build(x if k % 2 else x + 0) for k, x in enumerate(xs)]
    dy.forward(ys)
    for y, a in zip(ys, arrays):
        same(y, f(a))


@pytest.mark.parametrize("strategy", [0, 1])
def test_moved_batches(strategy: int) -> None:
    dy.renew_cg(autobatching=strategy)
    a = np.stack([BITS, BITS[::-1]], 1)
    x = dy.input_indices(a, batched=True)
    same(x, a)
    same(dy.pick_batch_elem(x, 1), a[:, 1])
    same(dy.pick_batch_elems(x, [1, 0, 1]), a[:, [1, 0, 1]])
    same(dy.pick_batch_elems(x, dy.input_indices([1, 0, 1])), a[:, [1, 0, 1]])
    same(dy.concatenate_to_batch([x, dy.input_indices(BITS)]), np.stack([*a.T, BITS], 1))
    same(dy.pick_batch(x, [2, 5]), np.array([[BITS[2], BITS[::-1][5]]]))


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_is_exact(name: str, graph) -> None:
    build, f = ARITHMETIC[name]
    same(build(dy.input_indices(FAR), dy.input_indices(OTHER)), f(FAR, OTHER))
    for number in (1, -1, 3, -7, 2**31 - 1):
        same(build(dy.input_indices(FAR), dy.input_indices(number)), f(FAR, np.array(number)))
        if name == "*":
            same(dy.input_indices(FAR) * number, f(FAR, np.array(number)))
        else:
            same(build(dy.input_indices(FAR), number), f(FAR, np.array(number)))


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_are_exact(name: str, graph) -> None:
    build, f = COMPARISONS[name]
    a, b = FAR, np.where(np.arange(len(FAR)) % 3, FAR, FAR + 1).clip(-(2**31), 2**31 - 1)
    for other in (dy.input_indices(b), b):
        found = build(dy.input_indices(a), other).npvalue()
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, f(a, b))
    np.testing.assert_array_equal(build(dy.input_indices(a), 2**24 + 1).npvalue(), f(a, 2**24 + 1))


def test_negated_and_divided_by_nothing(graph) -> None:
    same(-dy.input_indices(FAR), wrapped(-FAR))
    with pytest.raises(ZeroDivisionError):
        dy.input_indices(1) // 0
    with pytest.raises(ZeroDivisionError):
        dy.input_indices(1) % 0


def test_conversions(graph) -> None:
    same(dy.to_int(dy.inputVector([1.9, -1.9, 3e9, -3e9, np.nan, np.inf])), [1, -1, 2**31 - 1, -(2**31), 0, 2**31 - 1])
    x = dy.to_float(dy.input_indices(FAR))
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x.npvalue(), FAR.astype(np.float32))
    assert dy.to_float(x) is x
    i = dy.input_indices([3])
    assert dy.to_int(i) is i


def test_values_are_python_integers(graph) -> None:
    i = dy.argmax(dy.inputVector([1, 5, 3]))
    assert i.dtype == np.int32
    assert i.value() == 1
    assert type(i.value()) is type(i.scalar_value()) is type(i.item()) is int
    assert int(i) == 1
    assert type(float(i)) is float
    assert dy.input_indices([2, 3]).value() == [2, 3]
    assert [type(x) for x in dy.input_indices([2, 3]).vec_value()] == [int, int]
    assert dy.values([i, dy.scalarInput(2)]) == [1, 2.0]
    assert np.from_dlpack(dy.input_indices([2, -3])).dtype == np.int32
    assert f"{i:03d}" == "001"
    assert dy.input_indices(2**31 - 1).value() == 2**31 - 1


def test_what_gives_integers(graph) -> None:
    a = np.array([[1.0, 5, 2], [3, 4, 6]])
    x = dy.inputTensor(a)
    same(dy.argmax(x), a.argmax(0))
    same(dy.argmin(x, d=1), a.argmin(1))
    same(dy.argsort(x, d=1), a.argsort(1))
    same(dy.topk(x, 1)[1], a.argmax(0)[None])
    same(dy.sample(x * 1000), a.argmax(0))
    for e in (
        dy.argmax(x) > 0,
        dy.argmax(x) / 2,
        dy.argmax(x) + 0.5,
        dy.argmax(x) + dy.ones(3),
        dy.sum_elems(dy.argmax(x)),
    ):
        assert e.dtype == np.float32


def test_floats_are_made_of_integers_where_an_op_takes_floats(graph) -> None:
    i = dy.argmax(dy.inputTensor([[1, 5, 2], [3, 4, 6]]))
    a = np.array([1, 0, 1.0])
    for e, expected in [
        (i + 0.5, a + 0.5),
        (1.5 * i, a * 1.5),
        (i / 2, a / 2),
        (dy.tanh(i), np.tanh(a)),
        (dy.ones(3) - i, 1 - a),
        (dy.esum([i, i, dy.ones(3)]), 2 * a + 1),
        (dy.concatenate([i, dy.ones(1)]), np.append(a, 1)),
        (dy.ones((1, 3)) * i, [2]),
        (dy.esum([i] * 20), 20 * a),
        (dy.concatenate([*[i] * 20, dy.ones(1)]), np.append(np.tile(a, 20), 1)),
        (i & (i > -1), a),
        (~i, 1 - a),
    ]:
        assert e.dtype == np.float32
        np.testing.assert_allclose(e.npvalue(), expected, rtol=1e-6)


def test_floats_and_integers_do_not_share_batches() -> None:
    dy.renew_cg(autobatching=1)
    floats = [dy.inputVector([k, 2]) for k in range(4)]
    integers = [dy.input_indices([k, -1]) for k in range(4)]
    ys = [dy.pick(x, dy.input_indices([0])) for pair in zip(floats, integers) for x in pair]
    ys += [dy.concatenate([x, x]) for pair in zip(floats, integers) for x in pair]
    dy.forward(ys)
    for k in range(4):
        assert ys[2 * k].value() == float(k)
        assert type(ys[2 * k + 1].value()) is int
        same(ys[2 * k + 9], [k, -1, k, -1])
    mixed = [dy.one_hot(5, i) for i in (dy.input_indices([2]), dy.inputVector([3]), dy.input_indices([4]))]
    assert [e.npvalue().argmax() for e in dy.forward(mixed) or mixed] == [2, 3, 4]


def test_inputs_of_integers_are_set(graph) -> None:
    x = dy.input_indices([2**24 + 1, 3])
    y = x + 1
    same(y, [2**24 + 2, 4])
    x.set([-1, 2**31 - 1])
    same(x, [-1, 2**31 - 1])
    same(y, [0, -(2**31)])
    with pytest.raises(ValueError, match=r"2147483648 is not from -2\^31 to 2\^31 - 1"):
        x.set([0, 2**31])
    with pytest.raises(TypeError, match="whole numbers are needed"):
        x.set([0, 0.5])


def test_no_gradient_flows_through_integers(graph, collection) -> None:
    p = collection.parameters_from_numpy(np.array([1.0, 5, 3]))
    i = dy.argmax(p) + 1
    loss = dy.pick(p, i) + dy.to_float(i) * dy.sum_elems(p)
    loss.backward(full=True)
    np.testing.assert_array_equal(p.grad_as_array(), [2, 2, 3])
    np.testing.assert_array_equal(i.gradient(), 0)


def test_anomalies_are_not_looked_for_in_integers(graph) -> None:
    with dy.detect_anomaly():
        x = dy.input_indices(BITS) + 0
        y = dy.concatenate([x, x])
        same(y, np.tile(BITS, 2))
    dy.renew_cg(check_validity=True)
    same(dy.input_indices(BITS) + 0, BITS)


@pytest.mark.parametrize("mode", [{}, {"forward_only": True}, {"immediate_compute": True}])
def test_graphs_of_all_kinds(mode) -> None:
    dy.renew_cg(**mode)
    x = dy.input_indices(BITS)
    y = dy.tanh(dy.concatenate([x + 1, x])[3:5])
    np.testing.assert_allclose(y.npvalue(), np.tanh([1.0, 8]), rtol=1e-6)
    same(dy.select_rows(x, [1, 12]), [-2, 2**24 + 1])


def test_errors_name_integers_and_their_values(graph) -> None:
    x = dy.inputVector([1, 2, 3])
    for bad in (2**24 + 1, -1, 3):
        with pytest.raises(IndexError, match=f"the index is {bad} at element 0; it must be a .* number from 0 to 2"):
            dy.pick(x, dy.input_indices(bad)).value()
    with pytest.raises(dy.DimensionError, match="int32"):
        dy.concatenate([dy.input_indices([[1, 2]]), dy.input_indices([[1], [2]])])


def test_axes_longer_than_floats_reach(graph) -> None:
    """An index beyond 2^24, of an axis that long."""
    n = 2**24 + 3
    x = dy.inputVector(np.zeros(n, np.float32))
    x = dy.concatenate([x, dy.inputVector([7, 8, 9])])
    i = dy.argmax(x)
    assert i.value() == n + 2
    assert [dy.pick(x, i - 1 - k).value() for k in range(3)] == [8, 7, 0]
    assert dy.pick(dy.one_hot(n + 3, i), i).value() == 1
    with pytest.raises(dy.DimensionError, match="an index in floats reaches 16777216 elements"):
        dy.pick(x, dy.scalarInput(3))


def test_lstm_steps_read_integers_as_floats(graph, collection) -> None:
    lstm = dy.LSTMBuilder(1, 2, 3, collection)
    state = lstm.initial_state()
    found = [
        state.add_inputs([dy.inputVector([1, 2]), x, dy.inputVector([5, 6]), x])[-1].output().npvalue()
        for x in (dy.input_indices([3, 4]), dy.inputVector([3, 4]))
    ]
    np.testing.assert_array_equal(*found)
