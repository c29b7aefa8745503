"""What expressions have of arrays: attributes, methods, operators, formats."""

from __future__ import annotations

import re

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.ops.registry import DimensionError

A = np.arange(24.0).reshape(4, 3, 2) / 8


class Integers:
    """An integer tensor of another library: it is an array for NumPy, and counts as an index where it is one number."""

    def __init__(self, values) -> None:
        self.values = np.asarray(values, np.int64)
        self.ndim = self.values.ndim

    def __array__(self, dtype=None, copy=None):
        return self.values if dtype is None else self.values.astype(dtype)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self):
        return (Integers(v) for v in self.values)

    def __getitem__(self, i):
        return Integers(self.values[i])

    def __index__(self) -> int:
        if self.ndim:
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(self.values)

    def __int__(self) -> int:
        return int(self.values)


def test_shape_and_batch_size(graph) -> None:
    x = dy.inputTensor(A)
    assert (x.shape, x.batch_size) == ((4, 3, 2), 1)
    x = dy.inputTensor(A, batched=True)
    assert (x.shape, x.batch_size) == ((4, 3), 2)
    assert (x.T.shape, x.T.batch_size) == ((3, 4), 2)
    assert x.reshape(2, -1).dim() == ((2, 6), 2)
    assert x.reshape((-1,)).dim() == ((12,), 2)
    assert dy.reshape(x, (-1, 3), 2).dim() == ((4, 3), 2)


def test_shape_of_parameters() -> None:
    model = dy.ParameterCollection()
    w, table = model.add_parameters((4, 3)), model.add_lookup_parameters((7, 2))
    assert w.shape == w.shape() == (4, 3)
    assert table.shape == table.shape() == (7, 2) == table.as_array().shape
    assert table.dim() == ((2, 7), 1)
    assert table.T.shape == (7, 2)
    assert (table @ np.eye(7)).shape == (2, 7)


def test_item_and_format(graph) -> None:
    x = dy.inputVector([1.23456, 2])
    assert x[0].item() == pytest.approx(1.23456)
    assert f"{x[0]:.3f} {x[1]:g}" == "1.235 2"
    assert f"{x}" == repr(x) == "<expression 0 input {2}>"
    with pytest.raises(ValueError, match=r"has shape \{2\}, not one element"):
        f"{x:.2f}"
    with pytest.raises(ValueError, match="not one element"):
        x.item()


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


def test_reductions_by_method(graph) -> None:
    x = dy.inputTensor(A)
    for op in ("sum", "mean", "max", "min"):
        for axis in (None, 1, -2, (0, -1)):
            np.testing.assert_allclose(
                getattr(x, op)(axis).npvalue(), np.atleast_1d(getattr(A, op)(axis=axis)), rtol=1e-6
            )
    with pytest.raises(DimensionError, match="sum: there is no axis 3, x has 3"):
        x.sum(3)
    with pytest.raises(DimensionError, match="max: an axis is -4, but x has 3 axes"):
        x.max(-4)


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ([4], IndexError, "Index too large: 4 > 3 along axis 0"),
        ((slice(None), [-4]), IndexError, "Index too small: -4 < -3 along axis 1"),
        ([True, False], IndexError, "a mask of shape (2,) does not fit axes of sizes (4,)"),
        ([0.5], TypeError, "a list of indices must hold whole numbers or bools"),
        (([0, 1], [0, 1, 2]), IndexError, "lists of an index of shapes [(2,), (3,)] do not go together"),
        (([0], slice(None), [1]), TypeError, "lists and masks of an index must stand side by side"),
        ("a", TypeError, "an index must be a number, a slice, a list of numbers or bools, None, or a tuple"),
        ((0,) * 5, IndexError, "5 indices for 3 axes and the batch"),
    ],
)
def test_wrong_indices(key, error, message: str, graph) -> None:
    x = dy.inputTensor(A)
    with pytest.raises(error, match=re.escape(message)):
        x[key]
    assert x[0].shape == (3, 2)


def test_an_expression_is_no_index(graph) -> None:
    x = dy.inputVector([1, 2])
    with pytest.raises(TypeError, match="an index must be known when the graph is made"):
        x[x > 1]


def test_lists_of_batch_elements(graph) -> None:
    x = dy.inputTensor(A, batched=True)
    np.testing.assert_allclose(x[:, :, [1, 0, 1]].npvalue(), A[:, :, [1, 0, 1]])
    np.testing.assert_allclose(x[[3, 0]].npvalue(), A[[3, 0]])


INDICES = {
    "pick": (lambda x, i: dy.pick(x, i), False),
    "getitem": (lambda x, i: x[i], False),
    "getitem-list": (lambda x, i: x[i], True),
    "pick_range": (lambda x, i: dy.pick_range(x, i, 3), False),
    "pick_batch": (lambda x, i: dy.pick_batch(x, i), True),
    "pick_batch_elem": (lambda x, i: dy.pick_batch_elem(dy.concatenate_to_batch([x, x, 2 * x]), i), False),
    "pick_batch_elems": (lambda x, i: dy.pick_batch_elems(dy.concatenate_to_batch([x, x, 2 * x]), i), True),
    "select_rows": (lambda x, i: dy.select_rows(x, i), True),
    "select_cols": (lambda x, i: dy.select_cols(x * dy.ones((1, 3)), i), True),
    "one_hot": (lambda x, i: dy.one_hot(4, i), False),
    "one_hot-list": (lambda x, i: dy.one_hot(4, i), True),
    "pickneglogsoftmax": (lambda x, i: dy.pickneglogsoftmax(x, i), False),
    "pickneglogsoftmax_batch": (lambda x, i: dy.pickneglogsoftmax_batch(dy.concatenate_to_batch([x, x]), i), True),
    "hinge": (lambda x, i: dy.hinge(x, i), False),
    "hinge_batch": (lambda x, i: dy.hinge_batch(dy.concatenate_to_batch([x, x]), i), True),
    "log_softmax": (lambda x, i: dy.log_softmax(x, i), True),
    "poisson_loss": (lambda x, i: dy.poisson_loss(x[0], i), False),
    "set_index": (lambda x, i: (y := dy.pick(x, 0)).set_index(i) or y, False),
}
TABLE = {
    "lookup": (lambda t, i: dy.lookup(t, i), False),
    "table": (lambda t, i: t[i], False),
    "lookup_batch": (lambda t, i: dy.lookup_batch(t, i), True),
    "row_as_array": (lambda t, i: t.row_as_array(i), False),
    "rows_as_array": (lambda t, i: t.rows_as_array(i), True),
}


@pytest.mark.parametrize("name", INDICES)
def test_integers_of_any_library(name: str, graph) -> None:
    use, several = INDICES[name]
    x = dy.inputVector([1, 2, 4, 8])
    given = [1, 2] if several else 2
    desired = use(x, given).npvalue()
    kinds = [np.array(given, np.int32), np.array(given, np.uint8), Integers(given), np.array(given, np.int64)]
    for kind in kinds + ([] if several else [np.int16(given), np.uint64(given)]):
        np.testing.assert_array_equal(use(x, kind).npvalue(), desired)


@pytest.mark.parametrize("name", TABLE)
def test_rows_by_integers_of_any_library(name: str, graph) -> None:
    use, several = TABLE[name]
    table = dy.ParameterCollection().lookup_parameters_from_numpy(A[..., 0])
    given = [1, 2] if several else 2
    kinds = [np.array(given, np.int32), Integers(given)] + ([] if several else [np.int16(given)])
    for kind in kinds:
        np.testing.assert_array_equal(np.asarray(use(table, kind)), np.asarray(use(table, given)))


def test_what_repr_says() -> None:
    model = dy.ParameterCollection()
    w = model.add_parameters((4, 3), name="W")
    table = model.add_lookup_parameters((7, 2), name="E")
    assert repr(w) == "<Parameters /W (4, 3)>"
    w.set_updated(False)
    assert repr(w) == "<Parameters /W (4, 3), frozen>"
    assert repr(table) == "<LookupParameters /E (7, 2)>"
    assert repr(model) == "<ParameterCollection / of 2 parameters, 26 numbers>"
    trainer = dy.AdamTrainer(model, alpha=0.01)
    assert repr(trainer) == f"<AdamTrainer of {model!r}, learning_rate=0.01, 0 updates>"
    with dy.ComputationGraph() as graph:
        assert repr(graph) == "<ComputationGraph of 0 nodes>"
        assert repr(dy.tanh(dy.zeros((2, 3), batch_size=4))) == "<expression 1 tanh {2,3} x 4>"


def test_what_notebooks_show() -> None:
    model = dy.ParameterCollection()
    model.add_parameters((4, 3), name="W<b>")
    model.add_lookup_parameters((7, 2), name="E").set_updated(False)
    shown = model._repr_html_()
    assert "<td>W&lt;b&gt;</td><td>4 x 3</td><td>12</td><td>Parameters</td>" in shown
    assert "<td>E</td><td>7 x 2</td><td>14</td><td>LookupParameters, frozen</td>" in shown
    assert "2 parameters, 26 numbers" in shown
    with dy.ComputationGraph() as graph:
        assert graph._repr_svg_() is None
        x = dy.tanh(dy.inputVector([1, 2]))
        assert graph._repr_svg_() == dy.draw(graph=graph).svg
        for _ in range(200):
            x = dy.tanh(x)
        assert graph._repr_svg_() is None


def test_classes_that_users_see_have_public_names(graph) -> None:
    table = dy.ParameterCollection().add_lookup_parameters((7, 2))
    dy.renew_cg()
    x = dy.inputVector([1, 2])
    seen = [x, table[1], dy.pick(x, 0), x[0], x + 1, x > 1]
    assert [type(e).__name__ for e in seen] == [
        "InputExpression",
        "LookupExpression",
        "PickedExpression",
        "Expression",
        "Expression",
        "Expression",
    ]
    dy.renew_cg(forward_only=True)
    assert type(dy.inputVector([1])).__name__ == "ForwardExpression"
