"""Operators and comparisons of expressions, with numbers, arrays and each other."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from integers import Integers
from own_process import run_each

import dynet_cy as dy
from dynet_cy.ops.registry import DimensionError


def vector(*values):
    return dy.inputVector(list(values))


def matrix():
    return dy.inputTensor([[1, 2], [3, 4]])


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
    with pytest.raises(ValueError, match="item: the expression has shape .2., not one element"):
        vector(1, 2).item()
    with pytest.raises(TypeError, match="inputTensor: the value must hold real numbers, not object"):
        dy.inputTensor([vector(1, 2), vector(3, 4)])  # it would silently stop gradients
    with pytest.raises(TypeError, match="s must hold real numbers"):
        dy.scalarInput(vector(1))


BEGIN = "import warnings\nimport numpy as np\nimport dynet_cy as dy"
TRAPS = """
e = dy.scalarInput(0)
same = e
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    assert e is not None and [x for x in (e, None) if x is not None] == [e]
    assert e in [e] and e == same and e != dy.scalarInput(0) and len({e, same}) == 1 and {e: 1}[same] == 1
    v = dy.inputVector([0, 0])
    assert list(filter(None, [e, None, v])) == [e, v] and [x for x in filter(None, [e])] == [e]
    assert any([e]) and all([e])
    assert v and not (not v)                        # the truth of two numbers cannot be meant
    assert 0 not in [e] and [e, 0].index(0) == 1 and [e, 0].count(0) == 1
    assert not said, [str(x.message) for x in said]
    for _ in range(3):
        assert bool(e) and (e or None) is e and list(filter(None, [e])) == [e]
        assert bool(dy.zeros(0))
        assert not e == 0 and e != np.float32(0)
for x in said:
    print(x.category.__name__, x.message)
"""


def test_traps_are_told_once(tmp_path) -> None:
    """Truth values and comparisons with numbers work as in DyNet, and warn once."""
    (result,) = run_each(tmp_path, BEGIN, [TRAPS])
    lines = result.stdout.splitlines()
    assert len(lines) == 2, result.stdout + result.stderr
    assert lines[0].startswith("RuntimeWarning an Expression is always true, whatever its value; write `if e.value():`")
    assert lines[1].startswith("RuntimeWarning an Expression never equals a number; write `e.value() == x`")


ASKS = [
    "if e: pass",
    "while e: break",
    "not e",
    "e or 1",
    "e and 1",
    "1 if e else 2",
    "assert e",
    "[1 for _ in 'a' if e]",
]


def test_what_a_program_itself_asks_is_a_trap(tmp_path) -> None:
    programs = [f"def f(e):\n    {asks}\nf(dy.scalarInput(0))" for asks in [*ASKS, "e == 0", "0 == e", "e != 0"]]
    for result in run_each(tmp_path, BEGIN, programs, "-W", "error"):
        assert "RuntimeWarning: an Expression " in result.stderr, result.args


def test_numbers_of_one_element() -> None:
    e = dy.scalarInput(-2.75)
    assert (int(e), float(e), f"{e:.1f}", complex(e)) == (-2, -2.75, "-2.8", -2.75)
    assert np.array([e], int).tolist() == [[-2]]
    with pytest.raises(ValueError, match=r"scalar_value: the expression has shape \{2\}, not one element"):
        int(vector(1, 2))
    with pytest.raises(ValueError, match="cannot convert float NaN to integer"):
        int(dy.scalarInput(np.nan))


def test_reductions_of_numpy() -> None:
    x = dy.inputTensor([[1, 2], [3, 4]])
    assert (np.sum(x).value(), np.min(x).value()) == (10, 1)
    assert (np.mean(x, axis=0).value(), np.max(x, axis=1).value()) == ([2, 3], [2, 4])
    assert np.sum(x, axis=1, keepdims=True).shape == (2, 1)
    with pytest.raises(TypeError, match="sum: there is no argument out; write nothing"):
        np.sum(x, out=np.zeros(()))
    with pytest.raises(TypeError, match="mean: there is no argument dtype; write nothing"):
        np.mean(x, dtype=float)
    with pytest.raises(TypeError, match="max: there is no argument initial; it takes"):
        np.max(x, initial=3)


JOINS = (
    "np.array([a, b])",
    "np.sum([a, b])",
    "np.mean((a, b))",
    "np.asarray([[a, b]])",
    "np.random.choice([c, d])",
)
READS = """
[np.asarray(e) for e in (a, b)]
for e in (a, b): np.asarray(e)
np.argmax(a), np.argmax(b), [np.argmax(e) for e in (a, b)]
np.allclose(a, b), np.array_equal(a, b), np.testing.assert_array_equal(a, a)
np.asarray(a); np.asarray(b)
np.array([e.value() for e in (a, b)]), np.array([float(c), float(d)])
np.array([x, x, x]), np.array([k, k])
dy.inputTensor(np.asarray(a)), dy.inputTensor(np.asarray(b)), dy.esum([a, b]), dy.concatenate([a, b])
dy.sum_elems(a + b).backward(); np.array([a, b])
"""
ARRAYS = """
pc = dy.ParameterCollection()
E = pc.add_lookup_parameters((3, 2), init=np.arange(6).reshape(3, 2))
a, b, x, k = E[1], dy.tanh(E[2] + 1), dy.inputVector([1, 2]), dy.const_parameter(pc.add_parameters(2))
c, d = dy.squared_norm(a), dy.squared_norm(b)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for _ in range(2):
        for line in PROGRAM.split("\\n"):
            try:
                exec(line)
            except ValueError as error:             # of random.choice
                assert "1-dimensional" in str(error)
print(*[x.message for x in said], sep="\\n")
"""


def test_an_array_of_expressions_is_a_trap(tmp_path) -> None:
    expected = "an array of expressions holds their values, and nothing is trained through it; write `dy.esum(list)`"
    programs = [*JOINS, READS]
    for program, result in zip(
        programs, run_each(tmp_path, BEGIN, [f"PROGRAM = {program!r}\n{ARRAYS}" for program in programs])
    ):
        assert result.returncode == 0, result.stderr
        said = result.stdout.split()
        assert (expected.split() == said[: len(expected.split())]) if program in JOINS else not said, program
        assert result.stdout.count("an array") == (program in JOINS)


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


A = np.arange(24.0).reshape(4, 3, 2) / 8


def test_comparisons_are_expressions(graph) -> None:
    x, y = dy.inputVector([1, 2, 3]), dy.inputVector([3, 2, 1])
    found = {
        "<": x < y,
        "<=": x <= y,
        ">": x > y,
        ">=": x >= y,
        "= 2": dy.equal(x, 2),
        "!= y": dy.not_equal(x, y),
        "2 <": x > 2,
    }
    assert {k: v.value() for k, v in found.items()} == {
        "<": [1, 0, 0],
        "<=": [1, 1, 0],
        ">": [0, 0, 1],
        ">=": [0, 1, 1],
        "= 2": [0, 1, 0],
        "!= y": [1, 0, 1],
        "2 <": [0, 0, 1],
    }
    assert (x == y) is False
    assert (x != y) is True
    assert x == x
    with pytest.raises(TypeError, match="less: y must be an Expression, a number or an array, not str"):
        x < "1"  # noqa: B015


def test_nan_compares_with_nothing(graph) -> None:
    x = dy.inputVector([np.nan, 1])
    for y in (x < 2, x > 0, x <= 2, x >= 0, dy.equal(x, x), x < dy.ones(2) * 3):
        assert y.value() == [0, 1]
    assert dy.not_equal(x, x).value() == [1, 0]


def test_truth_of_a_comparison(graph) -> None:
    x = dy.inputVector([1, 2])
    assert x[0] < 2
    assert not x[0] > 2
    assert min(x, key=float).value() == 1
    with pytest.raises(ValueError, match=r"a comparison of shape \{2\} is neither true nor false"):
        bool(x > 1)
    with dy.ComputationGraph() as forward:
        forward.renew(forward_only=True)
        assert dy.inputVector([1])[0] < 2


def test_comparisons_have_no_gradient(graph) -> None:
    model = dy.ParameterCollection()
    w = model.parameters_from_numpy(np.array([1.0, -2.0]))
    (dy.where(w > 0, 3 * w, w * w[0]).sum()).backward()
    np.testing.assert_allclose(w.grad_as_array(), [3 - 2, 1])


def test_where_takes_nothing_from_what_is_not_chosen(graph) -> None:
    x = dy.inputVector([4, 0, -1])
    y = dy.where(x > 0, dy.log(x), 0)
    y.sum().backward(full=True)
    np.testing.assert_allclose(y.npvalue(), [np.log(4), 0, 0], rtol=1e-6)
    y = dy.masked_fill(x, np.array([0, 1, 0]), np.inf)
    assert y.value() == [4, np.inf, -1]


def test_arrays_beside_expressions(graph) -> None:
    x = dy.inputTensor(A[..., 0])
    b = A[..., 1]
    for got, want in [
        (x + b, A[..., 0] + b),
        (b + x, A[..., 0] + b),
        (b - x, b - A[..., 0]),
        (b.T * x, b.T @ A[..., 0]),
        (b.T @ x, b.T @ A[..., 0]),
        (x @ b.T, A[..., 0] @ b.T),
        (x / (b + 1), A[..., 0] / (b + 1)),
        (b.astype(np.int32) + x, b.astype(np.int32) + A[..., 0]),
        (x + Integers(b), b.astype(np.int64) + A[..., 0]),
        (dy.bmax(x, b), np.maximum(A[..., 0], b)),
    ]:
        assert isinstance(got, dy.Expression)
        np.testing.assert_allclose(got.npvalue(), want, rtol=1e-6)
    with pytest.raises(DimensionError):
        x + np.ones((3, 3))
    with pytest.raises(TypeError, match="matmul: y must be a vector, a matrix or more, not a number"):
        x @ 2
    with pytest.raises((TypeError, ValueError), match="inputTensor"):
        x + np.array(["a", "b"])


def test_dot_of_different_lengths(graph) -> None:
    with pytest.raises(DimensionError, match="matmul: x has 3 elements but y has 4"):
        dy.zeros(3) @ dy.zeros(4)
