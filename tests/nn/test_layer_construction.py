"""Layers that are made again, whose constructor fails, or that are removed; layers in place of collections."""

from __future__ import annotations

import abc
import gc
import inspect
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy import nn
from dynet_cy.core import cells


class Net(nn.Layer):
    def __init__(self, model, dim=3, fails=False):
        super().__init__(model, (dim, fails))
        self.hidden = nn.Linear(dim, dim, self.collection)
        self.rnn = dy.GRUBuilder(1, dim, dim, self.collection)
        if fails:
            raise KeyError("this constructor fails")
        self.out = nn.Linear(dim, 2, self.collection)

    def __call__(self, x):
        return self.out(self.hidden(x))


@pytest.fixture
def model() -> dy.ParameterCollection:
    return dy.ParameterCollection()


class Notebook:
    """Runs the code of cells in one namespace."""

    def __init__(self, model: dy.ParameterCollection) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__", "dy": dy, "nn": nn, "Net": Net, "model": model}

    def run(self, cell: str, again: str = "") -> Any:
        """Run a cell; `again` is the layer that it must say has been made again."""
        code = compile(cell, "cell", "exec")
        if again:
            with pytest.warns(UserWarning, match=f"^{again} was made again: it takes the place of the former one"):
                exec(code, self.names)
        else:
            exec(code, self.names)
        return self.names.get("net")


# ---- cells that run again


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("net = Net(model)", "net = Net(model)"),
        ("net = Net(model)", "# with another size\nnet = Net(model, 5).train()"),
        ("net = Net(model)", "def build():\n    return Net(model)\nnet = build()"),
        ("global net\nnet = Net(model)", "x = 1\nnet = Net(model)\ny = 2"),
    ],
)
def test_a_cell_that_runs_again_replaces_its_layer(model, first: str, second: str, tmp_path: Path) -> None:
    notebook = Notebook(model)
    before = nn.Linear(2, 2, model)
    old = notebook.run(first)
    names = model.keys()
    trainer = dy.AdamTrainer(model)
    for _ in range(3):
        net = notebook.run(second, "Net net")
        assert model.keys() == names
        assert len(model) == len(names)
        assert net.out.W is model["net/out/W"]
        assert old.out.W not in model.parameters_list()
        assert model["linear/W"] is before.W
        old = net
    # The model trains, and its file loads in a process that has run each cell once.
    dy.renew_cg()
    dy.squared_norm(net(np.ones(net.spec[0]))).backward()
    trainer.update()
    dy.save_safetensors(tmp_path / "m", model, trainer)
    fresh = dy.ParameterCollection()
    nn.Linear(2, 2, fresh)
    same = Net(fresh, *net.spec)
    dy.load_safetensors(tmp_path / "m", fresh, dy.AdamTrainer(fresh))
    np.testing.assert_array_equal(same.out.W.as_array(), net.out.W.as_array())
    assert pickle.loads(pickle.dumps(model)).keys() == names
    # So does a file from before.
    state = {name.replace("out", "linear_1").replace("hidden", "linear"): a for name, a in model.state_dict().items()}
    state = {name.replace("net/rnn", "net/gru-builder"): a for name, a in state.items()}
    model.load_state_dict(state)


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        ("x = dy.LSTMBuilder(1, 2, 3, model)", "x"),
        ("x = dy.BiRNNBuilder(1, 2, 4, model, dy.GRUBuilder)", "x"),
        ("x = dy.StandardSoftmaxBuilder(2, 3, model)", "x"),
        ("x = dy.NaryTreeLSTMBuilder(2, 2, 3, model)", "x"),
        ("x = nn.LSTM(2, 3, model)", "x"),
        ("x = model.add_parameters((2, 3))", "x"),
        ("x = model.add_lookup_parameters((2, 3), name='E')", "x"),
        ("x = model.parameters_from_numpy(__import__('numpy').ones(2))", "x"),
        ("W, b, E = model.add_parameters((2, 3)), model.add_parameters(2), model.add_lookup_parameters((3, 4))", "WbE"),
    ],
)
def test_builders_and_parameters_follow_the_same_rule(model, cell: str, names: str) -> None:
    notebook = Notebook(model)
    notebook.run(cell)
    keys, before = model.keys(), [notebook.names[name] for name in names]
    for _ in range(2):
        with pytest.warns(UserWarning, match="was made again: it takes the place of the former one") as caught:
            notebook.run(cell + "  # edited")
        assert [str(w.message).split(" was made")[0].split()[-1] for w in caught] == list(names)
        assert model.keys() == keys
        assert not any(notebook.names[name] is old for name, old in zip(names, before))


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("ps = [model.add_parameters(2) for _ in range(2)]", 1),
        ("ps = {k: dy.GRUBuilder(1, 2, 3, model) for k in 'ab'}", 1),
        ("class A:\n    def __init__(self):\n        self.W, self.b = map(model.add_parameters, (2, 3))\nps = A()", 1),
        ("def f():\n    model.add_parameters(2)\n    return model.add_parameters(3)\nps = f()", 1),
        ("model = dy.ParameterCollection()\nps = [model.add_parameters(2)]", 0),
        ("for _ in range(2):\n    ps = model.add_parameters(2)\nps = 0", 0),
        ("d = {}\nd['a'] = model.add_parameters(2)\nps = 0", 0),
        ("d = type('D', (), {})()\nd.a = model.add_parameters(2)\nps = [0]", 0),
    ],
)
def test_others_that_are_made_again_are_a_word(model, cell: str, words: int) -> None:
    notebook = Notebook(model)
    notebook.run(cell)
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            notebook.run(cell)
        says = [str(w.message) for w in caught]
        assert [text.startswith("ps was made again, and the model has its former") for text in says] == [True] * words


def test_an_item_of_a_dictionary_is_not_the_next_variable(model) -> None:
    notebook = Notebook(model)
    cell = "d = {}\nd['a'] = nn.Linear(2, 2, model)\nL = nn.Linear(3, 3, model)"
    notebook.run(cell)
    names = notebook.names["d"]["a"].collection.name(), notebook.names["L"].collection.name()
    with pytest.warns(UserWarning, match="Linear L was made again"):
        notebook.run(cell)
    assert notebook.names["L"].collection.name() == names[1]
    assert notebook.names["d"]["a"].collection.name() not in names


def test_what_a_constructor_has_of_its_locals_stays(model) -> None:
    """Programs of DyNet keep `locals()` as the spec of a model."""

    class Parser:
        def __init__(self, model, size):
            self.spec = locals()
            del self.spec["self"]
            self.parts = [dy.LSTMBuilder(1, size, size, model), nn.Linear(size, size, model), model.add_parameters(2)]
            self.more = dy.BiRNNBuilder(1, size, 4, model, dy.GRUBuilder), dy.StandardSoftmaxBuilder(size, 3, model)

    assert set(Parser(model, 3).spec) == {"model", "size"}


def test_a_long_list_is_looked_through_once(model, monkeypatch) -> None:
    looked: list[object] = []
    within = cells._within
    monkeypatch.setattr(cells, "_within", lambda value: (looked.append(x) or x for x in within(value)))
    notebook = Notebook(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            notebook.run("ps = [model.add_parameters(2) for _ in range(50)]")
    assert len(looked) == 100


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # Two statements of a program, and a loop.
        ("net = Net(model)\nnet = Net(model)", ""),
        ("for _ in range(2):\n    net = Net(model)", ""),
        ("nets = [Net(model) for _ in range(2)]", ""),
        # Other variables, collections and classes, and results that no variable gets.
        ("net = Net(model)", "other = Net(model)"),
        ("net = Net(model)", "Net(model)\nnet = net"),
        ("net = Net(model)", "nets = [net]\nnets.append(Net(model))\nnet = nets[0]"),
        ("net = Net(model)", "class Net(Net):\n    pass\nClass, Other = Net, Net.__mro__[1]\nnet = Class(model)"),
        ("net = Net(model)", "net = Net(model.add_subcollection('other'))"),
        ("def build():\n    net = Net(model)\n    net = Net(model)\n    return net\nnet = build()", ""),
    ],
)
def test_other_layers_are_not_replaced(model, first: str, second: str) -> None:
    notebook = Notebook(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*the model has the parameters of the former one too")
        notebook.run(first)
        notebook.run(second)
    assert len(model) == 2 * len(Net(dy.ParameterCollection()).parameters())


@pytest.mark.parametrize(
    ("program", "warned"),
    [
        ("net = Net(model)\nnet = Net(model)", True),
        ("for _ in range(2):\n    net = Net(model)", True),
        ("net = Net(model)\nkept = net\nnet = Net(model)", False),
        ("nets = []\nfor _ in range(2):\n    net = Net(model)\n    nets.append(net)", False),
        ("net = Net(model)\nmodel.remove(net)\nnet = Net(model)", False),
        ("for _ in range(2):\n    net = Net(dy.Model())", False),
        ("def build():\n    net = Net(model)\n    net = Net(model)\n    return net\nnet = build()", False),
    ],
)
def test_a_program_that_loses_its_layer_is_warned(model, program: str, warned: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        net = Notebook(model).run(program)
    says = [str(w.message) for w in caught]
    assert [text.startswith("Net net was made again, and the model has the parameters of") for text in says] == [
        True
    ] * warned
    assert net.collection.name() in ("/net/", "/net_1/")


def test_a_cell_that_fails_leaves_the_layer_from_before(model) -> None:
    notebook = Notebook(model)
    net = notebook.run("net = Net(model)")
    for _ in range(2):
        with pytest.raises(KeyError):
            notebook.run("net = Net(model, fails=True)")
    assert notebook.names["net"] is net
    assert model["net/hidden/W"] is net.hidden.W
    assert len(model) == len(net.parameters())
    again = notebook.run("net = Net(model)", "Net net")
    assert model["net/hidden/W"] is again.hidden.W


# ---- attributes


def test_an_attribute_that_is_made_again(model) -> None:
    net = Net(model)
    names = model.keys()
    old = net.out
    with pytest.warns(UserWarning, match="^Net.out was made again: its former parameters are removed from the model"):
        net.out = nn.Linear(3, 4, net.collection)
    assert sorted(model.keys()) == sorted(names)
    assert model["net/out/W"] is net.out.W
    assert old.W.name() == "removed:/net/out/W"
    net.layers = [nn.Linear(3, 3, net.collection) for _ in range(2)]
    with pytest.warns(UserWarning, match=r"^Net.layers was made again"):
        net.layers = [nn.Linear(3, 3, net.collection) for _ in range(3)]
    assert [name for name in net.collection if "layers" in name and "W" in name] == [f"layers/{i}/W" for i in range(3)]
    net.W = net.collection.add_parameters(2)
    with pytest.warns(UserWarning, match=r"^Net.W was made again"):
        net.W = net.collection.add_parameters(3)
    assert model["net/W"] is net.W


def test_attributes_that_are_not_made_again(model) -> None:
    net = Net(model)
    names = model.keys()
    net.hidden, net.out = net.out, net.hidden  # their names stay
    net.name = "name"
    net.last = net.hidden = None
    assert model.keys() == names
    net.hidden = nn.Linear(3, 3, model)  # of another collection, in place of nothing
    assert len(model) == len(names) + 2
    kept = net.rnn
    net.second = kept
    net.rnn = dy.GRUBuilder(1, 3, 3, net.collection)  # `second` still is the one from before
    assert net.rnn.param_collection().name() == "/net/rnn_1/"


# ---- constructors that fail


def test_a_constructor_that_fails_leaves_nothing(model) -> None:
    before = Net(model)
    names, taken = model.keys(), pickle.dumps(model.add_subcollection("x").name())
    with pytest.raises(KeyError):
        Net(model, 3, True)
    assert model.keys() == names
    assert Net(model).out.W.name() == "/net_1/out/W"
    assert before.out.W.name() == "/net/out/W"
    assert taken

    class Whole(nn.Layer):
        def __init__(self, model):
            super().__init__(model)
            self.net = Net(self.collection, 3, True)  # which has taken out its own collections by then

    names = model.keys()
    with pytest.raises(KeyError, match="this constructor fails"):
        Whole(model)
    assert model.keys() == names

    class Outer(nn.Layer):
        def __init__(self, model, part=None):
            self.stray = nn.Linear(2, 2, model)  # before the base class knows the model, and not in its own collection
            super().__init__(model)
            self.inner = nn.Sequential([(nn.Linear, 2, 2), (nn.Linear, 0, 2)], self.collection)

    names = model.keys()
    for _ in range(2):
        with pytest.raises(ValueError, match="input_dim"):
            Outer(model=model)
        assert model.keys() == names
    assert model.add_subcollection("outer").name() == "/outer/"
    assert nn.Linear(2, 2, model).W.name() == "/linear/W"


def test_a_constructor_that_catches_the_error_of_a_part(model) -> None:
    class Careful(nn.Layer):
        def __init__(self, model):
            super().__init__(model)
            self.before = nn.Linear(2, 2, self.collection)
            with pytest.raises(KeyError):
                Net(self.collection, fails=True)
            self.after = nn.Linear(2, 2, self.collection)

    Careful(model)
    assert model.keys() == ["careful/before/W", "careful/before/b", "careful/after/W", "careful/after/b"]


def test_a_model_that_the_constructor_knows(model) -> None:
    class Closure(nn.Layer):
        def __init__(self):
            super().__init__(model)
            self.out = nn.Linear(2, 0, self.collection)

    with pytest.raises(ValueError, match="output_dim"):
        Closure()
    assert model.keys() == []
    assert model.add_subcollection("closure").name() == "/closure/"


def test_a_layer_without_the_constructor_of_the_base_class(model) -> None:
    class Without(nn.Layer):
        def __init__(self, model):
            self.size = 3

    class Lazy(nn.Layer):
        def __init__(self, model):
            self.out = nn.Linear(2, 2, self.collection)
            super().__init__(model)

    words = r"the constructor must call super\(\).__init__\(model, ...\) before it makes parameters"
    with pytest.raises(TypeError, match=f"Without: {words}"):
        Without(model)
    with pytest.raises(AttributeError, match=f"Lazy: {words}"):
        Lazy(model)
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'nothing'"):
        Net(model).nothing  # noqa: B018


def test_signatures_and_other_base_classes(model) -> None:
    assert str(inspect.signature(nn.Dropout)) == "(rate: 'float') -> 'None'"
    assert list(inspect.signature(Net).parameters) == ["model", "dim", "fails"]

    class Mixed(nn.Layer, abc.ABC):
        pass

    assert Mixed(model).collection.name() == "/mixed/"


# ---- removing


def test_remove(model) -> None:
    net, W, E = Net(model), model.add_parameters(2, name="W"), model.add_lookup_parameters((3, 2), name="E")
    rnn = dy.LSTMBuilder(1, 2, 3, model)
    trainer = dy.MomentumSGDTrainer(model)
    values = W.as_array()
    model.remove(W)
    model.remove(rnn)
    model.remove(net.hidden)
    assert model.keys() == ["net/rnn/_" + str(i) for i in range(9)] + ["net/out/W", "net/out/b", "E"]
    # They can still be used, but are not trained, and their names are free.
    dy.renew_cg()
    loss = dy.squared_norm(net(np.ones(3))) + dy.squared_norm(W) + dy.squared_norm(E[1])
    loss.backward()
    trainer.update()
    np.testing.assert_array_equal(W.as_array(), values)
    assert W.name() == "removed:/W"
    assert model.add_parameters(2, name="W").name() == "/W"
    assert dy.LSTMBuilder(1, 2, 3, model).param_collection().name() == "/vanilla-lstm-builder/"
    net.collection.remove(net.out.collection)
    net.collection.remove(net.rnn)
    model.remove(E)
    model.remove(net)
    assert model.keys()[0] == "W"
    assert Net(model).hidden.W.name() == "/net/hidden/W"


def test_what_cannot_be_removed(model) -> None:
    net, other = Net(model), Net(dy.ParameterCollection())
    for x in (other, other.out.W, model, dy.ParameterCollection()):
        with pytest.raises(ValueError, match="is not in / of this model"):
            model.remove(x)
    with pytest.raises(ValueError, match="is not in /net/hidden/ of this model"):
        net.hidden.collection.remove(net.out)
    model.remove(net.out.W)
    with pytest.raises(ValueError, match="removed:/net/out/W is not in / of this model"):
        model.remove(net.out.W)
    with pytest.raises(
        ValueError, match="removed:/net/out/W has been removed from its collection and cannot be pickled"
    ):
        pickle.dumps(net.out.W)
    for wrong in ("net", None, 3):
        with pytest.raises(TypeError, match="remove: a parameter, layer, builder or collection is needed"):
            model.remove(wrong)


def test_names_of_layers_that_a_failed_constructor_dropped_are_free(model) -> None:
    class Dropping(nn.Layer):
        def __init__(self, model) -> None:
            super().__init__(model)
            nn.Linear(2, 2, self.collection)
            nn.Linear(2, 2, model)
            gc.collect()
            raise RuntimeError("stop")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="stop"):
            Dropping(model)
    assert model.keys() == []
    assert nn.Linear(2, 2, model).W.name() == "/linear/W"


def test_what_is_added_to_a_removed_collection_is_not_in_the_model(model) -> None:
    net = Net(model)
    model.remove(net)
    net.collection.add_parameters(2, name="W")
    assert model.keys() == []
    assert net.collection.keys()[-1] == "W"


# ---- a layer in place of a collection


def test_trainers_files_and_stopping(model, tmp_path: Path) -> None:
    net, beside = Net(model), Net(model)
    others = beside.state_dict()
    trainer = dy.AdamTrainer(net)
    assert trainer.collection is net.collection
    group = trainer.group([net.hidden, net.out.b], learning_rate=0.1)
    assert group.names == ("/net/hidden/W", "/net/hidden/b", "/net/out/b")
    stopping = dy.EarlyStopping(net)
    stopping.report(0.5)
    best = net.state_dict()
    dy.renew_cg()
    dy.squared_norm(net([1, 2, 3])).backward()
    trainer.update()
    dy.save_safetensors(tmp_path / "m", net, trainer)
    dy.parallel.save_checkpoint(tmp_path / "p", net, trainer)
    trained = net.state_dict()
    assert not np.array_equal(trained["out.W"], best["out.W"])
    stopping.reload()
    np.testing.assert_array_equal(net.state_dict()["out.W"], best["out.W"])
    for load in (dy.load_safetensors, dy.parallel.load_checkpoint):
        net.load_state_dict(best)
        load(tmp_path / ("m" if load is dy.load_safetensors else "p"), net, trainer)
        np.testing.assert_array_equal(net.state_dict()["out.W"], trained["out.W"])
    beside.collection.copy_from(net)
    np.testing.assert_array_equal(beside.state_dict()["out.W"], trained["out.W"])
    beside.load_state_dict(others)
    within = nn.Linear(2, 2, net)
    assert within.W.name() == "/net/linear_2/W"
    dy.save(tmp_path / "o", [within])
    (loaded,) = dy.load(tmp_path / "o", net)
    assert loaded.W.name() == "/net/linear_3/W"


def test_modes_reach_dictionaries_and_nested_lists(model) -> None:
    class Deep(nn.Layer):
        def __init__(self, model):
            super().__init__(model)
            self.parts = {"a": [nn.Dropout(0.5), (nn.Dropout(0.5),)]}
            self.W = [self.collection.add_parameters(2)]

    net = Deep(model)
    assert not any(part.training for part in net.eval().sublayers())
    net.set_updated(False)
    assert not net.W[0].is_updated()


def test_wrong_things_in_place_of_a_collection() -> None:
    for wrong in (nn.Layer, 3, [Net(dy.ParameterCollection())]):
        with pytest.raises(TypeError, match="AdamTrainer: argument m: expected a ParameterCollection or a layer, got"):
            dy.AdamTrainer(wrong)
