"""Weight decay: values as read, stored and saved. The rules themselves are tested in test_trainers.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.files.textfile import read_text_model


def model(decay: float = 0.25, rows: int = 4) -> tuple[dy.ParameterCollection, dy.Parameters, dy.LookupParameters]:
    pc = dy.ParameterCollection()
    pc.set_weight_decay(decay)
    return pc, pc.add_parameters((2,), init=1.0), pc.add_lookup_parameters((rows, 3), init=1.0)


def use(w: dy.Parameters, e: dy.LookupParameters, row: int = 1) -> None:
    dy.renew_cg()
    (dy.sum_elems(w) + dy.sum_elems(e[row])).backward()


def test_all_that_is_shown_is_decayed(tmp_path: Path) -> None:
    pc, w, e = model()
    trainer = dy.SimpleSGDTrainer(pc, 1.0)
    want_w, want_e = np.ones(2), np.ones((4, 3))
    for _ in range(7):  # long enough for the factor of the table to be settled
        use(w, e)
        trainer.update()
        want_w = (want_w - 1) * 0.75
        want_e[1] -= 1
        want_e *= 0.75
        dy.renew_cg()
        for have in (w.as_array(), w.npvalue(), dy.const_parameter(w).npvalue()):
            np.testing.assert_allclose(have, want_w, rtol=1e-5)
        rows = [e.row_as_array(i) for i in range(4)]
        looked_up = [e[i].npvalue() for i in range(4)]
        batch = dy.lookup_batch(e, [0, 1, 2, 3]).npvalue().T
        for found in (e.as_array(), rows, looked_up, batch, e.rows_as_array([0, 1, 2, 3])):
            np.testing.assert_allclose(found, want_e, rtol=1e-5)
        pc.save(tmp_path / "m")
        saved = [entry.values for entry in read_text_model(tmp_path / "m")]
        np.testing.assert_allclose(saved[0], want_w, rtol=1e-5)
        np.testing.assert_allclose(saved[1], want_e.reshape(-1), rtol=1e-5)


def test_what_is_set_is_shown(tmp_path: Path) -> None:
    pc, w, e = model()
    pc.save(tmp_path / "ones")
    trainer = dy.SimpleSGDTrainer(pc)
    trainer.update()
    e.init_row(2, [4, 5, 6])
    w.set_value([7, 8])
    np.testing.assert_array_equal(e.row_as_array(2), [4, 5, 6])
    np.testing.assert_array_equal(e.row_as_array(0), [0.75] * 3)
    np.testing.assert_array_equal(w.as_array(), [7, 8])
    trainer.update()
    e.init_from_array(np.full((4, 3), 3.0))
    np.testing.assert_array_equal(e.as_array(), np.full((4, 3), 3.0))
    trainer.update()
    e.scale(2)
    np.testing.assert_allclose(e.as_array(), np.full((4, 3), 4.5), rtol=1e-6)
    trainer.update()
    e.zero()
    trainer.update()
    assert not e.as_array().any()
    pc.populate(tmp_path / "ones")
    np.testing.assert_array_equal(e.as_array(), np.ones((4, 3)))
    np.testing.assert_array_equal(w.as_array(), np.ones(2))


def test_the_whole_table_in_a_graph() -> None:
    pc, w, e = model()
    trainer = dy.SimpleSGDTrainer(pc, 1.0)
    trainer.update()
    dy.renew_cg()
    whole = e.expr()
    np.testing.assert_array_equal(whole.npvalue(), np.full((3, 4), 0.75))
    trainer.update()
    dy.renew_cg()
    np.testing.assert_allclose(e.expr().npvalue(), np.full((3, 4), 0.75**2))
    dy.sum_elems(e).backward()
    trainer.update()
    np.testing.assert_allclose(e.as_array(), np.full((4, 3), (0.75**2 - 1) * 0.75), rtol=1e-6)
    dy.renew_cg()
    np.testing.assert_allclose(e[1].npvalue(), np.full(3, (0.75**2 - 1) * 0.75), rtol=1e-6)


def test_what_a_subset_leaves_out_decays_smoothly() -> None:
    pc, w, e = model()
    trainer = dy.AdamTrainer(pc)
    for n in range(1, 12):
        use(w, e)
        trainer.update_subset([], [])
        np.testing.assert_allclose(w.as_array(), np.full(2, 0.75**n), rtol=1e-5)
        np.testing.assert_allclose(e.as_array(), np.full((4, 3), 0.75**n), rtol=1e-5)


def test_sub_collections() -> None:
    """A trainer decays the parameters it trains, with the lambda of its collection."""
    pc = dy.ParameterCollection()
    pc.set_weight_decay(0.5)
    below = pc.add_subcollection("below")
    assert below.get_weight_decay() == 0.5
    below.set_weight_decay(0.25)
    assert (pc.get_weight_decay(), below.get_weight_decay_lambda()) == (0.5, 0.25)
    w, v, e = (
        pc.add_parameters((1,), init=1.0),
        below.add_parameters((1,), init=1.0),
        below.add_lookup_parameters(3, 1.0),
    )
    dy.SimpleSGDTrainer(below).update()
    assert (w.as_array(), v.as_array(), e.row_as_array(1)) == (1, 0.75, 0.75)
    dy.SimpleSGDTrainer(pc).update()
    assert (w.as_array(), v.as_array(), e.row_as_array(1)) == (0.5, 0.375, 0.375)


@pytest.mark.parametrize("decay", [1e-5, 1e-7, 1e-8])
def test_small_decay_is_not_lost_in_rounding(decay: float) -> None:
    pc, w, e = model(decay)
    w.set_value([1.0, 1.9999])
    trainer = dy.SimpleSGDTrainer(pc)
    n = 3000
    for _ in range(n):
        trainer.update()
    want = (1 - decay) ** n
    # Rounding loses up to a sixteenth of each step; decay that is not applied yet is below 1e-6.
    np.testing.assert_allclose(w.as_array(), [want, 1.9999 * want], rtol=1e-6 + (1 - want) / 12)
    np.testing.assert_allclose(e.as_array(), np.full((4, 3), want), rtol=2e-6)


@pytest.mark.parametrize("decay", [1.0, 1.5])
def test_large_decay(decay: float) -> None:
    pc, w, e = model(decay)
    trainer = dy.SimpleSGDTrainer(pc)
    for n in (1, 2):
        trainer.update()
        np.testing.assert_array_equal(w.as_array(), np.full(2, (1 - decay) ** n))
        np.testing.assert_array_equal(e.as_array(), np.full((4, 3), (1 - decay) ** n))


@pytest.mark.parametrize("decay", [-0.1, float("nan"), float("inf")])
def test_values_that_cannot_be(decay: float) -> None:
    with pytest.raises(ValueError, match="weight decay must be a number of at least 0"):
        dy.ParameterCollection().set_weight_decay(decay)
    with pytest.raises(ValueError, match="weight decay"):
        dy.config.set(weight_decay=decay)
    with pytest.raises(TypeError):
        dy.ParameterCollection().set_weight_decay("0.1")


def test_the_setting_is_for_new_roots() -> None:
    before = dy.ParameterCollection()
    dy.config.set(weight_decay=0.125)
    try:
        assert dy.ParameterCollection().get_weight_decay() == 0.125
        assert before.get_weight_decay() == 0
    finally:
        dy.config.set(weight_decay=0)
    assert dy.ParameterCollection().get_weight_decay() == 0


def test_a_failed_update_does_not_decay() -> None:
    pc, w, e = model()
    dy.renew_cg()
    (dy.sum_elems(w) * float("inf")).backward()
    with pytest.raises(RuntimeError, match="Magnitude"):
        dy.SimpleSGDTrainer(pc).update()
    np.testing.assert_array_equal(w.as_array(), [1, 1])
    np.testing.assert_array_equal(e.as_array(), np.ones((4, 3)))


def test_an_update_visits_few_rows() -> None:
    pc, w, e = model(1e-3)
    memory = np.zeros(pc.storage.n_bytes() + 64, dtype=np.uint8)
    start = -memory.ctypes.data % 64
    pc.storage.move(pc.storage.values, memory[start : start + pc.storage.n_bytes()])
    stored = memory[start : start + pc.storage.n_bytes()].view(np.float32)
    before = stored[-16:].copy()  # the table
    for _ in range(3):
        use(w, e)
        dy.SimpleSGDTrainer(pc).update()
    np.testing.assert_array_equal(np.flatnonzero(before != stored[-16:]), [3, 4, 5])
    np.testing.assert_allclose(e.row_as_array(0), [0.999**3] * 3, rtol=1e-6)


class TestSubsets:
    def test_only_these_are_updated(self) -> None:
        pc, w, e = model(0.0)
        other = pc.add_parameters((2,), init=1.0)
        table = pc.add_lookup_parameters((4, 3), init=1.0)
        trainer = dy.SimpleSGDTrainer(pc, 0.5)
        use(w, e)
        use(other, table)
        trainer.update_subset([1], [0])
        np.testing.assert_array_equal(w.as_array(), [1, 1])
        np.testing.assert_array_equal(w.grad_as_array(), [1, 1])
        np.testing.assert_array_equal(other.as_array(), [0.5, 0.5])
        np.testing.assert_array_equal(other.grad_as_array(), [0, 0])
        np.testing.assert_array_equal(e.row_as_array(1), [0.5] * 3)
        np.testing.assert_array_equal(table.row_as_array(1), [1] * 3)
        trainer.update()
        np.testing.assert_array_equal(w.as_array(), [0.5, 0.5])
        np.testing.assert_array_equal(table.row_as_array(1), [0.5] * 3)

    @pytest.mark.parametrize(("params", "lookups"), [([1], []), ([-1], []), ([], [1])])
    def test_numbers_that_are_out_of_range(self, params: list[int], lookups: list[int]) -> None:
        pc, w, e = model(0.0)
        use(w, e)
        with pytest.raises(IndexError, match="update_subset: there is no"):
            dy.SimpleSGDTrainer(pc).update_subset(params, lookups)
        np.testing.assert_array_equal(w.as_array(), [1, 1])

    @pytest.mark.parametrize("bad", ["the parameter", "0", None, 0.5, dy.ParameterCollection()])
    @pytest.mark.parametrize("which", [0, 1])
    def test_what_is_not_a_number(self, bad: Any, which: int) -> None:
        pc, w, e = model(0.0)
        use(w, e)
        lists: list[list[Any]] = [[], []]
        lists[which].append((w, e)[which] if bad == "the parameter" else bad)
        with pytest.raises(TypeError, match="update_subset: the number of a (parameter|lookup table) must be"):
            dy.SimpleSGDTrainer(pc).update_subset(*lists)
        np.testing.assert_array_equal(w.as_array(), [1, 1])
