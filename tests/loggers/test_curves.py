"""Training curves, as pictures and for TensorBoard."""

from __future__ import annotations

import contextlib
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.curves import Curves


def test_numbers_are_kept() -> None:
    with Curves() as curves:
        curves.add(1, loss=2, accuracy=0.5)
        curves.add(2, loss=1)
    assert curves.values == {"loss": [(1, 2.0), (2, 1.0)], "accuracy": [(1, 0.5)]}


@pytest.mark.parametrize(("package", "argument"), [("matplotlib", "picture"), ("tensorboardX", "tensorboard")])
def test_without_the_package(package: str, argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{argument} needs the package {package}: pip install 'dynet_cy\[\w+\]'"):
        Curves(**{argument: tmp_path / "c.svg"})
    assert list(tmp_path.iterdir()) == []


def test_bad_format(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a picture ends in .svg, .png or .pdf, not as 'loss.txt' does"):
        Curves(picture="loss.txt")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
def test_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures are drawn by matplotlib")
    picture = tmp_path / "curves.svg"
    with contextlib.suppress(KeyError), Curves(picture, step="epoch") as curves:
        for step in range(5):
            curves.add(step, loss=float("nan") if step == 2 else 1 / (step + 1), dev_LAS=step / 5)
            curves.formats["dev_LAS"] = ".2%"
        raise KeyError  # interrupted training has curves too
    text = picture.read_text(encoding="utf-8")
    assert text.count('<g id="axes_') == 2
    words = re.findall(r"<text[^>]*>([^<]*)</text>", text)
    assert {"loss", "dev LAS", "epoch"} < set(words)
    assert [word for word in words if word in ("0", "1", "0.5", "1.5", "3.5")] == ["0", "1"] * 2  # whole epochs
    assert any(word.endswith("%") for word in words)
    Curves(tmp_path / "empty.svg").close()
    assert not (tmp_path / "empty.svg").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="scalars are written by tensorboardX")
    with Curves(tensorboard=tmp_path / "run") as curves:
        curves.add(1, loss=0.25)
    (events,) = (tmp_path / "run").iterdir()
    assert b"loss" in events.read_bytes()


def written(folder: Path) -> Iterator[Any]:
    """The events in a TensorBoard file, which has records with lengths and checksums."""
    from tensorboardX.proto import event_pb2

    (file,) = folder.iterdir()
    data = file.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield event_pb2.Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_histograms(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="histograms are written by tensorboardX")
    model = dy.ParameterCollection()
    W = model.parameters_from_numpy(np.array([1.0, 2.0, np.nan]), name="W")
    table = model.add_lookup_parameters((9, 2), init=3, name="words")
    frozen = model.add_parameters(2, init=5, name="frozen")
    frozen.set_updated(False)
    with Curves(tensorboard=tmp_path / "run") as curves:
        dy.renew_cg()
        (dy.squared_norm(table[4]) + dy.squared_norm(W[:2]) + dy.squared_norm(frozen)).backward()
        curves.add_histograms(7, model)
        curves.add_histograms(8, model, gradients=False)
    found = {}
    for event in written(tmp_path / "run"):
        for value in event.summary.value:
            found.setdefault(event.step, {})[value.tag] = value.histo
    assert set(found[8]) == {"parameters/W", "parameters/frozen", "parameters/words"}
    assert set(found[7]) - set(found[8]) == {"gradients/W", "gradients/words"}
    assert (found[7]["parameters/W"].num, found[7]["parameters/W"].max) == (2, 2.0)  # NaN and infinity are omitted
    words = found[7]["gradients/words"]  # only the row with a gradient
    assert (words.num, words.min, words.max) == (2, 6.0, 6.0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_graph(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="graphs are written by tensorboardX")
    from tensorboardX.proto import graph_pb2

    model = dy.ParameterCollection()
    W = model.add_parameters((3, 2), name="W")
    dy.renew_cg()
    with Curves(tensorboard=tmp_path / "run") as curves:
        with dy.name_scope("encoder"):
            y = W * dy.inputVector([1, 2])
        curves.add_graph(dy.tanh(y))
        with pytest.raises(ValueError, match="there is no expression"):
            curves.add_graph()
    (graph,) = [graph_pb2.GraphDef.FromString(e.graph_def) for e in written(tmp_path / "run") if e.graph_def]
    nodes = {node.op: node for node in graph.node}
    assert {node.op for node in graph.node} == {"parameter", "input", "matmul", "tanh"}
    assert nodes["tanh"].input == [nodes["matmul"].name]
    assert nodes["matmul"].name.startswith("encoder/")
    assert nodes["parameter"].name.split("/")[-1].startswith("W_")
    assert [d.size for d in nodes["tanh"].attr["_output_shapes"].list.shape[0].dim] == [3]


def test_without_a_folder_nothing_is_written() -> None:
    model = dy.ParameterCollection()
    W = model.add_parameters(2)
    dy.renew_cg()
    Curves().add_histograms(1, model)
    Curves().add_graph(dy.tanh(W))
