"""The base class of models of images."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from dynet_cy.graph import Expression
from dynet_cy.nn import Linear
from dynet_cy.ops import api as ops
from dynet_cy.ops.registry import DimensionError
from dynet_cy.pretrained.heads import label_names, labels_of
from dynet_cy.pretrained.model import Pretrained

Images = Union[Expression, npt.ArrayLike, Sequence[npt.ArrayLike]]

_PREPARATION = "preprocessor_config.json"


class VisionModel(Pretrained):
    """The base class of models of images, `ViT` and `ResNet`. A new model is in evaluation mode, as in `transformers`;
    the `train` of a layer that holds it sets its mode, too.

    An image is an array of rows x columns x channels, or an expression of that shape. An array of four axes, with the
    batch as the last one, or a list of images of one size, is a minibatch. The numbers are those that the model was
    trained with: usually the values from 0 to 1, minus their mean, divided by their deviation.

    Args:
        config: the settings in `config.json`
        model: where the parameters go
        present: whether the model has each of its optional parts

    Attributes:
        channels: of the images, such as 3 for red, green and blue
        dim: length of the vector of an image
        labels: the names of the classes; without a classifier, an empty list. Others may be assigned.
        classifier: the linear layer for the scores of the classes, or None. Assign another one for
            classes of your own, such as ``dy.nn.Linear(resnet.dim, 10, model)``: `labels` become ``LABEL_0`` and so on,
            until you assign names. ``load(folder, model, labels=[...])`` makes both.
        checkpoint: whether the values within blocks are dropped and computed again in backward, for less memory; see
            `dynet_cy.checkpoint`
    """

    head_name = "classifier"
    channels: int
    dim: int
    classifier: Linear | None

    def _begin(self, dim: int) -> None:
        """Read the settings that all models have."""
        self.dim = dim
        self.channels = self.config.size("num_channels", 3)
        self.files: dict[str, bytes] = {}

    def _add_classifier(self, present: bool) -> None:
        self.labels = labels_of(self.config) if present else []
        self.classifier = None
        if present:
            self.classifier = Linear(self.dim, len(self.labels), self.collection)

    def _assigns(self, name: str, value: Any) -> bool:
        if name != self.head_name:
            return super()._assigns(name, value)
        self.new_parts = (name,)
        count = getattr(value, "output_dim", 0)
        names = [] if count == 0 else label_names(count, type(self).__name__)
        object.__setattr__(self, "labels", names)  # those before are the names of other scores
        self.spec = (*self.spec[:-1], value is not None)
        self._note_labels(names)
        return True

    def _images(self, images: Images, size: tuple[int, int] | None = None) -> Expression:
        """An image or a minibatch as an expression, after checking its shape."""
        name = type(self).__name__
        x = images if isinstance(images, Expression) else self._array(images)
        shape, _ = x.dim()
        if len(shape) != 3 or shape[2] != self.channels or 0 in shape:
            raise DimensionError(
                f"{name}: argument images: expected rows, columns and {self.channels} channels, got {shape}"
                f"{_advice(shape, self.channels)}"
            )
        if size is not None and shape[:2] != size:
            raise DimensionError(
                f"{name}: argument images: expected {size[0]} x {size[1]} pixels, as the table of positions has, got "
                f"{shape[0]} x {shape[1]}: resize the image"
            )
        return x

    def _array(self, images: Any) -> Expression:
        name = f"{type(self).__name__}: argument images"
        if isinstance(images, (list, tuple)) and images and all(np.ndim(image) == 3 for image in images):
            shapes = sorted({np.shape(image) for image in images})
            if len(shapes) > 1:
                raise DimensionError(f"{name}: images of one size are a minibatch, got {shapes[0]} and {shapes[1]}")
            images = np.stack([np.asarray(image) for image in images], axis=-1)
        numbers = np.asarray(images)
        if numbers.dtype.kind != "f":
            kind = "whole numbers" if numbers.dtype.kind in "iu" else f"an array of type {numbers.dtype}"
            raise TypeError(
                f"{name}: expected floats, got {kind}: write (x / 255 - mean) / std, with the model's mean and std"
            )
        if numbers.ndim not in (3, 4):
            raise DimensionError(f"{name}: expected an array of 3 axes, or of 4 for a minibatch, got {numbers.shape}")
        if numbers.ndim == 4 and numbers.shape[2] != self.channels:
            raise DimensionError(
                f"{name}: expected rows, columns, {self.channels} channels and the batch, got {numbers.shape}"
                f"{_advice(numbers.shape, self.channels)}"
            )
        return ops.inputTensor(numbers, batched=numbers.ndim == 4)

    def features(self, images: Images) -> Expression:
        """The vector of an image, which the classifier reads: shape ``{dim}``.

        Args:
            images: an image or a minibatch

        Raises:
            DimensionError: another number of channels, or another size than that of the model
            TypeError: something other than floats

        Example:
            >>> config = dict(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic")
            >>> dy.pretrained.ResNet(config, model).features(np.zeros((16, 12, 3))).dim()
            ((8,), 1)
        """
        found: Expression = self._feature(self(images))
        return found

    @abc.abstractmethod
    def _feature(self, x: Expression) -> Expression:
        """The vector of an image, from what a call returns."""

    def scores(self, images: Images) -> Expression:
        """The scores of the classes, whose softmax are probabilities: shape ``{classes}``.

        Args:
            images: an image or a minibatch

        Raises:
            ValueError: there is no classifier
            DimensionError: another number of channels, or another size than that of the model
            TypeError: something other than floats

        Example:
            >>> config = dict(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic")
            >>> resnet = dy.pretrained.ResNet(config, model)
            >>> resnet.classifier = dy.nn.Linear(resnet.dim, 10, model)
            >>> resnet.scores(np.zeros((16, 12, 3))).dim()
            ((10,), 1)
        """
        if self.classifier is None:
            raise ValueError(
                f"{type(self).__name__}.scores: the files have no classifier; load(folder, model, labels=[...]) makes "
                "a new one"
            )
        return self.classifier(self.features(images))

    # ---- files

    def _read_folder(self, folder: Path) -> None:
        path = folder / _PREPARATION
        self.files = {_PREPARATION: path.read_bytes()} if path.is_file() else {}

    def _files(self) -> Mapping[str, bytes]:
        return self.files

    def _architecture(self, kind: str) -> str:
        base = self.model_types[kind]
        return base if self.classifier is None else base.replace("Model", "ForImageClassification")

    def _is_part(self) -> bool:
        return self.classifier is not None

    def to_file(self, parameter: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array

    def from_file(self, parameter: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array

    def _outline(self) -> str:
        classes = f", {len(self.labels)} classes" if self.labels else ""
        return f"({self._sizes()}{classes}, {self._count()}){self._reported()}"

    @abc.abstractmethod
    def _sizes(self) -> str:
        """The sizes of the model, for its text."""


def _advice(shape: tuple[int, ...], channels: int) -> str:
    """Advice for an array in another layout."""
    axes = {
        (3, 0): ("channels first, as in PyTorch", "x.transpose(1, 2, 0)"),
        (4, 1): ("the batch and channels first, as in PyTorch", "x.transpose(2, 3, 1, 0)"),
        (4, 3): ("the batch first", "x.transpose(1, 2, 3, 0)"),
    }
    for (count, axis), (what, write) in axes.items():
        if len(shape) == count and shape[axis] == channels:
            return f": for an array x with {what}, write {write}"
    return ""
