"""BART and Marian: an encoder and a decoder with norms after their parts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection
from dynet_cy.nn import Dropout, Embedding, Layer, LayerNorm
from dynet_cy.ops import api as ops
from dynet_cy.pretrained.blocks import Attention, Block
from dynet_cy.pretrained.encoder_decoder import EncoderDecoder
from dynet_cy.pretrained.heads import resize_vector
from dynet_cy.pretrained.names import projections
from dynet_cy.pretrained.positions import rows_from
from dynet_cy.pretrained.settings import PLAIN_KEYS, Settings

_OFFSET = 2  # rows of the table of positions that are not used


class _LearntPlaces(Layer):
    """Adds vectors of positions, and normalizes."""

    def __init__(self, settings: Settings, model: ParameterCollection) -> None:
        s = settings
        super().__init__(model)
        self.positions = Embedding(s.positions + _OFFSET, s.dim, self.collection)
        self.norm = LayerNorm(s.dim, self.collection, s.eps)
        self.dropout = Dropout(s.dropout)

    def __call__(self, x: Expression, first: int) -> Expression:
        """The vectors x with positions from `first` on."""
        return self.dropout(self.norm(x + rows_from(self.positions, x, first + _OFFSET)))


class _Sinusoids(Layer):
    """Adds sines and cosines of positions, all sines above all cosines."""

    def __init__(self, settings: Settings, model: ParameterCollection) -> None:
        super().__init__(model)
        self.dim = settings.dim
        self.dropout = Dropout(settings.dropout)

    def __call__(self, x: Expression, first: int) -> Expression:
        """The vectors x with positions from `first` on."""
        shape, _ = x.dim()
        table = _sinusoids(self.dim, first, shape[1] if len(shape) > 1 else 1)
        return self.dropout(x + ops.inputTensor(table.reshape(shape)))


@lru_cache(maxsize=256)
def _sinusoids(dim: int, first: int, count: int) -> npt.NDArray[np.float32]:
    rows = np.arange(dim)
    angles = np.arange(first, first + count) / 10000.0 ** (2 * (rows // 2) / dim)[:, None]
    return np.concatenate([np.sin(angles[0::2]), np.cos(angles[1::2])]).astype(np.float32)


class _Vectors(Layer):
    """Vectors of pieces, with positions."""

    def __init__(self, settings: Settings, model: ParameterCollection, places: Any, scale: float) -> None:
        super().__init__(model)
        self.pieces = Embedding(settings.vocabulary, settings.dim, self.collection)
        self.places = places(settings, self.collection)
        self.scale = scale

    def __call__(self, ids: Sequence[int]) -> Expression:
        """The vectors of the pieces of a text."""
        return self.placed(self.pieces(ids), self.places, 0)

    def placed(self, x: Expression, places: Any, first: int) -> Expression:
        """Vectors of the table with positions from `first` on."""
        found: Expression = places(x if self.scale == 1 else x * self.scale, first)
        return found


class _ScoreBias(Layer):
    """The bias of the scores of pieces."""

    def __init__(self, settings: Settings, model: ParameterCollection) -> None:
        super().__init__(model)
        self.final_logits_bias = self._vector(settings.vocabulary, 0.0, "final_logits_bias")


def _names() -> dict[str, str]:
    """The names of the modules of both stacks."""
    found = {"embeddings.pieces": "shared", "bias": ""}
    for here, stack, parts in (
        ("", "encoder", {"attention": "self_attn"}),
        ("decoder_", "decoder", {"attention": "self_attn", "cross": "encoder_attn"}),
    ):
        places = "embeddings.places" if stack == "encoder" else "decoder_places"
        found[f"{places}.positions"] = f"{stack}.embed_positions"
        found[f"{places}.norm"] = f"{stack}.layernorm_embedding"
        for part, module in parts.items():
            found[f"{here}layers.*.{part}_norm"] = f"{stack}.layers.*.{module}_layer_norm"
            names = "q_proj", "k_proj", "v_proj", "out_proj"
            found |= projections(f"{stack}.layers.*.{module}", *names, here=f"{here}layers.*.{part}")
        for path, name in (("inner", "fc1"), ("outer", "fc2"), ("output_norm", "final_layer_norm")):
            found[f"{here}layers.*.{path}"] = f"{stack}.layers.*.{name}"
    return found


class Bart(EncoderDecoder):
    """BART (Lewis et al., ACL 2020). See `Encoder` and `EncoderDecoder` for arguments and methods.

    Example:
        >>> config = dict(vocab_size=10, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2)
        >>> config |= dict(decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16)
        >>> bart = dy.pretrained.Bart(config, model)
        >>> bart.scores([0, 4, 5, 2], [bart.begin, 7]).dim()
        ((10, 2), 1)
    """

    model_types = {"bart": "BartForConditionalGeneration"}
    keys = {
        **PLAIN_KEYS,
        "dim": ("d_model", None),
        "layers": ("encoder_layers", None),
        "heads": ("encoder_attention_heads", None),
        "hidden_dim": ("encoder_ffn_dim", None),
        "positions": ("max_position_embeddings", 1024),
        "activation": ("activation_function", "gelu"),
        "eps": ("", 1e-5),
        "dropout": ("dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.0),
        "padding": ("pad_token_id", 1),
    }
    prefix = "model."
    tied = True
    names = _names()
    _places: Any = _LearntPlaces

    @classmethod
    def top_tensor(cls) -> str:
        """The tensor with what is added to scores; a model without a decoder's scores has none."""
        return "final_logits_bias"

    def _add_top(self, present: bool) -> None:
        self.config.only("tie_word_embeddings", True)
        super()._add_top(False)
        self.bias = _ScoreBias(self.settings, self.collection) if present else None

    def _resize_top(self, count: int) -> None:
        if self.bias is not None:
            resize_vector(self.bias, "final_logits_bias", count)

    def _first_piece(self) -> int | None:
        return 2

    def _make_embeddings(self) -> Any:
        s = self.settings
        scale = s.dim**0.5 if self.config.flag("scale_embedding") else 1.0
        return _Vectors(s, self.collection, self._places, scale)

    def _make_layers(self) -> list[Any]:
        self.inner_dropout = self.config.rate("activation_dropout", 0.0)
        self.decoder_places = self._places(self.settings, self.collection)
        return super()._make_layers()

    def _make_block(self, number: int) -> Layer:
        return Block(self.settings, self.collection, inner_dropout=self.inner_dropout)

    def _decoder_layers(self) -> int:
        return self.config.size("decoder_layers")

    def _make_decoder_block(self, number: int) -> Layer:
        s, config = self.settings, self.config
        heads, hidden = config.size("decoder_attention_heads"), config.size("decoder_ffn_dim")
        config.check_room("decoder_ffn_dim", hidden, s.dim)
        if s.dim % heads:
            raise config.wrong("decoder_attention_heads", f"a divisor of {s.dim}")
        s = dataclasses.replace(s, heads=heads, kv_heads=heads, head_dim=s.dim // heads, hidden_dim=hidden)
        cross = functools.partial(Attention, s)
        return Block(s, self.collection, cross=cross, inner_dropout=self.inner_dropout)

    def _decoder_vectors(self, x: Expression, first: int) -> Expression:
        found: Expression = self.embeddings.placed(x, self.decoder_places, first)
        return found

    def _scores_of(self, x: Expression, matrix: Expression | None = None) -> Expression:
        found = super()._scores_of(x, matrix)
        return found if self.bias is None else found + self.bias.final_logits_bias

    def _check_length(self, ids: list[int], longest: int) -> None:
        most = self.settings.positions
        if longest > most:
            name = f"{type(self).__name__}.generate"
            raise ValueError(f"{name}: argument longest: the decoder reads at most {most} pieces, not {longest}")

    def to_file(self, parameter: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The array that files have for a parameter: what is added to scores is a row there."""
        return array.reshape(1, -1) if parameter == "bias.final_logits_bias" else array

    def from_file(self, parameter: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The value of a parameter."""
        return array.reshape(-1) if parameter == "bias.final_logits_bias" else array


class Marian(Bart):
    """Marian's translators, such as those of OPUS-MT (Junczys-Dowmunt et al., ACL 2018; Tiedemann and Thottingal, EAMT
    2020). See `Encoder` and `EncoderDecoder` for arguments and methods.
    """

    model_types = {"marian": "MarianMTModel"}
    keys = {**Bart.keys, "padding": ("pad_token_id", 58100)}
    _places = _Sinusoids

    def _first_piece(self) -> int:
        return self.settings.padding

    def _usual_options(self) -> dict[str, Any]:
        return {**super()._usual_options(), "forbidden": [self.settings.padding]}
