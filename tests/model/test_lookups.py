"""Rows of lookup tables: changing the index of a node, and indices of any integer type."""

from __future__ import annotations

import numpy as np
import pytest
from integers import Integers

import dynet_cy as dy


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


A = np.arange(24.0).reshape(4, 3, 2) / 8


TABLE = {
    "lookup": (lambda t, i: dy.lookup(t, i), False),
    "table": (lambda t, i: t[i], False),
    "lookup_batch": (lambda t, i: dy.lookup_batch(t, i), True),
    "row_as_array": (lambda t, i: t.row_as_array(i), False),
    "rows_as_array": (lambda t, i: t.rows_as_array(i), True),
}


@pytest.mark.parametrize("name", TABLE)
def test_rows_by_integers_of_any_library(name: str, graph) -> None:
    use, several = TABLE[name]
    table = dy.ParameterCollection().lookup_parameters_from_numpy(A[..., 0])
    given = [1, 2] if several else 2
    kinds = [np.array(given, np.int32), Integers(given)] + ([] if several else [np.int16(given)])
    for kind in kinds:
        np.testing.assert_array_equal(np.asarray(use(table, kind)), np.asarray(use(table, given)))
