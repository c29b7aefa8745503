"""Checkpoints: resumed training gives the same results as uninterrupted training."""

from __future__ import annotations

import importlib.util
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parallel.jobs import PROGRAMS, launch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import dynet_cy as dy
from dynet_cy.files.textfile import ModelFileError, ModelMismatchError
from dynet_cy.parallel import CheckpointWarning

SAVES = 7  # of 21 items: in the middle of the first epoch


def program() -> Any:
    spec = importlib.util.spec_from_file_location("resuming", PROGRAMS / "resuming.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _keep_random_states() -> Iterator[None]:
    states = random.getstate(), np.random.get_state(legacy=False)
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])


def assert_equal(have: dict[str, Any], want: dict[str, Any]) -> None:
    assert have.keys() == want.keys()
    for name in want:
        np.testing.assert_array_equal(have[name], want[name], err_msg=name)


def numbers(folder: Path, what: str, rank: int) -> dict[str, Any]:
    with np.load(folder / f"{what}-{rank}.npz") as file:
        return dict(file)


@pytest.mark.parametrize("saves", [SAVES, 21, 30])
def test_one_process_goes_on_to_the_last_bit(tmp_path: Path, saves: int) -> None:
    resuming = program()
    want = resuming.run(tmp_path, "whole", saves).results()
    have = resuming.run(tmp_path, "rest", saves).results()
    assert_equal(have, want)
    assert len(want["seen"]) == 42 - saves
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_new_processes_go_on_to_the_last_bit(tmp_path: Path) -> None:
    n = 3
    for what in ("whole", "rest"):
        done = launch(tmp_path, "resuming.py", tmp_path, what, 4, n=n)
        assert done.code == 0, done.err
        assert "Warning" not in done.err
    for rank in range(n):
        assert_equal(numbers(tmp_path, "rest", rank), numbers(tmp_path, "whole", rank))
    first, second = (numbers(tmp_path, "whole", rank) for rank in (0, n - 1))
    np.testing.assert_array_equal(first["0 /U"], second["0 /U"])
    assert first["noise"].tolist() != second["noise"].tolist()


def test_another_number_of_processes(tmp_path: Path) -> None:
    """From two processes to one and to three: the rest of the epoch is seen once, and a warning is given."""
    assert launch(tmp_path, "resuming.py", tmp_path, "whole", 4, n=2).code == 0
    left = sorted(map(tuple, [*numbers(tmp_path, "whole", 0)["seen"], *numbers(tmp_path, "whole", 1)["seen"]]))
    resuming = program()
    with pytest.warns(CheckpointWarning, match="saved by 2 and resumed by 1 processes"):
        alone = resuming.run(tmp_path, "rest", 4)
    assert sorted(alone.seen) == left
    assert launch(tmp_path, "resuming.py", tmp_path, "rest", 4, n=3).err.count("resumed by 3 processes") == 1
    assert sorted(tuple(x) for rank in range(3) for x in numbers(tmp_path, "rest", rank)["seen"]) == left
    np.testing.assert_array_equal(numbers(tmp_path, "rest", 0)["0 /U"], numbers(tmp_path, "rest", 2)["0 /U"])


def test_asynchronous_processes(tmp_path: Path) -> None:
    """The order of updates is random, but all data are still seen."""
    for what in ("whole", "rest"):
        done = launch(tmp_path, "resuming.py", tmp_path, what, 4, options=["--mode", "async"])
        assert done.code == 0, done.err
    seen = [
        sorted(tuple(x) for rank in (0, 1) for x in numbers(tmp_path, what, rank)["seen"]) for what in ("whole", "rest")
    ]
    assert seen[0] == seen[1]


class Model:
    def __init__(self, name: str = "W") -> None:
        self.m = dy.ParameterCollection()
        self.w = self.m.add_parameters((2, 3), name=name)
        self.t = dy.AdamTrainer(self.m)
        self.data = dy.parallel.shard(range(5))


def test_what_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    model, other = Model(), Model("V")
    next(iter(model.data))
    dy.parallel.save_checkpoint(path, model.m, model.t, model.data, [random.Random(1)])
    before, place = other.w.as_array(), other.data.state()
    state = random.getstate()
    with pytest.raises(ModelMismatchError, match="missing: /V; unexpected: /W; perhaps renamed: /W to /V"):
        dy.parallel.load_checkpoint(path, other.m, other.t, other.data, [random.Random(1)])
    with pytest.raises(ModelMismatchError, match="states of 1 generators of the program's own, not of 0"):
        dy.parallel.load_checkpoint(path, other.m, other.t, other.data)
    with pytest.raises(ValueError, match="length"):
        dy.parallel.load_checkpoint(path, model.m, model.t, dy.parallel.shard(range(6)), [random.Random(1)])
    with pytest.raises(TypeError, match=r"generators must be random\.Random.*not int"):
        dy.parallel.load_checkpoint(path, other.m, other.t, other.data, [3])  # type: ignore[list-item]
    with pytest.raises(FileNotFoundError):
        dy.parallel.load_checkpoint(tmp_path / "none", other.m)
    np.testing.assert_array_equal(other.w.as_array(), before)
    assert other.data.state() == place
    assert random.getstate() == state
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ModelFileError):
        dy.parallel.load_checkpoint(path, model.m)


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    model = Model()
    with pytest.raises(TypeError, match="extra"):
        dy.parallel.save_checkpoint(tmp_path / "c", model.m, extra={"a": object()})
    with pytest.raises(TypeError, match="generators must be"):
        dy.parallel.save_checkpoint(tmp_path / "c", model.m, generators=[np.random])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="the trainer was made for another collection"):
        dy.parallel.save_checkpoint(tmp_path / "c", model.m, Model().t)
    assert os.listdir(tmp_path) == []


def test_files_of_save_safetensors(tmp_path: Path) -> None:
    model, other = Model(), Model()
    dy.save_safetensors(tmp_path / "m", model.m, model.t, {"epoch": 3})
    assert dy.parallel.load_checkpoint(tmp_path / "m", other.m, other.t) == {"epoch": 3}
    np.testing.assert_array_equal(other.w.as_array(), model.w.as_array())
    with pytest.raises(ModelMismatchError, match="no place in the data"):
        dy.parallel.load_checkpoint(tmp_path / "m", other.m, other.t, other.data)


def test_generators_of_all_kinds(tmp_path: Path) -> None:
    model = Model()
    kinds = [
        lambda: random.Random(4),
        lambda: np.random.default_rng(4),
        lambda: np.random.RandomState(4),
        lambda: np.random.Generator(np.random.MT19937(4)),
    ]
    generators: list[Any] = [kind() for kind in kinds]
    for g in generators:
        g.random()
        getattr(g, "gauss", getattr(g, "standard_normal", None))(*([0, 1] if isinstance(g, random.Random) else []))
    dy.parallel.save_checkpoint(tmp_path / "c", model.m, generators=generators)
    want = [g.random() for g in generators]
    fresh: list[Any] = [kind() for kind in kinds]
    dy.parallel.load_checkpoint(tmp_path / "c", model.m, generators=fresh)
    assert [g.random() for g in fresh] == want


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("size", 0),
        ("size", 2),
        ("size", None),
        ("ranks", []),
        ("ranks", None),
        ("ranks/0/random", {}),
        ("ranks/0/generators", []),
        ("ranks/0/generators/0", [3, [1, 2], None]),
        ("ranks/0/generators/0/1/624", 10**6),
        ("ranks/0/generators/0", None),
        ("ranks/0/generators/1/state/pos", 10**6),
        ("ranks/0/generators/1/state/key/dtype", "S1000000000"),
        ("ranks/0/generators/1/state/key/numbers", [1, 2]),
        ("ranks/0/generators/1/bit_generator", "PCG64"),
        ("ranks/0/generators/2", [3, [], None]),
        ("ranks/0/generators/3/state/state", "x"),
        ("ranks/0/generators/4/buffer_pos", 10**6),
        ("data/position", -1),
        ("data/epoch", "x"),
        ("data", []),
    ],
)
def test_damaged_states_change_nothing(tmp_path: Path, place: str, value: Any) -> None:
    path = tmp_path / "checkpoint"
    model, other = Model(), Model()

    def generators() -> list[Any]:
        return [random.Random(1), np.random.default_rng(1), np.random.Generator(np.random.Philox(1))]

    dy.parallel.save_checkpoint(path, model.m, model.t, model.data, generators())
    tensors = load_file(path)
    with safe_open(path, "numpy") as file:
        state = json.loads(file.metadata()["dynet_cy"])
    inner = state["extra"]["parallel"]
    *keys, last = [int(key) if key.isdigit() else key for key in place.split("/")]
    for key in keys:
        inner = inner[key]
    inner[last] = value
    save_file(tensors, path, {"dynet_cy": json.dumps(state)})
    own = generators()
    before = other.w.as_array(), other.data.state(), random.getstate()
    drawn = own[0].getstate(), str(own[1].bit_generator.state), str(own[2].bit_generator.state)
    with pytest.raises(ModelFileError):
        dy.parallel.load_checkpoint(path, other.m, other.t, other.data, own)
    np.testing.assert_array_equal(other.w.as_array(), before[0])
    assert (other.data.state(), random.getstate()) == before[1:3]
    assert (own[0].getstate(), str(own[1].bit_generator.state), str(own[2].bit_generator.state)) == drawn


def test_ranks_save_together(tmp_path: Path) -> None:
    """What depends on the number of updates happens on all ranks together, however many batches they have."""
    result = launch(tmp_path, "saving_every.py")
    assert result.code == 0, result.err
    lines = sorted(line for line in result.out.splitlines() if "saved" in line)
    assert lines == [f"[rank {rank}] saved {n}" for rank in (0, 1) for n in (3, 6)]
    assert sorted(path.name for path in tmp_path.glob("after-*")) == ["after-3.safetensors", "after-6.safetensors"]
