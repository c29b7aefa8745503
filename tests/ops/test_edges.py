"""Ops at the limits of their domain: singular matrices, bounds, modes, indices out of range."""

from __future__ import annotations

import math

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.ops.registry import DimensionError

SINGULAR = [np.zeros((1, 1)), np.ones((2, 2)), np.zeros((3, 3)), [[1, 0, 2], [0, 0, 0], [3, 0, 4]]]


@pytest.mark.parametrize("matrix", SINGULAR, ids=["1", "2", "zeros", "zero-row"])
def test_singular_matrix(matrix, graph) -> None:
    x = dy.inputTensor(matrix)
    assert np.isnan(dy.inverse(x).npvalue()).all()
    y = dy.logdet(x)
    assert y.value() == -math.inf
    y.backward(full=True)
    assert np.isnan(x.gradient()).all()


NAN, INF = math.nan, math.inf
MAXIMA = [
    dy.max_dim,
    lambda x, d: x.max(d),
    lambda x, d: -dy.min_dim(-x, d),
    lambda x, d: -((-x).min(d)),
    lambda x, d: dy.reshape(dy.kmax_pooling(x, 1, d), 3),
    lambda x, d: dy.reshape(dy.topk(x, 1, d)[0], 3),
    lambda x, d: dy.emax([dy.pick(x, i, d) for i in range(x.dim()[0][d])]),
]


@pytest.mark.parametrize("of", range(len(MAXIMA)))
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    "numbers", [[1, NAN, 3], [NAN, 1], [-INF, NAN], [NAN, INF], [NAN] * 2, [1] + [NAN] * 20 + [5] * 20]
)
def test_a_maximum_keeps_nan(numbers, axis, of, graph, on_each_device) -> None:
    """Beside lines without one, along any axis, on all ways to write a maximum; the first NaN gets the gradient."""
    n = len(numbers)
    array = np.array([numbers, np.arange(n), numbers[::-1]], np.float32).T
    x = dy.inputTensor(array if axis == 0 else array.T)
    y = MAXIMA[of](x, axis)
    np.testing.assert_array_equal(y.npvalue(), [NAN, n - 1, NAN])
    dy.sum_elems(y).backward(full=True)
    gradient = x.gradient() if axis == 0 else x.gradient().T
    if of < len(MAXIMA) - 1:  # emax has none there
        np.testing.assert_array_equal(
            gradient.argmax(0), [np.isnan(a).argmax() for a in array.T[:1]] + [n - 1] + [np.isnan(array[:, 2]).argmax()]
        )
        np.testing.assert_array_equal(np.abs(gradient).sum(0), 1)


def test_singular_beside_regular(graph) -> None:
    """A singular matrix affects only its own batch element."""
    batch = np.stack([2 * np.eye(2), np.ones((2, 2)), [[0, 1], [1, 0]]], axis=-1)
    x = dy.inputTensor(batch, batched=True)
    y = dy.inverse(x).npvalue()
    np.testing.assert_array_equal(y[..., 0], np.eye(2) / 2)
    assert np.isnan(y[..., 1]).all()
    np.testing.assert_array_equal(y[..., 2], [[0, 1], [1, 0]])
    logs = dy.logdet(x).value()
    assert logs[0] == pytest.approx(math.log(4))
    assert logs[1] == -math.inf
    assert math.isnan(logs[2])  # the determinant is -1


def test_inverse_of_nothing(graph) -> None:
    x = dy.zeros((0, 0))
    assert dy.inverse(x).npvalue().shape == (0, 0)
    assert dy.logdet(x).value() == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, v: dy.inverse(m), "inverse: x must be a square matrix\n    x  {2,3}  input"),
        (lambda m, v: dy.inverse(v), "inverse: x must be a square matrix"),
        (lambda m, v: dy.logdet(m), "logdet: x must be a square matrix"),
        (lambda m, v: dy.trace_of_product(m, v), "trace_of_product: a and b must be matrices of one shape"),
        (lambda m, v: dy.circ_conv(m, m), "circ_conv: u and v must be vectors"),
        (lambda m, v: dy.circ_corr(v, dy.zeros(3)), "circ_corr: u has 2 elements but v has 3"),
        (lambda m, v: dy.contract3d_1d(m, v), "contract3d_1d: x has 1 elements along axis 2 but y has 2"),
        (lambda m, v: dy.contract3d_1d(dy.zeros((1, 2, 3, 4)), v), "contract3d_1d: x must have three axes"),
        (lambda m, v: dy.contract3d_1d(m, m), "contract3d_1d: y must be a vector"),
        (
            lambda m, v: dy.contract3d_1d_bias(dy.zeros((2, 3, 2)), v, v),
            "contract3d_1d_bias: b must be a matrix of 2 x 3",
        ),
        (
            lambda m, v: dy.contract3d_1d_1d(dy.zeros((2, 3, 2)), v, v),
            "contract3d_1d_1d: x {i,j,k}, y {k}, z {j} are needed\n    x  {2,3,2}\n    y  {2}\n    z  {2}",
        ),
        (
            lambda m, v: dy.contract3d_1d_1d_bias(dy.zeros((2, 3, 2)), v, dy.zeros(3), m),
            "contract3d_1d_1d_bias: x {i,j,k}, y {k}, z {j}, b {i} are needed",
        ),
        (lambda m, v: dy.constrained_softmax(m, m), "constrained_softmax: x and y must be vectors"),
        (lambda m, v: dy.constrained_softmax(v, dy.zeros(3)), "constrained_softmax: x has 2 elements but y has 3"),
        (lambda m, v: dy.kmh_ngram(m, 4), "kmh_ngram: x has 3 columns, 4 are needed"),
        (lambda m, v: dy.kmh_ngram(v, 2), "kmh_ngram: x has 1 columns, 2 are needed"),
        (lambda m, v: dy.kmh_ngram(dy.zeros((2, 2, 2)), 1), "kmh_ngram: x must be a matrix"),
    ],
)
def test_shapes(call, message: str, graph) -> None:
    with pytest.raises(DimensionError) as raised:
        call(dy.zeros((2, 3)), dy.zeros(2))
    assert str(raised.value).startswith(message)


def test_numbers_out_of_range(graph) -> None:
    x = dy.zeros((2, 3))
    with pytest.raises(ValueError, match="kmh_ngram: v must be at least 1, not 0"):
        dy.kmh_ngram(x, 0)
    with pytest.raises(ValueError, match="clip: low must not be greater than high"):
        dy.clip(x, 1, 0)
    with pytest.raises(ValueError, match="huber: c must be positive"):
        dy.huber(x, 0)


@pytest.mark.parametrize("name", ["floor", "ceil", "round"])
def test_rounding(name: str, graph) -> None:
    x = dy.inputVector([-1.5, -0.5, 0.5, 1.5, 2.5, 2.4, -2.6])
    function = getattr(dy, name)
    desired = {
        "floor": [-2, -1, 0, 1, 2, 2, -3],
        "ceil": [-1, 0, 1, 2, 3, 3, -2],
        "round": [-2, -1, 1, 2, 3, 2, -3],
    }[name]
    for mode, slope in [("zero_gradient", 0), ("straight_through_gradient", 1)]:
        y = function(x, gradient_mode=mode)
        assert y.value() == desired
        dy.sum_elems(y).backward(full=True)
        assert x.gradient().tolist() == [slope] * 7
    with pytest.raises(ValueError, match=f"^{name}: gradient_mode must be"):
        function(x, "other")


def test_bounds_of_constrained_softmax(graph) -> None:
    def p(x, u):
        return dy.constrained_softmax(dy.inputVector(x), dy.inputVector(u)).value()

    assert p([1, 2, 3], [0.1, 0.6, 0.5]) == pytest.approx([0.1, 0.4, 0.5])
    assert p([1, 2, 3], [0, 0.6, 0.5]) == pytest.approx([0, 0.5, 0.5])
    assert p([3, 2, 1], [0.1, 0.1, 0.1]) == pytest.approx([0.1, 0.1, 0.1])  # the bounds do not add up to 1
    assert p([200, 0, 0], [0.5, 1, 1]) == pytest.approx([0.5, 0.25, 0.25])  # no overflow, no 0 / 0


def test_sparse_input(graph) -> None:
    def make(idxs, values, shape, **more):
        return dy.sparse_inputTensor(idxs, values, shape, **more)

    x = make(([0, 1], [1, 2]), [5, 6], (2, 3))
    assert x.npvalue().tolist() == [[0, 5, 0], [0, 0, 6]]
    x.set(np.ones((2, 3)))
    assert x.npvalue().tolist() == [[1, 1, 1], [1, 1, 1]]
    assert make((np.array([0, 0]), [1, 1]), np.array([5, 6]), (2, 3)).npvalue()[0, 1] == 6
    assert make(([0, 1], [1, 2]), [5, 6], (2, 3), batched=True).dim() == ((2,), 3)
    assert make([[], []], [], (2, 3), defval=-1).npvalue().tolist() == [[-1] * 3] * 2
    for error, match, arguments in [
        (IndexError, "index 3 is not from 0 to 2 along axis 1", (([0, 1], [1, 3]), [5, 6], (2, 3))),
        (IndexError, "index -1 is not from 0 to 2 along axis 1", (([0, 1], [1, -1]), [5, 6], (2, 3))),
        (ValueError, "idxs has 1 lists, shape .2, 3. has 2 axes", (([0, 1],), [5, 6], (2, 3))),
        (ValueError, r"idxs\[0\] has 2 indices for 1 values", (([0, 1], [1, 2]), [5], (2, 3))),
        (TypeError, r"idxs\[1\] must be a list of whole numbers", (([0, 1], [1.5, 2]), [5, 6], (2, 3))),
    ]:
        with pytest.raises(error, match=f"sparse_inputTensor: {match}"):
            make(*arguments)


def test_transposed_input(graph) -> None:
    x = dy.inputTensorTranspose(np.arange(12.0), (2, 3), batch_size=2)
    assert x.dim() == ((2, 3), 2)
    np.testing.assert_array_equal(x.npvalue(), np.arange(12).reshape((2, 3, 2), order="F"))
    assert dy.inputTensorTranspose([1, 2, 3]).value() == [1, 2, 3]
    x.set(np.arange(12.0).reshape((2, 3, 2), order="F") + 1)
    assert x.vec_value() == list(range(1, 13))
    with pytest.raises(ValueError, match=r"inputTensorTranspose: arr has 6 numbers, shape \(2, 3\) with batch size 2"):
        dy.inputTensorTranspose(np.arange(6), (2, 3), 2)
    with pytest.raises(ValueError, match="inputTensorTranspose: arr must have one axis, not 2"):
        dy.inputTensorTranspose(np.ones((2, 3)))


WHOLE_FLOATS = {
    "pick": lambda dy, n, x: dy.pick(x, n(1), n(1)),
    "pick_batch": lambda dy, n, x: dy.pick_batch(x, [n(2), n(0)]),
    "pick_range": lambda dy, n, x: dy.pick_range(x, n(1), n(3), n(0)),
    "pickrange": lambda dy, n, x: dy.pickrange(x, n(1), n(2)),
    "pick_batch_elem": lambda dy, n, x: dy.pick_batch_elem(x, n(1)),
    "pick_batch_elems": lambda dy, n, x: dy.pick_batch_elems(x, [n(1), n(1)]),
    "select_rows": lambda dy, n, x: dy.select_rows(x, [n(2), n(1)]),
    "select_cols": lambda dy, n, x: dy.select_cols(x, [n(2), n(1)]),
    "strided_select": lambda dy, n, x: dy.strided_select(x, [n(2)], [n(0)], [n(3)]),
    "slice": lambda dy, n, x: x[n(1) : n(3), : n(2)],
    "pickneglogsoftmax": lambda dy, n, x: dy.pickneglogsoftmax(x[0], n(1)),
    "pickneglogsoftmax_batch": lambda dy, n, x: dy.pickneglogsoftmax_batch(x[0], [n(1), n(2)]),
    "hinge": lambda dy, n, x: dy.hinge(x[0], n(1)),
    "log_softmax": lambda dy, n, x: dy.exp(dy.log_softmax(dy.pick_batch_elem(x[0], 0), [n(1), n(2)])),
    "concatenate": lambda dy, n, x: dy.concatenate([x, x], n(1)),
    "transpose": lambda dy, n, x: dy.transpose(x, [n(1), n(0)]),
    "sum_dim": lambda dy, n, x: dy.sum_dim(x, [n(1)]),
    "max_dim": lambda dy, n, x: dy.max_dim(x, n(1)),
    "cumsum": lambda dy, n, x: dy.cumsum(x, n(1)),
    "logsumexp_dim": lambda dy, n, x: dy.logsumexp_dim(x, n(1)),
    "kmh_ngram": lambda dy, n, x: dy.kmh_ngram(x, n(2)),
    "reshape": lambda dy, n, x: dy.reshape(x, (n(9),), n(2)),
}


@pytest.mark.parametrize("build", WHOLE_FLOATS.values(), ids=WHOLE_FLOATS)
def test_whole_floats_are_whole_numbers(graph, build) -> None:
    """Whole floats, for example from a division or NumPy, are accepted as indices, axes and sizes; others are not."""
    x = dy.inputTensor(np.arange(18.0).reshape(3, 3, 2) / 10, batched=True)
    want = build(dy, int, x).npvalue()
    for number in (float, np.float32, np.float64, np.int64, np.uint8):
        np.testing.assert_array_equal(build(dy, number, x).npvalue(), want)
    for off in (0.25, float("nan"), float("inf")):
        with pytest.raises(TypeError, match=r"must be (a )?whole number|a list of indices is needed"):
            build(dy, lambda n, off=off: n + off, x)
    with pytest.raises(TypeError, match=r"must be (a )?whole number|a list of indices is needed"):
        build(dy, str, x)


def test_whole_floats_in_arrays(graph) -> None:
    x = dy.inputTensor(np.eye(3), batched=True)
    assert dy.pick_batch(x, np.array([1.0, 1.0, 2.0])).vec_value() == [0, 1, 1]
    for bad in ([0.5, 1, 2], [np.nan, 1, 2], [np.inf, 1, 2]):
        with pytest.raises(TypeError, match="pick_batch: a list of indices is needed"):
            dy.pick_batch(x, np.array(bad))


def test_layer_norm_of_columns(graph) -> None:
    """Equal to a loop over the columns, bit for bit; with a matrix as gain, all elements are normalized together."""
    x, g, b = (
        dy.inputTensor(np.arange(12.0).reshape(4, 3) ** 2),
        dy.inputTensor([1, 2, 3, 4]),
        dy.inputTensor([4, 3, 2, 1]),
    )
    columns = [dy.layer_norm(column, g, b).npvalue() for column in (dy.pick(x, i, 1) for i in range(3))]
    np.testing.assert_array_equal(dy.layer_norm(x, g, b).npvalue(), np.stack(columns, 1))
    ones = dy.inputTensor(np.ones((4, 3)))
    y = dy.layer_norm(x, ones, ones).npvalue()
    assert y.mean() == pytest.approx(1, abs=1e-6)
    assert abs(y.mean(0) - 1).min() > 0.01


@pytest.mark.parametrize(
    ("g", "b", "axis"),
    [
        ((3,), (3,), None),  # not the first axes
        ((4,), (4, 3), None),  # ambiguous: per column, or all?
        ((1,), (1,), None),
        ((4, 2), (4, 2), None),
        ((4,), (4,), 1),
        ((4,), (3,), 0),
        ((3,), (3,), 2),
        ((3,), (3,), -3),
        ((3,), (3,), [0, 2]),
        ((3,), (3,), [1, 1]),
        ((3,), (3,), []),
    ],
)
def test_layer_norm_of_other_shapes(g, b, axis, graph) -> None:
    x = dy.inputTensor(np.ones((4, 3)))
    with pytest.raises(DimensionError, match="layer_norm"):
        dy.layer_norm(x, dy.inputTensor(np.ones(g)), dy.inputTensor(np.ones(b)), axis=axis)
    assert dy.sum_elems(x).value() == 12


# ---- arguments that make no sense ----------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dy.random_normal(3, 0, -1), "random_normal: stddev must not be negative, but it is -1"),
        (lambda: dy.random_normal(3, 0, float("nan")), "random_normal: stddev must not be negative, but it is nan"),
        (lambda: dy.noise(dy.zeros(3), -0.5), "noise: stddev must not be negative, but it is -0.5"),
        (lambda: dy.random_uniform(3, 3, 1), "random_uniform: left must not be greater than right"),
        (lambda: dy.mean_dim(dy.zeros((2, 3)), [0], n=-5), "mean_dim: n must not be negative, but it is -5"),
        (lambda: dy.moment_dim(dy.zeros((2, 3)), [0], 2, n=-1), "moment_dim: n must not be negative"),
        (lambda: dy.std_dim(dy.zeros((2, 3)), [0], n=-1), "std_dim: n must not be negative"),
        (
            lambda: dy.ParameterCollection().add_parameters(3, init="normal", std=-1),
            "the standard deviation must not be negative: -1",
        ),
        (
            lambda: dy.ParameterCollection().add_parameters(3, name="W").clip_inplace(1, -1),
            "clip_inplace of /W: left must not be greater than right, but they are 1 and -1",
        ),
    ],
)
def test_arguments_that_make_no_sense(graph, make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


MADE_OF_OPS = [
    (lambda x: dy.softmin(x, 5), "softmin: x has no axis 5\n    x  {2,3}"),
    (lambda x: dy.sum_dim(x, [2]), "sum_dim: there is no axis 2 to reduce\n    x  {2,3}"),
    (lambda x: dy.mean_dim(x, [2]), "mean_dim: there is no axis 2 to reduce\n    x  {2,3}"),
    (lambda x: dy.moment_dim(x, [2], 3), "moment_dim: there is no axis 2 to reduce\n    x  {2,3}"),
    (lambda x: dy.std_dim(x, [2]), "std_dim: there is no axis 2 to reduce\n    x  {2,3}"),
    (lambda x: dy.hinge_dim(x, [0, 0, 2]), "hinge_dim: index 2 is out of range for 2 elements\n    x  {2,3}"),
    (lambda x: dy.hinge_dim(x, [0, 0]), "hinge_dim: 2 indices given where 3 are needed\n    x  {2,3}"),
    (lambda x: dy.hinge_dim(x, [0, 0], 2), "hinge_dim: x has no axis 2\n    x  {2,3}"),
    (lambda x: dy.hinge_dim(dy.pick(x, 0), [0]), "hinge_dim: x must be a matrix\n    x  {3}"),
    (
        lambda x: dy.contract3d_1d_bias(dy.zeros((3, 2, 1)), dy.zeros(1), x),
        "contract3d_1d_bias: b must be a matrix of 3 x 2\n    b  {2,3}",
    ),
]


@pytest.mark.parametrize(("make", "message"), MADE_OF_OPS, ids=[m.partition("\n")[0] for _, m in MADE_OF_OPS])
def test_functions_made_of_ops_name_themselves(graph, make, message: str) -> None:
    with pytest.raises((DimensionError, IndexError)) as raised:
        make(dy.zeros((2, 3)))
    assert str(raised.value).startswith(message)


def test_a_copy_on_the_same_device(graph, strategy) -> None:
    """The copy has its own gradient."""
    p = dy.ParameterCollection().add_parameters(2, init=1.0)
    x = p * 2
    copy = dy.to_device(x, "CPU")
    dy.sum_elems(copy * 3 + x).backward()
    np.testing.assert_array_equal(copy.gradient(), [3, 3])
    np.testing.assert_array_equal(x.gradient(), [4, 4])
    np.testing.assert_array_equal(p.gradient(), [8, 8])
