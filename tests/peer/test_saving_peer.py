"""dy.save and dy.load between DyNet and dynet_cy, in both directions, and weight decay in files."""

from __future__ import annotations

import re
import subprocess
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_process import environment

import dynet_cy as dy
from dynet_cy.rnn import lstm

pytestmark = pytest.mark.peer
dynet = pytest.importorskip("dynet")

# FastLSTMBuilder of DyNet has neither spec nor from_spec.
BUILDERS = ["SimpleRNN", "GRU", "VanillaLSTM", "CompactVanillaLSTM", "CoupledLSTM", "LSTM"]
WAYS = [pytest.param(dynet, dy, id="theirs"), pytest.param(dy, dynet, id="ours")]


class OurTagger:
    library: Any = dy

    def __init__(self, model: Any, size: int, cells: Any) -> None:
        self.collection = model.add_subcollection("tagger")
        self.spec = (size, cells)
        self.table = self.collection.add_lookup_parameters((5, size))
        self.rnn = cells(1, size, 3, self.collection)
        self.out = self.collection.add_parameters((2, 3), name="out")

    def param_collection(self) -> Any:
        return self.collection

    @classmethod
    def from_spec(cls, spec: Any, model: Any) -> Any:
        return cls(model, *spec)

    def outputs(self) -> Any:
        h = self.rnn.initial_state().transduce([self.table[1], self.table[4]])[-1]
        return (self.library.parameter(self.out) * h).npvalue()


class TheirTagger(OurTagger):
    library = dynet


@pytest.fixture(autouse=True)
def tagger_module() -> Any:
    """A module in which each library finds its own class under the same name, as in two programs."""
    module = sys.modules["tagger"] = types.ModuleType("tagger")
    for cls in (OurTagger, TheirTagger):
        cls.__module__, cls.__qualname__, cls.__name__ = "tagger", "Tagger", "Tagger"
    yield module
    del sys.modules["tagger"]


def everything(lib: Any, pc: Any) -> list[Any]:
    below = pc.add_subcollection("below")
    found = [pc.add_lookup_parameters((3, 2)), below.add_parameters((2, 3), name="W")]
    found += [getattr(lib, name + "Builder")(2, 3, 4, pc) for name in BUILDERS]
    found += [pc.add_parameters((2, 3, 2)), lib.VanillaLSTMBuilder(1, 3, 2, below, True, 0.5)]
    found += [lib.BiRNNBuilder(2, 3, 4, pc, lib.GRUBuilder), pc.add_parameters((4,), name="bias")]
    found.append((OurTagger if lib is dy else TheirTagger)(pc, 3, lib.VanillaLSTMBuilder))
    return found


def values(lib: Any, x: Any) -> np.ndarray:
    lib.renew_cg()
    xs = [lib.inputVector(v) for v in ([1, 2, 3], [-1, 0.5, 2], [0.1, 0.2, 0.3])]
    if hasattr(x, "outputs"):
        return np.array(x.outputs())
    if hasattr(x, "initial_state"):
        return np.array(x.initial_state().transduce(xs)[-1].npvalue())
    if hasattr(x, "transduce"):
        return np.array(x.transduce(xs)[1].npvalue())
    return np.array(x.as_array())


def names_only(spec: Any) -> list[Any]:
    return [getattr(x, "__name__", x) for x in spec]


@pytest.mark.parametrize(("writer", "reader"), WAYS)
def test_all_kinds(
    tmp_path: Path, tagger_module: Any, monkeypatch: pytest.MonkeyPatch, writer: Any, reader: Any
) -> None:
    monkeypatch.setattr(lstm, "layer_norm", partial(dy.layer_norm, eps=0))  # DyNet's formula
    pc, target = writer.ParameterCollection(), reader.ParameterCollection()
    objects = everything(writer, pc)
    tagger_module.Tagger = type(objects[-1])
    writer.save(str(tmp_path / "m"), objects)
    tagger_module.Tagger = OurTagger if reader is dy else TheirTagger
    allowed = {"classes": [OurTagger]} if reader is dy else {}
    loaded = reader.load(str(tmp_path / "m"), target, **allowed)
    assert [type(x).__name__ for x in loaded] == [type(x).__name__ for x in objects]
    for have, want in zip(loaded, objects):
        np.testing.assert_allclose(values(reader, have), values(writer, want), rtol=2e-5, atol=1e-6)
        if hasattr(want, "spec"):
            assert names_only(have.spec) == names_only(want.spec)
    assert target.parameter_count() == pc.parameter_count()


def test_the_same_bytes(tmp_path: Path) -> None:
    """The .meta files are the same, except for our mark of the .data file."""
    for lib, name in ((dynet, "theirs"), (dy, "ours")):
        pc = lib.ParameterCollection()
        lib.save(
            str(tmp_path / name), [pc.add_parameters((2,), init=1.0), lib.BiRNNBuilder(1, 2, 4, pc, lib.GRUBuilder)]
        )
    theirs, ours = ((tmp_path / f"{name}.meta").read_bytes() for name in ("theirs", "ours"))
    assert re.fullmatch(rb"\x80\x04\x8cQdynet_cy:blake2b:[0-9a-f]{64}0" + re.escape(theirs), ours)


@pytest.mark.parametrize(("writer", "reader"), WAYS)
def test_generators(tmp_path: Path, writer: Any, reader: Any) -> None:
    pc, target = writer.ParameterCollection(), reader.ParameterCollection()
    writer.save(str(tmp_path / "m"), [pc.add_parameters((2,)), pc.add_lookup_parameters((3, 2))])
    assert [x.shape() for x in reader.load_generator(str(tmp_path / "m"), target)] == [(2,), (3, 2)]


@pytest.mark.parametrize(("writer", "reader"), WAYS)
def test_files_hold_decayed_values(tmp_path: Path, writer: Any, reader: Any) -> None:
    def make(lib: Any, init: float) -> Any:
        pc = lib.ParameterCollection()
        return pc, pc.add_parameters((3,), init=init), pc.add_lookup_parameters((4, 2), init=init)

    pc, w, e = make(writer, 1.0)
    pc.set_weight_decay(0.1)
    assert pc.get_weight_decay() == pytest.approx(0.1)
    trainer = writer.SimpleSGDTrainer(pc)
    for _ in range(3):
        trainer.update()
    pc.save(str(tmp_path / "m"))
    target, v, t = make(reader, 0.0)
    target.populate(str(tmp_path / "m"))
    np.testing.assert_allclose(v.as_array(), np.full(3, 0.9**3), rtol=1e-6)
    np.testing.assert_allclose(t.as_array(), np.full((4, 2), 0.9**3), rtol=1e-6)


@pytest.mark.parametrize("name", ["SimpleSGDTrainer", "AdamTrainer"])
@pytest.mark.parametrize("below", [None, 0.4], ids=["root", "below"])
def test_weight_decay_of_sub_collections(name: str, below: float | None) -> None:
    """In DyNet, decay by a trainer of a sub-collection shows only when its factor is reset: in the third update."""
    found = []
    for lib in (dynet, dy):
        pc = lib.ParameterCollection()
        pc.set_weight_decay(0.2)
        part = pc.add_subcollection("part")
        assert part.get_weight_decay() == pytest.approx(0.2)
        if below is not None:
            part.set_weight_decay(below)
        w, v = pc.add_parameters((2,), init=1.0), part.add_parameters((2,), init=1.0)
        e = part.add_lookup_parameters((3, 2), init=1.0)
        trainer = getattr(lib, name)(pc if below is None else part, 0.1)
        for row in (0, 1, 0):
            if below is None:  # otherwise DyNet computes gradients at other values than it shows
                lib.renew_cg()
                loss = lib.sum_elems(w) + lib.sum_elems(v) * 2 + lib.sum_elems(e[row])
                loss.forward()
                loss.backward()
            trainer.update()
        lib.renew_cg()
        found.append(np.concatenate([np.ravel(x.npvalue()) for x in (w, v, e)]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6)


def test_trainers_have_the_same_surface(capfd: pytest.CaptureFixture[str]) -> None:
    for name in dir(dynet):
        if name.endswith("Trainer"):
            theirs, ours = getattr(dynet, name), getattr(dy, name)
            assert {n for n in dir(theirs) if not n.startswith("_")} <= set(dir(ours)), name
    written = []
    for lib in (dynet, dy):
        pc = lib.ParameterCollection()  # DyNet's trainer does not keep it alive
        trainer = lib.SimpleSGDTrainer(pc, learning_rate=1 / 300000)
        capfd.readouterr()
        trainer.update()
        trainer.status()
        trainer.update_epoch(1)
        trainer.restart(12345678.0)
        trainer.status()
        written.append(capfd.readouterr().err)
        for bad in ("1", None):
            with pytest.raises(TypeError):
                trainer.learning_rate = bad
        with pytest.raises(TypeError):
            trainer.update_epoch()
    assert written[1] == written[0]


VOCABULARY = """
import collections, enum

class Side(enum.Enum):
    LEFT, RIGHT = 1, 2

Span = collections.namedtuple("Span", "left right")

class Vocabulary(object):
    def __init__(self):
        self.frozen = False
        self.values, self.indices = [], {}
        self.counts = collections.defaultdict(int)

    def index(self, value):
        self.counts[value] += 1
        if not self.frozen:
            self.indices.setdefault(value, len(self.values))
            self.values.append(value)
        return self.indices[value]
"""

PROGRAM = """
import argparse, sys
import dynet as dy
import vocabulary

class Settings:
    class Sizes:
        hidden = 3

class Parser(object):
    def __init__(self, model, tag_vocab, word_vocab, size, sizes, extra):
        self.spec = locals()
        self.spec.pop("self")
        self.spec.pop("model")
        self.model = model.add_subcollection("Parser")
        self.words = self.model.add_lookup_parameters((len(word_vocab.values), size))
        self.lstm = dy.VanillaLSTMBuilder(1, size, sizes.hidden, self.model)
        self.out = self.model.add_parameters((len(tag_vocab.values), sizes.hidden))
        self.tags = tag_vocab

    def param_collection(self):
        return self.model

    @classmethod
    def from_spec(cls, spec, model):
        return cls(model, **spec)

    def scores(self):
        dy.renew_cg()
        h = self.lstm.initial_state().transduce([self.words[0], self.words[1]])[-1]
        return (self.out * h).value()

model = dy.ParameterCollection()
if sys.argv[1] == "save":
    tags, words = vocabulary.Vocabulary(), vocabulary.Vocabulary()
    for word in ("the", "cat", "sat"):
        words.index(word)
        tags.index(word + "'s tag")
    words.frozen = True
    sizes = Settings.Sizes()
    sizes.hidden = 4
    extra = {"side": vocabulary.Side.RIGHT, "span": vocabulary.Span(1, 2), "options": argparse.Namespace(depth=3)}
    parser = Parser(model, tags, words, 5, sizes, extra)
    dy.save("model", [parser])
else:
    [parser] = dy.load("model", model)
extra = parser.spec["extra"]
print([round(x, 3) + 0.0 for x in parser.scores()], parser.tags.indices, parser.tags.counts["cat's tag"], extra["side"])
print(extra["span"].right, extra["options"], parser.spec["sizes"].hidden, parser.spec["word_vocab"].frozen)
"""


@pytest.mark.parametrize("writer", ["dynet", "ours"])
@pytest.mark.parametrize("reader", ["dynet", "ours"])
def test_whole_programs(tmp_path: Path, writer: str, reader: str) -> None:
    """A parser whose spec contains objects of its own classes runs unchanged."""
    (tmp_path / "vocabulary.py").write_text(VOCABULARY)
    (tmp_path / "program.py").write_text(PROGRAM)
    shown = []
    for who, what in ((writer, "save"), (reader, "load")):
        command = [sys.executable, *(["-m", "dynet_cy.compat"] if who == "ours" else []), "program.py", what]
        done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout)
    assert shown[0] == shown[1]
    assert "Side.RIGHT" in shown[0]
