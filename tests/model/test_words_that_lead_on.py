"""Errors of names and habits that other libraries, and DyNet's users, have: they say what to write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dynet_cy as dy


def test_items_that_are_set() -> None:
    model = dy.ParameterCollection()
    p, table = model.add_parameters((2, 2)), model.add_lookup_parameters((3, 2))
    for index in (0, (0, 1), slice(None)):
        with pytest.raises(TypeError, match="set_value"):
            p[index] = 1  # type: ignore[index]
        with pytest.raises(TypeError, match="init_row.*init_from_array"):
            table[index] = np.ones(2)  # type: ignore[index]


@pytest.mark.parametrize("name", ["load", "load_weights"])
def test_loading_by_another_name(name: str) -> None:
    with pytest.raises(AttributeError, match="write `populate`.*`dy.load"):
        getattr(dy.ParameterCollection(), name)


def test_a_list_where_a_name_in_the_file_goes(tmp_path) -> None:
    model = dy.ParameterCollection()
    W, path = model.add_parameters(2), str(tmp_path / "m")
    for write in (model.save, W.save, model.write_to_textfile):
        for given in ([W], W):
            with pytest.raises(TypeError, match=r"save: argument (name|key): .* got .*write dy\.save"):
                write(path, given)  # type: ignore[arg-type]
    model.save(path)
    for read in (model.populate, W.populate, model.populate_by_name):
        with pytest.raises(TypeError, match=r"populate(_by_name)?: argument key: .*got list.*= dy\.load"):
            read(path, [W])  # type: ignore[arg-type]


@pytest.mark.parametrize("mask", [[True, False], (1, 0), np.array([1.0, 0.0])])
def test_masks_as_lists(mask: Any, graph) -> None:
    x = dy.inputVector([1, 2])
    np.testing.assert_array_equal(dy.softmax(x, mask=mask).npvalue(), [1, 0])
    np.testing.assert_array_equal(dy.log_softmax(x, mask=mask).npvalue(), [0, -np.inf])
    np.testing.assert_array_equal(dy.where(mask, x, 5).npvalue(), [1, 5])
    np.testing.assert_array_equal(dy.masked_fill(x, mask, 5).npvalue(), [5, 2])


def test_an_infinity_on_purpose() -> None:
    dy.renew_cg(immediate_compute=True, check_validity=True)
    for build, words in (
        (lambda: dy.log_softmax(dy.zeros(3), [1]), "restricted_log_softmax returns infinities on purpose"),
        (lambda: dy.zeros(2) + dy.inputVector([0, -np.inf]), "check_validity accepts none|is not finite"),
    ):
        with pytest.raises(ValueError, match=words):
            build()
    dy.renew_cg()
