"""Files that are not there: a FileNotFoundError whose text is a sentence."""

from __future__ import annotations

import errno
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dynet_cy as dy
from dynet_cy import loggers
from dynet_cy.commandline import input_lines
from dynet_cy.commands import main


def model() -> dy.ParameterCollection:
    made = dy.ParameterCollection()
    made.add_parameters(2, name="W")
    return made


READERS: dict[str, Callable[[str], Any]] = {
    "load": lambda path: dy.load(path, model()),
    "load_generator": lambda path: list(dy.load_generator(path, model())),
    "populate": lambda path: model().populate(path),
    "populate_by_name": lambda path: model().populate_by_name(path),
    "load_safetensors": lambda path: dy.load_safetensors(path, model()),
    "read_extra": dy.read_extra,
    "load_network": lambda path: dy.load_network(path, lambda extra: dy.nn.Linear(2, 2, model())),
    "load_checkpoint": lambda path: dy.parallel.load_checkpoint(path, model(), dy.AdamTrainer(model())),
    "load_pytorch": lambda path: dy.nn.Linear(2, 2, model()).load_pytorch(path),
    "FromFileInitializer": lambda path: model().add_parameters(2, init=dy.FromFileInitializer(path)),
    "ClassFactoredSoftmaxBuilder": lambda path: dy.ClassFactoredSoftmaxBuilder(2, path, {"a": 0}, model()),
    "read_conllu": dy.data.read_conllu,
    "read_tsv": lambda path: dy.data.read_tsv(path, ["a", "b"]),
    "read_labelled": dy.data.read_labelled,
    "read_trees": dy.data.read_trees,
    "read_idx": dy.data.read_idx,
    "read_vectors": dy.data.read_vectors,
    "read_vectors-npz": lambda path: dy.data.read_vectors(path, format="npz"),
    "lines": dy.data.lines,
    "lines-gz": lambda path: dy.data.lines(path + ".gz"),
    "read_labelled-gz": lambda path: dy.data.read_labelled(path + ".gz"),
    "Vocabulary.load": dy.data.Vocabulary.load,
    "input_lines": lambda path: list(input_lines(path)),
    "log_artefact": lambda path: loggers.Curves().log_artefact(path),
}


@pytest.mark.parametrize("name", READERS)
def test_reading(name: str, tmp_path: Path) -> None:
    path = str(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError) as caught:
        READERS[name](path)
    error, text = caught.value, str(caught.value)
    assert error.errno == errno.ENOENT
    assert str(error.filename).startswith(path)
    assert text.startswith(f"there is no file {error.filename!r}; wanted is ")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.filename) == (type(error), text, error.filename)
    with pytest.raises(FileNotFoundError, match=rf"there is no folder '{tmp_path}/none' for '{tmp_path}/none/x"):
        READERS[name](str(tmp_path / "none" / "x"))


@pytest.mark.parametrize(
    "write",
    [
        lambda path: model().save(path),
        lambda path: dy.save(path, [model()]),
        lambda path: dy.save_safetensors(path, model()),
        lambda path: dy.data.Vocabulary(["a"]).save(path),
        lambda path: loggers.Page(path),
    ],
)
def test_writing(write: Callable[[str], Any], tmp_path: Path) -> None:
    path = str(tmp_path / "none" / "model")
    with pytest.raises(FileNotFoundError, match=rf"^there is no folder '{tmp_path}/none' for '{path}") as caught:
        write(path)
    assert caught.value.errno == errno.ENOENT
    assert str(caught.value.filename).startswith(path)


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path / "m")]) == 1
    assert capsys.readouterr().err == (
        f"python -m dynet_cy inspect: there is no file '{tmp_path / 'm'}'; wanted is a model file\n"
    )
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"dynet_cy {dy.__version__}\n"
