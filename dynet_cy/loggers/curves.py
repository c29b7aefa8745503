"""Training curves: numbers that are kept, drawn when the training ends, and shown in notebooks."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from dynet_cy.files.reading import FileName
from dynet_cy.files.replacing import ready, replacing
from dynet_cy.graph import Expression
from dynet_cy.graph.nodes import nodes_around
from dynet_cy.loggers.drawing import drawn
from dynet_cy.loggers.logger import Logger, needed
from dynet_cy.loggers.media import Embedding, Media
from dynet_cy.loggers.tensorboard import TensorBoard
from dynet_cy.model import ParameterCollection

Text = tuple[float, str, str]


class Kept(Logger):
    """A logger that keeps its records on all ranks; notebooks show them as curves."""

    def __init__(self) -> None:
        self.values: dict[str, list[tuple[float, float]]] = {}
        self.texts: list[Text] = []
        self.artefacts: list[str] = []

    def log(self, numbers: Mapping[str, float], step: float) -> None:
        for name, value in numbers.items():
            self.values.setdefault(name, []).append((step, float(value)))
        super().log(numbers, step)

    def log_text(self, name: str, text: str, step: float) -> None:
        self.texts.append((step, name, text))
        super().log_text(name, text, step)

    def log_artefact(self, path: FileName) -> None:
        super().log_artefact(path)
        self.artefacts.append(os.fspath(path))

    def __repr__(self) -> str:
        last = [f"{name} {points[-1][1]:g} at {points[-1][0]:g}" for name, points in self.values.items()]
        return f"<{type(self).__name__}: {', '.join(last) or 'nothing yet'}>"

    def _repr_html_(self) -> str:
        return drawn(self.values, self.texts, self.artefacts)


class Curves(Media, Kept):
    """Draws numbers of a training, such as losses and accuracies, over its steps.

    A context manager: the picture is drawn when the block ends, even by an exception. Without a picture and a folder,
    `add` only keeps the numbers, so a program need not treat that case separately. In a notebook, the curves are the
    value of a cell. With several processes, each keeps its numbers, and rank 0 draws and writes.

    Args:
        picture: a file for the picture; its ending, ".svg", ".png" or ".pdf", determines the format. It needs
            matplotlib: ``pip install 'dynet_cy[curves]'``
        tensorboard: a folder for TensorBoard, with a folder of its own for each training run. TensorBoard needs
            tensorboardX: ``pip install 'dynet_cy[tensorboard]'``
        step: the name of the x axis, such as "epoch" (default: "step")

    Attributes:
        formats: by name, how numbers are written, as in a format string; the axis of those that end in "%", such as
            ".2%", is in per cent
        values: for each name a list of pairs of a step and a number
        texts: the texts, each with its step and its name
        artefacts: the paths of the files

    Raises:
        ImportError: the package is not installed; the message says how to install it
        OSError: the picture or the folder cannot be made or written
        ValueError: the format of the picture is not one of the three

    Example:
        >>> with curves.Curves() as drawn:          # picture="curves.svg", tensorboard="runs/first"
        ...     for epoch in range(3):
        ...         drawn.add(epoch, loss=1 / (epoch + 1))
        >>> drawn.values["loss"][0]
        (0, 1.0)
    """

    def __init__(
        self, picture: FileName | None = None, tensorboard: FileName | None = None, step: str = "step"
    ) -> None:
        super().__init__()
        self.formats: dict[str, str] = {}
        self._step = step
        self._picture = None if picture is None else os.fspath(picture)
        if self._picture is not None:
            if not self._picture.endswith((".svg", ".png", ".pdf")):
                raise ValueError(f"Curves: a picture ends in .svg, .png or .pdf, not as {self._picture!r} does")
            needed("matplotlib", "Curves: picture", "curves")
            if self.writes:
                ready(self._picture)
        self._board: TensorBoard | None = None
        if tensorboard is not None:
            needed("tensorboardX", "Curves: tensorboard", "tensorboard")
            self._board = TensorBoard(tensorboard)

    def add(self, step: float, **values: float) -> None:
        """Record the numbers of one step, as `log` does.

        Args:
            step: the position on the x axis: an epoch, an update, words seen
            values: the numbers, by their names; one that is not finite leaves a gap

        Raises:
            OSError: the file for TensorBoard cannot be written

        Example:
            >>> drawn = curves.Curves()
            >>> drawn.add(1, loss=0.5, accuracy=0.8)
            >>> drawn.values
            {'loss': [(1, 0.5)], 'accuracy': [(1, 0.8)]}
        """
        self.log(values, step)

    def record_numbers(self, numbers: dict[str, float], step: float) -> None:
        for board in self._boards():
            board.log(numbers, step)

    def record_text(self, name: str, text: str, step: float) -> None:
        for board in self._boards():
            board.log_text(name, text, step)

    def record_artefact(self, path: str) -> None:
        for board in self._boards():
            board.log_artefact(path)

    def record_image(self, name: str, png: bytes, step: float) -> None:
        for board in self._boards():
            board.record_image(name, png, step)

    def record_audio(self, name: str, samples: npt.NDArray[np.int16], rate: int, step: float) -> None:
        for board in self._boards():
            board.record_audio(name, samples, rate, step)

    def record_embedding(self, name: str, embedding: Embedding, step: float) -> None:
        for board in self._boards():
            board.record_embedding(name, embedding, step)

    def add_histograms(self, step: int, model: ParameterCollection, gradients: bool = True) -> None:
        """Write histograms for TensorBoard, if there is a folder for it: see `TensorBoard.add_histograms`.

        Args:
            step: the number of the epoch or update
            model: the collection of the parameters
            gradients: whether to write histograms of gradients too. Default: True

        Example:
            >>> W = model.add_parameters((2, 2), name="W")
            >>> with curves.Curves() as drawn:           # tensorboard="runs/first"
            ...     dy.squared_norm(W).backward()
            ...     drawn.add_histograms(1, model)
        """
        for board in self._boards():
            board.add_histograms(step, model, gradients)

    def add_graph(self, *expressions: Expression) -> None:
        """Write a graph for TensorBoard, if there is a folder for it: see `TensorBoard.add_graph`.

        Args:
            expressions: one or more, of one graph

        Raises:
            StaleExpressionError: their graph was renewed
            ValueError: there is no expression, or they belong to several graphs

        Example:
            >>> with curves.Curves() as drawn:           # tensorboard="runs/first"
            ...     drawn.add_graph(dy.tanh(dy.inputVector([1, 2])))
        """
        nodes_around(expressions)
        for board in self._boards():
            board.add_graph(*expressions)

    def _boards(self) -> Iterable[TensorBoard]:
        return () if self._board is None else (self._board,)

    def end(self, status: str) -> None:
        for board in self._boards():
            board.close()
        if self._picture is not None and self.values:
            self._draw(self._picture)

    def _draw(self, picture: str) -> None:
        matplotlib, figures, ticker = (
            importlib.import_module(f"matplotlib{part}") for part in ("", ".figure", ".ticker")
        )
        figure = figures.Figure(figsize=(3.6 * len(self.values), 2.9), layout="constrained")
        for i, (name, points) in enumerate(self.values.items()):
            axes = figure.add_subplot(1, len(self.values), i + 1)
            steps = [step for step, _ in points]
            axes.plot(steps, [y if math.isfinite(y) else math.nan for _, y in points], color=f"C{i}", marker=".")
            axes.set_xlabel(self._step)
            axes.set_ylabel(name.replace("_", " "))
            if all(float(step).is_integer() for step in steps):
                axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
            if self.formats.get(name, "").endswith("%"):
                axes.yaxis.set_major_formatter(ticker.PercentFormatter(1.0))
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        with matplotlib.rc_context({"svg.fonttype": "none"}):  # text as text rather than outlines: a small file
            with replacing(picture) as file:
                figure.savefig(file, format=picture.rpartition(".")[2])
