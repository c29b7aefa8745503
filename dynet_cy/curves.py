"""Training curves: numbers of a training as a picture, and in TensorBoard."""

from __future__ import annotations

import importlib
import math
import os
from types import ModuleType, TracebackType
from typing import Any, Union

__all__ = ["Curves"]

FileName = Union[str, "os.PathLike[str]"]


class Curves:
    """Numbers that a training prints, such as losses and accuracies, drawn over its steps.

    A context manager: the picture is drawn when the block ends, by an exception too. Where neither a picture nor a
    folder is given, `add` only keeps the numbers, so that a program needs no case of its own for that.

    Args:
        picture: a file for the picture, whose ending says which format it has: ".svg", ".png" or ".pdf". It needs
            matplotlib: ``pip install 'dynet_cy[curves]'``
        tensorboard: a folder for TensorBoard, in which every training has a folder of its own. It needs tensorboardX:
            ``pip install 'dynet_cy[tensorboard]'``

    Attributes:
        values: for each name a list of pairs of a step and a number

    Raises:
        ImportError: the package is not installed; it says how to install it
        ValueError: the format of the picture is not one of the three

    Example:
        >>> with curves.Curves() as drawn:          # picture="curves.svg", tensorboard="runs/first"
        ...     for epoch in range(3):
        ...         drawn.add(epoch, loss=1 / (epoch + 1))
        >>> drawn.values["loss"][0]
        (0, 1.0)
    """

    def __init__(self, picture: FileName | None = None, tensorboard: FileName | None = None) -> None:
        self.values: dict[str, list[tuple[float, float]]] = {}
        self._picture = None if picture is None else os.fspath(picture)
        self._writer: Any = None
        if self._picture is not None:
            if not self._picture.endswith((".svg", ".png", ".pdf")):
                raise ValueError(f"Curves: a picture ends in .svg, .png or .pdf, not as {self._picture!r} does")
            _needed("matplotlib", "picture", "curves")
        if tensorboard is not None:
            self._writer = _needed("tensorboardX", "tensorboard", "tensorboard").SummaryWriter(os.fspath(tensorboard))

    def add(self, step: float, **values: float) -> None:
        """Note numbers of one step.

        Args:
            step: what stands on the axis below: an epoch, an update, words seen
            values: the numbers, by their names; one that is not finite leaves a gap

        Example:
            >>> drawn = curves.Curves()
            >>> drawn.add(1, loss=0.5, accuracy=0.8)
            >>> drawn.values
            {'loss': [(1, 0.5)], 'accuracy': [(1, 0.8)]}
        """
        for name, value in values.items():
            self.values.setdefault(name, []).append((step, float(value)))
            if self._writer is not None:
                self._writer.add_scalar(name, float(value), step)

    def close(self) -> None:
        """Draw the picture, and end what is written for TensorBoard.

        Raises:
            OSError: the picture cannot be written

        Example:
            >>> curves.Curves().close()
        """
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._picture is not None and self.values:
            self._draw(self._picture)

    def _draw(self, picture: str) -> None:
        matplotlib, figures = (importlib.import_module(name) for name in ("matplotlib", "matplotlib.figure"))
        figure = figures.Figure(figsize=(3.6 * len(self.values), 2.9), layout="constrained")
        for i, (name, points) in enumerate(self.values.items()):
            axes = figure.add_subplot(1, len(self.values), i + 1)
            steps = [step for step, _ in points]
            axes.plot(steps, [y if math.isfinite(y) else math.nan for _, y in points], color=f"C{i}", marker=".")
            axes.set_title(name)
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        with matplotlib.rc_context({"svg.fonttype": "none"}):  # letters as letters: a small file
            figure.savefig(picture)

    def __enter__(self) -> Curves:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()


def _needed(package: str, argument: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(
            f"Curves: {argument} needs the package {package}: pip install 'dynet_cy[{extra}]' ({error})"
        ) from None
