"""Parameters, lookup tables and collections."""

from __future__ import annotations

import gc
import mmap
import os
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.memory.storage import parameter_names
from dynet_cy.model.parameters import const_parameter, lookup, lookup_batch, parameter


@pytest.fixture
def collection():
    return dy.ParameterCollection()


# ---- names -------------------------------------------------------------------


def test_names(collection) -> None:
    assert collection.name() == "/"
    assert collection.add_parameters(1).name() == "/_0"
    assert collection.add_parameters(1).name() == "/_1"
    assert collection.add_parameters(1, name="W").name() == "/W"
    assert collection.add_parameters(1, name="W").name() == "/W_1"
    assert collection.add_lookup_parameters((2, 1), name="E").name() == "/E"
    below = collection.add_subcollection("rnn")
    assert below.name() == "/rnn/"
    assert below.add_parameters(1, name="W").name() == "/rnn/W"
    assert collection.add_subcollection("rnn").name() == "/rnn_1/"
    assert collection.add_subcollection().name() == "/_0/"
    assert below.add_subcollection("deep").add_parameters(1).name() == "/rnn/deep/_0"
    assert repr(below).startswith("<ParameterCollection /rnn/")


def test_names_with_underscores_are_unique(collection, tmp_path: Path) -> None:
    asked = ["W_out", "W_out", "W", "W_1", "W", "W", "W_1", "W_1_1", "W_0", "", "_1", "", ""]
    names = ["W_out", "W_out_1", "W", "W_1", "W_2", "W_3", "W_1_1", "W_1_1_1", "W_0", "_0", "_1", "_2", "_3"]
    assert [collection.add_parameters(1, init=i, name=x).name() for i, x in enumerate(asked)] == [
        "/" + x for x in names
    ]
    below = [collection.add_subcollection(x).name() for x in ("in_put", "rnn", "rnn", "rnn_1", "rnn_2", "rnn")]
    assert below == ["/in_put/", "/rnn/", "/rnn_1/", "/rnn_1_1/", "/rnn_2/", "/rnn_3/"]
    collection.save(tmp_path / "m")
    other = dy.ParameterCollection()
    for x in asked:
        other.add_parameters(1, name=x)
    other.populate_by_name(tmp_path / "m")
    assert [p.as_array()[0] for p in other.parameters_list()] == list(range(len(asked)))
    # One that is loaded has the name in the file, without the number that was appended.
    for name, without in [("/W_out", "/W_out"), ("/W_out_1", "/W_out"), ("/W_2", "/W"), ("/_3", "/_0")]:
        assert dy.ParameterCollection().load_param(tmp_path / "m", name).name() == without


@pytest.mark.parametrize("name", ["a/b", "a b", "a#b"])
def test_names_that_are_not_possible(name: str, collection) -> None:
    for add in (lambda: collection.add_parameters(1, name=name), lambda: collection.add_subcollection(name)):
        with pytest.raises(ValueError, match="could not include"):
            add()
    assert collection.parameters_list() == []


def test_lists(collection) -> None:
    a = collection.add_parameters((2, 3))
    below = collection.add_subcollection("x")
    beside = collection.add_subcollection("xy")
    b, e = below.add_parameters(4), below.add_lookup_parameters((5, 6))
    c = beside.add_parameters(7)
    assert collection.parameters_list() == [a, b, c]
    assert collection.lookup_parameters_list() == [e]
    assert below.parameters_list() == [b]
    assert below.lookup_parameters_list() == [e]
    assert beside.parameters_list() == [c]
    assert collection.parameter_count() == 6 + 4 + 30 + 7
    assert below.parameter_count() == 34


# ---- parameters --------------------------------------------------------------


def test_values_and_shapes(collection, graph) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    p = collection.parameters_from_numpy(values)
    assert p.shape() == (2, 3)
    np.testing.assert_array_equal(p.as_array(), values)
    np.testing.assert_array_equal(p.grad_as_array(), np.zeros((2, 3)))
    np.testing.assert_array_equal(p.npvalue(), values)
    p.set_value(values * 2)
    dy.renew_cg()
    np.testing.assert_array_equal(p.npvalue(), values * 2)
    p.as_array()[:] = 9
    np.testing.assert_array_equal(p.as_array(), values * 2)
    with pytest.raises(ValueError, match=r"the value has shape \(3, 2\), \(2, 3\) is needed"):
        p.set_value(values.T)
    p.scale(0.5)
    np.testing.assert_array_equal(p.as_array(), values)
    p.clip_inplace(1, 3)
    np.testing.assert_array_equal(p.as_array(), np.clip(values, 1, 3))
    p.zero()
    assert not p.as_array().any()
    assert p.is_updated()
    p.set_updated(False)
    assert not p.is_updated()


def test_parameters_of_any_number_of_axes(collection, graph) -> None:
    for n in range(8):
        values = np.arange(2.0**n).reshape((2,) * n)
        p = collection.parameters_from_numpy(values)
        assert p.shape() == (2,) * n
        np.testing.assert_array_equal(p.as_array(), values)
        np.testing.assert_array_equal((p * 2.0).npvalue().ravel(), 2 * values.ravel())
        p.set_value(values + 1)
        np.testing.assert_array_equal(p.as_array(), values + 1)
    with pytest.raises(ValueError, match="8 axes"):
        collection.add_parameters((1,) * 8)


def test_made_by_hand() -> None:
    for cls in (dy.Parameters, dy.LookupParameters):
        with pytest.raises(TypeError, match="made by a ParameterCollection"):
            cls().as_array()


def test_one_node_in_a_graph(collection, graph) -> None:
    p = collection.add_parameters(3)
    (dy.tanh(p) + p) * 2.0
    assert graph.op_names().count("parameter") == 1
    parameter(p)
    assert graph.op_names().count("parameter") == 1
    const_parameter(p)
    assert graph.op_names().count("parameter") == 2
    a, b = parameter(p, p)
    assert (a + b).dim() == ((3,), 1)
    assert parameter() == ()
    assert [x.dim() for x in parameter([p, p])] == [((3,), 1)] * 2
    with pytest.raises(TypeError, match="must be Parameters, not int"):
        parameter(3)


def test_expressions_in_two_graphs(collection, graph) -> None:
    p = collection.parameters_from_numpy(np.ones(3))
    y = dy.dot_product(p, dy.ones(3))
    with dy.ComputationGraph():
        z = dy.dot_product(p, dy.ones(3)) * 2.0
        z.backward()
    y.backward()
    np.testing.assert_array_equal(p.grad_as_array(), [3, 3, 3])


def test_many_parameters_do_not_move_others(collection, graph) -> None:
    first = collection.parameters_from_numpy(np.arange(5.0))
    y = dy.dot_product(first, dy.ones(5))
    for k in range(2000):
        collection.add_parameters(k % 40 + 1, init=float(k))
    np.testing.assert_array_equal(first.as_array(), np.arange(5.0))
    y.backward()
    assert y.value() == 10
    np.testing.assert_array_equal(first.grad_as_array(), np.ones(5))
    for k, p in enumerate(collection.parameters_list()[1:]):
        assert (p.as_array() == k).all()


# ---- lookup tables -----------------------------------------------------------


@pytest.fixture
def table(collection):
    return collection.lookup_parameters_from_numpy(np.arange(12.0).reshape(4, 3))


def test_rows(table, graph, strategy) -> None:
    assert table.shape() == (4, 3)
    assert len(table) == 4
    assert table[2].value() == [6, 7, 8]
    assert lookup(table, 1).value() == [3, 4, 5]
    assert lookup(table, np.int64(1)).value() == [3, 4, 5]
    np.testing.assert_array_equal(table.batch([3, 0]).npvalue(), np.array([[9, 10, 11], [0, 1, 2]]).T)
    np.testing.assert_array_equal(table.as_array(), np.arange(12.0).reshape(4, 3))
    assert [x.value()[0] for x in table] == [0, 3, 6, 9]
    np.testing.assert_array_equal(table.row_as_array(3), [9, 10, 11])
    np.testing.assert_array_equal(table.rows_as_array([3, 0]), [[9, 10, 11], [0, 1, 2]])


@pytest.mark.parametrize("index", [-1, 4, 2**40])
def test_rows_that_are_not_there(index: int, table, graph) -> None:
    for use in (
        lambda: table[index],
        lambda: lookup(table, index),
        lambda: lookup_batch(table, [0, index]),
        lambda: table.row_as_array(index),
        lambda: table.init_row(index, [1, 2, 3]),
    ):
        with pytest.raises(IndexError, match=f"index {index} is out of range for /_0 with 4 rows"):
            use()
    assert len(graph) == 0


def test_wrong_indices(table, graph) -> None:
    for wrong in (None, "1", 1.5, [1]):
        with pytest.raises(TypeError):
            table[wrong]
    with pytest.raises(ValueError, match="empty"):
        lookup_batch(table, [])


def test_gradients_of_rows(table, graph, strategy) -> None:
    xs = [table[1], table[3], table[1], table.batch([1, 2, 1]), lookup(table, 0, update=False)]
    dy.dot_product(dy.esum(xs), dy.inputVector([1, 2, 3])).backward()
    # The loss of the batch of three is summed three times.
    np.testing.assert_array_equal(table.grad_as_array(), np.outer([0, 3 + 3 + 2, 1, 3], [1, 2, 3]))
    np.testing.assert_array_equal(table.row_grad_as_array(1), [8, 16, 24])


def test_row_values(table, graph) -> None:
    table.init_row(1, [7, 7, 7])
    assert table[1].value() == [7, 7, 7]
    with pytest.raises(ValueError, match="shape"):
        table.init_row(1, [1, 2])
    table.init_from_array(np.zeros((4, 3)))
    assert not table.as_array().any()
    with pytest.raises(ValueError, match=r"\(4, 3\) is needed"):
        table.init_from_array(np.zeros((3, 4)))


@pytest.mark.parametrize(("options", "slope"), [({}, 2.0), ({"update": True}, 2.0), ({"update": False}, 0.0)])
def test_gradients_of_a_whole_table(table, graph, options, slope: float) -> None:
    dy.sum_elems(table.expr(**options) * 2).backward(full=True)
    assert (table.grad_as_array() == slope).all()


def test_a_whole_table_as_an_expression(table, graph) -> None:
    """Rows are its last axis; gradients reach every row."""
    y = dy.dot_product(parameter(table), dy.ones((3, 4)))
    y.backward()
    np.testing.assert_array_equal(table.grad_as_array(), np.ones((4, 3)))


def test_rows_with_axes(collection, graph, strategy) -> None:
    values = np.arange(24.0).reshape(2, 3, 4)
    t = collection.lookup_parameters_from_numpy(values)
    np.testing.assert_array_equal(t[1].npvalue(), values[1])
    np.testing.assert_array_equal(t.batch([1, 0]).npvalue(), np.moveaxis(values[::-1], 0, -1))
    np.testing.assert_array_equal(t.as_array(), values)


def test_parameter_gives_the_parameters_themselves(collection, graph) -> None:
    """They always refer to the current graph, and can be set and saved."""
    p, t = collection.add_parameters(2, init=1.0), collection.add_lookup_parameters((3, 2), init=1.0)
    assert dy.parameter(p) is p
    assert dy.parameter(t) is t
    for made, kind in ((dy.parameter(p, t), tuple), (dy.parameter((p, t)), tuple), (dy.parameter([p, t]), list)):
        assert type(made) is kind
        assert made[0] is p
        assert made[1] is t


# ---- the end of a collection -------------------------------------------------


def test_a_deleted_collection(graph) -> None:
    """Parameters, tables, builders and trainers work without it; programs written for DyNet rely on that."""
    collection = dy.ParameterCollection()
    p = collection.add_parameters(3, init=2.0, name="W")
    t = collection.add_lookup_parameters((3, 2), init=2.0)
    builder = dy.VanillaLSTMBuilder(1, 3, 2, collection)
    trainer = dy.SimpleSGDTrainer(collection, 0.5)
    trainer.set_clip_threshold(0)  # the gradients depend on the builder's random weights, and may be large
    y = p * 2
    del collection
    gc.collect()
    assert y.value() == [4, 4, 4]
    dy.renew_cg()
    assert p.name() == "/W"
    assert p.shape() == (3,)
    dy.dot_product(builder.initial_state().add_input(p).output(), t[1]).backward()
    assert np.all(p.grad_as_array())
    assert np.all(t.row_grad_as_array(1))
    assert np.all(t.row_as_array(1) == 2)
    expected = p.as_array() - np.float32(0.5) * p.grad_as_array()
    trainer.update()
    np.testing.assert_allclose(p.as_array(), expected, rtol=1e-6, atol=1e-6)
    assert len(trainer.collection.parameters_list()) == 1 + len(builder.param_collection().parameters_list())
    p.set_value([1, 2, 3])
    np.testing.assert_array_equal(t.rows_as_array([0]), [[2, 2]])
    assert t.batch([0, 2]).dim() == ((2,), 2)


def test_rows_in_a_graph_keep_their_table(graph, strategy) -> None:
    """The memory of a table stays while a graph uses its rows, although nothing else refers to it."""
    table = dy.ParameterCollection().lookup_parameters_from_numpy(np.arange(6.0).reshape(3, 2))
    x, xs = table[1], table.batch([2, 0])
    del table
    gc.collect()
    others = [dy.ParameterCollection().add_lookup_parameters((3, 2), init=7.0) for _ in range(20)]
    assert (x * 2).value() == [4, 6]
    np.testing.assert_array_equal(xs.npvalue(), [[4, 0], [5, 1]])
    dy.sum_batches(dy.sum_elems(x + xs)).backward()
    np.testing.assert_array_equal(x.gradient(), [2, 2])
    assert not any(np.any(other.grad_as_array()) for other in others)


def test_sub_collections_keep_the_memory(graph) -> None:
    below = dy.ParameterCollection().add_subcollection("x")
    p = below.add_parameters(2, init=1.0)
    gc.collect()
    assert p.value() == [1, 1]
    assert below.parameters_list() == [p]
    del below
    gc.collect()
    np.testing.assert_array_equal(p.as_array(), [1, 1])


class Model(dy.ParameterCollection):
    """A collection that holds its own parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.W = self.add_parameters((3, 2))
        self.E = self.add_lookup_parameters((4, 2))
        self.rnn = dy.GRUBuilder(1, 2, 2, self)


PARTS = {
    "root": lambda model: model,
    "below": lambda model: model.add_subcollection(),
    "parameter": lambda model: model.W,
    "table": lambda model: model.E,
    "builder": lambda model: model.rnn,
    "trainer": dy.AdamTrainer,
    "graph": lambda model: model.W.npvalue(),
    "graph of rows": lambda model: model.E[1].npvalue(),
}


@pytest.mark.parametrize("part", PARTS)
def test_memory_goes_with_the_last_part(graph, part) -> None:
    """The collection is freed at once, without the garbage collector."""
    gc.collect()  # models of earlier tests are not freed meanwhile
    ids = set(parameter_names)
    model = Model()
    held = PARTS[part](model)
    gc.collect()
    gc.disable()
    try:
        del model
        assert set(parameter_names) > ids
        del held
        dy.renew_cg()
        assert set(parameter_names) == ids
    finally:
        gc.enable()


def test_the_same_objects(collection) -> None:
    """Lists of a collection hold the same objects as the program, so `is` and `in` work."""
    p = collection.add_parameters(2)
    t = collection.add_lookup_parameters((2, 2))
    collection.add_parameters(3)
    assert collection.parameters_list()[0] is p
    assert collection.lookup_parameters_list()[0] is t
    assert [x in {p} for x in collection.parameters_list()] == [True, False]
    first = weakref.ref(p)
    del p
    assert first() is None
    assert collection.parameters_list()[0].shape() == (2,)


def test_a_collection_that_was_not_made(capfd) -> None:
    """A collection whose __init__ fails causes no errors later."""

    class Failing(dy.ParameterCollection):
        def __init__(self) -> None:
            raise KeyError("no")

    with pytest.raises(KeyError):
        Failing()
    with pytest.raises(TypeError):
        dy.ParameterCollection(1)
    dy.ParameterCollection.__new__(dy.ParameterCollection)
    gc.collect()
    assert capfd.readouterr().err == ""


# ---- memory of the caller's --------------------------------------------------


def test_storage_moves(collection, graph, strategy) -> None:
    p = collection.parameters_from_numpy(np.array([1.0, 2.0]))
    t = collection.lookup_parameters_from_numpy(np.array([[3.0, 4.0], [5.0, 6.0]]))
    y = dy.dot_product(p, t[1])
    assert y.value() == 17
    storage = collection.storage
    shared = mmap.mmap(-1, 4096)
    gradients = mmap.mmap(-1, 4096)
    storage.move(storage.values, shared)
    storage.move(storage.grads, gradients)
    y.backward()
    np.testing.assert_array_equal(p.grad_as_array(), [5, 6])
    np.testing.assert_array_equal(t.row_grad_as_array(1), [1, 2])
    view = np.frombuffer(shared, np.float32)
    assert view[:2].tolist() == [1, 2]
    view[:2] = [10, 20]
    assert p.as_array().tolist() == [10, 20]
    p.set_value([7, 8])
    assert view[:2].tolist() == [7, 8]
    assert np.frombuffer(gradients, np.float32)[:2].tolist() == [5, 6]
    dy.renew_cg()
    assert dy.dot_product(p, t[1]).value() == 7 * 5 + 8 * 6
    # More parameters fit, up to the end of the mapping.
    assert collection.add_parameters(100, init=3.0).as_array().tolist() == [3] * 100
    with pytest.raises(MemoryError, match="the mapping they live in has 4,096; supply a larger one"):
        collection.add_parameters(2000)
    assert p.as_array().tolist() == [7, 8]
    larger = mmap.mmap(-1, 65536)
    storage.move(storage.values, larger)
    assert p.as_array().tolist() == [7, 8]
    with pytest.raises(MemoryError, match="supply a larger one"):  # the plane of gradients has not moved
        collection.add_parameters(2000)


def test_mappings_that_do_not_fit(collection) -> None:
    p = collection.add_parameters(1000, init=1.0)
    storage = collection.storage
    assert storage.n_bytes() >= 4000
    with pytest.raises(ValueError, match="64-byte boundary and hold at least"):
        storage.move(storage.values, mmap.mmap(-1, 100))
    with pytest.raises(ValueError, match="64-byte boundary"):
        storage.move(storage.values, memoryview(mmap.mmap(-1, 8192))[4:])
    with pytest.raises((BufferError, TypeError)):
        storage.move(storage.values, bytes(8192))
    with pytest.raises(TypeError):
        storage.move(storage.values, 5)
    with pytest.raises(TypeError):
        storage.move(None, mmap.mmap(-1, 8192))
    assert p.as_array().tolist() == [1] * 1000


def test_a_mapping_in_a_garbage_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector clears memoryviews in whatever order it finds them; the plane keeps its memory until it is gone."""
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    mapping = memoryview(mmap.mmap(-1, 4096))[:2048]
    gc.collect()  # the view is in an older generation than the cycle
    model = dy.ParameterCollection()
    model.add_parameters(5)
    model.storage.move(model.storage.values, mapping)
    cycle: list[object] = [model, mapping]
    cycle.append(cycle)
    del model, mapping, cycle
    gc.collect()
    assert not ignored


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_gradients_shared_between_processes(collection, graph) -> None:
    p = collection.parameters_from_numpy(np.array([1.0, 2.0]))
    storage = collection.storage
    storage.move(storage.values, mmap.mmap(-1, 4096))
    storage.move(storage.grads, mmap.mmap(-1, 4096))
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            dy.renew_cg()
            dy.dot_product(p, dy.inputVector([3, 4])).backward()
            p.set_value([9, 9])
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert p.grad_as_array().tolist() == [3, 4]
    assert p.as_array().tolist() == [9, 9]


# ---- files -------------------------------------------------------------------


def filled(seed: int):
    rng = np.random.default_rng(seed)
    collection = dy.ParameterCollection()
    below = collection.add_subcollection("rnn")
    collection.parameters_from_numpy(rng.normal(size=(3, 4)), name="W")
    below.parameters_from_numpy(rng.normal(size=5), name="b")
    below.lookup_parameters_from_numpy(rng.normal(size=(6, 2)), name="E")
    return collection


def arrays(collection):
    return [p.as_array() for p in [*collection.parameters_list(), *collection.lookup_parameters_list()]]


def test_save_and_populate(tmp_path) -> None:
    saved, other = filled(1), filled(2)
    saved.save(tmp_path / "model")
    other.populate(tmp_path / "model")
    for actual, desired in zip(arrays(other), arrays(saved)):
        np.testing.assert_array_equal(actual, desired)
    p = dy.ParameterCollection().load_param(tmp_path / "model", "/rnn/b")
    np.testing.assert_array_equal(p.as_array(), arrays(saved)[1])
    fresh = dy.ParameterCollection()
    np.testing.assert_array_equal(fresh.load_param(tmp_path / "model", "/rnn/b").as_array(), arrays(saved)[1])
    np.testing.assert_array_equal(fresh.load_lookup_param(tmp_path / "model", "/rnn/E").as_array(), arrays(saved)[2])


def test_populate_is_all_or_nothing(tmp_path) -> None:
    saved, other = filled(1), filled(2)
    before = arrays(other)
    saved.save(tmp_path / "model")
    whole = (tmp_path / "model").read_bytes()
    for cut in (10, len(whole) // 2, len(whole) - 5):
        (tmp_path / "cut").write_bytes(whole[:cut])
        with pytest.raises(Exception, match="."):
            other.populate(tmp_path / "cut")
        for actual, desired in zip(arrays(other), before):
            np.testing.assert_array_equal(actual, desired)
    other.add_parameters(3)
    with pytest.raises(Exception, match="."):
        other.populate(tmp_path / "model")
    for actual, desired in zip(arrays(other)[:2], before):
        np.testing.assert_array_equal(actual, desired)
