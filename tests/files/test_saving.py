"""dy.save and dy.load; see tests/peer for DyNet's files."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import all_close
from own_process import environment

import dynet_cy as dy
from dynet_cy.files import saving
from dynet_cy.files.textfile import ModelFileError, ModelMismatchError
from dynet_cy.model import initializers

BUILDERS = ["SimpleRNN", "GRU", "VanillaLSTM", "CompactVanillaLSTM", "CoupledLSTM", "FastLSTM"]


class Tagger:
    """A model class as users write it, with the methods of builders."""

    def __init__(self, model: dy.ParameterCollection, size: int, cells: Any) -> None:
        self.collection = model.add_subcollection("tagger")
        self.spec = (size, cells)
        self.table = self.collection.add_lookup_parameters((5, size))
        self.rnn = cells(1, size, 3, self.collection)
        self.out = self.collection.add_parameters((2, 3), name="out")

    def param_collection(self) -> dy.ParameterCollection:
        return self.collection

    @classmethod
    def from_spec(cls, spec: Any, model: dy.ParameterCollection) -> Tagger:
        return cls(model, *spec)

    def run(self) -> np.ndarray:
        dy.renew_cg()
        h = self.rnn.initial_state().transduce([self.table[1], self.table[4]])[-1]
        return (self.out * h).npvalue()


class Other(Tagger):
    """A class that a test does not allow."""


def make_cells(layers: int, size: int, hidden: int, model: dy.ParameterCollection) -> dy.VanillaLSTMBuilder:
    return dy.VanillaLSTMBuilder(layers, size, hidden, model, True)


def arrays(x: Any) -> list[np.ndarray]:
    if isinstance(x, (dy.Parameters, dy.LookupParameters)):
        return [x.as_array()]
    pc = x.param_collection()
    return [p.as_array() for p in [*pc.parameters_list(), *pc.lookup_parameters_list()]]


def assert_same(have: list[Any], want: list[Any]) -> None:
    assert [type(x) for x in have] == [type(x) for x in want]
    for a, b in zip(have, want):
        all_close(arrays(a), arrays(b), rtol=1e-7)


def everything(pc: dy.ParameterCollection) -> list[Any]:
    below = pc.add_subcollection("below")
    found: list[Any] = [pc.add_lookup_parameters((3, 2, 2)), below.add_parameters((2, 3), name="W")]
    found += [getattr(dy, name + "Builder")(2, 3, 4, pc) for name in BUILDERS]
    found += [pc.add_parameters((2, 2, 2)), dy.VanillaLSTMBuilder(1, 2, 2, below, True, 0.5)]
    found += [dy.BiRNNBuilder(2, 3, 4, pc, dy.GRUBuilder), pc.add_parameters((4,), name="bias")]
    return found


@pytest.mark.parametrize("path", [str, Path], ids=["str", "Path"])
def test_all_kinds(tmp_path: Path, path: Any) -> None:
    pc = dy.ParameterCollection()
    objects = everything(pc)
    dy.save(path(tmp_path / "m"), objects)
    assert sorted(os.listdir(tmp_path)) == ["m.data", "m.meta"]
    target = dy.ParameterCollection()
    loaded = dy.load(path(tmp_path / "m"), target)
    assert_same(loaded, objects)
    assert [x.spec for x in loaded if hasattr(x, "spec")] == [x.spec for x in objects if hasattr(x, "spec")]
    assert (loaded[1].name(), loaded[-1].name(), loaded[0].name()) == ("/W", "/bias", "/_0")
    assert target.parameter_count() == pc.parameter_count()


def test_subsets_orders_and_repetitions(tmp_path: Path) -> None:
    pc, other = dy.ParameterCollection(), dy.ParameterCollection()
    w, v = pc.add_parameters((2,)), other.add_parameters((2,))  # both /_0
    lstm = dy.VanillaLSTMBuilder(1, 2, 2, pc)
    objects = [lstm, w, v, w, lstm]
    dy.save(tmp_path / "m", iter(objects))
    loaded = dy.load(tmp_path / "m", dy.ParameterCollection().add_subcollection("here"))
    assert_same(loaded, objects)
    assert loaded[1].name() == "/here/_0"
    dy.save(tmp_path / "m", [])
    assert dy.load(tmp_path / "m", dy.ParameterCollection()) == []


def test_generator(tmp_path: Path) -> None:
    pc = dy.ParameterCollection()
    dy.save(tmp_path / "m", [pc.add_parameters((2,)), pc.add_parameters((3,))])
    target = dy.ParameterCollection()
    found = dy.load_generator(tmp_path / "m", target)
    assert target.parameters_list() == []
    assert next(found).shape() == (2,)
    assert len(target.parameters_list()) == 1
    assert next(found).shape() == (3,)
    assert list(found) == []


def test_gradients_come_back(tmp_path: Path) -> None:
    pc = dy.ParameterCollection()
    w = pc.add_parameters((2,))
    dy.renew_cg()
    (dy.sum_elems(w) * 3).backward()
    dy.save(tmp_path / "m", [w])
    target = dy.ParameterCollection()
    (v,) = dy.load(tmp_path / "m", target)
    np.testing.assert_array_equal(v.grad_as_array(), [3, 3])


class TestClassesOfUsers:
    def make(self, folder: Path, cls: Any = Tagger, cells: Any = dy.GRUBuilder) -> Any:
        made = cls(dy.ParameterCollection(), np.int64(4), cells)
        dy.save(folder / "m", [made])
        return made

    @pytest.mark.parametrize("how", [{"classes": [Tagger, Other]}, {"trusted": True}], ids=["classes", "trusted"])
    def test_allowed(self, tmp_path: Path, how: dict[str, Any]) -> None:
        made = self.make(tmp_path)
        (loaded,) = dy.load(tmp_path / "m", dy.ParameterCollection(), **how)
        assert_same([loaded], [made])
        np.testing.assert_allclose(loaded.run(), made.run(), rtol=1e-6)

    def test_without_asking(self, tmp_path: Path) -> None:
        """Classes load without being passed, as programs for DyNet expect."""
        made = self.make(tmp_path)
        for classes in ([], [Other], [dy.GRUBuilder]):
            (loaded,) = dy.load(tmp_path / "m", dy.ParameterCollection(), classes=classes)
            assert_same([loaded], [made])

    def test_modules_that_are_not_imported(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        meta = (tmp_path / "m.meta").read_bytes()
        module = Tagger.__module__.encode()
        (tmp_path / "m.meta").write_bytes(meta.replace(module, b"x" * len(module)))
        target = dy.ParameterCollection()
        pattern = r"m\.meta: it names x+\.Tagger, and module x+ is not imported; .* classes=\[Tagger\].*trusted=True"
        with pytest.raises(saving.ForbiddenClassError, match=pattern):
            dy.load_generator(tmp_path / "m", target)
        assert target.parameter_count() == 0

    def test_functions(self, tmp_path: Path) -> None:
        made = dy.BiRNNBuilder(1, 4, 6, dy.ParameterCollection(), make_cells)
        dy.save(tmp_path / "m", [made])
        with pytest.raises(saving.ForbiddenClassError, match="make_cells"):
            dy.load(tmp_path / "m", dy.ParameterCollection())
        loaded = dy.load(tmp_path / "m", dy.ParameterCollection(), classes=[make_cells])
        assert_same(loaded, [made])

    def test_what_classes_must_be(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        with pytest.raises(TypeError, match="classes must hold classes, not 'Tagger'"):
            dy.load(tmp_path / "m", dy.ParameterCollection(), classes=["Tagger"])


def without_mark(meta: bytes) -> bytes:
    """The contents as earlier versions and DyNet write them."""
    assert meta.startswith(saving._MARK)
    return meta[len(saving._MARK) + 65 :]


class Evil:
    """An object whose pickle creates a folder when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


class TestBadFiles:
    @pytest.fixture
    def saved(self, tmp_path: Path) -> Path:
        pc = dy.ParameterCollection()
        dy.save(tmp_path / "m", [pc.add_parameters((2,)), dy.VanillaLSTMBuilder(1, 2, 2, pc)])
        return tmp_path / "m"

    def refuse(self, base: Path, error: type[Exception], match: str) -> None:
        with pytest.raises(error, match=match):
            dy.load(base, dy.ParameterCollection())

    @pytest.mark.parametrize(
        "code",
        [
            b"c_dynet\nGRUBuilder\n(K\x01K\x02K\x03tR.",  # calls it
            b"c_dynet\nGRUBuilder\n)\x81.",  # makes an object
            b"c_dynet\nGRUBuilder\n(N}X\x09\x00\x00\x00from_specK\x05stb.",  # sets an attribute of the class
            b"c_dynet\nGRUBuilder\n}X\x09\x00\x00\x00from_specK\x05sb.",
            b"(c_dynet\nGRUBuilder\nK\x01o.",
            b"(K\x01i_dynet\nGRUBuilder\n.",
            b"]q\x00h\x00a.",  # a list that holds itself
        ],
    )
    def test_nor_touch_our_classes(self, saved: Path, code: bytes) -> None:
        before = dy.GRUBuilder.from_spec
        saved.with_suffix(".meta").write_bytes(code)
        self.refuse(saved, ModelFileError, "not a")
        assert dy.GRUBuilder.from_spec == before

    def test_trust_from_outside(self, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """DYNET_CY_TRUSTED_FILES=1, and no other value, trusts files of programs that cannot be edited."""
        folder = saved.parent / "evil"
        saved.with_suffix(".meta").write_bytes(pickle.dumps(Evil(folder)))
        for value, ran in [("0", False), ("", False), ("1", True)]:
            monkeypatch.setenv("DYNET_CY_TRUSTED_FILES", value)
            with pytest.raises(ModelFileError):
                dy.load(saved, dy.ParameterCollection())
            assert folder.exists() is ran

    def test_trusted_files_can_do_everything(self, saved: Path) -> None:
        folder = saved.parent / "evil"
        saved.with_suffix(".meta").write_bytes(pickle.dumps(Evil(folder)))
        with pytest.raises(ModelFileError, match="not an entry of a saved model: None"):
            dy.load(saved, dy.ParameterCollection(), trusted=True)
        assert folder.exists()

    @pytest.mark.parametrize(
        "meta",
        [
            b"hello",
            b"#Parameter# /W {2} 33 ZERO_GRAD\n",
            b"\x80\x04.",
            b"\x80\xff",
            pickle.dumps(3),
            pickle.dumps(("Parameters", 3)),
            pickle.dumps(("Tables", "/W")),
            pickle.dumps(("GRUBuilder", (1, 2, 3), "/gru-builder/")),
            b"\x00" * 100,
        ],
    )
    def test_other_meta_files(self, saved: Path, meta: bytes) -> None:
        saved.with_suffix(".meta").write_bytes(meta)
        self.refuse(saved, ModelFileError, r"m\.meta: not an? ")

    def test_meta_files_that_are_cut_off(self, saved: Path) -> None:
        whole = saved.with_suffix(".meta").read_bytes()
        first = whole.index(b".") + 1
        for length in range(len(whole)):
            saved.with_suffix(".meta").write_bytes(whole[:length])
            error = "is not the file that" if length == 0 else r"m\.meta: not a"
            error = "there is more than" if length == first else error
            self.refuse(saved, ModelFileError, error)

    @pytest.mark.parametrize("keep", [0, 20, 60, 120, 300, -3])
    def test_data_files_that_are_cut_off(self, saved: Path, keep: int) -> None:
        whole = saved.with_suffix(".data").read_bytes()
        saved.with_suffix(".data").write_bytes(whole[:keep])
        self.refuse(saved, ModelFileError, r"m\.data")

    def test_files_that_do_not_belong_together(self, saved: Path) -> None:
        pc, other = dy.ParameterCollection(), dy.ParameterCollection()
        for objects, match in [
            (
                [pc.add_lookup_parameters((2, 1)), dy.VanillaLSTMBuilder(1, 2, 2, pc)],
                "LookupParameter /_0 stands",
            ),
            ([pc.add_parameters((2,), name="W"), dy.VanillaLSTMBuilder(1, 2, 2, pc)], "Parameter /W stands where"),
            ([other.add_parameters((2,)), dy.GRUBuilder(1, 2, 2, pc)], "stands where .*VanillaLSTM"),
        ]:
            dy.save(saved.parent / "other", objects)
            os.replace(saved.parent / "other.data", saved.with_suffix(".data"))
            whole = saved.with_suffix(".meta").read_bytes()
            self.refuse(saved, ModelMismatchError, r"m\.data: is not the file that .*m\.meta was written with")
            saved.with_suffix(".meta").write_bytes(without_mark(whole))
            self.refuse(saved, ModelMismatchError, match)
            saved.with_suffix(".meta").write_bytes(whole)

    def test_other_shapes(self, saved: Path) -> None:
        saved.with_suffix(".meta").write_bytes(
            saved.with_suffix(".meta").read_bytes().replace(b"K\x01K\x02K\x02", b"K\x01K\x03K\x02")
        )
        self.refuse(saved, ModelMismatchError, r"has dimensions \(8, 2\); \(8, 3\) are needed for /vanilla-lstm")

    def test_specs_that_cannot_be(self, saved: Path) -> None:
        with open(saved.with_suffix(".meta"), "wb") as file:
            saving._Pickler(file, "").dump((dy.GRUBuilder, (1, 2), "/"))
        self.refuse(saved, ModelFileError, r"GRUBuilder cannot be made with spec \(1, 2\)")

    def test_no_files(self, saved: Path) -> None:
        os.unlink(saved.with_suffix(".data"))
        self.refuse(saved, FileNotFoundError, r"m\.data")
        os.unlink(saved.with_suffix(".meta"))
        self.refuse(saved, FileNotFoundError, r"m\.meta")
        with pytest.raises(TypeError, match="params: expected a ParameterCollection or a layer, got str"):
            dy.load(saved, "m")


class TestSaving:
    @pytest.mark.parametrize(
        ("objects", "error"),
        [
            ([3], "int objects cannot be saved: they have no param_collection"),
            ([dy.ParameterCollection()], "ParameterCollection objects cannot be saved"),
            (dy.ParameterCollection(), "must be a list"),
            ("names", "must be a list"),
        ],
    )
    def test_what_cannot_be_saved(self, tmp_path: Path, objects: Any, error: str) -> None:
        with pytest.raises(TypeError, match=error):
            dy.save(tmp_path / "m", objects)
        assert os.listdir(tmp_path) == []

    def test_specs_with_parameters(self, tmp_path: Path) -> None:
        pc = dy.ParameterCollection()
        pair = dy.GRUBuilder(1, 2, 2, pc), dy.GRUBuilder(1, 2, 2, pc)
        builder = dy.BiRNNBuilder(1, 2, 4, pc, None, [pair])
        with pytest.raises(TypeError, match="the spec of BiRNNBuilder holds <GRUBuilder .*, which has parameters"):
            dy.save(tmp_path / "m", [builder])
        with pytest.raises(TypeError, match="BiRNNBuilder with spec .*lambda"):
            dy.save(tmp_path / "m", [dy.BiRNNBuilder(1, 2, 4, pc, lambda *a: dy.GRUBuilder(*a))])
        assert os.listdir(tmp_path) == []

    def test_layers_that_could_not_be_made_again(self, tmp_path: Path) -> None:
        """Their spec does not fit the constructor; one of the class's own `from_spec` is not looked at."""

        class NoSpec(dy.nn.Layer):
            def __init__(self, words: int, tags: int, model: dy.ParameterCollection, dropout: float = 0.0) -> None:
                super().__init__(model)

        class One(dy.nn.Layer):
            def __init__(self, words: int = 3, model: Any = None) -> None:
                super().__init__(model)

        class Longer(dy.nn.Layer):
            def __init__(self, words: int, model: Any) -> None:
                super().__init__(model, (words, 2))

        class OtherName(dy.nn.Layer):
            def __init__(self, words: int, params: Any) -> None:
                super().__init__(params, (words,))

        pc = dy.ParameterCollection()
        for layer, write in [
            (NoSpec(2, 3, pc), "spec (): an argument before model is missing; write `super().__init__(model, (words, "),
            (One(2, pc), "spec (): an argument before model is missing; write `super().__init__(model, (words,))`"),
            (Longer(2, pc), "spec (2, 2): too many positional arguments; write `super().__init__(model, (words,))`"),
            (
                OtherName(2, pc),
                "pass its arguments on as the spec, and call the one with the collection `model`",
            ),
        ]:
            with pytest.raises(TypeError, match=rf"^save: {type(layer).__name__}: .*{re.escape(write)}"):
                dy.save(tmp_path / "m", [pc.add_parameters(2), layer])
            with pytest.raises(TypeError, match=rf"^{type(layer).__name__}: .*{re.escape(write)}"):
                layer.from_spec(layer.spec, pc)
            type(layer).from_spec = classmethod(lambda cls, spec, model: cls(2, model))  # type: ignore[assignment]
            layer._check_spec()
        assert os.listdir(tmp_path) == []

    def test_a_collection_by_another_name(self, tmp_path: Path) -> None:
        """Its place would be taken by what follows in the spec; a layer that takes none is saved."""

        class OtherName(dy.nn.Layer):
            def __init__(self, words: int, pc: Any, rate: float = 0.3) -> None:
                super().__init__(pc, (words, rate))

        class Optional(dy.nn.Layer):
            def __init__(self, words: int = 2, pc: Any = None) -> None:
                super().__init__(pc, (words,))

        pc = dy.ParameterCollection()
        for layer in (OtherName(2, pc), Optional(2, pc)):
            with pytest.raises(TypeError, match=r"^save: \w+: the constructor .* call that argument `model`$"):
                dy.save(tmp_path / "m", [layer])
        dy.save(tmp_path / "m", [dy.nn.Dropout(0.5)])

    def test_a_failed_save_leaves_the_old_files(self, tmp_path: Path) -> None:
        pc = dy.ParameterCollection()
        w = pc.add_parameters((2,))
        dy.save(tmp_path / "m", [w])
        before = [(tmp_path / name).read_bytes() for name in ("m.data", "m.meta")]
        with pytest.raises(TypeError):
            dy.save(tmp_path / "m", [dy.GRUBuilder(1, 2, 2, pc), 3])
        assert [(tmp_path / name).read_bytes() for name in ("m.data", "m.meta")] == before
        assert sorted(os.listdir(tmp_path)) == ["m.data", "m.meta"]


class TestSizes:
    """Sizes in a spec are compared with the .data file before anything is drawn."""

    @pytest.fixture
    def drawn(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """The numbers of values that initializers have drawn."""
        found: list[int] = []
        fill = initializers.GlorotInitializer.fill

        def count(self: Any, values: np.ndarray, *rest: Any) -> None:
            found.append(values.size)
            fill(self, values, *rest)

        monkeypatch.setattr(initializers.GlorotInitializer, "fill", count)
        return found

    @pytest.mark.parametrize(
        "spec",
        [
            (1, 8000, 8000, False, 1.0),
            (1, 2, 10**9, False, 1.0),
            (10**9, 2, 2, False, 1.0),
            (10**9, 2, 2, True, 1.0),
            (10**30, 2, 2, False, 1.0),
        ],
    )
    def test_builders(self, tmp_path: Path, drawn: list[int], spec: Any) -> None:
        pc = dy.ParameterCollection()
        dy.save(tmp_path / "m", [dy.VanillaLSTMBuilder(1, 2, 2, pc)])
        mark = (tmp_path / "m.meta").read_bytes()[: len(saving._MARK) + 65]
        with open(tmp_path / "m.meta", "wb") as file:
            file.write(mark)
            saving._Pickler(file, "").dump((dy.VanillaLSTMBuilder, spec, "/vanilla-lstm-builder/"))
        del drawn[:]
        target = dy.ParameterCollection()
        with pytest.raises(ModelFileError, match="has more parameters than the file|cannot be made with spec"):
            dy.load(tmp_path / "m", target)
        assert sum(drawn) < 1 << 17
        assert len(drawn) < 100
        assert target.parameters_list() == []

    def test_classes_of_users(self, tmp_path: Path, drawn: list[int]) -> None:
        dy.save(tmp_path / "m", [Tagger(dy.ParameterCollection(), 4, dy.GRUBuilder)])
        meta = tmp_path / "m.meta"
        meta.write_bytes(meta.read_bytes().replace(b"K\x04", b"J\xff\xff\xff\x00"))
        del drawn[:]
        with pytest.raises(ModelMismatchError, match=r"Tagger .* with spec \(16777215, GRUBuilder\), has more param"):
            dy.load(tmp_path / "m", dy.ParameterCollection())
        assert drawn == []

    @pytest.mark.parametrize("cls", [dy.SimpleRNNBuilder, dy.VanillaLSTMBuilder, dy.SparseLSTMBuilder])
    def test_small_ones(self, tmp_path: Path, cls: Any) -> None:
        """Many layers of size 1, and parameters that are not saved, are not too many for the file."""
        pc = dy.ParameterCollection()
        builder = cls(300, 1, 1, pc, True) if cls is not dy.SimpleRNNBuilder else cls(300, 1, 1, pc)
        dy.save(tmp_path / "m", [builder])
        assert_same(dy.load(tmp_path / "m", dy.ParameterCollection()), [builder])

    def test_what_the_caller_has_passed(self, tmp_path: Path) -> None:
        """Classes that are passed may have more parameters than the file, and given arrays do not count."""
        dy.save(tmp_path / "m", [Pretrained(dy.ParameterCollection(), 300_000, False)])
        with pytest.raises(ModelMismatchError, match="has more parameters than the file"):
            dy.load(tmp_path / "m", dy.ParameterCollection())
        dy.load(tmp_path / "m", dy.ParameterCollection(), classes=[Pretrained])
        dy.save(tmp_path / "m", [Pretrained(dy.ParameterCollection(), 300_000, True)])
        dy.load(tmp_path / "m", dy.ParameterCollection())


class Pretrained(Tagger):
    """A tagger with a table that is not saved."""

    def __init__(self, model: dy.ParameterCollection, size: int, given: bool) -> None:
        self.collection = model.add_subcollection("tagger")
        self.spec = (size, given)
        self.collection.add_parameters((2,))
        if given:
            model.lookup_parameters_from_numpy(np.zeros((1, size)))
        else:
            model.add_lookup_parameters((1, size))


def test_nothing_stays_after_an_error(tmp_path: Path) -> None:
    """An error while loading leaves neither parameters nor names in the collection."""
    pc = dy.ParameterCollection()
    objects = [pc.add_parameters((2,), name="W"), dy.GRUBuilder(1, 2, 2, pc), pc.add_lookup_parameters((2, 2))]
    dy.save(tmp_path / "m", objects)
    meta = tmp_path / "m.meta"
    meta.write_bytes(without_mark(meta.read_bytes()))
    whole = (tmp_path / "m.data").read_bytes()
    (tmp_path / "m.data").write_bytes(whole.replace(b"#LookupParameter#", b"#Parameter#"))
    target = dy.ParameterCollection()
    below = target.add_subcollection("below")
    own = below.add_parameters((3,))
    for _ in range(2):
        with pytest.raises(ModelMismatchError, match="stands where"):
            dy.load(tmp_path / "m", below)
        assert (target.parameters_list(), target.lookup_parameters_list()) == ([own], [])
    (tmp_path / "m.data").write_bytes(whole)
    names = [x.name() for x in dy.load(tmp_path / "m", below) if isinstance(x, dy.Parameters)]
    assert names == ["/below/W"]
    assert [x.name() for x in target.parameters_list()[-2:]] == ["/below/gru-builder/_7", "/below/gru-builder/_8"]


def test_names_that_a_collection_cannot_have(tmp_path: Path) -> None:
    pc = dy.ParameterCollection()
    dy.save(tmp_path / "m", [pc.add_parameters((2,), name="W")])
    for name in ("data", "meta"):
        file = tmp_path / f"m.{name}"
        whole = file.read_bytes()
        file.write_bytes((without_mark(whole) if name == "meta" else whole).replace(b"/W", b"/#"))
    with pytest.raises(ModelFileError, match="cannot be added: Parameter name could not include"):
        dy.load(tmp_path / "m", dy.ParameterCollection())


KILLED = """
import os, signal, sys
import dynet_cy as dy

pc = dy.ParameterCollection()
w = pc.add_parameters((3,), init=float(sys.argv[1]))
calls = 0

def dying(what):
    call = getattr(os, what)
    def die(*arguments, **keywords):
        global calls
        if calls == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        calls += 1
        return call(*arguments, **keywords)
    return die

for what in ("open", "fsync", "replace", "unlink"):
    setattr(os, what, dying(what))
dy.save("m", [w] * int(sys.argv[1]))
"""


def loaded(folder: Path) -> list[float]:
    return [w.as_array()[0].item() for w in dy.load(folder / "m", dy.ParameterCollection())]


def fork(folder: Path, value: int, at: int) -> bool:
    """Save in a child process that is killed at call number `at`; False if there are fewer calls."""
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            os.chdir(folder)
            sys.argv = ["", str(value), str(at)]
            exec(KILLED, {})
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.mark.filterwarnings("ignore:.*multi-threaded")  # the child uses no threads
@pytest.mark.parametrize("old", [None, 2, "unmarked"])
def test_a_kill_at_any_step(tmp_path: Path, old: Any) -> None:
    """After a kill, the old pair or the new one loads, and the next save leaves no other files."""
    steps = 0
    shown = set()
    for steps in range(100):
        for path in tmp_path.iterdir():
            path.unlink()
        if old is not None:
            fork(tmp_path, 2, 1000)
        if old == "unmarked":
            (tmp_path / "m.meta").write_bytes(without_mark((tmp_path / "m.meta").read_bytes()))
        killed = fork(tmp_path, 3, steps)
        try:
            shown.add(tuple(loaded(tmp_path)))
        except FileNotFoundError:
            assert old is None
            shown.add(())
        fork(tmp_path, 4, 1000)
        assert loaded(tmp_path) == [4] * 4
        assert sorted(os.listdir(tmp_path)) == ["m.data", "m.meta"]
        if not killed:
            break
    assert steps > 8
    assert shown == {(2, 2) if old else (), (3, 3, 3)}


@pytest.mark.filterwarnings("ignore:.*multi-threaded")  # the child uses no threads
def test_a_new_pair_of_a_killed_save_is_not_taken_for_a_later_one(tmp_path: Path) -> None:
    """A pair written later, for example by DyNet, is not replaced by files of a killed save."""
    for steps in range(100):
        fork(tmp_path, 2, 1000)
        assert fork(tmp_path, 3, steps)
        if (tmp_path / ".m.meta.new").exists():
            break
    (tmp_path / "later").mkdir()
    fork(tmp_path / "later", 4, 1000)
    for name in ("m.data", "m.meta"):
        os.replace(tmp_path / "later" / name, tmp_path / name)
    assert loaded(tmp_path) == [4] * 4


SAVES = """
import sys
import dynet_cy as dy
pc = dy.ParameterCollection()
w, e = pc.add_parameters((40,), init=float(sys.argv[1])), pc.add_lookup_parameters((90, 5), init=float(sys.argv[1]))
for _ in range(60):
    dy.save("m", [w, e])
    a, b = dy.load("m", dy.ParameterCollection())
    assert (a.as_array() == b.as_array()[0, 0]).all()
"""


def test_several_processes_save_one_pair(tmp_path: Path) -> None:
    """All saves succeed, all loads find a pair of one process, and no other files stay."""
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", SAVES, str(k)], cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
        )
        for k in range(3)
    ]
    assert [job.communicate()[1] for job in jobs] == [""] * 3
    assert sorted(os.listdir(tmp_path)) == ["m.data", "m.meta"]


def test_the_mark(tmp_path: Path) -> None:
    """The mark works as described in docs/files.md."""
    dy.save(tmp_path / "m", [dy.ParameterCollection().add_parameters((2,), init=1.0)])
    for name in ("data", "meta"):
        whole = (tmp_path / f"m.{name}").read_bytes()
        (tmp_path / f"m.{name}").write_bytes(whole[86:] if name == "meta" else whole.replace(b"+1.0", b"+2.0"))
    assert loaded(tmp_path) == [2.0]
