"""Llama, and the decoders that differ from it in settings."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection
from dynet_cy.nn import Layer, RMSNorm
from dynet_cy.ops import api as ops
from dynet_cy.pretrained.blocks import Attention, Block
from dynet_cy.pretrained.config import Config
from dynet_cy.pretrained.decoder import Decoder
from dynet_cy.pretrained.settings import PLAIN_KEYS, Settings

__all__ = ["Llama", "Qwen2", "Qwen3"]


class _NormedAttention(Attention):
    """Attention whose queries and keys are normalized for each head."""

    def __init__(self, settings: Settings, model: ParameterCollection, *args: bool, **options: Any) -> None:
        super().__init__(settings, model, *args, **options)
        self.query_norm = RMSNorm(self.head_dim, self.collection, settings.eps)
        self.key_norm = RMSNorm(self.head_dim, self.collection, settings.eps)

    def _project(self, which: int, x: Expression) -> Expression:
        y = super()._project(which, x)
        if which > 1:
            return y
        shape, batch = y.dim()
        columns = ops.reshape(y, (self.head_dim, int(np.prod(shape)) // self.head_dim), batch)
        return ops.reshape((self.key_norm if which else self.query_norm)(columns), shape, batch)


class Llama(Decoder):
    """Llama 1 to 3 without scaled positions (Touvron et al., 2023), SmolLM 1 and 2, and others with this architecture.
    See `Encoder` and `Decoder` for arguments and methods.

    Example:
        >>> config = dict(vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=4)
        >>> llama = dy.pretrained.Llama({**config, "intermediate_size": 16, "num_key_value_heads": 2}, model, head=True)
        >>> llama.scores([1, 5, 2]).dim()
        ((10, 3), 1)
    """

    model_types = {"llama": "LlamaForCausalLM"}
    keys = {
        **PLAIN_KEYS,
        "head_dim": ("head_dim", 0),
        "kv_heads": ("num_key_value_heads", 0),
        "positions": ("max_position_embeddings", 2048),
        "activation": ("hidden_act", "silu"),
        "eps": ("rms_norm_eps", 1e-6),
        "dropout": ("", 0.0),
        "attention_dropout": ("attention_dropout", 0.0),
    }
    prefix = "model."
    names = {
        "embeddings.pieces": "embed_tokens",
        "layers.*.attention_norm": "layers.*.input_layernorm",
        "layers.*.attention.query": "layers.*.self_attn.q_proj",
        "layers.*.attention.key": "layers.*.self_attn.k_proj",
        "layers.*.attention.value": "layers.*.self_attn.v_proj",
        "layers.*.attention.output": "layers.*.self_attn.o_proj",
        "layers.*.attention.query_norm": "layers.*.self_attn.q_norm",
        "layers.*.attention.key_norm": "layers.*.self_attn.k_norm",
        "layers.*.norm": "layers.*.post_attention_layernorm",
        "layers.*.gate": "layers.*.mlp.gate_proj",
        "layers.*.inner": "layers.*.mlp.up_proj",
        "layers.*.outer": "layers.*.mlp.down_proj",
        "norm": "norm",
        "head": "lm_head",
    }

    def _first_position(self) -> None:
        return None

    def _make_attention(self, model: ParameterCollection) -> Attention:
        bias = self.config.flag("attention_bias")
        return Attention(self.settings, model, bias, bias, positions="rotary", base=_base(self.config))

    def _make_block(self, number: int) -> Layer:
        s, bias = self.settings, self.config.flag("mlp_bias")
        parts = (self._make_attention, self._make_norm)
        return Block(s, self.collection, *parts, norm_first=True, causal=True, gated=True, bias=bias)

    def _make_norm(self, model: ParameterCollection) -> Layer:
        return RMSNorm(self.settings.dim, model, self.settings.eps)


class Qwen2(Llama):
    """Qwen 2 and 2.5 (Qwen Team, 2024). See `Encoder` and `Decoder` for arguments and methods."""

    model_types = {"qwen2": "Qwen2ForCausalLM"}
    keys = {**Llama.keys, "head_dim": ("", 0), "kv_heads": ("num_key_value_heads", 32)}

    def _make_attention(self, model: ParameterCollection) -> Attention:
        self.config.only("use_sliding_window", False)
        return Attention(self.settings, model, True, False, positions="rotary", base=_base(self.config))


class Qwen3(Llama):
    """Qwen 3 (Qwen Team, 2025), which normalizes queries and keys. See `Encoder` and `Decoder` for arguments and
    methods.
    """

    model_types = {"qwen3": "Qwen3ForCausalLM"}
    keys = {**Llama.keys, "head_dim": ("head_dim", 128), "kv_heads": ("num_key_value_heads", 32)}

    def _make_attention(self, model: ParameterCollection) -> Attention:
        self.config.only("use_sliding_window", False)
        bias = self.config.flag("attention_bias")
        return _NormedAttention(self.settings, model, bias, bias, positions="rotary", base=_base(self.config))


def _base(config: Config) -> float:
    """The base of rotary positions, from the settings of newer files or of older ones."""
    newer = config.get("rope_parameters")
    given: Any = config.get("rope_scaling", {}) if newer is None else newer
    if not isinstance(given, dict):
        raise config.wrong("rope_scaling" if newer is None else "rope_parameters", "settings of rotary positions")
    inner = Config(given, f"{config.source}, settings of rotary positions")
    inner.only("type", "default")
    inner.only("rope_type", "default")
    return inner.number("rope_theta", config.number("rope_theta", 10000.0))
