"""ViT."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection
from dynet_cy.nn import Conv2d, Dropout, Layer, LayerNorm, Linear
from dynet_cy.ops import api as ops
from dynet_cy.pretrained.blocks import ACTIVATIONS, Block
from dynet_cy.pretrained.model import ConfigLike, Fill, Layout, as_config
from dynet_cy.pretrained.names import projections
from dynet_cy.pretrained.settings import KEYS, read_settings
from dynet_cy.pretrained.vision import Images, VisionModel

_KEYS = {
    **KEYS,
    "vocabulary": ("", 1),
    "embedding_dim": ("", 0),
    "positions": ("", 1),
    "types": ("", 0),
    "dropout": ("hidden_dropout_prob", 0.0),
    "attention_dropout": ("attention_probs_dropout_prob", 0.0),
}


class _Patches(Layer):
    """A column for each patch of an image, in the order of rows, after one of the model's own; with positions."""

    def __init__(self, dim: int, model: ParameterCollection, channels: int, patch: tuple[int, int], count: int) -> None:
        super().__init__(model)
        self.projection = Conv2d(channels, dim, patch, self.collection, patch)
        self.cls_token = self._vector(dim, name="cls_token")
        self.position_embeddings = self.collection.add_parameters(
            (dim, count + 1), init=0.0, name="position_embeddings"
        )

    def __call__(self, x: Expression) -> Expression:
        """The columns, ``{dim,patches + 1}``."""
        y = self.projection(x)
        (rows, columns, dim), batch = y.dim()
        y = ops.reshape(ops.transpose(y, [2, 1, 0]), (dim, rows * columns), batch)
        first = ops.reshape(self.cls_token, (dim, 1))
        if batch > 1:
            first = first + ops.zeros((dim, 1), batch)
        return ops.concatenate([first, y], d=1) + self.position_embeddings


class ViT(VisionModel):
    """ViT (Dosovitskiy et al., "An image is worth 16x16 words: Transformers for image recognition at scale", ICLR
    2021). See `VisionModel` for images and attributes.

    Args:
        config: the settings in `config.json`, as a dictionary or in JSON
        model: where the parameters go
        pooler: whether there is a linear layer for the vector of an image, which `pooled` uses
        classifier: whether there is a linear layer for the scores of classes
        fill: is called with the new model; if it raises an error, nothing is left in the model

    Raises:
        ModelFileError: a setting is missing or out of its range

    Example:
        >>> config = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
        >>> vit = dy.pretrained.ViT({**config, "image_size": 6, "patch_size": 3}, model, classifier=True)
        >>> vit(np.zeros((6, 6, 3))).dim()  # a column for each patch, after that of the whole image
        ((8, 5), 1)
        >>> vit.scores([np.zeros((6, 6, 3)), np.ones((6, 6, 3))]).dim()
        ((2,), 2)
    """

    model_types = {"vit": "ViTModel"}
    names = {
        "patches": "embeddings",
        "patches.projection": "embeddings.patch_embeddings.projection",
        "layers.*.attention_norm": "encoder.layer.*.layernorm_before",
        **projections(
            "encoder.layer.*.attention", "attention.query", "attention.key", "attention.value", "output.dense"
        ),
        "layers.*.norm": "encoder.layer.*.layernorm_after",
        "layers.*.inner": "encoder.layer.*.intermediate.dense",
        "layers.*.outer": "encoder.layer.*.output.dense",
        "norm": "layernorm",
        "pooler": "pooler.dense",
        "classifier": "classifier",
    }
    prefix = "vit."

    def __init__(
        self,
        config: ConfigLike,
        model: ParameterCollection,
        pooler: bool = False,
        classifier: bool = False,
        fill: Fill = None,
    ) -> None:
        self.config = as_config(config)
        self.settings = read_settings(self.config, _KEYS, ACTIVATIONS)
        s, check = self.settings, self.config.check_room
        self._begin(s.dim)
        self.config.only("qkv_bias", True)
        self.size, self.patch = self._pair("image_size", 224), self._pair("patch_size", 16)
        for n, patch in zip(self.size, self.patch):
            if n % patch:
                raise self.config.wrong("image_size", f"a multiple of {patch}, the patch_size,")
        count = (self.size[0] // self.patch[0]) * (self.size[1] // self.patch[1])
        check("image_size", count + 1, s.dim)
        check("patch_size", *self.patch, self.channels, s.dim)
        check("intermediate_size", s.hidden_dim, s.dim)
        check("num_hidden_layers", s.layers, s.dim, s.dim)
        super().__init__(self.config, model, bool(pooler), bool(classifier))
        self.patches = _Patches(s.dim, self.collection, self.channels, self.patch, count)
        self.dropout = Dropout(s.dropout)
        self.layers = [Block(s, self.collection, norm_first=True) for _ in range(s.layers)]
        self.norm = LayerNorm(s.dim, self.collection, s.eps)
        self.pooler: Linear | None = None
        if pooler:
            self.config.only("pooler_act", "tanh")
            self.config.only("pooler_output_size", s.dim)
            self.pooler = Linear(s.dim, s.dim, self.collection)
        self._add_classifier(bool(classifier))
        self.eval()
        if fill is not None:
            fill(self)

    @classmethod
    def _layout(cls) -> Layout:
        known = "embeddings.patch_embeddings.projection.weight"
        return Layout(known, ("pooler.dense.weight", "classifier.weight"))

    def _pair(self, key: str, default: int) -> tuple[int, int]:
        """A number for rows and one for columns, or one for both."""
        given = self.config.get(key, default)
        if not isinstance(given, list):
            return self.config.size(key, default), self.config.size(key, default)
        if len(given) != 2 or not all(isinstance(n, int) and 0 < n < 1 << 31 for n in given):
            raise self.config.wrong(key, "a whole number from 1 on, or two,")
        return given[0], given[1]

    def __call__(self, images: Images, *, all_layers: bool = False) -> Any:
        """The vectors of the patches of an image.

        Args:
            images: an image or a minibatch, of the size of the model
            all_layers: whether to return the results of all layers, those of the patches first

        Returns:
            Expression of shape ``{dim,patches + 1}``, with that of the whole image as first column; with `all_layers` a
            list of them.

        Raises:
            DimensionError: another number of channels, or another size
            TypeError: something other than floats
        """
        x = self.dropout(self.patches(self._images(images, self.size)))
        states = [x]
        for number, layer in enumerate(self.layers):
            x = self._run(number, layer, x, ())
            states.append(x)
        states[-1] = self.norm(x)
        return states if all_layers else states[-1]

    def _feature(self, x: Expression) -> Expression:
        return ops.pick(x, 0, 1)

    def pooled(self, x: Expression) -> Expression:
        """The tanh of a linear layer of the first column, as in BERT.

        Args:
            x: what a call returns

        Returns:
            Expression of shape ``{dim}``.

        Raises:
            ValueError: the files had no such layer

        Example:
            >>> config = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
            >>> vit = dy.pretrained.ViT({**config, "image_size": 6, "patch_size": 3}, model, pooler=True)
            >>> vit.pooled(vit(np.zeros((6, 6, 3)))).dim()
            ((8,), 1)
        """
        if self.pooler is None:
            raise ValueError("ViT.pooled: there is no such layer in the files")
        return ops.tanh(self.pooler(self._feature(x)))

    def _by_depth(self) -> list[Any]:
        return [*self.layers[::-1], self.patches]

    def to_file(self, parameter: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if parameter == "patches.cls_token":
            return array[None, None]
        return array.T[None] if parameter == "patches.position_embeddings" else super().to_file(parameter, array)

    def from_file(self, parameter: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if parameter == "patches.cls_token":
            return array.reshape(-1)
        return array[0].T if parameter == "patches.position_embeddings" else super().from_file(parameter, array)

    def _sizes(self) -> str:
        s = self.settings
        return f"{s.layers} layers of {s.dim}, {s.heads} heads, images of {self.size[0]} x {self.size[1]}"
