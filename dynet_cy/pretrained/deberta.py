"""DeBERTa, versions 2 and 3: separate attention to contents and distances."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dynet_cy.functions import gather
from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection
from dynet_cy.nn import Conv1d, Dropout, Embedding, KeysValues, Layer, LayerNorm, Linear
from dynet_cy.ops import api as ops
from dynet_cy.pretrained.bert import EMBEDDINGS, FEED_FORWARD, Bert
from dynet_cy.pretrained.blocks import ACTIVATIONS, Attention, Block
from dynet_cy.pretrained.config import Config
from dynet_cy.pretrained.encoder import Embeddings, Encoder
from dynet_cy.pretrained.heads import TOKEN, HeadPlan
from dynet_cy.pretrained.names import projections
from dynet_cy.pretrained.settings import KEYS, Settings

Numbers = npt.NDArray[np.int64]

_KINDS = ("c2p", "p2c")
_FILTERS = "near.convolution.W"


class _ProjectedEmbeddings(Embeddings):
    """Vectors of pieces that get the length of columns before they are normalized."""

    def __init__(self, settings: Settings, model: ParameterCollection, first_position: int | None) -> None:
        s = settings
        super().__init__(s, model, first_position, lambda place: LayerNorm(s.dim, place, s.eps))
        self.projection = None
        if s.embedding_dim != s.dim:
            self.projection = Linear(s.embedding_dim, s.dim, self.collection, bias=False)

    def _normalized(self, x: Expression) -> Expression:
        return super()._normalized(x if self.projection is None else self.projection(x))


class DisentangledAttention(Attention):
    """Attention whose scores are sums of products of contents, of queries with the vectors of distances, and of keys
    with those vectors (He et al., "DeBERTa", ICLR 2021).

    Args:
        settings: those of the encoder
        model: where the parameters go
        kinds: which products with distances count: "c2p" those of queries, "p2c" those of keys
        shared: whether vectors of distances are projected as contents are; else by layers of their own
    """

    def __init__(self, settings: Settings, model: ParameterCollection, kinds: Collection[str], shared: bool) -> None:
        s = settings
        super().__init__(s, model, scale=(s.head_dim * (1 + len(kinds))) ** -0.5)
        self.kinds = kinds
        self.distance_dropout = Dropout(s.dropout)
        self.distance_key = self.distance_query = None
        if not shared and "c2p" in kinds:
            self.distance_key = Linear(s.dim, s.dim, self.collection)
        if not shared and "p2c" in kinds:
            self.distance_query = Linear(s.dim, s.dim, self.collection)

    def _bias(
        self, x: Expression, past: KeysValues, first: int, mask: Any, given: Expression | None
    ) -> Expression | None:
        """The products with distances.

        Args:
            x: the queries
            past: the keys
            given: the vectors of the distances 0, 1, -1, 2, -2, ..., -(n - 1), n; ``{dim,2n}``
        """
        if given is None or not self.kinds:
            return None
        distances, parts = self.distance_dropout(given), []
        if "c2p" in self.kinds:
            parts.append(self._products((self.distance_key or self.key)(distances), x, "falling"))
        if "p2c" in self.kinds:
            found = self._products((self.distance_query or self.query)(distances), past.keys, "rising")
            parts.append(ops.transpose(found, (1, 0, 2)))
        return ops.esum(parts) * self.scale

    def _products(self, distances: Expression, x: Expression, order: str) -> Expression:
        """The product of each column of x with the vector of its distance from each row, ``{n,n,heads}``.

        Args:
            distances: ``{dim,2n}``
            x: ``{dim,n}``
            order: "falling" for the distance column - row, "rising" for row - column
        """
        columns = distances.dim()[0][1] // 2
        products = ops.transpose(self._heads(distances, 2 * columns)) * self._heads(x, columns)
        places = _places_of_distances(columns)
        chosen = gather(products, ops.input_indices(places if order == "rising" else places.T))
        return ops.reshape(chosen, (columns, columns, self.heads), 1)

    def _heads(self, x: Expression, columns: int) -> Expression:
        """The rows of each head, as a batch."""
        rows = x.dim()[0][0] // self.heads
        parts = ops.transpose(ops.reshape(x, (rows, self.heads, columns)), (0, 2, 1))
        return ops.reshape(parts, (rows, columns), self.heads)


class _NearColumns(Layer):
    """Adds what a convolution makes of the vectors of pieces to the result of the first block, and normalizes."""

    def __init__(self, settings: Settings, model: ParameterCollection, config: Config, width: int) -> None:
        s = settings
        super().__init__(model)
        groups, padding = config.size("conv_groups", 1), (width - 1) // 2
        if s.dim % groups:
            raise config.wrong("conv_groups", f"a divisor of {s.dim}")
        self.convolution = Conv1d(s.dim, s.dim, width, self.collection, padding=padding, groups=groups)
        self.norm = LayerNorm(s.dim, self.collection, s.eps)
        self.activation = ACTIVATIONS[config.choice("conv_act", ACTIVATIONS, "tanh")]
        self.dropout = Dropout(s.dropout)

    def __call__(self, x: Expression, found: Expression) -> Expression:
        return self.norm(found + self.activation(self.dropout(self.convolution(x))))


class Deberta(Encoder):
    """DeBERTa (He et al., ICLR 2021), versions 2 and 3. See `Encoder` for arguments and methods."""

    model_types = {"deberta-v2": "DebertaV2Model"}
    keys = {**KEYS, "types": ("type_vocab_size", 0), "eps": ("layer_norm_eps", 1e-7)}
    names = {
        **EMBEDDINGS,
        "embeddings.projection": "embeddings.embed_proj",
        "distances": "encoder.rel_embeddings",
        "distances_norm": "encoder.LayerNorm",
        "near.convolution": "encoder.conv.conv",
        "near.norm": "encoder.conv.LayerNorm",
        **projections(
            "encoder.layer.*.attention", "self.query_proj", "self.key_proj", "self.value_proj", "output.dense"
        ),
        "layers.*.attention.distance_key": "encoder.layer.*.attention.self.pos_key_proj",
        "layers.*.attention.distance_query": "encoder.layer.*.attention.self.pos_query_proj",
        "layers.*.attention_norm": "encoder.layer.*.attention.output.LayerNorm",
        **FEED_FORWARD,
    }
    prefix = "deberta."

    def _head_plan(self, kind: str) -> HeadPlan:
        config = self.config
        if kind == "token":
            return TOKEN
        if kind == "sequence":
            activation = config.choice("pooler_hidden_act", ACTIVATIONS, "gelu")
            return HeadPlan({"head.dense": "pooler.dense", "head.output": "classifier"}, activation)
        if config.flag("legacy", True):
            return Bert.heads[kind]
        names = {"": "", ".dense": ".dense", ".norm": ".LayerNorm"}
        return HeadPlan({f"head{path}": f"lm_predictions.lm_head{name}" for path, name in names.items()})

    def _head_dropout(self, kind: str) -> float:
        return self.config.rate("cls_dropout", self.settings.dropout)

    def _first_position(self) -> int | None:
        return 0 if self.config.flag("position_biased_input", True) else None

    def _make_embeddings(self) -> Any:
        return _ProjectedEmbeddings(self.settings, self.collection, self._first_position())

    def _make_projection(self) -> None:
        return None

    def _make_layers(self) -> list[Any]:
        s, config = self.settings, self.config
        self.distances = self.distances_norm = self.near = None
        if config.flag("relative_attention"):
            self.buckets = config.size("position_buckets", 0, -1)
            farthest = config.size("max_relative_positions", -1, -1)
            self.farthest = farthest if farthest > 0 else s.positions
            self.span = self.buckets if self.buckets > 0 else self.farthest
            config.check_room("position_buckets", 2 * self.span, s.dim)
            self.distances = Embedding(2 * self.span, s.dim, self.collection)
            if "layer_norm" in str(config.get("norm_rel_ebd", "none")).split("|"):
                self.distances_norm = LayerNorm(s.dim, self.collection, s.eps)
        width = config.size("conv_kernel_size", 0, 0)
        if width:
            config.check_room("conv_kernel_size", width, s.dim, s.dim // config.size("conv_groups", 1))
            self.near = _NearColumns(s, self.collection, config, width)
        return super()._make_layers()

    def _make_block(self, number: int) -> Layer:
        s, kinds, shared = self.settings, self._kinds(), self.config.flag("share_att_key")
        return Block(s, self.collection, lambda place: DisentangledAttention(s, place, kinds, shared))

    def _kinds(self) -> tuple[str, ...]:
        """The products with distances that count."""
        found = self.config.get("pos_att_type", "")
        kinds = found.split("|") if isinstance(found, str) else found
        kinds = [str(kind).strip() for kind in kinds if kind] if isinstance(kinds, list) else [""]
        if not set(kinds) <= set(_KINDS):
            raise self.config.wrong("pos_att_type", f"some of {', '.join(_KINDS)}")
        return tuple(kind for kind in _KINDS if kind in kinds)

    def _context(self, columns: int) -> tuple[Expression, ...]:
        if self.distances is None:
            return ()
        found = self.distances(_rows_of_distances(columns, self.buckets, self.farthest, self.span))
        return (found if self.distances_norm is None else self.distances_norm(found),)

    def _run(self, number: int, layer: Any, x: Expression, context: tuple[Expression, ...]) -> Expression:
        found = super()._run(number, layer, x, context)
        return found if number or self.near is None else self.near(x, found)

    def _further_tables(self) -> list[Layer]:
        return [part for part in (self.distances, self.distances_norm, self.near) if part is not None]

    def to_file(self, parameter: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self.near is None or parameter != _FILTERS:
            return array
        return array.reshape(len(array), self.near.convolution.width, -1).transpose(0, 2, 1)

    def from_file(self, parameter: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return array.transpose(0, 2, 1).reshape(len(array), -1) if parameter == _FILTERS else array


@lru_cache(maxsize=256)
def _rows_of_distances(columns: int, buckets: int, farthest: int, span: int) -> Numbers:
    """The rows of the table for the distances 0, 1, -1, 2, -2, ..., -(n - 1), n. Those of a shorter text come first, so
    that texts of any length may be exported."""
    numbers = np.arange(2 * columns)
    distances = np.where(numbers % 2, (numbers + 1) // 2, -numbers // 2)
    found = _buckets(distances, buckets, farthest) if buckets > 0 else distances
    return np.clip(found + span, 0, 2 * span - 1)


@lru_cache(maxsize=256)
def _places_of_distances(columns: int) -> Numbers:
    """For each row and column, the place of their distance in that order."""
    numbers = np.arange(columns)
    distances = numbers[:, None] - numbers
    return np.where(distances > 0, 2 * distances - 1, -2 * distances)


def _buckets(distances: Numbers, buckets: int, farthest: int) -> Numbers:
    """The bucket of each distance, with its sign (He et al., "DeBERTa", ICLR 2021): up to half of the buckets are for
    one distance each, and the others get wider up to `farthest`.

    Args:
        distances: positions of queries less those of keys
        buckets: their number for each sign
        farthest: the greatest distance with a bucket of its own
    """
    middle = buckets // 2
    lengths = np.where(np.abs(distances) < middle, middle - 1, np.abs(distances)).astype(np.float32)
    ratios = np.log(lengths / np.float32(middle)) / np.log(np.float32((farthest - 1) / middle))
    wide = np.ceil(ratios * np.float32(middle - 1)) + middle
    found: Numbers = np.where(lengths <= middle, distances, wide * np.sign(distances)).astype(np.int64)
    return found
