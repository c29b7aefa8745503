"""docs/differences.md is true and complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from libraries import Library, both
from program_meant import MEANT, WRONG
from purpose import DIFFERENCES, ONE_BY_ONE
from test_errors_peer import OTHERWISE

pytestmark = pytest.mark.peer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "differences.md"


def first_cells(text: str) -> list[str]:
    cells = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")]
    return [c for c in cells if c != "what" and not re.fullmatch("-+", c)]


def known() -> set[str]:
    documents = {d.document for d in (*DIFFERENCES, *MEANT, *WRONG)}
    return {*documents, *(line for _, line in OTHERWISE.values()), *ONE_BY_ONE}


def test_what_the_tests_know_is_on_the_page() -> None:
    assert known() <= set(first_cells(PAGE.read_text()))


def test_what_the_page_says_of_ops_and_errors_is_tested() -> None:
    first, *sections = PAGE.read_text().split("\n## ")
    assert [s.splitlines()[0] for s in sections] == ["Ops", "Errors"]
    cells = first_cells("\n".join(sections))
    assert set(cells) - known() == set()
    assert len(set(cells)) == len(cells)


def with_parameter(dy: Library) -> tuple[Any, Any]:
    model = dy.ParameterCollection()
    dy.renew_cg()
    return model, model.add_parameters((2, 3), init=np.arange(6.0).reshape(2, 3))


def test_backward_of_a_batch() -> None:
    theirs, ours = both()
    for library in (theirs, ours):
        model, p = with_parameter(library)
        x = library.inputTensor(np.ones((3, 4)), batched=True)
        losses = library.sum_elems(p * x)
        losses.forward()
        if library is theirs:
            with pytest.raises(ValueError, match="scalar nodes"):
                losses.backward()
        else:
            losses.backward()
            np.testing.assert_array_equal(p.grad_as_array(), np.full((2, 3), 4.0))
        assert model.parameter_count() == 6


def test_types_of_arrays() -> None:
    for library, dtype in zip(both(), (np.float64, np.float32)):
        model, p = with_parameter(library)
        loss = library.sum_elems(p)
        loss.forward()
        loss.backward(full=True)
        assert p.as_array().dtype == p.grad_as_array().dtype == dtype
        assert p.npvalue().dtype == loss.gradient().dtype == np.float64
        assert model.name() == "/"


def test_parameter_values_in_a_graph() -> None:
    for library, expected in zip(both(), (1.0, 7.0)):
        _model, p = with_parameter(library)
        assert p.npvalue()[0, 1] == 1
        p.set_value(np.full((2, 3), 7.0))
        assert p.npvalue()[0, 1] == expected


def test_deleted_collection() -> None:
    """Only parameters are used: DyNet's trainers and builders would read freed memory."""
    for library in both():
        model, p = with_parameter(library)
        del model
        assert (p * 2).npvalue()[0, 1] == 2


def test_contract3d_1d() -> None:
    """Equals DyNet's version with a bias of zeros; DyNet's own adds uninitialized memory."""
    x, y = np.arange(24.0).reshape(2, 3, 4), np.arange(4.0)
    theirs, ours = both()
    theirs.renew_cg()
    ours.renew_cg()
    bias = theirs.inputTensor(np.zeros((2, 3)))
    want = theirs.contract3d_1d_bias(theirs.inputTensor(x), theirs.inputTensor(y), bias).npvalue()
    have = ours.contract3d_1d(ours.inputTensor(x), ours.inputTensor(y)).npvalue()
    np.testing.assert_allclose(have, want, rtol=1e-6)


def test_kmax_pooling_of_equal_numbers() -> None:
    for library, expected in zip(both(), ([5, 5], [5, 7])):
        library.renew_cg()
        assert library.kmax_pooling(library.inputTensor([[5, 5, 7]]), 2, 1).npvalue()[0].tolist() == expected


def test_momentum_of_a_table_that_the_loss_does_not_depend_on() -> None:
    for library, moved in zip(both(), (True, False)):
        model = library.ParameterCollection()
        table = model.lookup_parameters_from_numpy(np.ones((2, 3)))
        trainer = library.MomentumSGDTrainer(model, 0.1)
        for depends in (True, False):
            library.renew_cg()
            whole = library.sum_elems(library.parameter(table))
            loss = whole if depends else library.scalarInput(1) * 2
            loss.forward()
            loss.backward()
            before = np.array(table.as_array())
            trainer.update()
        assert np.array_equal(table.as_array(), before) is not moved


def test_to_device() -> None:
    for library, copied in zip(both(), (False, True)):
        library.renew_cg()
        moved = library.to_device(library.inputVector([1.5, 2.5]), "CPU")
        assert (moved.value() == [1.5, 2.5]) is copied
