"""Training curves: plots of losses and the like, and logs for TensorBoard with histograms and graphs."""

from __future__ import annotations

import importlib
import math
import os
import time
from collections.abc import Sequence
from types import ModuleType, TracebackType
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from dynet_cy.files.replacing import naming, replacing
from dynet_cy.graph import Expression
from dynet_cy.graph.nodes import GraphNode, nodes_around
from dynet_cy.model import LookupParameters, ParameterCollection

__all__ = ["Curves"]

FileName = Union[str, "os.PathLike[str]"]

# The edges of the bins of histograms, as TensorFlow has them: 10% wide.
_EDGES = 1e-12 * 1.1 ** np.arange(774)
_BINS = [*-_EDGES[::-1], 0.0, *_EDGES]
_FLUSHED_EVERY = 2.0  # seconds


class Curves:
    """Numbers that a training prints, such as losses and accuracies, drawn over its steps.

    A context manager: the picture is drawn when the block ends, even by an exception. Without a picture and a folder,
    `add` only keeps the numbers, so a program need not treat that case separately.

    Args:
        picture: a file for the picture; its ending, ".svg", ".png" or ".pdf", determines the format. It needs
            matplotlib: ``pip install 'dynet_cy[curves]'``
        tensorboard: a folder for TensorBoard, with a folder of its own for each training run. TensorBoard needs
            tensorboardX: ``pip install 'dynet_cy[tensorboard]'``

    Attributes:
        values: for each name a list of pairs of a step and a number

    Raises:
        ImportError: the package is not installed; the message says how to install it
        OSError: the folder cannot be made or written
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
        self._writer: _Events | None = None
        if self._picture is not None:
            if not self._picture.endswith((".svg", ".png", ".pdf")):
                raise ValueError(f"Curves: a picture ends in .svg, .png or .pdf, not as {self._picture!r} does")
            _needed("matplotlib", "picture", "curves")
        if tensorboard is not None:
            self._writer = _Events(os.fspath(tensorboard))

    def add(self, step: float, **values: float) -> None:
        """Record the numbers of one step.

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
        for name, value in values.items():
            self.values.setdefault(name, []).append((step, float(value)))
            if self._writer is not None:
                self._writer.add(step, summary=self._writer.summaries.scalar(name, float(value)))

    def add_histograms(self, step: int, model: ParameterCollection, gradients: bool = True) -> None:
        """Write histograms of parameters and of their gradients for TensorBoard, if there is a folder for it.

        They are called "parameters/..." and "gradients/...", followed by the names of the parameters. Gradients are
        those added up since the last update, so call this between `backward` and `update`; for a lookup table, only the
        rows that have one count. Frozen parameters have none, and numbers that are not finite are left out.

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
        if self._writer is None:
            return
        for name, p in model.named_parameters():
            self._histogram(f"parameters/{name}", p.as_array(), step)
            if gradients and p.is_updated():
                gradient = p.grad_as_array()
                if isinstance(p, LookupParameters):
                    gradient = gradient[gradient.reshape(len(gradient), -1).any(axis=1)]
                self._histogram(f"gradients/{name}", gradient, step)

    def _histogram(self, name: str, values: npt.NDArray[np.float32], step: int) -> None:
        finite = values[np.isfinite(values)].astype(np.float64)
        if finite.size and self._writer is not None:
            self._writer.add(step, summary=self._writer.summaries.histogram(name, finite, _BINS))

    def add_graph(self, *expressions: Expression) -> None:
        """Write the graph that computes the expressions for TensorBoard, if there is a folder for it.

        Nodes are grouped by the scopes in which they were made (`name_scope`, builders); parameters have their names.
        Nothing is computed.

        Args:
            expressions: one or more, of one graph

        Raises:
            StaleExpressionError: their graph was renewed
            ValueError: there is no expression, or they belong to several graphs

        Example:
            >>> with curves.Curves() as drawn:           # tensorboard="runs/first"
            ...     drawn.add_graph(dy.tanh(dy.inputVector([1, 2])))
        """
        around = nodes_around(expressions)
        if self._writer is None:
            return
        graph, versions = (importlib.import_module(f"tensorboardX.proto.{name}_pb2") for name in ("graph", "versions"))
        made = graph.GraphDef(versions=versions.VersionDef(producer=22), node=_tensorboard_nodes(around))
        self._writer.add(graph_def=made.SerializeToString())

    def close(self) -> None:
        """Draw the picture, and close the file for TensorBoard.

        Raises:
            OSError: one of them cannot be written

        Example:
            >>> curves.Curves().close()
        """
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
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
        with matplotlib.rc_context({"svg.fonttype": "none"}):  # text as text rather than outlines: a small file
            with replacing(picture) as file:
                figure.savefig(file, format=picture.rpartition(".")[2])

    def __enter__(self) -> Curves:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()


class _Events:
    """A file for TensorBoard, written by the calling thread.

    The thread of tensorboardX's own writer ends at the first error, such as a full disk, and its callers then wait for
    it forever.
    """

    def __init__(self, folder: str) -> None:
        _needed("tensorboardX", "tensorboard", "tensorboard")
        names = ("event_file_writer", "record_writer", "summary", "proto.event_pb2")
        files, records, self.summaries, self._events = (importlib.import_module(f"tensorboardX.{n}") for n in names)
        self._folder = folder
        with naming(folder):
            records.directory_check(folder)
            self._file = files.EventsWriter(os.path.join(folder, "events"))
        self._flushed = -math.inf

    def add(self, step: float = 0, **content: Any) -> None:
        """Write an event, so that TensorBoard shows it within seconds."""
        now = time.time()
        with naming(self._folder):
            self._file.write_event(self._events.Event(wall_time=now, step=int(step), **content))
            if now - self._flushed > _FLUSHED_EVERY:
                self._flushed = now
                self._file.flush()

    def close(self) -> None:
        with naming(self._folder):
            self._file.close()


def _tensorboard_nodes(nodes: Sequence[GraphNode]) -> list[Any]:
    """Nodes in TensorBoard's form: their names are paths through the scopes."""
    defs, attributes, shapes = (
        importlib.import_module(f"tensorboardX.proto.{name}_pb2") for name in ("node_def", "attr_value", "tensor_shape")
    )
    names: list[str] = []
    found = []
    for node in nodes:
        what = (node.parameter or node.op).strip("/").replace("/", ".")
        names.append(f"{node.scope}/{what}_{node.number}" if node.scope else f"{what}_{node.number}")
        sizes = [*node.shape, *([node.batch_size] if node.batch_size > 1 else [])]
        shape = shapes.TensorShapeProto(dim=[shapes.TensorShapeProto.Dim(size=size) for size in sizes])
        shown = attributes.AttrValue(list=attributes.AttrValue.ListValue(shape=[shape]))
        inputs = [names[i] for i in node.args]
        found.append(defs.NodeDef(name=names[-1], op=node.op, input=inputs, attr={"_output_shapes": shown}))
    return found


def _needed(package: str, argument: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(
            f"Curves: {argument} needs the package {package}: pip install 'dynet_cy[{extra}]' ({error})"
        ) from None
