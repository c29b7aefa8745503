"""Arguments of ops: types, lists, and what errors say."""

from __future__ import annotations

import numpy as np
import pytest

import dynet_cy as dy


@pytest.mark.parametrize("op", [dy.esum, dy.average, dy.emax, dy.affine_transform])
def test_empty_lists(op, graph) -> None:
    with pytest.raises(ValueError, match=rf"^{op.__name__}: the list of arguments is empty$"):
        op([])
    assert len(graph) == 0


@pytest.mark.parametrize("wrong", [None, 1.0, "x", np.ones(3), [1, 2]], ids=lambda w: type(w).__name__)
def test_wrong_types(wrong, graph) -> None:
    x = dy.ones(3)
    for build in (
        lambda: dy.tanh(wrong),
        lambda: dy.cmult(x, wrong),
        lambda: dy.cmult(wrong, x),
        lambda: dy.esum([x, wrong]),
        lambda: dy.esum(wrong),
        lambda: dy.dot_product(wrong, x),
    ):
        with pytest.raises(TypeError):
            build()
    if not isinstance(wrong, (float, np.ndarray)):
        for build in (lambda: x + wrong, lambda: wrong - x, lambda: x * wrong, lambda: wrong / x, lambda: x / wrong):
            with pytest.raises(TypeError):
                build()
    assert x.value() == [1, 1, 1]


def test_esum_names_the_wrong_argument(graph) -> None:
    with pytest.raises(TypeError, match="esum: argument 1 must be an Expression, not NoneType"):
        dy.esum([dy.ones(2), None])


def test_division_by_the_number_0(graph) -> None:
    with pytest.raises(ZeroDivisionError, match="divided by the number 0"):
        dy.ones(3) / 0


def test_generators_are_lists_too(graph) -> None:
    assert dy.esum(dy.ones(2) for _ in range(3)).value() == [3, 3]


def test_reshape_goes_column_by_column(graph) -> None:
    x = dy.inputTensor([[1, 2, 3], [4, 5, 6]])
    assert dy.reshape(x, (6,)).value() == [1, 4, 2, 5, 3, 6]
    assert dy.reshape(x, 6).value() == [1, 4, 2, 5, 3, 6]
    assert dy.reshape(x, (3, 2)).value().tolist() == [[1, 5], [4, 3], [2, 6]]
    assert dy.reshape(x, (3,), batch_size=2).npvalue().tolist() == [[1, 5], [4, 3], [2, 6]]
    assert dy.reshape(dy.inputTensor([[1, 2, 3], [4, 5, 6]], batched=True), (1, 2)).dim() == ((1, 2), 3)
