"""docs/differences.md is true and complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_compat import results_in_compat
from libraries import Library, both, dynet
from own_process import run_python
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
    sections = {s.splitlines()[0]: s for s in PAGE.read_text().split("\n## ")}
    assert [*sections][1:] == ["Arrays of expressions", "Graphs and threads", "Ops", "Errors"]
    cells = first_cells(sections["Ops"] + "\n" + sections["Errors"])
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


def norm_of_small_numbers(dy: Any) -> list[float]:
    dy.renew_cg()
    x, g, b = dy.inputVector([1e-3, 2e-3, 4e-3]), dy.inputVector([1, 1, 1]), dy.inputVector([0, 0, 0])
    return dy.layer_norm(x, g, b).vec_value()


def adam_of_small_gradients(dy: Any) -> list[float]:
    model = dy.ParameterCollection()
    p = model.add_parameters((2,), init=0.0)
    trainer = dy.AdamTrainer(model)
    for _ in range(3):
        dy.renew_cg()
        loss = dy.sum_elems(p) * 1e-6
        loss.forward()
        loss.backward()
        trainer.update()
    return [float(v) for v in p.as_array()]


def maxima_with_nan(dy: Any) -> list[float]:
    dy.renew_cg()
    found = []
    for numbers in ([1, np.nan, 3], [np.nan, 1, 3], [3, 1, np.nan]):
        x = dy.inputTensor([numbers])
        found += [f(x, 1).value() for f in (dy.max_dim, dy.min_dim)]
    return found + dy.kmax_pooling(dy.inputTensor([[1, np.nan, 3]]), 2, 1).vec_value()


@pytest.mark.parametrize("name", ["norm_of_small_numbers", "adam_of_small_gradients", "maxima_with_nan"])
def test_as_dynet_in_its_programs_only(name: str) -> None:
    function = globals()[name]
    theirs = function(dynet)
    [in_compat] = results_in_compat("test_differences_peer", "numbers_of", [(name,)])
    np.testing.assert_allclose(in_compat, theirs, rtol=2e-5)
    assert not np.allclose(numbers_of(name), theirs, rtol=1e-3)


def numbers_of(name: str) -> list[float]:
    return globals()[name](both()[1].module)


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


FROZEN = """
import sys
from importlib import import_module
import numpy as np
dy = import_module(sys.argv[1])
model = dy.ParameterCollection()
table, w = model.add_lookup_parameters((2, 1), init=1.0), model.add_parameters((1,), init=1.0)
table.set_updated(False)
trainer = dy.SimpleSGDTrainer(model, 1.0)
for _ in range(3):
    dy.renew_cg()
    before = float(w.as_array()[0])
    (dy.lookup(table, 0) * 30.0 + w * 0.5).backward()
    trainer.update()
    print(before - float(w.as_array()[0]), float(table.as_array()[0, 0]))
"""


def test_frozen_parameters_slow_others_down(tmp_path: Path) -> None:
    """DyNet's gradient of a frozen parameter is never cleared: its growing norm is clipped to 5."""
    steps = {}
    for library in ("dynet", "dynet_cy"):
        done = run_python(tmp_path, FROZEN, library)
        steps[library] = np.array([line.split() for line in done.stdout.splitlines()], float)
        np.testing.assert_array_equal(steps[library][:, 1], 1)
    np.testing.assert_allclose(steps["dynet"][:, 0], [0.5 * 5 / np.hypot(30 * k, 0.5) for k in (1, 2, 3)], rtol=1e-5)
    np.testing.assert_allclose(steps["dynet_cy"][:, 0], 0.5, rtol=1e-6)


RESTRICTED = """
import sys
from importlib import import_module
import numpy as np
dy = import_module(sys.argv[1])
W = dy.ParameterCollection().add_parameters((8, 4), init=0.5)
for restrict in (True, False):
    dy.renew_cg()
    for i in range(40):
        scores = W * dy.inputVector(np.arange(4.0) + i) + dy.inputVector(np.arange(8.0))
        if restrict:
            dy.log_softmax(scores, restrict=[0, 1]).npvalue()
        print(restrict, dy.pickneglogsoftmax(scores, 0).value())
"""


def test_infinities_of_a_restricted_log_softmax_stay_in_memory(tmp_path: Path) -> None:
    values = {}
    for library in ("dynet", "dynet_cy"):
        done = run_python(tmp_path, RESTRICTED, library)
        values[library] = np.array([line.split()[1] for line in done.stdout.splitlines()], float)
        assert len(values[library]) == 80
    loss = np.log(np.exp(np.arange(8.0)).sum())  # all rows of W are equal
    np.testing.assert_allclose(values["dynet_cy"], loss, rtol=1e-6)
    wrong = ~np.isclose(values["dynet"], loss, rtol=1e-6)  # NaN, or 0, depending on what the memory held
    assert wrong.any()


# ---- what is a defect of DyNet's, also for programs that were written for it ----


def decayed(dy: Library, rate: float, updates: int, frozen: bool = False, below: bool = False) -> list[float]:
    """The value of a parameter of 1 after each update without a gradient."""
    model = dy.ParameterCollection()
    model.set_weight_decay(rate)
    model = model.add_subcollection() if below else model
    p = model.add_parameters((1,), init=1.0)
    p.set_updated(not frozen)
    trainer = dy.SimpleSGDTrainer(model, 1.0)
    found = []
    for _ in range(updates):
        trainer.update()
        dy.renew_cg()
        found.append(p.value())
    return found


def test_weight_decay_of_a_frozen_parameter() -> None:
    """In DyNet, it decays, and jumps back from time to time."""
    theirs, ours = (decayed(library, 0.5, 5, frozen=True) for library in both())
    assert (theirs, ours) == ([0.5, 0.25, 1, 0.5, 0.25], [1] * 5)


def test_weight_decay_of_the_trainer_of_a_subcollection() -> None:
    """In DyNet, it shows at every third update here; the same rate in the root shows at each."""
    theirs, ours = (decayed(library, 0.5, 4, below=True) for library in both())
    assert (theirs, ours) == ([1, 1, 0.125, 0.125], [0.5, 0.25, 0.125, 0.0625])


def test_small_weight_decay() -> None:
    """In DyNet, 1 - 1e-8 is 1."""
    theirs, ours = (decayed(library, 1e-8, 2000)[-1] for library in both())
    assert theirs == 1
    assert abs(ours - (1 - 1e-8) ** 2000) < 2e-6
    assert ours < 1


def test_logsumexp_dim_of_more_rows_than_columns() -> None:
    x = np.random.default_rng(0).normal(size=(4, 2))
    want = np.log(np.exp(x).sum(1))
    theirs, ours = both()
    for library in (theirs, ours):
        library.renew_cg()
        have = library.logsumexp_dim(library.inputTensor(x), 1).npvalue()
        off = np.abs(have - want)
        assert (off < 1e-6).tolist() == ([True, True, False, False] if library is theirs else [True] * 4)


def test_full_log_distribution(tmp_path: Path) -> None:
    """It should have the log-probability of each word, the loss of the same builder negated."""
    (tmp_path / "clusters").write_text("A cat\nA dog\nB red\nB blue\nC only\n")
    words = {"cat": 0, "dog": 1, "red": 2, "blue": 3, "only": 4}
    for library, right in zip(both(), (False, True)):
        model = library.ParameterCollection()
        builder = library.ClassFactoredSoftmaxBuilder(3, str(tmp_path / "clusters"), words, model, True)
        random = np.random.default_rng(1)
        for p in model.parameters_list():
            p.set_value(random.normal(size=p.shape()))
        library.renew_cg()
        h = library.inputVector([1.0, 2.0, -1.0])
        found = np.ravel(builder.full_log_distribution(h).npvalue())
        losses = [builder.neg_log_softmax(h, word).value() for word in range(5)]
        assert np.allclose(found, np.negative(losses), atol=1e-4) is right


def test_gradients_of_several_constants() -> None:
    """The sum of DyNet's gradients: several constants of one parameter are one expression, which batches."""
    found = []
    for library in both():
        model = library.ParameterCollection()
        p = model.add_parameters((2,), init=np.array([1.0, 2.0]))
        library.renew_cg()
        a, b = library.const_parameter(p), library.const_parameter(p)
        loss = library.sum_elems(a) * 2 + library.squared_norm(b)
        loss.forward()
        loss.backward(full=True)
        found.append([a.gradient(), b.gradient()])
    np.testing.assert_allclose(found[1], [np.sum(found[0], 0)] * 2)
