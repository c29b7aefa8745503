"""Layers that hold layers made elsewhere, share them, and are wrapped: names, trainers and files."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import all_equal

import dynet_cy as dy
from dynet_cy import nn


class Encoder(nn.Layer):
    def __init__(self, model=None):
        super().__init__(model)
        self.words = nn.Embedding(5, 3, self.collection)
        self.layers = [nn.Linear(3, 3, self.collection) for _ in range(2)]

    def __call__(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            x = dy.tanh(layer(x))
        return x


class Tagger(nn.Layer):
    def __init__(self, encoder, model=None):
        super().__init__(model)
        self.encoder = encoder
        self.out = nn.Linear(3, 2, self.collection)

    def __call__(self, ids):
        return self.out(self.encoder(ids))


class Lora(nn.Layer):
    """W x + b of another layer, plus B A x."""

    def __init__(self, base, rank, model=None):
        super().__init__(model)
        self.base = base
        self.A = self.collection.add_parameters((rank, 3))
        self.B = self.collection.add_parameters((3, rank), init=0.5)

    def __call__(self, x):
        return self.base(x) + self.B * (self.A * x)


ENCODER = ["words.table", "layers.0.W", "layers.0.b", "layers.1.W", "layers.1.b"]
TAGGER = [*(f"encoder.{name}" for name in ENCODER), "out.W", "out.b"]


def loss(net: Any) -> dy.Expression:
    return dy.squared_norm(net([1, 3, 1]))


def step(net: Any, trainer: Any) -> float:
    dy.renew_cg()
    y = loss(net)
    y.backward()
    trainer.update()
    return y.value()


def values(net: Any) -> dict[str, Any]:
    return {name: p.as_array() for name, p in net.named_parameters()}


def assert_equal(found: dict[str, Any], want: dict[str, Any]) -> None:
    assert found.keys() == want.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, want[name], name)


# The collection of a tagger, for that of its encoder.
PLACES: dict[str, Callable[[dy.ParameterCollection], dy.ParameterCollection | None]] = {
    "beside": lambda model: model,
    "in another model": lambda model: dy.ParameterCollection(),
    "alone": lambda model: None,
}


@pytest.fixture(params=PLACES)
def tagger(request: pytest.FixtureRequest) -> Tagger:
    dy.reset_random_seed(1)
    model = dy.ParameterCollection()
    encoder = Encoder(model)
    return Tagger(encoder, PLACES[request.param](model))


def alike(net: Tagger) -> Tagger:
    """Another tagger, all of whose layers are made in one collection."""
    other = dy.ParameterCollection()
    return Tagger(Encoder(other), None if net.collection.name() == "/" else other)


def test_names(tagger: Tagger) -> None:
    assert [name for name, _ in tagger.named_parameters()] == TAGGER
    assert list(tagger.state_dict()) == TAGGER
    assert tagger.collection.keys() == [name.replace(".", "/") for name in TAGGER]
    assert list(tagger.encoder.state_dict()) == ENCODER
    assert [p.shape for p in tagger.parameters()] == [(5, 3), (3, 3), (3,), (3, 3), (3,), (2, 3), (2,)]
    assert tagger.collection["encoder/layers/0/W"] is tagger.encoder.layers[0].W
    assert tagger.encoder.layers[0].W.name() in ("/encoder/layers/0/W", "/tagger/encoder/layers/0/W")
    assert len(tagger.collection.parameters_list()) == 6
    assert tagger.collection.parameter_count() == 15 + 24 + 8


def test_training(tagger: Tagger) -> None:
    """All parameters are trained, as those of layers in one collection are."""
    other = alike(tagger)
    other.load_state_dict(tagger.state_dict())
    both = [(net, dy.AdamTrainer(net, 0.1)) for net in (tagger, other)]
    both[0][1].group(tagger.encoder, learning_rate=0.01)
    both[1][1].group(other.encoder, learning_rate=0.01)
    before = values(tagger)
    for _ in range(3):
        first, second = (step(net, trainer) for net, trainer in both)
        assert first == second
    assert_equal(values(tagger), values(other))
    assert all((array != before[name]).any() for name, array in values(tagger).items())


def test_files(tagger: Tagger, tmp_path: Path) -> None:
    trainer = dy.AdamTrainer(tagger, 0.1)
    trainer.group(tagger.encoder.layers[1], learning_rate=0.01)
    trainer.exponential_moving_average(0.9)
    step(tagger, trainer)
    want = values(tagger)
    dy.save_safetensors(tmp_path / "m.st", tagger, trainer)
    np.savez(tmp_path / "m.npz", **tagger.state_dict())
    tagger.collection.save(tmp_path / "m.txt")
    loads: list[Callable[[Tagger], Any]] = [
        lambda net: dy.load_safetensors(tmp_path / "m.st", net),
        lambda net: net.load_state_dict(np.load(tmp_path / "m.npz")),
        lambda net: net.collection.populate(tmp_path / "m.txt"),
        lambda net: net.collection.populate_by_name(tmp_path / "m.txt", net.collection.name()),
        lambda net: net.collection.copy_from(tagger),
    ]
    for load in loads:
        other = alike(tagger)
        load(other)
        assert_equal(values(other), want)
    # The state of the trainer too: the next steps are equal.
    other = alike(tagger)
    trainer_of_other = dy.AdamTrainer(other, 0.1)
    trainer_of_other.group(other.encoder.layers[1], learning_rate=0.01)
    trainer_of_other.exponential_moving_average(0.9)
    dy.load_safetensors(tmp_path / "m.st", other, trainer_of_other)
    for net, own in ((tagger, trainer), (other, trainer_of_other)):
        step(net, own)
        own.swap_params_to_moving_average()
    assert_equal(values(tagger), values(other))
    # A file with the state of a trainer has all that it trains.
    dy.save_safetensors(tmp_path / "n.st", tagger.encoder, trainer)
    dy.load_safetensors(tmp_path / "n.st", other, trainer_of_other)
    assert_equal(values(tagger), values(other))


def test_copies(tagger: Tagger) -> None:
    trainer = dy.AdamTrainer(tagger, 0.1)
    step(tagger, trainer)
    for net, own in (copy.deepcopy((tagger, trainer)), pickle.loads(pickle.dumps((tagger, trainer)))):
        assert_equal(values(net), values(tagger))
        step(net, own)
        assert (net.encoder.layers[0].W.as_array() != tagger.encoder.layers[0].W.as_array()).any()
    alone = pickle.loads(pickle.dumps(trainer))
    assert list(alone.collection.keys()) == list(tagger.collection.keys())


def test_modes(tagger: Tagger) -> None:
    tagger.eval()
    assert not tagger.encoder.layers[0].training
    tagger.set_updated(False)
    before = values(tagger)
    step(tagger, dy.AdamTrainer(tagger))
    assert_equal(values(tagger), before)


def test_early_stopping(tagger: Tagger, tmp_path: Path) -> None:
    for path in (None, tmp_path / "best.st"):
        stopping = dy.EarlyStopping(tagger, path=path)
        stopping.report(1.0)
        want = values(tagger)
        step(tagger, dy.SimpleSGDTrainer(tagger))
        stopping.reload()
        assert_equal(values(tagger), want)


# ---- layers that are shared


class Pair(nn.Layer):
    def __init__(self, a, b, model=None):
        super().__init__(model)
        self.a, self.b = a, b

    def __call__(self, ids):
        return self.a(ids) + self.b(ids)


def test_a_shared_layer_is_stored_once(tmp_path: Path) -> None:
    model = dy.ParameterCollection()
    encoder = Encoder(model)
    net = Pair(Tagger(encoder, model), Tagger(encoder, model), model)
    names = [*(f"a.{name}" for name in TAGGER), "b.out.W", "b.out.b"]
    assert list(net.state_dict()) == names
    assert list(net.b.state_dict()) == TAGGER
    assert list(model.state_dict("tagger_1")) == TAGGER
    assert sorted(map(len, [model, net.parameters()])) == [9, 9]
    dy.save_safetensors(tmp_path / "m", net, dy.AdamTrainer(net))
    # Two trainers of two layers that share a third one: each has a state for all that its layer holds.
    first, second = dy.AdamTrainer(net.a, 0.1), dy.AdamTrainer(net.b, 0.1)
    before = values(encoder)
    step(net.a, first)
    between = values(encoder)
    step(net.b, second)
    for name, array in values(encoder).items():
        assert (between[name] != before[name]).any()
        assert (array != between[name]).any()


def test_tied_parameters() -> None:
    class Tied(nn.Layer):
        def __init__(self, model):
            super().__init__(model)
            self.words = nn.Embedding(4, 3, self.collection)
            self.again = self.words
            self.table = self.words.table

        def __call__(self, ids):
            return self.again(ids)

    net = Tied(dy.ParameterCollection())
    assert list(net.state_dict()) == ["words.table"]
    step(net, dy.AdamTrainer(net))


# ---- wrapping

# Where the new layer is made: for the layer that gets it, the one it replaces, and their model.
WAYS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "holder": lambda net, base, model: net,
    "holder's collection": lambda net, base, model: net.collection,
    "base": lambda net, base, model: base.collection,
    "model": lambda net, base, model: model,
    "another model": lambda net, base, model: dy.ParameterCollection(),
    "alone": lambda net, base, model: None,
}
WRAPPED = ["words.table", "layers.0.base.W", "layers.0.base.b", "layers.0.A", "layers.0.B", "layers.1.W", "layers.1.b"]


@pytest.mark.parametrize("early", [True, False], ids=["before the trainer", "after it"])
@pytest.mark.parametrize("way", WAYS)
def test_wrapping(way: str, early: bool, tmp_path: Path) -> None:
    class Attributes(Encoder):
        """The same encoder, with attributes in place of a list."""

        def __init__(self, model):
            super().__init__(model)
            self.first, self.second = self.layers
            del self.layers

        def __call__(self, ids):
            return dy.tanh(self.second(dy.tanh(self.first(self.words(ids)))))

    model = dy.ParameterCollection()
    net = Attributes(model)
    trainer = None if early else dy.AdamTrainer(net, 0.1)
    if trainer is not None:
        slow = trainer.group(net.first, learning_rate=0.001)
        step(net, trainer)
        moments = trainer._state_arrays()[1]
    base = net.first
    net.first = Lora(base, 2, WAYS[way](net, base, model))
    wanted = [name.replace("layers.0", "first").replace("layers.1", "second") for name in WRAPPED]
    assert sorted(net.state_dict()) == sorted(wanted)
    assert model.keys() == [f"attributes/{name.replace('.', '/')}" for name in net.state_dict()]
    if trainer is None:
        trainer = dy.AdamTrainer(net, 0.1)
    else:
        # What is wrapped keeps its state and group; what is new begins with zeros, and with none.
        assert slow.names == ("/attributes/first/base/W", "/attributes/first/base/b")
        at = list(net.state_dict()).index("first.base.W")
        all_equal(moments, trainer._state_arrays()[at])
    before = values(net)
    step(net, trainer)
    assert all((array != before[name]).any() for name, array in values(net).items())
    dy.save_safetensors(tmp_path / "m", net, trainer)
    want = values(net)
    step(net, trainer)
    dy.load_safetensors(tmp_path / "m", net, trainer)
    assert_equal(values(net), want)
    # Unwrapped again: what the wrapper added is removed.
    with pytest.warns(UserWarning, match=r"^Attributes.first was made again"):
        net.first = nn.Linear(3, 3, net.collection)
    assert len(net.parameters()) == 5
    step(net, trainer)


def test_frozen_base(tmp_path: Path) -> None:
    net = Tagger(Encoder(model := dy.ParameterCollection()), model)
    net.encoder.set_updated(False)
    net.encoder.layers[0] = Lora(net.encoder.layers[0], 2, net.encoder)
    before = values(net)
    step(net, dy.AdamTrainer(net))
    changed = [name for name, array in values(net).items() if (array != before[name]).any()]
    assert changed == ["encoder.layers.0.A", "encoder.layers.0.B", "out.W", "out.b"]


# ---- layers of several models


def test_joined_in_the_middle_of_training() -> None:
    """A layer that one of another model comes to hold keeps its values, gradients, and the state of its trainers."""
    dy.reset_random_seed(1)
    encoder, other = Encoder(dy.ParameterCollection()), Encoder(dy.ParameterCollection())
    other.load_state_dict(encoder.state_dict())
    large = [net.collection.add_lookup_parameters((500, 20), init=1.0) for net in (encoder, other)]
    trainers = [dy.AdamTrainer(net, 0.1) for net in (encoder, other)]
    for trainer in trainers:
        trainer.set_sparse_updates(False)
        trainer.exponential_moving_average(0.9, update_freq=2)

    def steps(n: int) -> None:
        for i in range(n):
            for net, table, trainer in zip((encoder, other), large, trainers):
                dy.renew_cg()
                (loss(net) + dy.squared_norm(table[i])).backward()
                trainer.update()

    steps(3)
    dy.renew_cg()
    W = encoder.layers[0].W
    view = dy.reshape(W, (9,))
    before = view.npvalue()
    y = loss(encoder)
    value = y.value()
    dy.squared_norm(encoder.layers[1].b).backward()
    dy.squared_norm(other.layers[1].b).backward()
    holders = [Tagger(encoder, dy.ParameterCollection()) for _ in range(2)]  # three models
    more = holders[0].collection.add_parameters(2, init=1.0)
    # A graph from before goes on.
    assert W.storage is holders[1].out.W.storage is more.storage
    np.testing.assert_array_equal(view.npvalue(), before)
    assert y.value() == value
    y.backward()
    np.testing.assert_array_equal(W.as_array().reshape(9, order="F"), before)
    dy.renew_cg()
    loss(other).backward()
    steps(3)
    assert_equal(values(encoder), values(other))
    for trainer in trainers:
        trainer.swap_params_to_moving_average()
    assert_equal(values(encoder), values(other))
    for trainer in trainers:
        trainer.swap_params_to_weights()
    # One model may go.
    del holders[0], more
    trainer = dy.AdamTrainer(holders[0])
    step(holders[0], trainer)
    W = view = y = None
    trainers.clear()
    step(holders[0], trainer)
    assert len(holders[0].parameters()) == 8


def test_arrays_that_share_values_keep_them_where_they_are() -> None:
    small, large = nn.Linear(2, 2, dy.ParameterCollection()), nn.Linear(20, 2, dy.ParameterCollection())
    lent = np.from_dlpack(small.W)
    with pytest.raises(BufferError, match="cannot move while arrays of others share them"):
        Pair(small, large, large.collection)
    del lent
    net = Pair(small, large, large.collection)
    assert list(net.state_dict()) == ["a.W", "a.b", "b.W", "b.b"]
