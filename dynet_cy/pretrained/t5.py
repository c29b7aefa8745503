"""T5: an encoder and a decoder whose scores get a learnt bias for each distance."""

from __future__ import annotations

import dataclasses
from typing import Any

from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection
from dynet_cy.nn import Layer, RelativeBias, RMSNorm
from dynet_cy.pretrained.blocks import Attention, Block
from dynet_cy.pretrained.encoder_decoder import EncoderDecoder
from dynet_cy.pretrained.names import projections
from dynet_cy.pretrained.settings import PLAIN_KEYS, Settings

# What `feed_forward_proj` says: whether there is a gate, and the activation.
_KINDS = {"relu": (False, "relu"), "gated-gelu": (True, "gelu_new"), "gated-relu": (True, "relu")}
_KINDS |= {"gated-silu": (True, "silu"), "gelu": (False, "gelu"), "silu": (False, "silu")}

_FEED_FORWARD = {False: {"inner": "wi", "outer": "wo"}, True: {"gate": "wi_0", "inner": "wi_1", "outer": "wo"}}


def _names(gated: bool) -> dict[str, str]:
    """The names of the modules of both stacks."""
    found = {"embeddings.pieces": "shared", "head": "lm_head"}
    for here, stack, last in (("", "encoder", 1), ("decoder_", "decoder", 2)):
        block = f"{stack}.block.*.layer"
        parts = {"attention": (f"{block}.0", "SelfAttention")}
        if last == 2:
            parts["cross"] = (f"{block}.1", "EncDecAttention")
        for part, (place, module) in parts.items():
            found[f"{here}layers.*.{part}_norm"] = f"{place}.layer_norm"
            found |= projections(f"{place}.{module}", *"qkvo", here=f"{here}layers.*.{part}")
        found[f"{here}layers.*.norm"] = f"{block}.{last}.layer_norm"
        for path, name in _FEED_FORWARD[gated].items():
            found[f"{here}layers.*.{path}"] = f"{block}.{last}.DenseReluDense.{name}"
        found[f"{here}norm"] = f"{stack}.final_layer_norm"
        found[f"{here}distances"] = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"
    return found


class T5(EncoderDecoder):
    """T5 and T5 1.1 (Raffel et al., "Exploring the limits of transfer learning", JMLR 2020), mT5 (Xue et al., NAACL
    2021). See `Encoder` and `EncoderDecoder` for arguments and methods.

    Example:
        >>> config = dict(vocab_size=10, d_model=8, d_ff=16, num_layers=1, num_heads=2, d_kv=4)
        >>> t5 = dy.pretrained.T5({**config, "decoder_start_token_id": 0, "eos_token_id": 1}, model)
        >>> len(t5.generate([4, 5, 1], longest=3)) <= 3
        True
    """

    model_types = {"t5": "T5ForConditionalGeneration", "mt5": "MT5ForConditionalGeneration"}
    keys = {
        **PLAIN_KEYS,
        "dim": ("d_model", None),
        "layers": ("num_layers", None),
        "heads": ("num_heads", None),
        "head_dim": ("d_kv", 64),
        "hidden_dim": ("d_ff", None),
        "positions": ("", 1 << 20),  # distances have no end
        "activation": ("", "relu"),
        "eps": ("layer_norm_epsilon", 1e-6),
        "dropout": ("dropout_rate", 0.1),
        "attention_dropout": ("dropout_rate", 0.1),
    }
    names = _names(False)

    def _read_settings(self, **changed: tuple[str, Any]) -> Settings:
        usual = "gated-gelu" if self.config.get("model_type") == "mt5" else "relu"
        kind = self.config.choice("feed_forward_proj", _KINDS, usual)
        self.gated, activation = _KINDS[kind]
        self.names = _names(self.gated)
        return dataclasses.replace(super()._read_settings(**changed), activation=activation)

    def _first_position(self) -> None:
        return None

    def _first_piece(self) -> int:
        return self.settings.padding

    def _is_tied(self, present: bool) -> bool:
        # Only the first T5 multiplies with the table, and scales; the settings of the others contradict each other.
        tied = self.config.flag("tie_word_embeddings", True)
        first = self.config.get("model_type", "t5") == "t5"
        self.scaled = first and self.config.flag("scale_decoder_outputs", tied)
        return self.scaled or not present

    def _make_layers(self) -> list[Any]:
        s, config = self.settings, self.config
        buckets = config.size("relative_attention_num_buckets", 32, 4)
        farthest = config.size("relative_attention_max_distance", 128, buckets)
        config.check_room("relative_attention_num_buckets", buckets, s.heads)
        self.distances = RelativeBias(s.heads, self.collection, buckets, farthest)
        self.decoder_distances = RelativeBias(s.heads, self.collection, buckets, farthest, False)
        found = super()._make_layers()
        self.norm = self._make_norm(self.collection)
        self.decoder_norm = self._make_norm(self.collection)
        return found

    def _make_block(self, number: int) -> Layer:
        return self._block()

    def _decoder_layers(self) -> int:
        return self.config.size("num_decoder_layers", self.settings.layers)

    def _make_decoder_block(self, number: int) -> Layer:
        return self._block(cross=self._make_attention)

    def _block(self, cross: Any = None) -> Layer:
        return Block(
            self.settings,
            self.collection,
            self._make_attention,
            self._make_norm,
            norm_first=True,
            cross=cross,
            gated=self.gated,
            bias=False,
            inner_dropout=self.settings.dropout,
        )

    def _make_attention(self, model: ParameterCollection) -> Attention:
        return Attention(self.settings, model, False, False, scale=1.0)

    def _make_norm(self, model: ParameterCollection) -> RMSNorm:
        return RMSNorm(self.settings.dim, model, self.settings.eps)

    def _context(self, columns: int) -> tuple[Expression, ...]:
        return (self.distances(columns),)

    def _further_tables(self) -> list[Layer]:
        return [self.distances]

    def _decoder_vectors(self, x: Expression, first: int) -> Expression:
        found: Expression = self.embeddings.dropout(x)
        return found

    def _decoder_context(self, first: int, columns: int) -> tuple[Expression, ...]:
        return (self.decoder_distances(first + columns, columns, first),)

    def _decoder_finished(self, x: Expression) -> Expression:
        return self.decoder_norm(x)

    def _scores_of(self, x: Expression, matrix: Expression | None = None) -> Expression:
        return super()._scores_of(x * self.settings.dim**-0.5 if self.scaled else x, matrix)
