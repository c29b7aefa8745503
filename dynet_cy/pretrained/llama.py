"""Llama, and decoders with other settings."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection
from dynet_cy.nn import Layer, RMSNorm
from dynet_cy.ops import api as ops
from dynet_cy.pretrained.blocks import Attention, Block
from dynet_cy.pretrained.decoder import Decoder
from dynet_cy.pretrained.names import projections
from dynet_cy.pretrained.positions import layer_kinds, rotary
from dynet_cy.pretrained.settings import PLAIN_KEYS, Settings


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
    """Llama 1 to 3 (Touvron et al., 2023; Grattafiori et al., 2024), SmolLM 1 and 2, and others with this architecture.
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
    attention: type[Attention] = Attention
    base = 10000.0
    names = {
        "embeddings.pieces": "embed_tokens",
        "layers.*.attention_norm": "layers.*.input_layernorm",
        **projections("layers.*.self_attn", "q_proj", "k_proj", "v_proj", "o_proj"),
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

    def _make_block(self, number: int) -> Layer:
        s, config = self.settings, self.config
        options: dict[str, Any] = {"window": self._window(number)}
        if self._turns(number):
            options |= rotary(config, s.head_dim, self.base)
        biases = self._biases()

        def attention(model: ParameterCollection) -> Attention:
            return self.attention(s, model, *biases, **options)

        parts, bias = (attention, self._make_norm), config.flag("mlp_bias")
        return Block(s, self.collection, *parts, norm_first=True, causal=True, gated=True, bias=bias)

    def _biases(self) -> tuple[bool, bool]:
        """Whether queries, keys and values have b, and whether the results of attention have it."""
        bias = self.config.flag("attention_bias")
        return bias, bias

    def _turns(self, number: int) -> bool:
        """Whether a block has rotary positions."""
        return True

    def _window(self, number: int) -> int | None:
        """The greatest distance of columns to which those of a block attend."""
        return None

    def _make_norm(self, model: ParameterCollection) -> Layer:
        return RMSNorm(self.settings.dim, model, self.settings.eps)


class Qwen2(Llama):
    """Qwen 2 and 2.5 (Qwen Team, 2024). See `Encoder` and `Decoder` for arguments and methods."""

    model_types = {"qwen2": "Qwen2ForCausalLM"}
    keys = {**Llama.keys, "head_dim": ("", 0), "kv_heads": ("num_key_value_heads", 32)}

    def _biases(self) -> tuple[bool, bool]:
        return True, False

    def _window(self, number: int) -> int | None:
        if not self.config.flag("use_sliding_window"):
            return None
        near = layer_kinds(self.config, [self._is_near(i) for i in range(self.settings.layers)])[number]
        return self.config.size("sliding_window", 4096, 2) - 1 if near else None

    def _is_near(self, number: int) -> bool:
        """Whether columns of a block attend to near ones only, where the settings do not say it."""
        return number >= self.config.size("max_window_layers", 28, 0)


class Qwen3(Qwen2):
    """Qwen 3 (Qwen Team, 2025), which normalizes queries and keys. See `Encoder` and `Decoder` for arguments and
    methods.
    """

    model_types = {"qwen3": "Qwen3ForCausalLM"}
    keys = {**Qwen2.keys, "head_dim": ("head_dim", 128)}
    attention = _NormedAttention

    def _biases(self) -> tuple[bool, bool]:
        return Llama._biases(self)


class SmolLM3(Qwen2):
    """SmolLM 3 (Hugging Face, 2025), whose every fourth block has no positions. See `Encoder` and `Decoder` for
    arguments and methods.
    """

    model_types = {"smollm3": "SmolLM3ForCausalLM"}
    keys = {**Llama.keys, "head_dim": ("head_dim", 0), "kv_heads": ("num_key_value_heads", 4)}
    tied = True
    base = 2000000.0

    def _biases(self) -> tuple[bool, bool]:
        return Llama._biases(self)

    def _turns(self, number: int) -> bool:
        given = self.config.get("no_rope_layers")
        if given is None:
            return (number + 1) % self.config.size("no_rope_layer_interval", 4) != 0
        if not isinstance(given, list) or len(given) < self.settings.layers or not set(given) <= {0, 1}:
            raise self.config.wrong("no_rope_layers", f"{self.settings.layers} of 0 and 1")
        return bool(given[number])

    def _is_near(self, number: int) -> bool:
        return not self._turns(number)
