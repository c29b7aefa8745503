"""`dy.Training` and the command lines of programs that train."""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import re
import sys
import time
from pathlib import Path

import pytest

import dynet_cy as dy
from dynet_cy import commandline


@pytest.fixture
def model() -> dy.ParameterCollection:
    model = dy.ParameterCollection()
    model.add_parameters(1, init=0.0, name="w")
    return model


def train(training: dy.Training, scores: list[float]) -> list[float]:
    """Go through the epochs with these scores; the shares of the training that were over before each batch."""
    done = []
    for epoch, score in zip(training, scores):
        for batch in epoch:
            done.append(training.done)
            epoch.add(float(len(batch)), len(batch))
        training.stopping._collection["w"].set_value([score])
        epoch.report(UAS=score / 2, LAS=score)
    return done


DATA = ["abc", "d"]


def test_lines_and_the_best_model(model: dy.ParameterCollection, tmp_path: Path, capsys) -> None:
    path = tmp_path / "runs" / "model.safetensors"
    training = dy.Training(model, DATA, 3, path=path, extra={"size": 1}, unit="letters")
    assert train(training, [0.25, 0.75, 0.5, 9.0]) == pytest.approx([0, 1 / 6, 1 / 3, 1 / 2, 2 / 3, 5 / 6])
    printed = re.sub(r"[\d.]+ s, \d+", "T", capsys.readouterr().out).splitlines()
    assert printed == [
        "epoch 1: loss 2.5000, T letters/s, dev UAS 12.50%, LAS 25.00%",
        "epoch 2: loss 2.5000, T letters/s, dev UAS 37.50%, LAS 75.00%",
        "epoch 3: loss 2.5000, T letters/s, dev UAS 25.00%, LAS 50.00%",
        f"best dev UAS 37.50%, LAS 75.00% after epoch 2, model saved in {path}",
    ]
    assert training.curves.values["LAS"] == [(1, 0.25), (2, 0.75), (3, 0.5)]
    assert repr(training) == "<Training: 100% of 3 epochs, best dev UAS 37.50%, LAS 75.00% after epoch 2>"
    assert dy.load_safetensors(path, model) == {"size": 1}
    assert model["w"].as_array().tolist() == [0.75]


def test_patience_and_units(model: dy.ParameterCollection, capsys) -> None:
    training = dy.Training(model, DATA, 9, patience=2, mode="min", total=4, shown=".1f", scored="test")
    assert train(training, [4.0, 3.0, 3.5, 3.0, 1.0])[:3] == pytest.approx([0, 3 / 36, 4 / 36])
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 6
    assert printed[-2:] == ["no better for 2 epochs: stopping", "best test UAS 1.5, LAS 3.0 after epoch 2"]
    training.stopping.reload()
    assert model["w"].as_array().tolist() == [3.0]


def test_no_progress_bar_is_needed(model: dy.ParameterCollection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert len(train(dy.Training(model, DATA, 1), [0.5])) == 2


def test_a_score_is_needed(model: dy.ParameterCollection) -> None:
    epoch = next(iter(dy.Training(model, DATA, 1)))
    assert repr(epoch) == "<Epoch 1 of 1: 0 items>"
    epoch.add(0.25, 2)
    assert repr(epoch) == "<Epoch 1 of 1: loss 0.2500, 2 items>"
    with pytest.raises(ValueError, match="pass a score"):
        epoch.report()
    with pytest.raises(ValueError, match='"loss" is that of training'):
        epoch.report(loss=0.5)


def test_bad_arguments(model: dy.ParameterCollection) -> None:
    with pytest.raises(TypeError, match="a list_iterator has one only"):
        dy.Training(model, iter(DATA), 2)
    with pytest.raises(ValueError, match="patience"):
        dy.Training(model, DATA, 2, patience=0)


def test_an_epoch_may_break(model: dy.ParameterCollection, capsys) -> None:
    for epoch in dy.Training(model, DATA, 1):
        for _ in epoch:
            epoch.add(1.0)
            time.sleep(0.01)
            break
        epoch.report(accuracy=0.5)
    speed = re.search(r"(\d+) items/s", capsys.readouterr().out)
    assert speed is not None
    assert int(speed[1]) <= 100


def test_without_reports_nothing_is_the_best(model: dy.ParameterCollection, capsys) -> None:
    for epoch in dy.Training(model, DATA, 1):
        list(epoch)
    assert capsys.readouterr().out == ""


def saved(path: Path) -> float | None:
    """The parameter in a file."""
    if not path.exists():
        return None
    model = dy.ParameterCollection()
    w = model.add_parameters(1, name="w")
    dy.load_safetensors(path, model)
    return float(w.as_array()[0])


NAN = float("nan")


@pytest.mark.parametrize("before", [None, 9.0])
@pytest.mark.parametrize(
    ("scores", "leaves", "found"),
    [
        ([None, None, None], "", [1, 2, 3]),  # no report: the last parameters
        ([NAN, NAN, NAN], "", [1, 2, 3]),
        ([NAN, None, 0.5, None, NAN], "", [1, 2, 3, 3, 3]),  # from a number on, the best ones
        ([0.5, NAN, None, 0.25], "", [1, 1, 1, 1]),
        ([None, None], "after the batches", [1, 2]),
        ([None, None], "in the batches", [1, 1]),
        ([None], "in the batches", ["before"]),  # a part of an epoch replaces no file
        ([None], "by an error", ["before"]),
    ],
)
@pytest.mark.filterwarnings("ignore:EarlyStopping.report. the value is nan")
def test_no_training_is_lost(
    model: dy.ParameterCollection, tmp_path: Path, before: float | None, scores: list, leaves: str, found: list
) -> None:
    """What is in the file after each epoch."""
    path = tmp_path / "best"
    if before is not None:
        model["w"].set_value([before])
        dy.save_safetensors(path, model)
    training = dy.Training(model, DATA, len(scores), path=path)
    with contextlib.suppress(ZeroDivisionError):
        for epoch, score in zip(training, scores):
            if epoch.number > 1:
                assert saved(path) == found[epoch.number - 2]
            model["w"].set_value([epoch.number])
            last = epoch.number == len(scores)
            for _ in epoch:
                if last and leaves == "in the batches":
                    break
                if last and leaves == "by an error":
                    raise ZeroDivisionError
            if score is not None:
                epoch.report(accuracy=score)
            if last and leaves:
                break
    del training
    gc.collect()
    expected = found[-1]
    if expected == "before":
        expected = 1 if before is None else before
    assert saved(path) == expected


def test_scores_that_are_no_numbers_are_mentioned(model: dy.ParameterCollection, tmp_path: Path, capsys) -> None:
    path = tmp_path / "best"
    with pytest.warns(UserWarning, match=r"the value is nan, so no parameters are the best ones; .*best has the last"):
        train(dy.Training(model, DATA, 1, path=path), [NAN, 0.5])
    assert capsys.readouterr().out.splitlines()[-1] == f"no score that is a number, model saved in {path} after epoch 1"


def test_errors_come_before_the_training(model: dy.ParameterCollection, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "best", tmp_path / "folder"):
        with pytest.raises(OSError, match="file|folder"):
            dy.Training(model, DATA, 1, path=path)
        with pytest.raises(OSError, match="file|folder"):
            dy.EarlyStopping(model, path=path)
    with pytest.raises(TypeError, match="extra, or an attribute of the trainer, cannot be kept"):
        dy.Training(model, DATA, 1, path=tmp_path / "new" / "best", extra={"words": {1, 2}})


# -- the command line ----------------------------------------------------------------------------


def parser(**options) -> commandline.Parser:
    return commandline.Parser("Train.", **options)


def test_programs_without_some_options() -> None:
    args = parser(epochs=2, learning_rate=1, curves=False, saves=False).parse_args(["--learning-rate", "0.1"])
    assert args.learning_rate == 0.1
    assert [epoch.number for epoch in commandline.training(args, dy.ParameterCollection(), ["a"])] == [1, 2]


def test_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["somewhere/tagger.py"])
    args = parser(data="text", epochs=3, sizes={"word_dim": 8, "dropout": 0.5}).parse_args(["--word-dim", "9"])
    found = {name: value for name, value in vars(args).items() if value is not None}
    model = Path("runs/tagger.safetensors")
    sizes = {"word_dim": 9, "dropout": 0.5}
    assert found == {"epochs": 3, **sizes, "sizes": sizes, "seed": 1, "model": model}
    assert parser(data="text", sizes={"word_dim": 8}).parse_intermixed_args([]).sizes == {"word_dim": 8}
    assert not hasattr(parser(saves=False, curves=False).parse_args([]), "curves")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("line 2"), "tagger.py: line 2"),
        (FileNotFoundError("no file"), "tagger.py: no file"),
        (ImportError("pip install it"), "tagger.py: pip install it"),
        (KeyboardInterrupt(), "tagger.py: interrupted"),
    ],
)
def test_errors_are_messages(monkeypatch: pytest.MonkeyPatch, error: BaseException, message: str) -> None:
    def main(args: argparse.Namespace) -> None:
        raise error

    monkeypatch.setattr(sys, "argv", ["somewhere/tagger.py"])
    with pytest.raises(SystemExit) as caught:
        parser().run(main, [])
    assert caught.value.code == message


def test_the_seed_is_set() -> None:
    def draw(args: argparse.Namespace) -> None:
        dy.renew_cg()
        found.append(dy.random_normal((1,)).value())

    found: list[float] = []
    for seed in ("3", "3", "4"):
        parser().run(draw, ["--seed", seed])
    assert found[0] == found[1] != found[2]


def test_data(tmp_path: Path) -> None:
    def read(*options: str) -> tuple[list[str], list[str]]:
        args = parser(data="text").parse_args(options)
        return commandline.read_data(args, dy.data.lines, lambda: list("abc"))

    train, dev = tmp_path / "train", tmp_path / "dev"
    train.write_text("1\n2\n3\n")
    dev.write_text("4\n")
    assert read() == (["b", "c"], ["a"])
    assert read("--train", str(train), "--limit", "2") == (["2"], ["1"])
    assert read("--train", str(train), "--dev", str(dev)) == (["1", "2", "3"], ["4"])
    with pytest.raises(ValueError, match="dev: hold_out: at least 2 items are needed, not 1; give --dev FILE too"):
        read("--train", str(dev))
    with pytest.raises(ValueError, match="--train FILE is needed"):
        commandline.read_data(parser(data="text").parse_args([]), dy.data.lines)


def test_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    (tmp_path / "text").write_text("a\nb\nc\n")
    assert list(commandline.input_lines(tmp_path / "text", 2)) == [["a", "b"], ["c"]]
    monkeypatch.setattr("sys.stdin", Terminal("a\nb"))
    assert list(commandline.input_lines("-", 2)) == [["a"], ["b"]]


def test_networks_are_built_again(tmp_path: Path) -> None:
    class Network(dy.nn.Layer):
        def __init__(self, sizes: dict) -> None:
            super().__init__(dy.ParameterCollection(), (sizes,))
            self.out = dy.nn.Linear(sizes["dim"], 2, self.collection)

    network = Network({"dim": 3})
    dy.save_safetensors(tmp_path / "model", network.collection, extra={"dim": 3})
    same = dy.load_network(tmp_path / "model", Network)
    assert same.collection.parameters_list()[0].as_array().tolist() == (
        network.collection.parameters_list()[0].as_array().tolist()
    )
    dy.save_safetensors(tmp_path / "other", network.collection, extra={"rows": 3})
    with pytest.raises(ValueError, match="other: the model of another program: it has no 'dim'"):
        dy.load_network(tmp_path / "other", Network)


def test_a_command_and_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    two = parser(command="tag", file="text")
    assert [two.parse_args(line.split()).command for line in ("", "train", "tag")] == ["train", "train", "tag"]
    assert [two.parse_args(line.split()).file for line in ("tag", "tag text")] == ["-", "text"]
    with pytest.raises(SystemExit):
        two.parse_args(["parse"])
    needs = parser(command="parse", file="trees", stdin=False)
    needs.run(lambda args: print(args.command, args.file), ["train"])
    assert capsys.readouterr().out == "train None\n"
    with pytest.raises(SystemExit, match="parse: a file is needed"):
        needs.run(print, ["parse"])


def test_every_so_many_updates() -> None:
    """Once for a number of updates, whatever the number of batches in an update, and from the start of the training."""
    model = dy.ParameterCollection()
    w = model.add_parameters(1, init=1.0)
    trainer = dy.SimpleSGDTrainer(model)

    def update() -> None:
        dy.renew_cg()
        dy.squared_norm(w).backward()
        trainer.update()

    update()
    run = dy.Training(model, [1], epochs=1)
    due = []
    for _ in range(6):
        update()
        due.append([run.every(3), run.every(3), run.every(2)])
    assert due == [[n in (3, 6), False, n % 2 == 0] for n in range(1, 7)]
    passed = []
    for _ in range(4):  # two updates between two questions, at odd numbers only
        update()
        passed.append(run.every(4))
        update()
    assert passed == [True, True, False, True]  # after 7, 9, 11 and 13 updates
    with pytest.raises(ValueError, match=r"Training\.every: updates must be at least 1, not 0"):
        run.every(0)
