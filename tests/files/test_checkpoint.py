"""Checkpoints in safetensors files."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
from arrays import all_equal
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import dynet_cy as dy
from dynet_cy.files.schema import NUMBER, Schema, SchemaError, check, like, pair
from dynet_cy.files.textfile import ModelFileError, ModelMismatchError
from dynet_cy.graph.expressions import random_state

TRAINERS = [n[: -len("Trainer")] for n in dy.__all__ if n.endswith("Trainer") and n not in ("Trainer", "PythonTrainer")]


class Model:
    """A small network with its trainer."""

    def __init__(self, trainer: str = "Adam", decay: float = 0.0, **names: str) -> None:
        self.pc = dy.ParameterCollection()
        self.pc.set_weight_decay(decay)
        self.e = self.pc.add_lookup_parameters((6, 3), name=names.get("e", "E"))
        self.rnn = dy.GRUBuilder(1, 3, 4, self.pc)
        self.w = self.pc.add_parameters((2, 4), name="W")
        self.pc.add_parameters((), init=2.0)
        self.pc.add_lookup_parameters((2, 2, 3))
        self.trainer = getattr(dy, trainer + "Trainer")(self.pc)

    def step(self, n: int) -> None:
        for i in range(n):
            dy.renew_cg()
            h = dy.dropout(self.rnn.initial_state().transduce([self.e[i % 4], self.e[0]])[-1], 0.5)
            dy.squared_norm(self.w * h - dy.inputVector([1, -1])).backward()
            self.trainer.update()

    def arrays(self) -> list[np.ndarray]:
        return [x.as_array() for x in [*self.pc.parameters_list(), *self.pc.lookup_parameters_list()]]

    def everything(self) -> list[np.ndarray]:
        states = [a for arrays in self.trainer._state_arrays() for a in arrays]
        grads = [x.grad_as_array() for x in [*self.pc.parameters_list(), *self.pc.lookup_parameters_list()]]
        return [*self.arrays(), *states, *grads]


def test_training_goes_on_to_the_last_bit_after_measuring(tmp_path: Path) -> None:
    """Weights that were packed by evaluating other data do not change the results."""

    def model() -> tuple[dy.ParameterCollection, dy.Parameters, dy.SimpleSGDTrainer]:
        pc = dy.ParameterCollection()
        return pc, pc.add_parameters((300, 300)), dy.SimpleSGDTrainer(pc)

    def product(w: dy.Parameters, seed: int) -> dy.Expression:
        dy.renew_cg()
        return w * dy.inputTensor(np.random.default_rng(seed).normal(size=(300, 40)))

    def step(w: dy.Parameters, trainer: dy.SimpleSGDTrainer) -> np.ndarray:
        dy.squared_norm(product(w, 1)).backward()
        trainer.update()
        return w.as_array()

    pc, w, trainer = model()
    step(w, trainer)
    for _ in range(3):
        product(w, 2).value()
    dy.save_safetensors(tmp_path / "checkpoint", pc, trainer)
    want = step(w, trainer)
    other, v, other_trainer = model()
    dy.load_safetensors(tmp_path / "checkpoint", other, other_trainer)
    np.testing.assert_array_equal(step(v, other_trainer), want)


def test_without_a_trainer(tmp_path: Path) -> None:
    model, other = Model(), Model("SimpleSGD")
    dy.save_safetensors(str(tmp_path / "m"), model.pc)
    assert dy.load_safetensors(str(tmp_path / "m"), other.pc) == {}
    all_equal(other.arrays(), model.arrays())
    with pytest.raises(ModelMismatchError, match="has no state of a trainer"):
        dy.load_safetensors(tmp_path / "m", other.pc, other.trainer)


def test_other_programs(tmp_path: Path) -> None:
    """Other programs find values by name, in the shapes that users see; files they write can be read."""
    model, other = Model(), Model()
    dy.save_safetensors(tmp_path / "m", model.pc)
    tensors = load_file(tmp_path / "m")
    stored = [*model.pc.parameters_list(), *model.pc.lookup_parameters_list()]
    assert tensors.keys() == {x.name() for x in stored}
    for x in stored:
        np.testing.assert_array_equal(tensors[x.name()], x.as_array())
    with safe_open(tmp_path / "m", "numpy") as file:
        assert json.loads(file.metadata()["dynet_cy"])["version"] == dy.__version__
    save_file(tensors, tmp_path / "plain")
    assert dy.load_safetensors(tmp_path / "plain", other.pc) == {}
    all_equal(other.arrays(), model.arrays())
    with pytest.raises(ModelMismatchError, match="no state of random streams"):
        dy.load_safetensors(tmp_path / "plain", other.pc, random=True)


def test_sub_collections(tmp_path: Path) -> None:
    model, other = Model(), Model()
    dy.save_safetensors(tmp_path / "m", model.rnn.param_collection())
    before = other.w.as_array()
    dy.load_safetensors(tmp_path / "m", other.rnn.param_collection())
    np.testing.assert_array_equal(other.w.as_array(), before)
    names = [p.name() for p in model.rnn.param_collection().parameters_list()]
    for a, b in zip(other.pc.parameters_list(), model.pc.parameters_list()):
        assert (a.name() in names) == bool((a.as_array() == b.as_array()).all()) or a.as_array().size == 1


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "m"
    model = Model()
    dy.save_safetensors(path, model.pc)
    before = path.read_bytes()
    path.chmod(0o640)
    with pytest.raises(TypeError, match="extra, or an attribute of the trainer, cannot be kept"):
        dy.save_safetensors(path, model.pc, extra={"x": object()})
    assert path.read_bytes() == before
    model.step(1)
    dy.save_safetensors(path, model.pc)
    assert path.read_bytes() != before
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["m"]
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        dy.save_safetensors(tmp_path, model.pc)


class TestFilesThatDoNotFit:
    """Files that do not fit change nothing."""

    def refuse(self, path: Path, error: type[Exception], match: str, trainer: str = "Adam", **names: str) -> None:
        model = Model(trainer, **names)
        model.step(1)
        before, settings = model.everything(), model.trainer._settings()
        with pytest.raises(error, match=match):
            dy.load_safetensors(path, model.pc, model.trainer, random=True)
        all_equal(model.everything(), before)
        assert model.trainer._settings() == settings

    @pytest.fixture
    def saved(self, tmp_path: Path) -> Path:
        model = Model()
        model.step(2)
        dy.save_safetensors(tmp_path / "m", model.pc, model.trainer)
        return tmp_path / "m"

    def rewrite(self, path: Path, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> None:
        tensors = load_file(path)
        with safe_open(path, "numpy") as file:
            state = json.loads(file.metadata()["dynet_cy"])
        change(tensors, state)
        save_file(tensors, path, {"dynet_cy": json.dumps(state)})

    def test_names(self, saved: Path) -> None:
        self.refuse(
            saved, ModelMismatchError, r"missing: /T; unexpected: /E; perhaps|missing: /T; unexpected: /E", e="T"
        )
        self.rewrite(saved, lambda tensors, state: tensors.update({"/more": tensors["/W"]}))
        self.refuse(saved, ModelMismatchError, "unexpected: /more")

    @pytest.mark.parametrize("name", ["/W", "trainer:1:/W", "gradient:/W", "gradient:/E", "rows:/E"])
    def test_shapes_and_types(self, saved: Path, name: str) -> None:
        model = Model()
        dy.renew_cg()
        (dy.sum_elems(model.e[5]) + dy.sum_elems(model.w)).backward()
        dy.save_safetensors(saved, model.pc, model.trainer)
        whole = saved.read_bytes()
        self.rewrite(saved, lambda tensors, state: tensors.update({name: np.zeros((3, 3, 3), tensors[name].dtype)}))
        self.refuse(saved, ModelMismatchError, r"parameter /[WE]: has shape \(3, 3, 3\)|has shape")
        saved.write_bytes(whole)
        self.rewrite(saved, lambda tensors, state: tensors.update({name: tensors[name].astype(np.float64)}))
        self.refuse(saved, ModelMismatchError, "holds numbers of type F64, not")

    def test_rows_that_are_not_there(self, saved: Path) -> None:
        rows = {"rows:/E": np.array([6], np.uint32), "gradient:/E": np.zeros((1, 3), np.float32)}
        self.rewrite(saved, lambda tensors, state: tensors.update(rows))
        self.refuse(saved, ModelMismatchError, "gradients of rows that are not there")
        self.rewrite(saved, lambda tensors, state: tensors.pop("rows:/E"))
        self.refuse(saved, ModelMismatchError, "gradients of rows, but not which")

    def test_kinds(self, saved: Path) -> None:
        self.rewrite(saved, lambda tensors, state: state["kinds"].update({"/W": "LookupParameters"}))
        self.refuse(saved, ModelMismatchError, "/W: is LookupParameters in the file, Parameters in the collection")

    def test_trainers(self, saved: Path) -> None:
        self.refuse(saved, ModelMismatchError, "state of AdamTrainer, not of AmsgradTrainer", trainer="Amsgrad")
        self.rewrite(saved, lambda tensors, state: tensors.pop("trainer:0:/W"))
        self.refuse(saved, ModelMismatchError, "trainer of other parameters: trainer:0:/W")
        self.rewrite(saved, lambda tensors, state: state["trainer"]["settings"].pop("_beta_1"))
        self.refuse(saved, ModelMismatchError, "other settings: _beta_1")

    def test_formats(self, saved: Path) -> None:
        self.rewrite(saved, lambda tensors, state: state.update(format=99))
        self.refuse(saved, ModelFileError, "a checkpoint of format 99, made by dynet_cy .*, which reads format 1")
        save_file(load_file(saved), saved, {"dynet_cy": "3"})
        self.refuse(saved, ModelFileError, "metadata are not those of a checkpoint")

    @pytest.mark.parametrize("keep", [0, 7, 100, 2000, -1])
    def test_cut_off(self, saved: Path, keep: int) -> None:
        saved.write_bytes(saved.read_bytes()[:keep])
        self.refuse(saved, ModelFileError, "not a safetensors file, or a part of one")

    def test_text_files(self, saved: Path) -> None:
        Model().pc.save(saved)
        self.refuse(saved, ModelFileError, "not a safetensors file")

    def test_no_file(self, tmp_path: Path) -> None:
        self.refuse(tmp_path / "m", FileNotFoundError, "m")

    @pytest.mark.parametrize(
        ("place", "value", "words"),
        [
            ("random.seed", None, r"random\.seed is None, not a whole number"),
            ("random.seed", 10**300, "seed"),
            ("random.host", -1, "host is -1, not a whole number of at least 0"),
            ("random.streams", 2**32, "streams"),
            ("random.renewals", [[1]], r"renewals\[0\] is a list of 1"),
            ("random.renewals", [[0, "x"]], r"renewals\[0\]\[1\] is 'x'"),
            ("random", [], "random is a list of 0, not a dictionary"),
            ("kinds", None, "kinds is None"),
            ("kinds./W", 3, "kinds./W is 3"),
            ("kinds./W", {"a": []}, "kinds./W is a dict of 1"),
            ("format", "1", "format is '1', not one of 1"),
            ("format", True, "format is True"),
            ("version", [], "version is a list"),
            ("trainer", 3, "trainer is 3"),
            ("trainer.class", None, "class is None"),
            ("trainer.weight_decay", None, "weight_decay is None"),
            ("trainer.weight_decay", [None, 0], r"weight_decay\[0\] is None"),
            ("trainer.weight_decay", [0, math.inf], r"weight_decay\[1\] is inf"),
            ("trainer.weight_decay", [-1, 0], r"weight_decay\[0\] is -1"),
            ("trainer.settings", [], "settings is a list of 0"),
            ("trainer.settings._learning_rate", [0.1], "_learning_rate is a list of 1, not a number"),
            ("trainer.settings._learning_rate", "0.1", "_learning_rate is '0.1'"),
            ("trainer.settings._beta_1", None, "_beta_1 is None, not a number"),
            ("trainer.settings._beta_2", 1, "_beta_2 is 1, not a number from 0 to below 1"),
            ("trainer.settings._beta_1", 10**100, "_beta_1"),
            ("trainer.settings._steps", 10**100, "_steps"),
            ("trainer.settings._steps", -3, "_steps is -3"),
            ("trainer.settings._clips", 1 << 63, "_clips is 9223372036854775808"),
            ("trainer.settings._steps", 1.5, "_steps is 1.5"),
            ("trainer.settings._sparse", 1, "_sparse is 1, not true or false"),
            ("trainer.settings._clip_threshold", math.nan, "_clip_threshold is nan"),
            ("trainer.settings._average", {}, "_average has no beta"),
            ("trainer.settings._average", {"beta": 2, "frequency": 1, "updates": 0, "values": 0}, "beta is 2"),
            ("trainer.settings._swapped", "kept", "a moving average that is not there"),
            ("trainer.settings._swapped", None, "_swapped is None"),
            ("trainer.settings._groups", [{}], r"_groups\[0\] has no learning_rate"),
            ("trainer.settings._groups", {"names": 3}, "_groups is a dict of 1"),
            ("trainer.without_state", [3], r"without_state\[0\] is 3"),
            ("trainer.settings.own", [1], "own is a list of 1, not text"),
        ],
    )
    def test_damaged_states(self, tmp_path: Path, place: str, value: Any, words: str) -> None:
        """The whole state is checked before anything is set."""
        model, other = Model(), Model()
        for one in (model, other):
            one.trainer.own = "an attribute of the program's"
            one.step(2)
        dy.save_safetensors(tmp_path / "m", model.pc, model.trainer)
        *keys, last = place.split(".")

        def change(tensors: dict[str, Any], state: dict[str, Any]) -> None:
            for key in keys:
                state = state[key]
            state[last] = value

        self.rewrite(tmp_path / "m", change)
        before, settings, state = other.everything(), other.trainer._settings(), random_state()
        with pytest.raises(ModelFileError, match=words):
            dy.load_safetensors(tmp_path / "m", other.pc, other.trainer, random=True)
        all_equal(other.everything(), before)
        assert other.trainer._settings() == settings
        assert random_state() == state

    @pytest.mark.parametrize("place", ["random", "trainer.class", "trainer.settings", "trainer.weight_decay", "format"])
    def test_states_that_lack_something(self, saved: Path, place: str) -> None:
        *keys, last = place.split(".")

        def change(tensors: dict[str, Any], state: dict[str, Any]) -> None:
            for key in keys:
                state = state[key]
            del state[last]

        self.rewrite(saved, change)
        self.refuse(saved, ModelFileError, f"has no {last}|no state of random streams")

    @pytest.mark.parametrize(
        "text", ["[" * 100_000, '{"format": ' * 50_000, '{"format": ' + "9" * 5000 + "}", "[]", "", "3"]
    )
    def test_metadata_that_cannot_be(self, saved: Path, text: str) -> None:
        save_file(load_file(saved), saved, {"dynet_cy": text})
        self.refuse(saved, ModelFileError, "its metadata are not those of a checkpoint")

    def test_rows_without_an_axis(self, saved: Path) -> None:
        rows = {"rows:/E": np.array(1, np.uint32), "gradient:/E": np.zeros((1, 3), np.float32)}
        self.rewrite(saved, lambda tensors, state: tensors.update(rows))
        self.refuse(saved, ModelMismatchError, r"has shape \(\) in the file, \(1,\)|has shape")


@pytest.mark.parametrize("name", ["encoder:W", "gradient:", "rows:", "trainer:0:", ":"])
def test_names_with_a_colon(tmp_path: Path, name: str) -> None:
    """Names with a colon can be loaded, as they have always been saved."""
    model, other = Model(e=name), Model(e=name)
    model.step(2)
    dy.renew_cg()
    dy.sum_elems(model.e[5]).backward()
    dy.save_safetensors(tmp_path / "m", model.pc, model.trainer)
    assert f"/{name}" in load_file(tmp_path / "m")
    dy.load_safetensors(tmp_path / "m", other.pc, other.trainer)
    all_equal(other.everything(), model.everything())
    with pytest.raises(ModelMismatchError, match=f"missing: /E; unexpected: /{name}"):
        dy.load_safetensors(tmp_path / "m", Model().pc)


def test_arguments(tmp_path: Path) -> None:
    model, other = Model(), Model()
    for call in (dy.save_safetensors, dy.load_safetensors):
        with pytest.raises(TypeError, match="collection: expected a ParameterCollection or a layer, got GRUBuilder"):
            call(tmp_path / "m", model.rnn)
        with pytest.raises(TypeError, match="trainer must be a Trainer, not dict"):
            call(tmp_path / "m", model.pc, {})
        with pytest.raises(ValueError, match="was made for another collection than /: save the collection"):
            call(tmp_path / "m", model.pc, other.trainer)
    part, beside = dy.nn.Linear(2, 2, model.pc), dy.nn.Linear(2, 2, model.pc)
    trainer = dy.SimpleSGDTrainer(beside)
    for call in (dy.save_safetensors, dy.load_safetensors, dy.parallel.save_checkpoint):
        with pytest.raises(ValueError, match="the trainer was made for /linear_1/, which does not contain /linear/"):
            call(tmp_path / "m", part, trainer)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize(
    ("save", "load"),
    [(dy.save_safetensors, dy.load_safetensors), (dy.parallel.save_checkpoint, dy.parallel.load_checkpoint)],
)
def test_a_trainer_of_the_collection_above(tmp_path: Path, others: int, save: Callable, load: Callable) -> None:
    """All that it trains is saved, so that training continues."""

    def made() -> tuple[list[Any], dy.nn.Linear, dy.Trainer]:
        pc = dy.ParameterCollection()
        beside = [pc.add_parameters((3, 2), init=dy.ConstInitializer(0.5)) for _ in range(others)]
        layer = dy.nn.Linear(2, 3, pc)
        return [*beside, layer.W], layer, dy.AdamTrainer(pc)

    def step(weights: list[Any], trainer: dy.Trainer) -> list[list]:
        dy.renew_cg()
        dy.squared_norm(dy.esum([dy.tanh(w * dy.inputVector([1, 2])) for w in weights]) + 1.0).backward()
        trainer.update()
        return [w.as_array().tolist() for w in weights]

    weights, layer, trainer = made()
    step(weights, trainer)
    save(tmp_path / "m", layer, trainer)
    after = step(weights, trainer)
    weights, layer, trainer = made()
    load(tmp_path / "m", layer, trainer)
    assert step(weights, trainer) == after
    if not others:  # the layer has all
        load(tmp_path / "m", layer)


def test_the_file_is_like_others(tmp_path: Path) -> None:
    """It has the permissions of new files, and a failure to write is an OSError."""
    m = dy.ParameterCollection()
    m.add_parameters((2, 3))
    dy.save_safetensors(tmp_path / "m", m)
    (tmp_path / "other").touch()
    assert (tmp_path / "m").stat().st_mode == (tmp_path / "other").stat().st_mode
    with pytest.raises(FileNotFoundError):
        dy.save_safetensors(tmp_path / "missing" / "m", m)


@pytest.mark.parametrize("wanted", [pair(NUMBER, NUMBER), like((1.0, 2.0))])
def test_lists_of_a_fixed_length(wanted: Schema) -> None:
    check([1, 2.5], wanted, "x")
    for wrong in ([1], [1, 2, 3], (1, 2), [1, "2"]):
        with pytest.raises(SchemaError):
            check(wrong, wanted, "x")
