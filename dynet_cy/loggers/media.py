"""Images, figures, sounds and vectors of a training, for loggers that show them, under the names of PyTorch's
`SummaryWriter`."""

from __future__ import annotations

import io
import math
import struct
import sys
import wave
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dynet_cy.graph import Expression
from dynet_cy.loggers.logger import Logger

Pixels = npt.NDArray[np.uint8]

_COLOURS = {1: 0, 3: 2, 4: 6}  # of PNG, by the number of channels: grey, RGB, with opacity


class Embedding(NamedTuple):
    """Vectors to be shown as points."""

    vectors: npt.NDArray[np.float64]
    labels: list[str]  # the lines of a table, with a heading if there are several columns
    sprite: Any  # an array of pixels: pictures of all points, in a square; None: there are none
    size: int  # of each, in pixels


class Media(Logger):
    """A logger of images, figures, sounds and vectors too.

    The methods have the names and arguments of `SummaryWriter` of PyTorch. Arrays may be expressions and tensors, too.

    Example:
        >>> curves.Curves().add_image("digit", np.zeros((8, 8)), 1)
    """

    def add_image(self, tag: str, img_tensor: Any, global_step: float = 0, dataformats: str | None = None) -> None:
        """Record an image.

        Args:
            tag: its name
            img_tensor: floats from 0 to 1, others are clipped; or uint8
            global_step: the number of the epoch or update
            dataformats: the order of its axes: "HW", "HWC" or "CHW", where C has 1 channel, 3 or 4. None, the default:
                as its shape says

        Raises:
            ValueError: the shape is another one, or says nothing about the order; or a number is not finite
            TypeError: other integers than uint8

        Example:
            >>> def training(log):                       # with loggers.TensorBoard("runs/first") as log
            ...     log.add_image("digit", np.zeros((8, 8)), 1)
        """
        pixels = _pixels(img_tensor, "HWC", dataformats, "add_image")
        if self.writes:
            self.record_image(tag, png(pixels), global_step)

    def add_images(self, tag: str, img_tensor: Any, global_step: float = 0, dataformats: str | None = None) -> None:
        """Record images of one size, side by side.

        Args:
            tag: their name
            img_tensor: as for `add_image`
            global_step: the number of the epoch or update
            dataformats: "NHW", "NHWC" or "NCHW"; None, the default: as the shape says

        Raises:
            ValueError, TypeError: as for `add_image`

        Example:
            >>> def training(log):                       # with loggers.TensorBoard("runs/first") as log
            ...     log.add_images("digits", np.zeros((10, 8, 8, 3)), 1)
        """
        pixels = _side_by_side(_pixels(img_tensor, "NHWC", dataformats, "add_images"))
        if self.writes:
            self.record_image(tag, png(pixels), global_step)

    def add_figure(self, tag: str, figure: Any, global_step: float = 0, close: bool = True) -> None:
        """Record a figure of matplotlib as an image.

        Args:
            tag: its name
            figure: the figure
            global_step: the number of the epoch or update
            close: whether pyplot may forget the figure. Default: True

        Raises:
            TypeError: it is not a figure

        Example:
            >>> from matplotlib.figure import Figure  # doctest: +SKIP
            >>> def training(log):                       # with loggers.TensorBoard("runs/first") as log
            ...     log.add_figure("attention", Figure(), 1)
        """
        if not callable(getattr(figure, "savefig", None)):
            raise TypeError(f"add_figure: argument figure: expected a figure of matplotlib, got {figure!r:.80}")
        if self.writes:
            drawn = io.BytesIO()
            figure.savefig(drawn, format="png")
            self.record_image(tag, drawn.getvalue(), global_step)
        pyplot = sys.modules.get("matplotlib.pyplot")
        if close and pyplot is not None:
            pyplot.close(figure)

    def add_audio(self, tag: str, snd_tensor: Any, global_step: float = 0, sample_rate: int = 44100) -> None:
        """Record a sound.

        Args:
            tag: its name
            snd_tensor: samples from -1 to 1, others are clipped: a vector, or a matrix with an axis for 1 or 2 channels
            global_step: the number of the epoch or update
            sample_rate: samples a second. Default: 44,100

        Raises:
            ValueError: the shape is another one, or a number is not finite

        Example:
            >>> def training(log):                       # with loggers.TensorBoard("runs/first") as log
            ...     log.add_audio("tone", np.sin(np.arange(8000) / 8), 1, sample_rate=8000)
        """
        samples = _samples(snd_tensor)
        if self.writes:
            self.record_audio(tag, samples, int(sample_rate), global_step)

    def add_embedding(
        self,
        mat: Any,
        metadata: Sequence[Any] | None = None,
        label_img: Any = None,
        global_step: float = 0,
        tag: str = "default",
        metadata_header: Sequence[str] | None = None,
    ) -> None:
        """Record vectors, which are shown as points.

        Args:
            mat: the vectors, a row for each
            metadata: a label for each; with `metadata_header`, a sequence of labels for each
            label_img: a square image for each, with the axes NHW, NHWC or NCHW, see `add_images`
            global_step: the number of the epoch or update
            tag: a name
            metadata_header: headings of the labels

        Raises:
            ValueError: it is no matrix, or there are not as many labels or images

        Example:
            >>> def training(log):                       # with loggers.TensorBoard("runs/first") as log
            ...     log.add_embedding(np.eye(2), metadata=["cat", "dog"])
        """
        vectors = np.asarray(_array(mat, "add_embedding", "mat"), np.float64)
        if vectors.ndim != 2:
            raise ValueError(f"add_embedding: argument mat: expected a matrix, got an array of shape {vectors.shape}")
        rows = [] if metadata is None else [[x] if metadata_header is None else list(x) for x in metadata]
        sprite, size = None, 0
        if label_img is not None:
            images = _pixels(label_img, "NHWC", None, "add_embedding", "label_img")
            size = images.shape[1]
            if images.shape[1] != images.shape[2]:
                raise ValueError(f"add_embedding: argument label_img: expected squares, got {images.shape[1:3]}")
            _as_many("label_img", len(images), vectors)
            sprite = _side_by_side(images, square=True)
        if metadata is not None:
            _as_many("metadata", len(rows), vectors)
        if metadata_header is not None:
            rows = [list(metadata_header), *rows]
        if len({len(row) for row in rows}) > 1:
            raise ValueError("add_embedding: argument metadata: expected as many labels of each vector as headings")
        labels = ["\t".join(" ".join(str(x).split()) for x in row) for row in rows]
        if self.writes:
            self.record_embedding(tag, Embedding(vectors, labels, sprite, size), global_step)

    def record_image(self, name: str, png: bytes, step: float) -> None:
        """Write an image. To be overridden; otherwise images are dropped.

        Args:
            name: what it is
            png: a file in PNG format
            step: the position on the x axis

        Example:
            >>> curves.Curves().record_image("digit", b"", 1)
        """

    def record_audio(self, name: str, samples: npt.NDArray[np.int16], rate: int, step: float) -> None:
        """Write a sound. To be overridden; otherwise sounds are dropped.

        Args:
            name: what it is
            samples: a row for each sample, a column for each channel
            rate: samples a second
            step: the position on the x axis

        Example:
            >>> curves.Curves().record_audio("tone", np.zeros((8, 1), np.int16), 8000, 1)
        """

    def record_embedding(self, name: str, embedding: Embedding, step: float) -> None:
        """Write vectors. To be overridden; otherwise vectors are dropped.

        Args:
            name: what they are
            embedding: the vectors, with labels and images
            step: the position on the x axis

        Example:
            >>> from dynet_cy.loggers.media import Embedding
            >>> curves.Curves().record_embedding("words", Embedding(np.eye(2), [], None, 0), 1)
        """


def _as_many(argument: str, count: int, vectors: npt.NDArray[Any]) -> None:
    if count != len(vectors):
        raise ValueError(f"add_embedding: argument {argument}: there are {count}, and {len(vectors)} vectors")


def _array(x: Any, function: str, argument: str) -> npt.NDArray[Any]:
    """Numbers as an array."""
    found = x.npvalue() if isinstance(x, Expression) else np.asarray(x)
    if found.dtype.kind not in "fiub":
        raise TypeError(f"{function}: argument {argument}: expected an array of numbers, got {x!r:.80}")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise ValueError(f"{function}: argument {argument}: a number is not finite")
    return found


# -- images --------------------------------------------------------------------------------------


def _pixels(x: Any, wanted: str, axes: str | None, function: str, argument: str = "img_tensor") -> Pixels:
    """An image, or several, with the axes in the wanted order."""
    array = _array(x, function, argument)
    plain, others = wanted.replace("C", ""), wanted.replace("HWC", "CHW")
    orders = [plain] if array.ndim == len(plain) else [wanted, others]
    if axes is None:
        axes = _order(array.shape, orders, function, argument)
    order = axes.upper()
    if order not in (plain, wanted, others) or len(order) != array.ndim:
        expected = ", ".join((plain, wanted, others))
        raise ValueError(
            f"{function}: argument dataformats: expected one of {expected}, for {argument} of shape {array.shape}, "
            f"got {axes!r:.80}"
        )
    if "C" not in order:
        array, order = array[..., None], order + "C"
    array = array.transpose([order.index(axis) for axis in wanted])
    if array.shape[-1] not in _COLOURS or not array.size:
        raise ValueError(
            f"{function}: argument {argument}: expected 1, 3 or 4 channels, got {array.shape[-1]} "
            f"in an array with axes {wanted} of shape {array.shape}"
        )
    if array.dtype.kind == "f":
        array = np.rint(np.clip(array, 0, 1) * 255).astype(np.uint8)
    elif array.dtype == bool:
        array = array.astype(np.uint8) * np.uint8(255)
    elif array.dtype != np.uint8:
        raise TypeError(f"{function}: argument {argument}: expected floats from 0 to 1 or uint8, got {array.dtype}")
    pixels: Pixels = array
    return pixels


def _order(shape: tuple[int, ...], orders: Sequence[str], function: str, argument: str) -> str:
    """The order of axes in which the number of channels makes sense."""
    fitting = [
        order
        for order in orders
        if len(order) == len(shape) and ("C" not in order or shape[order.index("C")] in _COLOURS)
    ]
    if len(fitting) != 1:
        asked = f"; dataformats says whether it is {' or '.join(fitting)}" if fitting else ""
        raise ValueError(
            f"{function}: argument {argument}: expected a matrix for each image, or three axes, of which C has 1, 3 or "
            f"4 channels, got an array of shape {shape}{asked}"
        )
    return fitting[0]


def _side_by_side(images: Pixels, square: bool = False) -> Pixels:
    """Images in rows and columns; `square`: as many rows as columns."""
    count, height, width, channels = images.shape
    columns = math.ceil(math.sqrt(count))
    rows = columns if square else math.ceil(count / columns)
    found = np.zeros((rows * columns, height, width, channels), np.uint8)
    found[:count] = images
    found = found.reshape(rows, columns, height, width, channels).swapaxes(1, 2)
    return found.reshape(rows * height, columns * width, channels)


def png(pixels: Pixels) -> bytes:
    """A file in PNG format.

    Args:
        pixels: with the axes HWC
    """
    height, width, channels = pixels.shape
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # each begins with 0: no filter
    rows[:, 1:] = pixels.reshape(height, -1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows.tobytes()))
        + chunk(b"IEND", b"")
    )


# -- sounds --------------------------------------------------------------------------------------


def _samples(x: Any) -> npt.NDArray[np.int16]:
    """Samples of 16 bits: a row for each, a column for each channel."""
    array = _array(x, "add_audio", "snd_tensor")
    samples = array[:, None] if array.ndim == 1 else array
    if samples.ndim == 2 and samples.shape[1] not in (1, 2):
        samples = samples.T
    if samples.ndim != 2 or samples.shape[1] not in (1, 2) or not samples.size:
        raise ValueError(
            "add_audio: argument snd_tensor: expected a vector, or 1 or 2 channels, got an array of shape "
            f"{array.shape}"
        )
    rounded: npt.NDArray[np.int16] = np.rint(np.clip(samples, -1, 1) * 32767).astype(np.int16)
    return rounded


def wav(samples: npt.NDArray[np.int16], rate: int) -> bytes:
    """A file in WAV format.

    Args:
        samples: a row for each sample, a column for each channel
        rate: samples a second
    """
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())
    return written.getvalue()
