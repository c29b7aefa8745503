"""Labels and targets of losses, also of batches."""

from __future__ import annotations

import numpy as np
import pytest

import dynet_cy as dy


def vector(*values):
    return dy.inputVector(list(values))


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


def test_losses_of_a_list(graph, strategy) -> None:
    scores = [dy.inputVector(v) for v in ([1, 2], [3, 1, 2], [0, 0, 0, 5])]
    losses = dy.pickneglogsoftmax_list(scores, [1, 0, 3])
    assert [e.value() for e in losses] == [dy.pickneglogsoftmax(x, v).value() for x, v in zip(scores, [1, 0, 3])]
    assert dy.pickneglogsoftmax_list([], []) == []
    assert dy.pickneglogsoftmax_list(iter(scores[:1]), np.array([1]))[0].value() == losses[0].value()
    with pytest.raises(ValueError, match="vs must be a list of 3 indices, as many as there are scores, not \\[1\\]"):
        dy.pickneglogsoftmax_list(scores, [1])
    with pytest.raises(ValueError, match="must be a list of 3 indices"):
        dy.pickneglogsoftmax_list(scores, 1)
    with pytest.raises(IndexError, match="pickneglogsoftmax"):
        dy.pickneglogsoftmax_list(scores, [1, 3, 0])
    with pytest.raises(TypeError, match="x must be an Expression, not float"):
        dy.pickneglogsoftmax_list([1.0], [1])


def cross_entropy_of(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(x > 0, (1 - y) * x, -y * x) + np.log1p(np.exp(-np.abs(x)))


@pytest.mark.parametrize("y", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    "loss",
    [
        lambda x, y: dy.binary_cross_entropy_with_logits(x, y, "sum"),
        lambda x, y: 10 * dy.binary_cross_entropy_with_logits(x, y),
        lambda x, y: dy.binary_cross_entropy_with_logits(x, y, reduction="none").sum(),
        lambda x, y: dy.binary_log_loss(dy.logistic(x), y),
    ],
    ids=["sum", "mean", "none", "of a logistic"],
)
def test_cross_entropy_of_certain_scores(loss, y: float, graph) -> None:
    """A score that is certain and wrong keeps its gradient, of first and second order."""
    x = np.array([0, 1, -1, 17, 20, 40, -95, 100, -100, 5.0])
    slope, curvature = 1 / (1 + np.exp(-x)) - y, np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))) ** 2
    p = dy.ParameterCollection().add_parameters(10, init=x)
    for labels in (y, [y] * 10, dy.inputVector([y] * 10)):
        assert loss(p, labels).value() == pytest.approx(cross_entropy_of(x, np.full(10, y)).sum(), rel=1e-5)
    (slopes,) = dy.gradients(loss(p, y), [p])
    np.testing.assert_allclose(slopes.npvalue(), slope, rtol=1e-4, atol=1e-6)
    dy.sum_elems(slopes).backward()
    np.testing.assert_allclose(p.grad_as_array(), curvature, rtol=1e-4, atol=1e-6)


def test_cross_entropy_of_infinite_scores_and_batches(graph) -> None:
    x = dy.inputVector([-np.inf, np.inf, -np.inf])
    found = dy.binary_cross_entropy_with_logits(x, [0, 1, 1], "none")
    np.testing.assert_array_equal(found.npvalue(), [0, 0, np.inf])
    x = dy.inputTensor([[1.0, -2], [3, 4]], batched=True)
    expected = cross_entropy_of(np.array([[1.0, -2], [3, 4]]), np.array([[0, 1], [1, 0]])).mean(0)
    found = dy.binary_cross_entropy_with_logits(x, [[0, 1], [1, 0]])
    np.testing.assert_allclose(found.npvalue().ravel(), expected, rtol=1e-6)


def test_logistic_of_computed_scores(graph) -> None:
    """The scores are found also after the probabilities have been computed, as parts of larger operations."""
    model = dy.ParameterCollection()
    W, b = model.add_parameters((1, 2), init=20.0), model.add_parameters(1, init=0.0)
    p = dy.logistic(W * dy.inputVector([1, 1]) + b)
    assert p.value() == 1
    loss = dy.binary_log_loss(p, [0])
    assert loss.value() == 40
    loss.backward()
    np.testing.assert_array_equal(b.grad_as_array(), [1])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([0, 1],), dy.DimensionError, r"the labels have shape \(2,\)"),
        (("ab",), TypeError, "y must be an Expression, not str"),
        (([0, 1, 1], "avg"), ValueError, 'reduction must be "mean", "sum" or "none"'),
    ],
)
def test_wrong_arguments_of_a_cross_entropy(arguments, error: type[Exception], message: str, graph) -> None:
    with pytest.raises(error, match=f"binary_cross_entropy_with_logits: {message}"):
        dy.binary_cross_entropy_with_logits(dy.zeros(3), *arguments)
