"""Indices that are values of the graph: errors, draws, and what is not computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.graph.origin import record_lines

X = np.arange(12.0).reshape(3, 4)


def at(*indices):
    return dy.inputVector(indices)


BAD = {
    "pick": (lambda x, i: dy.pick(x, i), 3),
    "pick_batch": (lambda x, i: dy.pick_batch(x, i, 1), 4),
    "pick_range": (lambda x, i: dy.pick_range(x, i, length=1), 3),
    r"\[\]": (lambda x, i: x[:, i], 4),
    "select_rows": (lambda x, i: dy.select_rows(x, i), 3),
    "select_cols": (lambda x, i: dy.select_cols(x, i), 4),
    "scatter_rows": (lambda x, i: dy.scatter_rows(x[:1], i, 2), 2),
    "scatter_cols": (lambda x, i: dy.scatter_cols(x[:, :1], i, 2), 2),
    "gather": (lambda x, i: dy.gather(x[:, 0], i), 3),
    "scatter": (lambda x, i: dy.scatter(x[:, 0], i, dy.ones(1)), 3),
    "scatter_add": (lambda x, i: dy.scatter_add(x[:, 0], i, dy.ones(1)), 3),
    "index_add": (lambda x, i: dy.index_add(x, i, dy.ones((1, 4))), 3),
    "pickneglogsoftmax": (lambda x, i: dy.pickneglogsoftmax(x[0], i), 4),
    "one_hot": (lambda x, i: dy.one_hot(7, i), 7),
    "pick_batch_elem": (lambda x, i: dy.pick_batch_elem(dy.reshape(x, (3,), 4), i), 4),
    "pick_batch_elems": (lambda x, i: dy.pick_batch_elems(dy.reshape(x, (3,), 4), i), 4),
    "pickneglogsoftmax_list": (lambda x, i: dy.pickneglogsoftmax_list([x[0]], [i])[0], 4),
    "hinge": (lambda x, i: dy.hinge(x[0], i), 4),
    "hinge_batch": (lambda x, i: dy.hinge_batch(x[0], i), 4),
    "hinge_dim": (lambda x, i: dy.hinge_dim(x[:, :1], i), 3),
    "log_softmax": (lambda x, i: dy.exp(dy.log_softmax(x[0], i)), 4),
    "crf_loss": (lambda x, i: dy.crf_loss(x[:, 0], i, dy.ones((3, 3)), dy.ones(3), dy.ones(3)), 3),
    "crf_score": (lambda x, i: dy.crf_score(x[:, 0], i, dy.ones((3, 3)), dy.ones(3), dy.ones(3)), 3),
}


@pytest.mark.parametrize("strategy", [0, 1])
@pytest.mark.parametrize("name", BAD)
def test_an_index_out_of_range_names_op_value_and_range(name: str, strategy: int, on_each_device) -> None:
    build, n = BAD[name]
    dy.renew_cg(autobatching=strategy)
    x = dy.inputTensor(X)
    good = [build(x, at(k)) for k in range(n)]
    dy.forward(good)
    for bad in (n, -2, 0.5, float("inf"), float("nan")):
        y = build(x, at(bad))
        text = str(bad).replace(".", r"\.")
        with pytest.raises(IndexError, match=f"^{name}: the index is {text} at .*number from 0 to {n - 1}"):
            y.npvalue()
        assert build(x, at(1)).npvalue().size


def test_the_node_of_a_wrong_index(graph) -> None:
    """Of a batch of nodes, the one whose index it is: its own batch element, its arguments, and its line."""
    with record_lines():
        x = dy.inputTensor(X)
        ys = [dy.pick(x, dy.inputTensor([[0, 1, bad]], batched=True)) for bad in (2, 7, 1)]
        with pytest.raises(IndexError) as raised:
            dy.forward(ys)
    first, *arguments = str(raised.value).splitlines()
    assert first.startswith(
        "pick: the index is 7 at element 0 of batch element 2; it must be a whole number from 0 to 2"
    )
    assert "test_positions.py" in first
    assert [line.split()[:2] for line in arguments] == [["x", "{3,4}"], ["indices", "{1}"]]


def test_a_wrong_index_among_many(graph) -> None:
    """The others of its batch can be computed alone."""
    x = dy.inputTensor(X)
    ys = [dy.pick(x, at(k)) for k in (0, 1, 3)]
    with pytest.raises(IndexError, match="pick: the index is 3"):
        dy.forward(ys)
    np.testing.assert_array_equal(ys[1].npvalue(), X[1])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: dy.pick(x, at(1, 2)), "the index must be one number for each batch element"),
        (lambda x: dy.pick(x, at(1), 2), "axis"),
        (lambda x: dy.select_rows(x, dy.ones((2, 2))), "the indices must be a vector"),
        (lambda x: dy.gather(x, at(1)), "the indices have 1 axes, they need 2"),
        (lambda x: dy.gather(x, dy.ones((1, 3))), "the indices have 3 elements along axis 1, they need 4"),
        (lambda x: dy.scatter_rows(x, at(1, 2), 5), "the indices must be a vector of 3"),
        (lambda x: dy.pick_range(x, at(1, 2), length=1), "s must be one number"),
        (lambda x: dy.argmax(x, d=2), "d must be an axis"),
        (lambda x: dy.argmin(x[:0]), "x has no elements along d"),
        (lambda x: dy.sample(x, 3), "d must be an axis"),
    ],
)
def test_shapes_that_do_not_fit(build, message: str, graph) -> None:
    with pytest.raises(dy.DimensionError, match=message):
        build(dy.inputTensor(X))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: x[at(1), [0, 1]], "may stand beside numbers, slices and other expressions only"),
        (lambda x: x[at(1), None], "may stand beside numbers, slices and other expressions only"),
        (lambda x: x[..., at(1), ...], "may stand beside numbers, slices and other expressions only"),
        (lambda x: x[at(0, 1), at(0, 1)], "only one may have several numbers; gather"),
        (lambda x: dy.pick_range(x, at(1), 2), "s is an expression, so give length"),
        (lambda x: dy.pick_range(x, 1), "either e or length must be given"),
        (lambda x: dy.pick_range(x, 1, 2, length=1), "either e or length must be given"),
        (lambda x: dy.pick(x, at(1)).set_index(0), "the index is an expression"),
        (lambda x: dy.input_indices([0.5]), "whole numbers are needed"),
        (lambda x: dy.input_indices("a"), "whole numbers are needed"),
    ],
)
def test_uses_that_are_not_possible(build, message: str, graph) -> None:
    with pytest.raises(TypeError, match=message):
        build(dy.inputTensor(X))


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (lambda x: dy.pick_batch(x, at(0, 1, 2), 1), "{3} x 3"),
        (lambda x: dy.pickneglogsoftmax_batch(x[0], at(0, 1)), "{1} x 2"),
        (lambda x: dy.hinge(x[0], at(0, 1)), "{1} x 2"),
    ],
)
def test_a_vector_has_an_index_for_each_batch_element(build, shape: str, graph) -> None:
    assert shape in repr(build(dy.inputTensor(X)))


def test_indices_that_fit_neither_a_vector_nor_a_batch(graph) -> None:
    for function in (dy.pick_batch, dy.pickneglogsoftmax, dy.hinge):
        with pytest.raises(dy.DimensionError, match=f"^{function.__name__}: the indices must be a vector, or .*2,2"):
            function(dy.ones(3, batch_size=4), dy.zeros((2, 2)))


def test_a_range_beyond_the_whole_numbers_of_floats(graph) -> None:
    n = 2**24
    x = dy.concatenate([dy.zeros(n), dy.inputVector([1, 2, 3, 4])])
    assert dy.pick_range(x, dy.input_indices(n + 1), length=2).npvalue().tolist() == [2, 3]


def test_numbers_that_types_do_not_hold(graph) -> None:
    assert dy.input_indices(2**31 - 1).value() == 2**31 - 1
    with pytest.raises(ValueError, match="2147483648 is not from -2\\^31 to 2\\^31 - 1"):
        dy.input_indices([1, 2**31])
    with pytest.raises(dy.DimensionError, match="reaches 16777216 elements"):
        dy.one_hot(2**24 + 1, at(1))


def test_division_of_whole_numbers_is_exact(graph, on_each_device) -> None:
    rng = np.random.default_rng(3)
    a = np.concatenate([rng.integers(0, 2**24, 20_000), 2**24 - 1 - np.arange(100)])
    b = np.concatenate([rng.integers(1, 5000, 10_000), rng.integers(1, 2**24, 10_100)])
    for x, y in [(dy.input_indices(a), dy.input_indices(b)), (dy.inputVector(a), dy.inputVector(b))]:
        np.testing.assert_array_equal((x // y).npvalue(), a // b)
        np.testing.assert_array_equal((x % y).npvalue(), a % b)


def viterbi(x: dy.Expression, d: int) -> dy.Expression:
    return dy.crf_viterbi(x, dy.zeros((3, 3)), dy.zeros(3), dy.zeros(3))


viterbi.__name__ = "crf_viterbi"


@pytest.mark.parametrize("choose", [dy.argmax, dy.argmin, dy.sample, viterbi])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_choice_among_nan_is_an_error(choose: Any, axis: int, graph, on_each_device) -> None:
    x = np.zeros((3, 4, 2))
    x[1, 2, 1] = np.nan
    with pytest.raises(ValueError, match=rf"^{choose.__name__}: .*x is NaN at element 7 of batch element 1(\n|$)"):
        choose(dy.inputTensor(x, batched=True), d=axis).npvalue()
    assert choose(dy.zeros((3, 4)), d=axis).npvalue().size


def test_minus_infinity_is_never_chosen(graph, on_each_device) -> None:
    x = np.where(np.eye(4), 0, -np.inf)
    for axis in (0, 1):
        np.testing.assert_array_equal(dy.sample(dy.inputTensor(x), axis).npvalue(), range(4))
        np.testing.assert_array_equal(dy.argmax(dy.inputTensor(x), d=axis).npvalue(), range(4))
    x[2] = -np.inf
    np.testing.assert_array_equal(dy.argmax(dy.inputTensor(x), d=1).npvalue(), [0, 1, 0, 3])
    with pytest.raises(
        ValueError, match="sample: no element can be drawn: all along the axis are -inf, from element 2"
    ):
        dy.sample(dy.inputTensor(x), 1).npvalue()


def test_samples_have_the_probabilities_of_a_softmax(graph, on_each_device) -> None:
    n = 20_000
    p = np.array([0.5, 0.3, 0.0, 0.2])
    scores = dy.inputTensor(np.tile(np.log(np.maximum(p, 1e-300))[:, None], n))
    found = dy.sample(scores).npvalue()
    assert found.shape == (n,)
    np.testing.assert_allclose(np.bincount(found.astype(int), minlength=4) / n, p, atol=0.015)


def test_samples_depend_on_their_position_only() -> None:
    """Not on batching, nor on what else is computed; the seed and the position decide."""
    found = []
    for strategy in (0, 1, 2):
        dy.reset_random_seed(5)
        dy.renew_cg(autobatching=strategy)
        draws = [dy.sample(dy.zeros(50)) for _ in range(10)]
        dy.forward(draws if strategy else draws[::-1])
        found.append([y.value() for y in draws])
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) > 3


@pytest.mark.parametrize("n", [9, 40, 1000])
@pytest.mark.parametrize("largest", [True, False])
def test_a_part_of_an_order_is_its_beginning(n: int, largest: bool, graph, on_each_device) -> None:
    """`topk` selects, where it is asked for few; equal elements come in the order of `sort`."""
    rng = np.random.default_rng(n)
    x = rng.integers(0, 6, (n, 3)).astype(float)
    e = dy.inputTensor(x)
    values, places = dy.sort(e, descending=largest).npvalue(), dy.argsort(e, descending=largest).npvalue()
    for k in (1, 2, n // 8, n // 2, n):
        top, at_top = dy.topk(e, k, largest=largest)
        np.testing.assert_array_equal(top.npvalue().reshape(k, 3), values[:k])
        np.testing.assert_array_equal(at_top.npvalue().reshape(k, 3), places[:k])
    weights = rng.normal(size=(2, 3))
    dy.sum_elems(dy.cmult(dy.topk(e, 2, largest=largest)[0], dy.inputTensor(weights))).backward(full=True)
    expected = np.zeros_like(x)
    np.put_along_axis(expected, places[:2].astype(int), weights, 0)
    np.testing.assert_allclose(e.gradient(), expected, rtol=1e-6)


def test_a_range_of_no_elements(graph, on_each_device) -> None:
    assert dy.pick_range(dy.inputTensor(X), at(1), length=0).dim() == ((0, 4), 1)
    with pytest.raises(IndexError, match="length must be a number of elements, not -1"):
        dy.pick_range(dy.inputTensor(X), at(1), length=-1)


def twice(x: dy.Expression) -> dy.Expression:
    return dy.concatenate_to_batch([x, x])


OF_WRONG_SHAPES = {
    "pick: the axis must be one of x, from 0 to 1": (lambda x, i, v: dy.pick(x, i, dim=5), "x {3,4}", "index {1}"),
    "pick: the index must be one number": (lambda x, i, v: dy.pick(x, v), "x {3,4}", "index {3}"),
    "pick_batch: batch sizes 2 and 3 differ": (lambda x, i, v: dy.pick_batch(twice(x), v), "x {3,4}", "indices {1}"),
    "select_rows: the indices must be a vector": (lambda x, i, v: dy.select_rows(x, x), "x {3,4}", "rs {3,4}"),
    "select_cols: the indices must be a vector": (lambda x, i, v: dy.select_cols(x, x), "x {3,4}", "cs {3,4}"),
    "[]: the indices must be a vector": (lambda x, i, v: x[x], "x {3,4}", "indices {3,4}"),
    "hinge: batch sizes 2 and 3 differ": (lambda x, i, v: dy.hinge(twice(x), v), "x {3,4}", "v {1}"),
    "pickneglogsoftmax_batch: batch sizes 2": (
        lambda x, i, v: dy.pickneglogsoftmax_batch(twice(x), v),
        "x {3,4}",
        "vs {1}",
    ),
}


@pytest.mark.parametrize("message", OF_WRONG_SHAPES)
def test_errors_of_shapes_name_the_function(message: str) -> None:
    """Not the op that it shares with others; and the arguments, as the function calls them, with their shapes."""
    call, *arguments = OF_WRONG_SHAPES[message]
    x, v = dy.inputTensor(X), dy.inputVector([0, 1, 2])
    with pytest.raises(dy.DimensionError) as raised:
        call(x, dy.argmax(v), v)
    first, *lines = str(raised.value).splitlines()
    assert first.startswith(message)
    assert [" ".join(line.split()[:2]) for line in lines] == arguments
    assert raised.value.__context__ is None
