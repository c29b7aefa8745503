"""Logs for TensorBoard: numbers, texts, images, sounds, vectors, histograms of parameters and gradients, graphs."""

from __future__ import annotations

import importlib
import json
import math
import os
import struct
import time
import urllib.parse
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dynet_cy.files.reading import FileName
from dynet_cy.files.replacing import naming, replacing, write_file
from dynet_cy.graph import Expression
from dynet_cy.graph.nodes import GraphNode, nodes_around
from dynet_cy.loggers.logger import needed
from dynet_cy.loggers.media import Embedding, Media, png, wav
from dynet_cy.model import LookupParameters, ParameterCollection

# The edges of the bins of histograms, as TensorFlow has them: 10% wide.
_EDGES = 1e-12 * 1.1 ** np.arange(774)
_BINS = [*-_EDGES[::-1], 0.0, *_EDGES]
_FLUSHED_EVERY = 2.0  # seconds


class TensorBoard(Media):
    """Writes a folder for TensorBoard, one for each run. It needs ``pip install 'dynet_cy[tensorboard]'``.

    The calling thread writes the file. The thread of tensorboardX's own writer ends at the first error, such as a full
    disk, and its callers then wait for it forever.

    Args:
        folder: the folder, which is made if there is none

    Raises:
        ImportError: tensorboardX is not installed; the message says how to install it
        OSError: the folder cannot be made or written

    Example:
        >>> def training(log):                           # with loggers.TensorBoard("runs/first") as log
        ...     log.log({"loss": 0.5}, 1)
    """

    def __init__(self, folder: FileName) -> None:
        needed("tensorboardX", "TensorBoard", "tensorboard")
        if not self.writes:
            return
        names = ("event_file_writer", "record_writer", "summary", "proto.event_pb2", "proto.summary_pb2")
        files, records, self._summaries, self._events, self._protocol = (
            importlib.import_module(f"tensorboardX.{n}") for n in names
        )
        self._folder = os.fspath(folder)
        with naming(self._folder):
            records.directory_check(self._folder)
            self._file = files.EventsWriter(os.path.join(self._folder, "events"))
        self._flushed = -math.inf
        self._embeddings: set[str] = set()  # those that the configuration lists

    def record_numbers(self, numbers: dict[str, float], step: float) -> None:
        for name, value in numbers.items():
            self._write(step, summary=self._summaries.scalar(name, value))

    def record_text(self, name: str, text: str, step: float) -> None:
        self._write(step, summary=self._summaries.text(name, text))

    def record_artefact(self, path: str) -> None:
        self.record_text("artefact", path, 0)

    def record_image(self, name: str, png: bytes, step: float) -> None:
        width, height = struct.unpack(">II", png[16:24])
        image = self._protocol.Summary.Image(height=height, width=width, encoded_image_string=png)
        self._record(name, step, image=image)

    def record_audio(self, name: str, samples: npt.NDArray[np.int16], rate: int, step: float) -> None:
        frames, channels = samples.shape
        audio = self._protocol.Summary.Audio(
            sample_rate=rate,
            num_channels=channels,
            length_frames=frames,
            encoded_audio_string=wav(samples, rate),
            content_type="audio/wav",
        )
        self._record(name, step, audio=audio)

    def record_embedding(self, name: str, embedding: Embedding, step: float) -> None:
        # Not in the file of events: TensorBoard reads files in a folder, which a configuration lists.
        inside = f"{int(step):05d}/{urllib.parse.quote(name, safe='')}"
        rows = ["\t".join(map(repr, row)) for row in embedding.vectors.tolist()]
        files = {"tensors.tsv": _lines(rows)}
        shown = json.dumps(f"{name}:{int(step):05d}", ensure_ascii=False)
        entry = [f"tensor_name: {shown}", f'tensor_path: "{inside}/tensors.tsv"']
        if embedding.labels:
            files["metadata.tsv"] = _lines(embedding.labels)
            entry.append(f'metadata_path: "{inside}/metadata.tsv"')
        if embedding.sprite is not None:
            files["sprite.png"] = png(embedding.sprite)
            size = f"single_image_dim: {embedding.size}"
            entry.append(f'sprite {{ image_path: "{inside}/sprite.png" {size} {size} }}')
        folder = os.path.join(self._folder, *inside.split("/"))
        with naming(folder):
            os.makedirs(folder, exist_ok=True)
        for file, content in files.items():
            write_file(os.path.join(folder, file), content)
        if inside not in self._embeddings:
            self._embeddings.add(inside)
            with replacing(os.path.join(self._folder, "projector_config.pbtxt"), append=True) as config:
                config.write(_lines(["embeddings {", *entry, "}"]))

    def _record(self, name: str, step: float, **content: Any) -> None:
        """Write a summary of one thing."""
        summary = self._protocol.Summary
        self._write(step, summary=summary(value=[summary.Value(tag=name, **content)]))

    def add_histograms(self, step: int, model: ParameterCollection, gradients: bool = True) -> None:
        """Write histograms of parameters and of their gradients.

        They are called "parameters/..." and "gradients/...", followed by the names of the parameters. Gradients are
        those added up since the last update, so call this between `backward` and `update`; for a lookup table, only the
        rows that have one count. Frozen parameters have none, and numbers that are not finite are left out.

        Args:
            step: the number of the epoch or update
            model: the collection of the parameters
            gradients: whether to write histograms of gradients too. Default: True

        Example:
            >>> def training(log):                       # with loggers.TensorBoard("runs/first") as log
            ...     log.add_histograms(1, model)
        """
        if not self.writes:
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
        if finite.size:
            self._write(step, summary=self._summaries.histogram(name, finite, _BINS))

    def add_graph(self, *expressions: Expression) -> None:
        """Write the graph that computes the expressions.

        Nodes are grouped by the scopes in which they were made (`name_scope`, builders); parameters have their names.
        Nothing is computed.

        Args:
            expressions: one or more, of one graph

        Raises:
            StaleExpressionError: their graph was renewed
            ValueError: there is no expression, or they belong to several graphs

        Example:
            >>> def training(log):                       # with loggers.TensorBoard("runs/first") as log
            ...     log.add_graph(dy.tanh(dy.inputVector([1, 2])))
        """
        around = nodes_around(expressions)
        if not self.writes:
            return
        graph, versions = (importlib.import_module(f"tensorboardX.proto.{name}_pb2") for name in ("graph", "versions"))
        made = graph.GraphDef(versions=versions.VersionDef(producer=22), node=_tensorboard_nodes(around))
        self._write(graph_def=made.SerializeToString())

    def _write(self, step: float = 0, **content: Any) -> None:
        """Write an event, so that TensorBoard shows it within seconds."""
        now = time.time()
        with naming(self._folder):
            self._file.write_event(self._events.Event(wall_time=now, step=int(step), **content))
            if now - self._flushed > _FLUSHED_EVERY:
                self._flushed = now
                self._file.flush()

    def end(self, status: str) -> None:
        with naming(self._folder):
            self._file.close()


def _lines(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


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
