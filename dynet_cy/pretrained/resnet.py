"""ResNet, with Hugging Face's names or torchvision's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dynet_cy.files.reading import FileName
from dynet_cy.files.textfile import ModelMismatchError
from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection
from dynet_cy.nn import BatchNorm, Conv2d, GlobalAvgPool2d, MaxPool2d, ResidualBlock
from dynet_cy.ops.registry import DimensionError
from dynet_cy.pretrained.blocks import ACTIVATIONS
from dynet_cy.pretrained.config import Config
from dynet_cy.pretrained.model import ConfigLike, Fill, Layout, as_config
from dynet_cy.pretrained.saving import write_tensors
from dynet_cy.pretrained.vision import Images, VisionModel

_ROOT, _BLOCK = "embedder.embedder", "encoder.stages.*.layers.*"
_NAMES = {
    "conv1": f"{_ROOT}.convolution",
    "bn1": f"{_ROOT}.normalization",
    **{f"layers.*.*.conv{i + 1}": f"{_BLOCK}.layer.{i}.convolution" for i in range(3)},
    **{f"layers.*.*.bn{i + 1}": f"{_BLOCK}.layer.{i}.normalization" for i in range(3)},
    "layers.*.*.downsample.0": f"{_BLOCK}.shortcut.convolution",
    "layers.*.*.downsample.1": f"{_BLOCK}.shortcut.normalization",
    "classifier": "classifier.1",
}
_PARTS = ("conv1", "bn1", "conv2", "bn2", "conv3", "bn3", "downsample.0", "downsample.1")


class ResNet(VisionModel):
    """ResNet (He et al., "Deep residual learning for image recognition", CVPR 2016) with 18 to 152 layers. See
    `VisionModel` for images and attributes. Images may have any size.

    In training mode, `BatchNorm` takes the statistics of the images of one call, and moves the running statistics: so
    call the model on minibatches, or leave it in evaluation mode.

    Args:
        config: the settings in `config.json`, as a dictionary or in JSON
        model: where the parameters go
        classifier: whether there is a linear layer for the scores of classes
        fill: is called with the new model; if it raises an error, nothing is left in the model

    Raises:
        ModelFileError: a setting is missing or out of its range

    Example:
        >>> config = dict(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic")
        >>> resnet = dy.pretrained.ResNet(config, model, classifier=True)
        >>> resnet(np.zeros((16, 12, 3))).dim()
        ((2, 2, 8), 1)
        >>> resnet.scores(np.zeros((16, 12, 3))).dim()
        ((2,), 1)
    """

    model_types = {"resnet": "ResNetModel"}
    names = _NAMES
    prefix = "resnet."

    def __init__(
        self, config: ConfigLike, model: ParameterCollection, classifier: bool = False, fill: Fill = None
    ) -> None:
        self.config = as_config(config)
        sizes, depths = self._numbers("hidden_sizes", [256, 512, 1024, 2048]), self._numbers("depths", [3, 4, 6, 3])
        if len(sizes) != len(depths):
            raise self.config.wrong("depths", f"as many numbers as hidden_sizes has, {len(sizes)},")
        first = self.config.size("embedding_size", 64)
        bottleneck = self.config.choice("layer_type", ("basic", "bottleneck"), "bottleneck") == "bottleneck"
        activation = self.config.choice("hidden_act", ACTIVATIONS, "relu")
        self.config.only("downsample_in_bottleneck", False)
        self._begin(sizes[-1])
        self._check_room(first, sizes, depths, bottleneck)
        super().__init__(self.config, model, bool(classifier))
        self.activation = ACTIVATIONS[activation]
        self.conv1 = Conv2d(self.channels, first, 7, self.collection, 2, 3, bias=False)
        self.bn1 = BatchNorm(first, self.collection, axis=-1)
        self.pool = MaxPool2d(3, 2, padding=1)
        self.layers: list[list[ResidualBlock]] = []
        before = first
        for stage, (channels, depth) in enumerate(zip(sizes, depths)):
            blocks = []
            for number in range(depth):
                halves = number == 0 and (stage > 0 or self.config.flag("downsample_in_first_stage"))
                inner = channels // 4 if bottleneck else None
                blocks.append(
                    ResidualBlock(before, channels, self.collection, 2 if halves else 1, inner, None, activation)
                )
                before = channels
            self.layers.append(blocks)
        self.mean = GlobalAvgPool2d()
        self._add_classifier(bool(classifier))
        self.eval()
        if fill is not None:
            fill(self)

    def _numbers(self, key: str, default: list[int]) -> list[int]:
        found = self.config.get(key, default)
        numbers: list[int] = found if isinstance(found, list) else []
        if not numbers or not all(type(n) is int and 0 < n < 1 << 31 for n in numbers):
            raise self.config.wrong(key, "a list of whole numbers from 1 on")
        return numbers

    def _check_room(self, first: int, sizes: list[int], depths: list[int], bottleneck: bool) -> None:
        """Check that what the settings say is not larger than the files."""
        check = self.config.check_room
        check("embedding_size", 49, self.channels, first)
        for before, size, depth in zip([first, *sizes], sizes, depths):
            if bottleneck and size < 4:
                raise self.config.wrong("hidden_sizes", "numbers from 4 on, for bottlenecks,")
            check("hidden_sizes", before, size // 4 if bottleneck else size)
            check("depths", depth, size)

    @classmethod
    def _layout(cls) -> Layout:
        return Layout(f"{_ROOT}.convolution.weight", ("classifier.1.weight",))

    def __call__(self, images: Images, *, all_layers: bool = False) -> Any:
        """The features of an image.

        Args:
            images: an image or a minibatch
            all_layers: whether to return the results of all stages, that of the first convolution and pooling first

        Returns:
            Expression of shape ``{h,w,dim}`` with a 32nd of the rows and columns, for four stages; with `all_layers` a
            list with one for each stage.

        Raises:
            DimensionError: another number of channels
            TypeError: something other than floats
            ValueError: in training mode, a channel has only one element
        """
        x = self.pool(self.activation(self.bn1(self.conv1(self._images(images)))))
        states = [x]
        for blocks in self.layers:
            for number, block in enumerate(blocks):
                x = self._run(number, block, x, ())
            states.append(x)
        return states if all_layers else x

    def _feature(self, x: Expression) -> Expression:
        return self.mean(x)

    def pooled(self, x: Expression) -> Expression:
        """The mean of each channel.

        Args:
            x: what a call returns

        Returns:
            Expression of shape ``{dim}``.

        Raises:
            DimensionError: something else

        Example:
            >>> config = dict(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic")
            >>> resnet = dy.pretrained.ResNet(config, model)
            >>> resnet.pooled(resnet(np.zeros((16, 12, 3)))).dim()
            ((8,), 1)
        """
        shape, _ = x.dim()
        if shape[-1] != self.dim:
            raise DimensionError(f"ResNet.pooled: argument x: expected {self.dim} channels, got {shape}")
        return self._feature(x)

    def _by_depth(self) -> list[Any]:
        blocks = [block for stage in self.layers for block in stage]
        return [*blocks[::-1], [self.conv1, self.bn1]]

    # ---- files

    def _tensors(self) -> dict[str, npt.NDArray[Any]]:
        return _with_counts(super()._tensors())

    def save_torchvision(self, path: FileName) -> None:
        """Write a safetensors file with torchvision's names, for `load_state_dict` of its `resnet18` to `resnet152`.

        Args:
            path: the file

        Raises:
            OSError: the file cannot be written

        Example:
            >>> config = dict(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic")
            >>> dy.pretrained.ResNet(config, model).save_torchvision("resnet.safetensors")
            >>> dy.pretrained.load("resnet.safetensors", model).dim
            8
        """
        arrays = self.state_dict().items()
        named = {self.tensor_name(name, TORCHVISION.names): self.to_file(name, array) for name, array in arrays}
        write_tensors(Path(path), _with_counts(named))

    def _sizes(self) -> str:
        return f"{'-'.join(str(len(stage)) for stage in self.layers)} blocks, vectors of {self.dim}"


TORCHVISION = Layout(
    "conv1.weight",
    ("fc.weight",),
    {
        "conv1": "conv1",
        "bn1": "bn1",
        **{f"layers.{i}.*.{part}": f"layer{i + 1}.*.{part}" for i in range(9) for part in _PARTS},
        "classifier": "fc",
    },
)
"""The names in torchvision, and in timm."""


def _with_counts(tensors: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """The tensors, and for each `BatchNorm` the number of its minibatches, which PyTorch does not use for these."""
    counts = {
        name.replace("running_mean", "num_batches_tracked"): np.zeros((), np.int64)
        for name in tensors
        if name.endswith(".running_mean")
    }
    return {**tensors, **counts}


def torchvision_settings(tensors: Mapping[str, Any], source: str) -> Config | None:
    """The settings of a ResNet with torchvision's names, by the shapes of its tensors; None if it is not one.

    Args:
        tensors: what has a shape, by name
        source: the file, for errors

    Raises:
        ModelMismatchError: a tensor is missing, or has another shape than filters have
    """
    known = "layer1.0.conv1.weight"
    prefix = min((name[: -len(known)] for name in tensors if name.endswith(known)), key=len, default=None)
    if prefix is None:
        return None

    def shape(name: str) -> tuple[int, ...]:
        full = f"{prefix}{name}.weight"
        if full not in tensors:
            raise ModelMismatchError(f"there is no {full}", source, parameter=full)
        found: tuple[int, ...] = tensors[full].shape
        if len(found) != 4:
            raise ModelMismatchError(f"has shape {found}, filters have four axes", source, parameter=full)
        return found

    def count(pattern: str, first: int) -> int:
        number = first
        while f"{prefix}{pattern.format(number)}.conv1.weight" in tensors:
            number += 1
        return number - first

    stages = count("layer{}.0", 1)
    bottleneck = f"{prefix}layer1.0.conv3.weight" in tensors
    last = "conv3" if bottleneck else "conv2"
    root = shape("conv1")
    settings: dict[str, Any] = {
        "model_type": "resnet",
        "num_channels": root[1],
        "embedding_size": root[0],
        "hidden_sizes": [shape(f"layer{stage}.0.{last}")[0] for stage in range(1, stages + 1)],
        "depths": [count(f"layer{stage}.{{}}", 0) for stage in range(1, stages + 1)],
        "layer_type": "bottleneck" if bottleneck else "basic",
    }
    classes = tensors.get(f"{prefix}fc.weight")
    if classes is not None:
        settings["id2label"] = {str(i): f"LABEL_{i}" for i in range(classes.shape[0] if classes.shape else 0)}
    return Config(settings, source)
