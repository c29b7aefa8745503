"""Names of a layer's parameters follow attributes, in files too; files with the names from before load."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import dynet_cy as dy
from dynet_cy import nn
from dynet_cy.files.textfile import ModelMismatchError


class Net(nn.Layer):
    """Two layers of one shape, and parts in lists, dictionaries and builders."""

    def __init__(self, model, swapped=False):
        super().__init__(model, (swapped,))
        for name in ("decoder", "encoder") if swapped else ("encoder", "decoder"):
            setattr(self, name, nn.Linear(3, 3, self.collection))
        self.layers = []
        for _ in range(2):
            self.layers.append(nn.Linear(3, 2, self.collection))
        self.heads = {"tag": nn.Linear(3, 2, self.collection), ("a", 1): [nn.LayerNorm(2, self.collection)]}
        self.rnn = dy.GRUBuilder(1, 3, 2, self.collection)
        self.tree = dy.ChildSumTreeLSTMBuilder(3, 2, self.collection)
        self.W = self.collection.add_parameters((2, 2))
        self.more = [self.collection.add_parameters(2), self.collection.add_lookup_parameters((3, 2))]
        self.out = self.collection.add_parameters(2, name="scores")
        self.stack = nn.Sequential([(nn.Linear, 3, 2), "tanh", (nn.Linear, 2, 2)], self.collection)

    def __call__(self, x):
        return self.decoder(self.encoder(x))


NAMES = ["encoder.W", "encoder.b", "decoder.W", "decoder.b", "layers.0.W", "layers.0.b", "layers.1.W", "layers.1.b"]
NAMES += ["heads.tag.W", "heads.tag.b", "heads.('a',-1).0.g", "heads.('a',-1).0.b", *(f"rnn._{i}" for i in range(9))]
NAMES += [*(f"tree._{i}" for i in range(6)), "W", "more.0", "more.1", "scores"]
NAMES += ["stack.0.W", "stack.0.b", "stack.2.W", "stack.2.b"]
# The names that the same parameters have in files that were written when they followed the order of creation.
BEFORE = ["linear/W", "linear/b", "linear_1/W", "linear_1/b", "linear_2/W", "linear_2/b", "linear_3/W", "linear_3/b"]
BEFORE += ["linear_4/W", "linear_4/b", "layer-norm/g", "layer-norm/b", *(f"gru-builder/_{i}" for i in range(9))]
BEFORE += [*(f"child-sum-tree-lstm-builder/_{i}" for i in range(6)), "_0", "_1", "_2", "scores"]
BEFORE += ["sequential/linear/W", "sequential/linear/b", "sequential/linear_1/W", "sequential/linear_1/b"]


def made(swapped: bool = False) -> tuple[dy.ParameterCollection, Net]:
    model = dy.ParameterCollection()
    return model, Net(model, swapped)


def values(net: Net) -> dict[str, Any]:
    return {name: p.as_array() for name, p in net.named_parameters()}


def assert_equal(net: Net, want: dict[str, Any]) -> None:
    found = values(net)
    assert found.keys() == want.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, want[name], name)


def test_names() -> None:
    model, net = made()
    assert [name for name, _ in net.named_parameters()] == NAMES
    assert model.keys() == [f"net/{name.replace('.', '/')}" for name in NAMES]
    assert net.encoder.W.name() == "/net/encoder/W"
    assert net.encoder.collection.name() == "/net/encoder/"
    assert model["net/layers/1/b"] is net.layers[1].b
    assert net.parameters() == [model[name] for name in model]
    # What is added later has the name of the attribute too.
    net.gate = nn.Linear(2, 2, net.collection)
    net.gate.collection.add_parameters(2, name="more")
    assert model.keys()[-3:] == ["net/gate/W", "net/gate/b", "net/gate/more"]
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert [name for name, _ in other.named_parameters()] == [*NAMES, "gate.W", "gate.b", "gate.more"]
    second = Net(model)
    assert second.encoder.W.name() == "/net_1/encoder/W"


def test_errors_and_anomalies_have_the_names() -> None:
    _, net = made()
    with pytest.raises(dy.DimensionError, match="parameter /net/encoder/W"):
        net.encoder.W * dy.zeros(2)
    with pytest.raises(ValueError, match="set_value of /net/W"):
        net.W.set_value(np.zeros(5))


class Clashing(nn.Layer):
    """Attributes whose names are those of other parts, before these have the names of their attributes."""

    def __init__(self, model):
        super().__init__(model)
        self.encoder = nn.Linear(2, 2, self.collection)
        self.linear = nn.Linear(2, 2, self.collection)
        self.linear_2 = nn.Linear(2, 2, self.collection)
        self.linear_1 = nn.Linear(2, 2, self.collection)
        local = nn.Linear(2, 2, self.collection)  # no attribute, and so without a name of its own
        local.W.set_value(np.eye(2))
        self.again = self.linear


def test_names_that_clash(tmp_path: Path) -> None:
    model = dy.ParameterCollection()
    net = Clashing(model)
    assert [n for n, _ in net.named_parameters()][::2] == [
        "encoder.W",
        "linear.W",
        "linear_2.W",
        "linear_1.W",
        "linear_4.W",
    ]
    below = net.collection.add_subcollection("encoder")
    assert below.name() == "/clashing/encoder_1/"
    # A file from before has these names: they are read as those of the order of creation.
    state = {
        f"/clashing/{name}/{x}": np.full_like(net.encoder.state_dict()[x], i)
        for i, name in enumerate(OLDER)
        for x in "Wb"
    }
    save_file(state, tmp_path / "m")
    dy.load_safetensors(tmp_path / "m", model)
    for i, layer in enumerate((net.encoder, net.linear, net.linear_2, net.linear_1)):
        np.testing.assert_array_equal(layer.W.as_array(), state[f"/clashing/{OLDER[i]}/W"])


OLDER = ["linear", "linear_1", "linear_2", "linear_3", "linear_4"]


def test_the_order_of_lines_does_not_matter(tmp_path: Path) -> None:
    model, net = made()
    want = values(net)
    dy.save_safetensors(tmp_path / "m.st", model)
    model.save(tmp_path / "m.txt")
    np.savez(tmp_path / "m.npz", **model.state_dict())
    loads: list[Any] = [
        lambda m, n: dy.load_safetensors(tmp_path / "m.st", m),
        lambda m, n: m.populate_by_name(tmp_path / "m.txt"),
        lambda m, n: m.load_state_dict(np.load(tmp_path / "m.npz")),
        lambda m, n: n.load_state_dict(net.state_dict()),
        lambda m, n: m.copy_from(model),
    ]
    for load in loads:
        other, swapped = made(True)
        load(other, swapped)
        for name, p in swapped.named_parameters():
            np.testing.assert_array_equal(p.as_array(), want[name], name)


def test_saved_objects_are_filled_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, net = made()
    dy.save(tmp_path / "m", [net, nn.Linear(2, 2, dy.ParameterCollection())])
    monkeypatch.setattr(Net.__init__, "__defaults__", (True,))
    monkeypatch.setattr(Net, "from_spec", classmethod(lambda cls, spec, model: cls(model)))  # the lines are swapped
    loaded, _ = dy.load(tmp_path / "m", dy.ParameterCollection())
    want = values(net)
    for name, p in loaded.named_parameters():
        np.testing.assert_array_equal(p.as_array(), want[name], name)


def before(net: Net) -> dict[str, str]:
    """The names in files from before by the names now."""
    return {f"/net/{old}": f"/net/{new.replace('.', '/')}" for old, new in zip(BEFORE, NAMES)}


def test_files_with_the_names_from_before(tmp_path: Path) -> None:
    model, net = made()
    trainer = dy.AdamTrainer(net)
    group = trainer.group(net.encoder, learning_rate=0.5)
    assert group.names == ("/net/encoder/W", "/net/encoder/b")
    for _ in range(2):
        dy.renew_cg()
        dy.squared_norm(net(np.ones(3))).backward()
        trainer.update()
    want = values(net)
    dy.save_safetensors(tmp_path / "now", model, trainer)
    arrays = load_file(tmp_path / "now")

    # The files as the versions before wrote them.
    older = {new: old for old, new in before(net).items()}
    with safe_open(tmp_path / "now", "numpy") as file:
        state = json.loads(file.metadata()["dynet_cy"])
    state["kinds"] = {older[name]: kind for name, kind in state["kinds"].items()}
    state["trainer"]["settings"]["_groups"][0]["names"] = ["/net/linear/W", "/net/linear/b"]

    def renamed(name: str) -> str:
        start, found, end = name.rpartition(":/")
        return start + found[:-1] + older["/" + end if found else end]

    save_file({renamed(k): v for k, v in arrays.items()}, tmp_path / "older", {"dynet_cy": json.dumps(state)})
    assert "trainer:1:/net/linear_1/W" in load_file(tmp_path / "older")
    np.savez(tmp_path / "older.npz", **{old[1:]: arrays[new] for old, new in before(net).items()})
    model.save(tmp_path / "m.txt")
    text = (tmp_path / "m.txt").read_text()
    for old, new in before(net).items():
        text = text.replace(f" {new} ", f" {old} ")
    (tmp_path / "older.txt").write_text(text)

    other, same = made()
    trainer_of_other = dy.AdamTrainer(other)
    trainer_of_other.group(same.encoder)
    dy.load_safetensors(tmp_path / "older", other, trainer_of_other)
    assert_equal(same, want)
    assert trainer_of_other.groups[0].names == group.names
    assert trainer_of_other.groups[0].learning_rate == 0.5
    for one in (net, same):
        dy.renew_cg()
        dy.squared_norm(one(np.ones(3))).backward()
    trainer.update()
    trainer_of_other.update()
    assert_equal(same, values(net))

    for load in (
        lambda m: m.load_state_dict(np.load(tmp_path / "older.npz")),
        lambda m: m.populate_by_name(tmp_path / "older.txt"),
        lambda m: m.populate(tmp_path / "older.txt"),
    ):
        other, same = made()
        load(other)
        assert_equal(same, want)


def test_saved_objects_with_the_names_from_before(tmp_path: Path) -> None:
    _, net = made()
    dy.save(tmp_path / "m", [net])
    data, meta = ((tmp_path / f"m.{end}").read_bytes() for end in ("data", "meta"))
    for old, new in before(net).items():
        data = data.replace(f" {new} ".encode(), f" {old} ".encode())
    (tmp_path / "m.data").write_bytes(data)
    (tmp_path / "m.meta").write_bytes(meta[86:])  # without the hash of m.data
    (loaded,) = dy.load(tmp_path / "m", dy.ParameterCollection())
    assert_equal(loaded, values(net))


class Small(nn.Layer):
    parts = {"encoder": (nn.Linear, 2, 3), "old": (nn.RMSNorm, 4)}

    def __init__(self, model):
        super().__init__(model)
        for name, (cls, *spec) in self.parts.items():
            setattr(self, name, cls.from_spec(spec, self.collection))


OTHERS = {"reader": (nn.Linear, 2, 3), "new": (nn.LayerNorm, 5)}
MISSING = ["reader/W", "reader/b", "new/g", "new/b"]
UNEXPECTED = ["encoder/W", "encoder/b", "old/g"]
RENAMED = ["encoder/W to reader/W", "encoder/b to reader/b"]


def words(change: Any, missing=MISSING, unexpected=UNEXPECTED, renamed=RENAMED) -> str:
    """What an error says of names that differ."""
    parts = {"missing": missing, "unexpected": unexpected, "perhaps renamed": renamed}
    return "; ".join(f"{what}: {', '.join(map(change, names))}" for what, names in parts.items()) + "$"


def test_names_that_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Small(dy.ParameterCollection())
    dy.save_safetensors(tmp_path / "m", old)
    old.collection.save(tmp_path / "m.txt")
    dy.save(tmp_path / "m", [old])
    monkeypatch.setattr(Small, "parts", OTHERS)
    new = Small(dy.ParameterCollection())
    before = values(new)

    def full(names: str) -> str:
        return " ".join(x if x == "to" else "/small/" + x for x in names.split())

    with pytest.raises(ValueError, match=words(lambda name: name.replace("/", "."))):
        new.load_state_dict(old.state_dict())
    with pytest.raises(ModelMismatchError, match=words(full)):
        dy.load_safetensors(tmp_path / "m", new)
    with pytest.raises(
        ModelMismatchError, match="missing: reader/W.*unexpected: /small/encoder/W.*encoder/W to reader/W"
    ):
        new.collection.populate_by_name(tmp_path / "m.txt", "/small")
    with pytest.raises(
        ModelMismatchError, match="missing: reader/W.*unexpected: /small/encoder/W.*encoder/W to reader/W"
    ):
        dy.load(tmp_path / "m", dy.ParameterCollection())
    assert_equal(new, before)
    # The words say what to write.
    names = {"/small/encoder/W": "/small/reader/W", "encoder.W": "reader.W", "encoder.b": "reader.b"}
    report = new.load_state_dict(old.state_dict(), strict=False, rename=names)
    assert report == (["reader.W", "reader.b"], ["new.g", "new.b"], ["old.g"])
    np.testing.assert_array_equal(new.reader.W.as_array(), old.encoder.W.as_array())


def test_going_on_where_names_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Small(dy.ParameterCollection())
    dy.save_safetensors(tmp_path / "m", old)
    monkeypatch.setattr(Small, "parts", {"more": (nn.Linear, 2, 2), **Small.parts})
    new = Small(dy.ParameterCollection())
    kept = new.more.W.as_array()
    with pytest.raises(ModelMismatchError, match="missing: /small/more/W, /small/more/b$"):
        dy.load_safetensors(tmp_path / "m", new)
    with pytest.warns(UserWarning, match="load_safetensors of .*: missing: /small/more/W, /small/more/b$"):
        dy.load_safetensors(tmp_path / "m", new, strict=False)
    np.testing.assert_array_equal(new.encoder.W.as_array(), old.encoder.W.as_array())
    np.testing.assert_array_equal(new.more.W.as_array(), kept)
    # Shapes must be equal all the same.
    save_file({**load_file(tmp_path / "m"), "/small/old/g": np.ones(5, np.float32)}, tmp_path / "m")
    with (
        pytest.raises(ModelMismatchError, match=r"has shape \(5,\) in the file, \(4,\) in the collection"),
        pytest.warns(UserWarning, match="missing"),
    ):
        dy.load_safetensors(tmp_path / "m", new, strict=False)


def test_objects_that_have_grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, W = Small(dy.ParameterCollection()), dy.ParameterCollection().add_parameters(3)
    dy.save(tmp_path / "m", [net, W])
    monkeypatch.setattr(Small, "parts", {"more": (nn.Linear, 2, 3), **Small.parts})
    model = dy.ParameterCollection()
    with pytest.raises(ModelMismatchError, match="missing: more/W, more/b$"):
        dy.load(tmp_path / "m", model)
    assert model.keys() == []
    with pytest.warns(UserWarning, match="Small /small/: .*missing: more/W, more/b$"):
        loaded, V = dy.load(tmp_path / "m", model, strict=False)
    np.testing.assert_array_equal(loaded.encoder.W.as_array(), net.encoder.W.as_array())
    np.testing.assert_array_equal(V.as_array(), W.as_array())
    assert loaded.encoder.W.name() == "/small/encoder/W"  # what the error took back left its name free
