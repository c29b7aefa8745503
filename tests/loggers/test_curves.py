"""Training curves, as pictures and for TensorBoard."""

from __future__ import annotations

import contextlib
import io
import re
import struct
import sys
import wave
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.curves import Curves
from dynet_cy.loggers import TensorBoard


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

    (file,) = folder.glob("events*")
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


# -- images, figures, sounds, vectors ------------------------------------------------------------

GREY = np.arange(30).reshape(5, 6) / 29


def decoded(png: bytes) -> np.ndarray:
    """The pixels of a file in PNG format whose rows have no filter."""
    width, height, depth, colours = struct.unpack(">IIBB", png[16:26])
    assert (png[:8], depth, png[-8:-4]) == (b"\x89PNG\r\n\x1a\n", 8, b"IEND")
    (length,) = struct.unpack(">I", png[33:37])
    assert struct.unpack(">I", png[41 + length : 45 + length])[0] == zlib.crc32(png[37 : 41 + length])
    rows = np.frombuffer(zlib.decompress(png[41 : 41 + length]), np.uint8).reshape(height, -1)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, {0: 1, 2: 3, 6: 4}[colours])


@pytest.fixture
def board(tmp_path: Path) -> Iterator[TensorBoard]:
    pytest.importorskip("tensorboardX", reason="TensorBoard's files are written by tensorboardX")
    with TensorBoard(tmp_path / "run") as board:
        yield board


def values(board: TensorBoard, folder: Path) -> list[Any]:
    board.close()
    return [(event.step, value) for event in written(folder / "run") for value in event.summary.value]


COLOURS = np.stack([GREY, GREY / 2, 1 - GREY], -1)
IMAGES = {
    "HW": (GREY, None, GREY[..., None]),
    "HWC": (COLOURS, None, COLOURS),
    "CHW": (COLOURS.transpose(2, 0, 1), None, COLOURS),
    "grey CHW": (GREY[None], None, GREY[..., None]),
    "named": (COLOURS[:3, :3], "chw", COLOURS[:3, :3].transpose(1, 2, 0)),
    "four channels": (np.dstack([COLOURS, GREY]), None, np.dstack([COLOURS, GREY])),
    "clipped": (GREY * 4 - 1, None, np.clip(GREY * 4 - 1, 0, 1)[..., None]),
    "uint8": (np.arange(10, dtype=np.uint8).reshape(2, 5), None, np.arange(10).reshape(2, 5, 1) / 255),
    "bool": (GREY > 0.5, None, (GREY > 0.5)[..., None]),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str, board: TensorBoard, tmp_path: Path) -> None:
    image, order, expected = IMAGES[name]
    board.add_image("picture", image, 3, dataformats=order)
    ((step, value),) = values(board, tmp_path)
    assert (step, value.tag) == (3, "picture")
    np.testing.assert_array_equal(decoded(value.image.encoded_image_string), np.rint(expected * 255))
    assert (value.image.height, value.image.width) == expected.shape[:2]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_images_side_by_side(board: TensorBoard, tmp_path: Path) -> None:
    board.add_images("pictures", np.stack([GREY, GREY / 2, GREY / 4]), 1)
    board.add_images("expression", dy.inputTensor(np.stack([COLOURS.transpose(2, 0, 1)] * 2)), 2)
    (_, three), (_, two) = values(board, tmp_path)
    grid = np.block([[GREY, GREY / 2], [GREY / 4, 0 * GREY]])
    np.testing.assert_array_equal(decoded(three.image.encoded_image_string)[..., 0], np.rint(grid * 255))
    expected = np.rint(np.concatenate([COLOURS, COLOURS], 1).astype(np.float32) * 255)
    np.testing.assert_allclose(decoded(two.image.encoded_image_string), expected, atol=1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("axes", ["frames", "frames, channels", "channels, frames"])
def test_sounds(axes: str, board: TensorBoard, tmp_path: Path) -> None:
    sound = np.sin(np.arange(40)) * 1.5
    given = {"frames": sound, "frames, channels": np.stack([sound, sound], 1), "channels, frames": sound[None]}[axes]
    board.add_audio("tone", given, 2, sample_rate=8000)
    ((_, value),) = values(board, tmp_path)
    with wave.open(io.BytesIO(value.audio.encoded_audio_string)) as file:
        assert (file.getframerate(), file.getnframes()) == (8000, 40)
        samples = np.frombuffer(file.readframes(40), "<i2").reshape(40, file.getnchannels())
    assert file.getnchannels() == value.audio.num_channels == (2 if axes == "frames, channels" else 1)
    np.testing.assert_array_equal(samples[:, 0], np.rint(np.clip(sound, -1, 1) * 32767))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_figure(board: TensorBoard, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures are those of matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2, 1), dpi=50)
    figure.add_subplot().plot([1, 2])
    board.add_figure("attention", figure, 4)
    ((step, value),) = values(board, tmp_path)
    assert (step, value.image.width, value.image.height) == (4, 100, 50)
    assert value.image.encoded_image_string.startswith(b"\x89PNG")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_embeddings(board: TensorBoard, tmp_path: Path) -> None:
    board.add_embedding(np.eye(2), ["a cat", "çiçek\n"], np.ones((2, 3, 3)), global_step=1)
    board.add_embedding(dy.inputTensor([[1, 2]]), [["dog", 3]], metadata_header=["word", "count"], tag='the "words"')
    board.add_embedding(np.eye(2) * 2, global_step=1)  # replaces the first one
    folder = tmp_path / "run"
    assert (folder / "00001/default/tensors.tsv").read_text() == "2.0\t0.0\n0.0\t2.0\n"
    assert (folder / "00001/default/metadata.tsv").read_text("utf-8") == "a cat\nçiçek\n"
    assert decoded((folder / "00001/default/sprite.png").read_bytes()).shape == (6, 6, 1)
    assert (folder / "00000/the%20%22words%22/metadata.tsv").read_text() == "word\tcount\ndog\t3\n"
    config = (folder / "projector_config.pbtxt").read_text("utf-8")
    assert config.count("embeddings {") == 2
    assert 'tensor_name: "the \\"words\\":00000"' in config
    assert 'sprite { image_path: "00001/default/sprite.png" single_image_dim: 3 single_image_dim: 3 }' in config


WRONG = {
    "no axes": ("add_image", (np.zeros(3),), r"got an array of shape \(3,\)"),
    "two channels": ("add_image", (np.zeros((5, 6, 2)),), r"expected a matrix .* shape \(5, 6, 2\)"),
    "either order": ("add_image", (np.zeros((3, 5, 3)),), "dataformats says whether it is HWC or CHW"),
    "an unknown order": ("add_image", (np.zeros((3, 5, 3)), 1, "WTF"), "expected one of HW, HWC, CHW"),
    "too few axes": ("add_image", (np.zeros((3, 5)), 1, "CHW"), "expected one of HW, HWC, CHW"),
    "integers": ("add_image", (np.zeros((3, 5), int),), "expected floats from 0 to 1 or uint8"),
    "NaN": ("add_image", (np.full((3, 5), np.nan),), "a number is not finite"),
    "words": ("add_image", ("picture.png",), "expected an array of numbers"),
    "no image": ("add_images", (np.zeros((0, 3, 5)),), "expected 1, 3 or 4 channels|shape"),
    "three channels of sound": ("add_audio", (np.zeros((3, 5)),), r"1 or 2 channels, got an array of shape \(3, 5\)"),
    "no figure": ("add_figure", (np.zeros(3),), "expected a figure of matplotlib"),
    "a vector": ("add_embedding", (np.zeros(3),), r"expected a matrix, got an array of shape \(3,\)"),
    "labels": ("add_embedding", (np.eye(3), ["a"]), "metadata: there are 1, and 3 vectors"),
    "pictures": ("add_embedding", (np.eye(3), None, np.zeros((2, 4, 4))), "label_img: there are 2, and 3 vectors"),
    "no squares": ("add_embedding", (np.eye(2), None, np.zeros((2, 4, 5))), "expected squares"),
    "headings": ("add_embedding", (np.eye(1), [["a"]], None, 0, "x", ["b", "c"]), "as many labels of each vector"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_media(name: str) -> None:
    method, arguments, message = WRONG[name]
    names = [] if method == "add_embedding" else ["thing"]
    with pytest.raises((TypeError, ValueError), match=f"{method}: .*({message})"):
        getattr(Curves(), method)(*names, *arguments)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_curves_pass_media_on(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="TensorBoard's files are written by tensorboardX")
    for curves in (Curves(), Curves(tensorboard=tmp_path / "run")):
        with curves:
            curves.add_image("picture", GREY, 1)
            curves.add_audio("tone", GREY[0], 2)
            curves.add_embedding(GREY)
    events = [value for event in written(tmp_path / "run") for value in event.summary.value]
    assert [value.tag for value in events] == ["picture", "tone"]
    assert (tmp_path / "run" / "projector_config.pbtxt").exists()
