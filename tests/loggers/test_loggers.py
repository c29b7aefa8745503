"""Loggers: one interface, files, pages, notebooks, services; `dy.Training` with them; only rank 0 writes."""

from __future__ import annotations

import csv
import json
import sys
import types
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

import dynet_cy as dy
from dynet_cy import loggers
from dynet_cy.parallel import LocalCommunicator, runtime


class Recorder(loggers.Logger):
    """Records the calls that a logger gets."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def record_numbers(self, numbers: dict[str, float], step: float) -> None:
        self.calls.append(("numbers", numbers, step))

    def record_text(self, name: str, text: str, step: float) -> None:
        self.calls.append(("text", name, text, step))

    def record_artefact(self, path: str) -> None:
        self.calls.append(("artefact", path))

    def end(self, status: str) -> None:
        self.calls.append(("end", status))


class Rank1(LocalCommunicator):
    rank = 1


@pytest.fixture
def rank_1() -> Any:
    before = runtime.use(Rank1())
    yield
    runtime.use(before)


def log_all(logger: loggers.Logger, folder: Path) -> None:
    """One of everything."""
    model = folder / "model.bin"
    model.write_bytes(b"parameters")
    with logger:
        logger.log({"loss": 0.5}, 1)
        logger.log({"loss": 0.25, "accuracy": 0.75}, 2)
        logger.log_text("sample", '<a> cat, "sat"', 2)
        logger.log_artefact(model)


def test_the_interface(tmp_path: Path) -> None:
    recorder = Recorder()
    log_all(recorder, tmp_path)
    recorder.close()
    recorder.log({"loss": 1}, 3)  # nothing after the end
    assert recorder.calls == [
        ("numbers", {"loss": 0.5}, 1),
        ("numbers", {"loss": 0.25, "accuracy": 0.75}, 2),
        ("text", "sample", '<a> cat, "sat"', 2),
        ("artefact", str(tmp_path / "model.bin")),
        ("end", "FINISHED"),
    ]
    with pytest.raises(FileNotFoundError):
        Recorder().log_artefact(tmp_path / "none")
    with pytest.raises(NotImplementedError, match="Logger has no method record_numbers"):
        loggers.Logger().log({"loss": 0.5}, 1)


@pytest.mark.parametrize(("error", "status"), [(KeyError, "FAILED"), (KeyboardInterrupt, "KILLED")])
def test_how_it_ended(error: type[BaseException], status: str) -> None:
    recorder = Recorder()
    with pytest.raises(error), recorder:
        raise error
    assert recorder.calls == [("end", status)]


def test_csv(tmp_path: Path) -> None:
    file = tmp_path / "runs" / "run.csv"
    log_all(loggers.CSV(file), tmp_path)
    loggers.CSV(file).log({"accuracy": 1}, 3.5)  # it is continued
    with file.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    wanted = [("1", "0.5", "", ""), ("2", "0.25", "0.75", ""), ("2", "", "", '<a> cat, "sat"'), ("3.5", "", "1.0", "")]
    assert [tuple(row[k] for k in ("step", "loss", "accuracy", "sample")) for row in rows] == wanted
    assert [row["artefact"] for row in rows] == ["", "", str(tmp_path / "model.bin"), ""]
    (tmp_path / "other.csv").write_text("a,b\n")
    with pytest.raises(ValueError, match="other.csv is a file of another kind"):
        loggers.CSV(tmp_path / "other.csv")


def test_jsonl(tmp_path: Path) -> None:
    file = tmp_path / "runs" / "run.jsonl"
    log_all(loggers.JSONL(file), tmp_path)
    with loggers.JSONL(file) as log:
        log.log({"loss": float("inf")}, 3)
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"step": 1, "loss": 0.5},
        {"step": 2, "loss": 0.25, "accuracy": 0.75},
        {"step": 2, "sample": '<a> cat, "sat"'},
        {"artefact": str(tmp_path / "model.bin")},
        {"step": 3, "loss": None},
    ]


@pytest.mark.parametrize("kind", [loggers.CSV, loggers.JSONL, loggers.Page])
def test_a_file_that_cannot_be_written(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        kind(tmp_path)


def test_page(tmp_path: Path) -> None:
    file = tmp_path / "curves.html"
    page = loggers.Page(file, title="A & B")
    assert "no numbers yet" in file.read_text()
    page.log({"loss": 0.5}, 1)
    assert 'http-equiv="refresh" content="5"' in file.read_text()
    for step in range(3000):
        page.log({"loss": float("nan") if step in (10, 12) else 1 / (step + 1), "none": float("nan")}, step)
    log_all(page, tmp_path)
    text = file.read_text()
    assert "refresh" not in text  # the training has ended
    assert "A &amp; B" in text
    assert "&lt;a&gt; cat" in text
    assert 'href="' + str(tmp_path / "model.bin") in text
    assert len(text) < 60_000
    pictures = [part.partition("</svg>")[0] + "</svg>" for part in text.split("<svg")[1:]]
    assert [len(ElementTree.fromstring("<svg" + picture).findall("g")) for picture in pictures] == [2, 2]


def test_a_page_costs_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is drawn at once when there is time for it, and not at every one of many updates."""
    shown = []
    now = [0.0]
    monkeypatch.setattr("dynet_cy.loggers.live.time.perf_counter", lambda: now[0])
    page = loggers.Page(tmp_path / "curves.html")

    def show(last: bool) -> None:
        shown.append(now[0])
        now[0] += 0.01

    monkeypatch.setattr(page, "_show", show)
    for step in range(1000):
        now[0] += 0.01
        page.log({"loss": 1}, step)
    assert len(shown) == pytest.approx(20, abs=2)  # 2 % of 10 s, at 0.01 s each
    now[0] += 60  # an epoch
    before = len(shown)
    page.log({"loss": 1}, 1000)
    page.log({"dev_loss": 1}, 1000)
    assert len(shown) == before + 2


def test_notebook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    displayed: list[str] = []

    class Handle:
        def update(self, shown: Any) -> None:
            displayed.append(shown._repr_html_())

    def display(shown: Any, display_id: bool) -> Handle:
        displayed.append(shown._repr_html_())
        return Handle()

    package, module = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    package.display = module  # type: ignore[attr-defined]
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    log_all(loggers.Notebook(), tmp_path)
    assert len(displayed) >= 2
    assert displayed[-1].count("<svg") == 2
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    with pytest.raises(ImportError, match=r"Notebook needs .* pip install 'dynet_cy\[notebook\]'"):
        loggers.Notebook()


def test_notebook_of_ipython(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("IPython", reason="notebooks run in IPython")
    log_all(loggers.Notebook(), tmp_path)


class Module(types.ModuleType):
    """A module that records what is called, by whatever name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any, **named: Any) -> Module:
            self.calls.append((name, *args, named))
            return self

        return call


def test_wandb_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wandb = Module("wandb")
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    log_all(loggers.WandB("project", config={"hidden": 8}), tmp_path)
    assert wandb.calls[:3] == [
        ("init", {"project": "project", "config": {"hidden": 8}}),
        ("log", {"loss": 0.5}, {"step": 1}),
        ("log", {"loss": 0.25, "accuracy": 0.75}, {"step": 2}),
    ]
    assert [call[0] for call in wandb.calls[3:]] == ["Table", "log", "Artifact", "add_file", "log_artifact", "finish"]
    assert wandb.calls[-1] == ("finish", {"exit_code": 0})
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r"WandB needs the package wandb: pip install 'dynet_cy\[wandb\]'"):
        loggers.WandB("project")


def test_wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="runs of W&B need wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_SILENT", "true")
    log = loggers.WandB("project", mode="offline", dir=tmp_path)
    log_all(log, tmp_path)
    assert list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))


def test_mlflow_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = types.SimpleNamespace(experiment_id="7", info=types.SimpleNamespace(run_id="9"))
    client = Module("client")
    client.get_experiment_by_name = lambda name: None  # type: ignore[attr-defined]
    client.create_run = lambda number, run_name: run  # type: ignore[attr-defined]
    mlflow = types.ModuleType("mlflow")
    mlflow.MlflowClient = lambda tracking_uri: client  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    log = loggers.MLflow("tagger", hidden=8)
    assert log.run_id == "9"
    log_all(log, tmp_path)
    assert [(call[0], *call[1:-1]) for call in client.calls] == [
        ("create_experiment", "tagger"),
        ("log_param", "9", "hidden", 8),
        ("log_metric", "9", "loss", 0.5),
        ("log_metric", "9", "loss", 0.25),
        ("log_metric", "9", "accuracy", 0.75),
        ("log_text", "9", '<a> cat, "sat"', "sample_2.txt"),
        ("log_artifact", "9", str(tmp_path / "model.bin")),
        ("set_terminated", "9", "FINISHED"),
    ]


@pytest.mark.filterwarnings("ignore")
def test_mlflow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="runs of MLflow need mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "store").as_uri()
    log = loggers.MLflow("tagger", name="first", uri=uri, hidden=8)
    log_all(log, tmp_path)
    run = mlflow.MlflowClient(tracking_uri=uri).get_run(log.run_id)
    assert run.data.metrics == {"loss": 0.25, "accuracy": 0.75}
    assert run.data.params == {"hidden": "8"}
    assert run.info.status == "FINISHED"
    assert {path.name for path in tmp_path.rglob("artifacts/*")} == {"model.bin", "sample_2.txt"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_texts_for_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="texts are written by tensorboardX")
    log_all(loggers.TensorBoard(tmp_path / "run"), tmp_path)
    (events,) = (tmp_path / "run").iterdir()
    assert b"<a> cat" in events.read_bytes()
    assert b"model.bin" in events.read_bytes()


def test_only_rank_0_writes(rank_1: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", Module("wandb"))
    recorder = Recorder()
    page, curves = loggers.Page(tmp_path / "p.html"), loggers.Curves()
    folder = tmp_path / "files"
    for logger in (recorder, page, curves, loggers.CSV(folder / "c"), loggers.JSONL(folder / "j"), loggers.WandB()):
        log_all(logger, tmp_path)
    assert recorder.calls == []
    assert [path.name for path in tmp_path.iterdir()] == ["model.bin"]
    assert curves.values == page.values == {"loss": [(1, 0.5), (2, 0.25)], "accuracy": [(2, 0.75)]}  # kept on all ranks
    assert sys.modules["wandb"].calls == []


def test_training(tmp_path: Path) -> None:
    model = dy.ParameterCollection()
    model.add_parameters(1)
    recorder, path = Recorder(), tmp_path / "model.safetensors"
    for epoch in dy.Training(model, [[1]], 2, path=path, loggers=[recorder, loggers.JSONL(tmp_path / "log")]):
        for _ in epoch:
            epoch.add(0.5)
        epoch.report(score=epoch.number)
    assert recorder.calls == [
        ("numbers", {"loss": 0.5, "score": 1.0}, 1),
        ("numbers", {"loss": 0.5, "score": 2.0}, 2),
        ("artefact", str(path)),
        ("end", "FINISHED"),
    ]
    assert len((tmp_path / "log").read_text().splitlines()) == 3
    left = Recorder()
    for _ in dy.Training(model, [[1]], 2, loggers=[left]):
        break
    assert left.calls == [("end", "KILLED")]
    with pytest.raises(TypeError, match="a logger is a dynet_cy.loggers.Logger, not list"):
        dy.Training(model, [[1]], 2, loggers=[[]])  # type: ignore[list-item]


def test_curves_say_what_was_recorded_last() -> None:
    curves = loggers.Curves()
    assert repr(curves) == "<Curves: nothing yet>"
    curves.log({"loss": 0.5}, 1)
    curves.log({"loss": 0.25, "accuracy": 0.875}, 2)
    assert repr(curves) == "<Curves: loss 0.25 at 2, accuracy 0.875 at 2>"
