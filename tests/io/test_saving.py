"""dy.save and dy.load; see tests/peer for DyNet's files."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy import saving
from dynet_cy.textfile import ModelFileError, ModelMismatchError

BUILDERS = ["SimpleRNN", "GRU", "VanillaLSTM", "CompactVanillaLSTM", "CoupledLSTM", "FastLSTM"]


class Tagger:
    """A class of a user, with the methods of builders."""

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
    """One that a test does not allow."""


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
        assert len(arrays(a)) == len(arrays(b))
        for x, y in zip(arrays(a), arrays(b)):
            np.testing.assert_allclose(x, y, rtol=1e-7)


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

    @pytest.mark.parametrize("classes", [[], [Other], [dy.GRUBuilder]])
    def test_refused(self, tmp_path: Path, classes: list[Any]) -> None:
        self.make(tmp_path)
        target = dy.ParameterCollection()
        pattern = r"m\.meta: it names .*test_saving\.Tagger, which is not a builder .* classes=\[Tagger\].*trusted=True"
        with pytest.raises(saving.ForbiddenClassError, match=pattern):
            dy.load_generator(tmp_path / "m", target, classes=classes)
        assert target.parameter_count() == 0

    def test_functions(self, tmp_path: Path) -> None:
        made = dy.BiRNNBuilder(1, 4, 6, dy.ParameterCollection(), make_cells)
        dy.save(tmp_path / "m", [made])
        with pytest.raises(saving.ForbiddenClassError, match="make_cells"):
            dy.load(tmp_path / "m", dy.ParameterCollection())
        loaded = dy.load(tmp_path / "m", dy.ParameterCollection(), classes=[make_cells])
        assert_same(loaded, [made])

    def test_a_class_of_a_script(self, tmp_path: Path) -> None:
        """The module is __main__ in the file, and another one in the program that loads it."""
        script = tmp_path / "script.py"
        root = Path(__file__).resolve().parent
        script.write_text(
            f"import sys; sys.path.insert(0, {str(root)!r})\n"
            "import dynet_cy as dy\nfrom test_saving import Tagger as Base\n"
            "class Tagger(Base): pass\n"
            "dy.save('m', [Tagger(dy.ParameterCollection(), 4, dy.GRUBuilder)])\n"
        )
        path = os.pathsep.join(p for p in sys.path if p)
        subprocess.run([sys.executable, str(script)], cwd=tmp_path, check=True, env={**os.environ, "PYTHONPATH": path})
        (loaded,) = dy.load(tmp_path / "m", dy.ParameterCollection(), classes=[Tagger])
        assert type(loaded) is Tagger

    def test_what_classes_must_be(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        with pytest.raises(TypeError, match="classes must hold classes, not 'Tagger'"):
            dy.load(tmp_path / "m", dy.ParameterCollection(), classes=["Tagger"])


class Evil:
    """Its pickle makes a folder when it is read."""

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

    def test_no_file_can_run_code(self, saved: Path) -> None:
        folder = saved.parent / "evil"
        for item in (
            Evil(folder),
            ("Parameters", Evil(folder)),
            (dy.GRUBuilder, (1, 2, Evil(folder)), "/gru-builder/"),
            (Evil(folder), (), "/"),
        ):
            saved.with_suffix(".meta").write_bytes(pickle.dumps(item))
            self.refuse(saved, saving.ForbiddenClassError, r"mkdir, which is not a builder")
            assert not folder.exists()

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
        """For programs that cannot be edited; only 1 counts."""
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
            error = "there is more than" if length in (0, first) else r"m\.meta: not a"
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
            self.refuse(saved, ModelMismatchError, match)

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
        with pytest.raises(TypeError, match="params must be a ParameterCollection, not str"):
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

    def test_a_failed_save_leaves_the_old_files(self, tmp_path: Path) -> None:
        pc = dy.ParameterCollection()
        w = pc.add_parameters((2,))
        dy.save(tmp_path / "m", [w])
        before = [(tmp_path / name).read_bytes() for name in ("m.data", "m.meta")]
        with pytest.raises(TypeError):
            dy.save(tmp_path / "m", [dy.GRUBuilder(1, 2, 2, pc), 3])
        assert [(tmp_path / name).read_bytes() for name in ("m.data", "m.meta")] == before
        assert sorted(os.listdir(tmp_path)) == ["m.data", "m.meta"]

    def test_a_killed_save_leaves_the_old_files(self, tmp_path: Path) -> None:
        pc = dy.ParameterCollection()
        dy.save(tmp_path / "m", [pc.add_parameters((2,))])
        before = [(tmp_path / name).read_bytes() for name in ("m.data", "m.meta")]
        code = (
            "import dynet_cy as dy, os, signal\n"
            "def objects():\n"
            "    pc = dy.ParameterCollection()\n"
            "    yield pc.add_parameters((300, 300))\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
            "dy.save('m', objects())\n"
        )
        path = os.pathsep.join(p for p in sys.path if p)
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})
        assert done.returncode == -signal.SIGKILL
        assert [(tmp_path / name).read_bytes() for name in ("m.data", "m.meta")] == before
