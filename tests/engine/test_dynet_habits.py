"""What programs written for DyNet rely on, and what they could not do there."""

from __future__ import annotations

import operator
import subprocess
import sys

import numpy as np
import pytest

import dynet_cy as dy


@pytest.fixture
def collection(graph):
    return dy.ParameterCollection()


def vector(*values):
    return dy.inputVector(list(values))


def matrix():
    return dy.inputTensor([[1, 2], [3, 4]])


# ---- operators ---------------------------------------------------------------

NUMBERS = [2, 2.0, True, np.float32(2), np.float64(2), np.int64(2), np.array(2.0), np.uint8(2)]
OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda n: f"{type(n).__name__}-{n}")
@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.__name__)
def test_numbers_on_either_side(op, number, graph) -> None:
    e = vector(1, 2, 4)
    left, right = op(e, number), op(number, e)
    assert type(left) is type(right) is dy.Expression
    x = np.array([1, 2, 4], np.float64)
    np.testing.assert_allclose(left.value(), op(x, float(number)), rtol=1e-6)
    np.testing.assert_allclose(right.value(), op(float(number), x), rtol=1e-6)


@pytest.mark.parametrize("wrong", ["a", None, 1j, [1, 2], object()], ids=lambda w: type(w).__name__)
@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.__name__)
def test_no_operator_with_other_things(op, wrong, graph) -> None:
    for a, b in [(vector(1, 2, 4), wrong), (wrong, vector(1, 2, 4))]:
        with pytest.raises(TypeError):
            op(a, b)


def test_sums_and_signs(graph) -> None:
    e = vector(1, 2)
    assert sum([e, e]).value() == [2, 4]
    assert sum([]) == 0
    assert (-e).value() == [-1, -2]
    total = e
    total += 1
    total *= 2
    total -= e
    total /= 2
    total **= 2
    np.testing.assert_allclose(total.value(), [2.25, 4])
    assert e.value() == [1, 2]
    with pytest.raises(TypeError):
        pow(e, 2, 3)


def test_quotients_and_products_of_expressions(graph) -> None:
    e, s, m = vector(1, 2), dy.scalarInput(4), matrix()
    assert (e / e).value() == [1, 1]
    assert (e / s).value() == [0.25, 0.5]
    assert (s / e).value() == [4, 2]
    assert (m / s).value().tolist() == [[0.25, 0.5], [0.75, 1]]
    assert (m / e).value().tolist() == [[1, 2], [1.5, 2]]
    for product in (e * s, s * e):
        assert product.value() == [4, 8]
    assert (s * m).value().tolist() == (m * s).value().tolist() == [[4, 8], [12, 16]]
    assert (m * e).value() == [5, 11]
    assert (m * m).value().tolist() == [[7, 10], [15, 22]]
    with pytest.raises(ValueError, match="matmul: a has 1 columns but b has 2 rows"):
        e * e
    with pytest.raises(ZeroDivisionError):
        e / 0


def test_values_for_numpy_and_float(graph) -> None:
    matrix = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(np.asarray(dy.inputTensor(matrix)), matrix)
    assert np.asarray(vector(1, 2), np.int32).dtype == np.int32
    np.testing.assert_array_equal(np.array([vector(1, 2), vector(3, 4)]), [[1, 2], [3, 4]])
    np.testing.assert_array_equal(np.asarray(dy.inputTensor(matrix, batched=True)), matrix)
    assert float(dy.sum_elems(vector(1, 2))) == 3
    with pytest.raises(ValueError, match="scalar_value: the expression has shape .2., not one element"):
        float(vector(1, 2))
    with pytest.raises(TypeError, match="inputTensor: the value must hold real numbers, not object"):
        dy.inputTensor([vector(1, 2), vector(3, 4)])  # else it would stop gradients without a word
    with pytest.raises(TypeError, match="s must hold real numbers"):
        dy.scalarInput(vector(1))


TRAPS = """
import warnings
import numpy as np
import dynet_cy as dy

e = dy.scalarInput(0)
same = e
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    assert e is not None and [x for x in (e, None) if x is not None] == [e]
    assert e in [e] and e == same and e != dy.scalarInput(0) and len({e, same}) == 1 and {e: 1}[same] == 1
    assert not said
    for _ in range(3):
        assert bool(e) and (e or None) is e and list(filter(None, [e])) == [e]
        assert bool(dy.zeros(0))
        assert not e == 0 and e != np.float32(0)
for x in said:
    print(x.category.__name__, x.message)
"""


def test_traps_are_told_once(tmp_path) -> None:
    """Truth and comparisons with numbers do what DyNet does, and say so."""
    result = subprocess.run([sys.executable, "-c", TRAPS], capture_output=True, text=True, check=True, cwd=tmp_path)
    lines = result.stdout.splitlines()
    assert len(lines) == 2, result.stdout
    assert lines[0].startswith("RuntimeWarning an Expression is always true, whatever its value; write `if e.value():`")
    assert lines[1].startswith("RuntimeWarning an Expression never equals a number; write `e.value() == x`")


# ---- lookups and powers ------------------------------------------------------


@pytest.fixture
def table():
    return dy.ParameterCollection().lookup_parameters_from_numpy(np.arange(10.0).reshape(5, 2), "E")


def test_setting_a_lookup(graph, strategy, table) -> None:
    for row in (dy.lookup(table, 1), table[1], dy.lookup(table, 1, update=False)):
        y = row * 2
        assert y.value() == [4, 6]
        row.set(3)
        assert row.value() == [6, 7]
        assert y.value() == [12, 14]
        for wrong, error in ((5, IndexError), (-1, IndexError), ("a", TypeError), ([1, 2], ValueError)):
            with pytest.raises(error, match="^set: "):
                row.set(wrong)
        assert y.value() == [12, 14]
    row = table[0]
    loss = dy.sum_elems(row * 3)
    loss.value()
    row.set(np.int64(4))
    loss.backward()
    np.testing.assert_array_equal(table.grad_as_array(), [[0, 0]] * 4 + [[3, 3]])


def test_setting_a_batch_of_lookups(graph, strategy, table) -> None:
    rows = dy.lookup_batch(table, [0, 1])
    y = rows + 0
    y.forward()
    rows.set([2, 4])
    np.testing.assert_array_equal(y.npvalue(), [[4, 8], [5, 9]])
    rows.set(np.array([1, 1]))
    np.testing.assert_array_equal(y.npvalue(), [[2, 2], [3, 3]])
    with pytest.raises(ValueError, match="set: 1 indices given where 2 are needed"):
        rows.set([1])
    with pytest.raises(TypeError, match="set: a list of 2 indices is needed, not 1"):
        rows.set(1)
    with pytest.raises(IndexError, match="set: index 9 is out of range for /E with 5 rows"):
        rows.set([1, 9])
    np.testing.assert_array_equal(y.npvalue(), [[2, 2], [3, 3]])


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((3,), (3,)), ((3, 1), (3,)), ((1, 3), (1, 3)), ((3, 2, 1), (3, 2)), ((1, 1), (1,)), ((2, 1, 1), (2,)), ((), ())],
)
def test_powers_have_no_last_axes_of_one(graph, shape, expected) -> None:
    x = dy.inputTensor(np.full(shape, 3.0)) if shape else dy.sum_elems(vector(3))
    shape = x.dim()[0]
    expected = expected or shape
    for y in (dy.pow(x, dy.scalarInput(2)), x ** dy.scalarInput(2), x**2):
        assert y.dim() == (expected, 1)
        np.testing.assert_allclose(y.npvalue(), np.full(expected, 9.0), rtol=1e-6)
        dy.sum_elems(y).backward(full=True)
        np.testing.assert_allclose(x.gradient(), np.full(shape, 6.0), rtol=1e-6)


# ---- indices -----------------------------------------------------------------

CUBE = np.arange(24.0).reshape(2, 3, 4)
KEYS = [
    *[0, -1, np.int64(1), np.uint8(0), slice(None), slice(0, 1), slice(1, None), slice(-1, None), slice(None, -1)],
    *[slice(None, None, -1), slice(0, 10), slice(5, 10), slice(1, 1), slice(np.int64(0), np.int64(1)), ...],
    *[(0, 1), (0, 1, 2), (-1, -1, -1), (0, slice(1, 3)), (slice(None), 1), (slice(0, 1), slice(0, 2), slice(1, 4, 2))],
    *[(slice(None), slice(None, None, -1), slice(None, None, -2)), (..., 2), (1, ..., 2), (slice(0, 0), 0)],
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_indices_are_numpys(key, graph) -> None:
    y = dy.inputTensor(CUBE)[key]
    desired = CUBE[key]
    assert y.dim() == (desired.shape or (1,), 1)
    np.testing.assert_array_equal(y.npvalue(), desired.reshape(desired.shape or (1,)))


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_gradients_of_indices(key, graph) -> None:
    x = dy.inputTensor(CUBE)
    dy.sum_elems(x[key] * 2).backward(full=True)
    desired = np.zeros(CUBE.shape)
    desired[key] = 2
    np.testing.assert_array_equal(x.gradient(), desired)


def test_indices_of_batches(graph) -> None:
    """One index more than there are axes counts batch elements."""
    x = dy.inputTensor(CUBE, batched=True)
    assert x[0].dim() == ((3,), 4)
    assert x[0, 1:].dim() == ((2,), 4)
    assert x[:, :, 1:3].dim() == ((2, 3), 2)
    np.testing.assert_array_equal(x[:, ::-1, 1].npvalue(), CUBE[:, ::-1, 1])
    with pytest.raises(IndexError, match="4 indices for 2 axes and the batch"):
        x[0, 0, 0, 0]


@pytest.mark.parametrize(
    ("key", "error", "match"),
    [
        (3, IndexError, "Index too large: 3 > 2"),
        (-4, IndexError, "Index too small: -4 < -3"),
        (np.int64(3), IndexError, "Index too large"),
        ((0, 0, 0), IndexError, "3 indices for 1 axes and the batch"),
        (slice(None, None, 0), ValueError, "step of a slice must not be 0"),
        *[(k, TypeError, "an index must be a number") for k in [1.0, "a", (0, "b")]],
    ],
    ids=str,
)
def test_wrong_indices(key, error, match: str, graph) -> None:
    with pytest.raises(error, match=match):
        vector(1, 2, 3)[key]


def test_expressions_are_sequences(graph) -> None:
    e = vector(1, 2, 3)
    assert [x.value() for x in e] == [1, 2, 3]
    a, b = matrix()
    assert (a.value(), b.value()) == ([1, 2], [3, 4])
    assert [x.value() for x in reversed(e)] == [3, 2, 1]
    assert dy.scalarInput(3)[0].value() == 3


# ---- values ------------------------------------------------------------------


def test_values(graph) -> None:
    """The shapes of arrays and lists, each as DyNet gives it."""

    def batch(shape):
        return dy.inputTensor(np.arange(float(np.prod(shape))).reshape(shape), batched=True)

    assert type(dy.scalarInput(3).value()) is float
    assert dy.scalarInput(3).npvalue().tolist() == [3]
    assert type(vector(1, 2).value()) is list
    assert type(vector(1, 2).value()[0]) is float
    assert vector(1, 2).npvalue().shape == (2,)
    assert batch((3,)).dim() == ((1,), 3)
    assert batch((3,)).value() == [0, 1, 2]
    assert batch((3,)).npvalue().tolist() == [[0, 1, 2]]
    assert batch((2, 3)).npvalue().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert batch((2, 3)).vec_value() == [0, 3, 1, 4, 2, 5]
    assert matrix().value().tolist() == [[1, 2], [3, 4]]
    assert matrix().vec_value() == [1, 3, 2, 4]
    for shape in [(2, 1), (1, 2), (2, 2, 1)]:
        assert dy.zeros(shape).value().shape == shape
    for x in [matrix(), vector(1, 2), batch((2, 2, 3))]:
        assert x.npvalue().dtype == np.float64
        assert dy.npvalues([x])[0].dtype == np.float64
    value = matrix().npvalue()
    value[0, 0] = 7  # a copy, which may be written
    assert dy.inputTensor([[1.0]]).value().tolist() == [[1]]
    assert batch((2, 3)).value() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize("make", [lambda: vector(1, 2), matrix, lambda: dy.inputTensor([1, 2], batched=True)])
def test_scalar_value_of_more(make, graph) -> None:
    with pytest.raises(ValueError, match="scalar_value: the expression has shape"):
        make().scalar_value()


def test_gradients_are_arrays_of_doubles(graph) -> None:
    x = vector(1, 2)
    dy.dot_product(x, x).backward(full=True)
    assert x.gradient().dtype == np.float64
    assert x.gradient().tolist() == [2, 4]


@pytest.mark.parametrize(
    "use",
    [
        *[lambda e: e.value(), lambda e: e.npvalue(), lambda e: e.dim(), lambda e: e.backward()],
        *[lambda e: e.gradient(), lambda e: e + 1, lambda e: e[0], lambda e: dy.tanh(e), lambda e: dy.esum([e, e])],
        *[lambda e: dy.pick(e, 0), lambda e: dy.reshape(e, (2,)), lambda e: dy.concatenate([e]), lambda e: len(e)],
        *[lambda e: dy.colwise_add(e, e), lambda e: dy.pick_batch(e, [0]), lambda e: dy.hinge_dim(e, [0])],
        lambda e: e.set([1, 2]),
    ],
)
def test_stale_expressions(use, graph) -> None:
    e = vector(1, 2)
    e.value()
    dy.renew_cg()
    vector(3, 4, 5)
    with pytest.raises(dy.StaleExpressionError):
        use(e)
    assert isinstance(repr(e), str)


# ---- parameters --------------------------------------------------------------


def gradient(collection, loss) -> list[float]:
    w = collection.parameters_from_numpy(np.array([1.0, 2.0]))
    loss(w).backward()
    return w.grad_as_array().tolist()


@pytest.mark.parametrize(
    ("loss", "desired"),
    [
        (lambda w: dy.sum_elems(w.expr() * 2), [0, 0]),
        (lambda w: dy.sum_elems(w.expr(True) * 2), [2, 2]),
        (lambda w: dy.sum_elems(w.expr(update=True) * 2), [2, 2]),
        (lambda w: dy.sum_elems(w * 2), [2, 2]),
        (lambda w: dy.sum_elems(dy.parameter(w) * 2), [2, 2]),
        (lambda w: dy.sum_elems(dy.const_parameter(w) * 2), [0, 0]),
        (lambda w: dy.sum_elems(w) + dy.sum_elems(w.expr()), [1, 1]),
        (lambda w: w[0], [1, 0]),
        (lambda w: w[-1] ** 2, [0, 4]),
        (lambda w: dy.pick(w, 1), [0, 1]),
        (lambda w: dy.sum_elems(dy.concatenate([w, w])), [2, 2]),
        (lambda w: dy.sum_elems(dy.esum([w, w, 1 - w])), [1, 1]),
        (lambda w: dy.sum_elems(-w / 2), [-0.5, -0.5]),
        (lambda w: dy.dot_product(w[0:1], w[::-1][0:1]), [2, 1]),
    ],
)
def test_parameters_are_expressions(loss, desired, collection) -> None:
    assert gradient(collection, loss) == desired


def test_values_of_parameters(collection) -> None:
    w = collection.parameters_from_numpy(np.array([[1.0, 2.0], [3.0, 4.0]]))
    assert w.value().tolist() == w.npvalue().tolist() == [[1, 2], [3, 4]]
    assert w.dim() == ((2, 2), 1)
    assert w[0].value() == [1, 2]
    assert dy.parameter([w]) is not None
    assert dy.parameter((w, w))[1].dim() == ((2, 2), 1)


# ---- shapes ------------------------------------------------------------------


def test_shapes_from_divisions(collection) -> None:
    assert dy.zeros(128 / 2).dim() == ((64,), 1)
    assert dy.ones((64 / 2, 2)).dim() == ((32, 2), 1)
    assert dy.constant(3.0, 1).dim() == ((3,), 1)
    assert dy.random_normal(4 / 2).dim() == ((2,), 1)
    assert dy.vecInput(4 / 2).dim() == ((2,), 1)
    assert dy.zeros(2, batch_size=4 / 2).dim() == ((2,), 2)
    assert dy.reshape(dy.zeros(6), (6 / 2, 2.0)).dim() == ((3, 2), 1)
    assert collection.add_parameters((6 / 2, 2)).dim() == ((3, 2), 1)
    with pytest.raises(TypeError, match=r"reshape: an axis of the shape must be a whole number, not 2\.5"):
        dy.reshape(dy.zeros(5), (2.5, 2))
    with pytest.raises(TypeError, match="zeros: shape .* must hold whole numbers"):
        dy.zeros(2.5)


def test_nothing(collection) -> None:
    for shape in [(0,), (0, 3), (3, 0)]:
        x = dy.zeros(shape)
        assert x.dim() == (shape, 1)
        assert x.npvalue().shape == shape
    assert dy.inputVector([]).value() == []
    assert dy.sum_elems(dy.zeros((0, 3))).value() == 0
    assert (dy.zeros((2, 0)) * dy.zeros(0)).value() == [0, 0]
    assert vector(1, 2)[1:1].value() == []
    assert dy.concatenate([dy.zeros(0), vector(1)]).value() == 1


def test_reshape_goes_column_by_column(graph) -> None:
    x = dy.inputTensor([[1, 2, 3], [4, 5, 6]])
    assert dy.reshape(x, (6,)).value() == [1, 4, 2, 5, 3, 6]
    assert dy.reshape(x, 6).value() == [1, 4, 2, 5, 3, 6]
    assert dy.reshape(x, (3, 2)).value().tolist() == [[1, 5], [4, 3], [2, 6]]
    assert dy.reshape(x, (3,), batch_size=2).npvalue().tolist() == [[1, 5], [4, 3], [2, 6]]
    assert dy.reshape(dy.inputTensor([[1, 2, 3], [4, 5, 6]], batched=True), (1, 2)).dim() == ((1, 2), 3)


# ---- inputs ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "new", "desired"),
    [
        (lambda: dy.scalarInput(1), 2, [4]),
        (lambda: dy.scalarInput(1), np.float32(2), [4]),
        (lambda: vector(1, 2), [3, 4], [6, 8]),
        (lambda: vector(1, 2), np.array([3, 4]), [6, 8]),
        (lambda: dy.vecInput(2), [3, 4], [6, 8]),
        (lambda: dy.matInput(2, 2), [1, 2, 3, 4], [[2, 6], [4, 8]]),
        (lambda: dy.inputTensor(np.zeros((2, 2))), [[1, 2], [3, 4]], [[2, 4], [6, 8]]),
        (lambda: dy.inputTensor(np.zeros(2), batched=True), [1, 2], [[2, 4]]),
    ],
)
def test_set_computes_anew(make, new, desired, graph) -> None:
    x = make()
    y = x * 2
    y.value()
    x.set(new)
    assert y.npvalue().tolist() == desired
    assert (y + 0).npvalue().tolist() == desired


def test_set_of_picks(graph) -> None:
    p = dy.pick(vector(1, 2, 3), 0)
    y = p * 2
    assert y.value() == 2
    p.set_index(2)
    assert y.value() == 6


def test_set_with_the_wrong_size(graph) -> None:
    for new in ([3], [3, 4, 5], 3):
        with pytest.raises(ValueError, match="set: the value has shape"):
            dy.vecInput(2).set(new)
    with pytest.raises(TypeError, match="set: the value must hold real numbers"):
        dy.scalarInput(2).set("a")


def test_lists_of_arrays_are_batches(graph) -> None:
    x = dy.inputTensor([np.ones(2), np.zeros(2), np.full(2, 3)])
    assert x.dim() == ((2,), 3)
    assert x.npvalue().tolist() == [[1, 0, 3]] * 2
    assert dy.inputTensor([[1, 1], [0, 0]]).dim() == ((2, 2), 1)
    with pytest.raises(ValueError, match="inputTensor: the arrays of a batch differ in shape"):
        dy.inputTensor([np.ones(2), np.ones(3)])


def test_backward(collection) -> None:
    """It runs forward where needed, and adds to what is there."""
    w = collection.parameters_from_numpy(np.array([1.0, 2.0]))
    x = dy.vecInput(2)
    loss = dy.dot_product(w, x)
    x.set([1, 2])
    loss.backward()
    assert w.grad_as_array().tolist() == [1, 2]
    loss.backward()
    assert w.grad_as_array().tolist() == [2, 4]
    x.set([3, 4])
    assert loss.value() == 11
    loss.backward()
    assert w.grad_as_array().tolist() == [5, 8]
    with pytest.raises(ValueError, match="backward: the expression has shape .2., not one element"):
        (w * 2).backward()


# ---- losses of batches ---------------------------------------------------------

SCORES = np.array([[0.0, 4, 3, 2], [4, 3, 2, 1], [3, 2, 1, 0]])


@pytest.mark.parametrize("labels", [[0, 1, 2, 0], (0, 1, 2, 0), np.array([0, 1, 2, 0])], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("name", ["pickneglogsoftmax", "hinge", "pickneglogsoftmax_batch", "hinge_batch"])
def test_labels_of_a_batch(name: str, labels, graph) -> None:
    loss = getattr(dy, name)(dy.inputTensor(SCORES, batched=True), labels)
    assert loss.dim() == ((1,), 4)
    single = getattr(dy, name.replace("_batch", ""))
    desired = [single(dy.inputVector(SCORES[:, b]), int(v)).value() for b, v in enumerate(labels)]
    np.testing.assert_allclose(loss.value(), desired, rtol=1e-6)
    for wrong in ([0, 1], [0, 1, 2, 3], [0, 1, 2, -1]):
        with pytest.raises(IndexError):
            getattr(dy, name)(dy.inputTensor(SCORES, batched=True), wrong)


def test_one_label_for_a_batch(graph) -> None:
    for f in (dy.pickneglogsoftmax, dy.hinge):
        loss = f(dy.inputTensor(SCORES, batched=True), np.int64(1))
        desired = [f(dy.inputVector(SCORES[:, b]), 1).value() for b in range(4)]
        np.testing.assert_allclose(loss.value(), desired, rtol=1e-6)


def test_labels_of_lines(graph) -> None:
    x = dy.inputTensor(np.arange(8).reshape(2, 2, 2), batched=True)
    nested = dy.hinge_dim(x, [[0, 1], [1, 0]])
    assert nested.npvalue().tolist() == dy.hinge_dim(x, [0, 1, 1, 0]).npvalue().tolist()
    assert nested.npvalue().tolist() == dy.hinge_dim(x, np.array([[0, 1], [1, 0]])).npvalue().tolist()


def test_labels_of_binary_decisions(graph) -> None:
    def loss(x, y):
        return dy.binary_log_loss(x, y).value()

    one, batch = vector(0.2, 0.8), dy.inputTensor([0.2, 0.8], batched=True)
    no, yes = -np.log(0.8), -np.log(0.2)
    assert loss(one, vector(0, 1)) == pytest.approx(2 * no)
    assert loss(one, [0, 1]) == pytest.approx(2 * no)
    assert loss(one, 1) == pytest.approx(no + yes)
    assert loss(batch, [0, 1]) == pytest.approx([no, no])
    assert loss(batch, np.array([1, 0])) == pytest.approx([yes, yes])
    assert loss(batch, True) == pytest.approx([yes, no])
    assert loss(batch, dy.inputTensor([0, 1], batched=True)) == pytest.approx([no, no])
    with pytest.raises(ValueError, match=r"binary_log_loss: the labels have shape \(3,\)"):
        loss(batch, [0, 1, 0])


@pytest.mark.parametrize("name", ["squared_distance", "l1_distance", "huber_distance", "binary_log_loss"])
def test_distances_of_batches(name: str, graph) -> None:
    f = getattr(dy, name)
    a, b = np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]), np.array([0.3, 0.9])
    together = f(dy.inputTensor(a, batched=True), dy.inputVector(b))
    assert together.dim() == ((1,), 3)
    desired = [f(dy.inputVector(a[:, k]), dy.inputVector(b)).value() for k in range(3)]
    np.testing.assert_allclose(together.value(), desired, rtol=1e-5)


def test_poisson_loss_of_batches(graph) -> None:
    x = dy.inputTensor([1.0, 2.0], batched=True)
    desired = [dy.poisson_loss(dy.scalarInput(v), n).value() for v, n in [(1, 2), (2, 3)]]
    for counts in ([2, 3], (2, 3), np.array([2, 3])):
        assert dy.poisson_loss(x, counts).value() == pytest.approx(desired)
