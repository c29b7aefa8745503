"""Products with a parameter use its packed form, which follows every change of the values."""

from __future__ import annotations

import gc
import mmap
import threading
import time

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.memory import arena

ROWS, COLUMNS = 96, 120  # large enough to be packed


@pytest.fixture
def weights():
    collection = dy.ParameterCollection()
    return collection, collection.add_parameters((ROWS, COLUMNS)), collection.add_parameters(COLUMNS, init=0.5)


def check(weights, times: int = 3) -> None:
    """Compare products and both gradients with the current values, several times."""
    _, w, x = weights
    values = w.as_array().astype(np.float64)
    vector = x.as_array().astype(np.float64)
    for _ in range(times):
        dy.renew_cg()
        total = [w * x, w * dy.concatenate_cols([x] * 9), dy.affine_transform([w * x, w, x])]
        for got, want in zip(total, [values @ vector, np.outer(values @ vector, np.ones(9)), 2 * (values @ vector)]):
            np.testing.assert_allclose(got.npvalue(), want, rtol=1e-4, atol=1e-5)
        x.scale_gradient(0)
        w.scale_gradient(0)
        loss = dy.sum_elems(total[0]) + dy.sum_elems(total[1]) + dy.sum_elems(total[2])
        loss.backward()
        np.testing.assert_allclose(x.grad_as_array(), 12 * values.sum(0), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(w.grad_as_array(), np.tile(12 * vector, (ROWS, 1)), rtol=1e-4, atol=1e-4)


def test_values_change_between_graphs(weights, tmp_path) -> None:
    collection, w, _ = weights
    check(weights)
    trainer = dy.MomentumSGDTrainer(collection, 0.01)
    for _ in range(3):
        trainer.update()
        check(weights)
    w.set_value(np.random.default_rng(1).normal(size=(ROWS, COLUMNS)))
    check(weights)
    w.scale(0.5)
    check(weights)
    w.clip_inplace(-0.1, 0.1)
    check(weights)
    collection.save(str(tmp_path / "model"))
    w.zero()
    check(weights)
    collection.populate(str(tmp_path / "model"))
    check(weights)
    w.populate(str(tmp_path / "model"), w.name())
    check(weights)


def test_values_change_within_a_graph(weights) -> None:
    _, w, x = weights
    dy.renew_cg()
    columns = dy.concatenate_cols([x] * 9)
    for factor in (1.0, 2.0, -1.0):
        w.set_value(np.full((ROWS, COLUMNS), factor))
        for _ in range(3):
            np.testing.assert_allclose((w * columns).npvalue(), factor * COLUMNS * 0.5, rtol=1e-5)


def test_values_in_a_mapping(weights) -> None:
    collection, w, _ = weights
    storage = collection.storage
    check(weights)
    mapping = mmap.mmap(-1, storage.n_bytes())
    storage.move(storage.values, mapping)
    check(weights)
    np.frombuffer(mapping, np.float32)[:] *= 3
    storage.changed()
    check(weights)
    assert abs(w.as_array()).max() > 0


def test_tables_as_matrices() -> None:
    collection = dy.ParameterCollection()
    table = collection.add_lookup_parameters((COLUMNS, ROWS))
    for _ in range(4):
        dy.renew_cg()
        y = table.expr() * dy.inputVector(np.ones(COLUMNS))
        z = table.expr() * dy.inputVector(np.ones(COLUMNS))
        want = table.as_array().astype(np.float64).sum(0)
        np.testing.assert_allclose((y + z).npvalue(), 2 * want, rtol=1e-4, atol=1e-5)
        table.init_row(3, np.arange(ROWS))


@pytest.mark.usefixtures("nothing_held")
def test_without_room() -> None:
    """Packing needs memory; if there is none, products are computed without it."""
    collection = dy.ParameterCollection()
    w = collection.add_parameters((1024, 1024))  # 4 MiB
    x = np.random.default_rng(2).normal(size=1024).astype(np.float32)
    want = w.as_array().astype(np.float64) @ x

    def products() -> None:
        dy.renew_cg()
        for _ in range(3):
            np.testing.assert_allclose((w * dy.inputVector(x)).npvalue(), want, rtol=1e-3, atol=1e-3)

    dy.renew_cg()
    (dy.inputVector(x) + dy.inputVector(x)).value()
    gc.collect()  # models of other tests that are freed later would make room
    arena.set_limit(arena.used_bytes() + 2 * 2**20)
    try:
        products()
        used = arena.used_bytes()
    finally:
        arena.set_limit(0)
    products()
    assert arena.used_bytes() >= used + 4 * 2**20


SIZE = 512  # packed, it takes a MiB


@pytest.fixture
def large():
    """A matrix that is packed by now, and a vector."""
    gc.collect()
    dy.renew_cg()
    arena.give_back()
    collection = dy.ParameterCollection()
    rng = np.random.default_rng(5)
    w = collection.parameters_from_numpy(rng.normal(size=(SIZE, SIZE)))
    x = rng.normal(size=SIZE)
    before = arena.used_bytes()
    multiply(w, x)
    assert arena.used_bytes() - before >= 4 * SIZE * SIZE
    yield w, x
    arena.set_limit(0)


def multiply(w, x, times: int = 3) -> None:
    for _ in range(times):
        dy.renew_cg()
        np.testing.assert_allclose((w * dy.inputVector(x)).npvalue(), w.as_array() @ x, rtol=1e-3, atol=1e-3)


def test_packed_forms_are_given_back_where_memory_is_short(large) -> None:
    """Packed forms never cause a lack of memory; products stay right, and weights are packed again later."""
    w, x = large
    packed = arena.used_bytes()
    arena.set_limit(packed + (1 << 18))
    for _ in range(2):
        dy.renew_cg()
        big = dy.inputTensor(np.ones(SIZE * SIZE // 2)) + 1  # twice half a MiB
        assert big.npvalue().sum() == SIZE * SIZE
        with pytest.raises(MemoryError):
            (
                dy.inputTensor(np.ones((packed + (1 << 18)) // 4 + 1)) + 1
            )  # more than the limit: everything possible is given back
        dy.renew_cg()
        assert arena.used_bytes() < packed
        multiply(w, x)
    arena.set_limit(0)
    arena.give_back()
    without = arena.used_bytes()
    multiply(w, x)
    assert arena.used_bytes() - without >= 4 * SIZE * SIZE


def test_packed_forms_are_not_given_back_while_they_are_read(large) -> None:
    w, x = large
    columns = np.repeat(x[:, None], 256, axis=1)
    value, rounds, wrong = w.as_array() @ x, 60, []

    def work() -> None:
        with dy.ComputationGraph() as graph:
            for _ in range(rounds):
                graph.renew()
                found = (w * dy.inputTensor(columns)).npvalue()
                if not np.allclose(found, value[:, None], rtol=1e-3, atol=1e-3):
                    wrong.append(found)

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        arena.give_back()
        time.sleep(1e-4)
    thread.join()
    assert not wrong
