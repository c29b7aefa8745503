"""ModernBERT: rotary positions, gates, and blocks with local attention."""

from __future__ import annotations

from typing import Any

from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection
from dynet_cy.nn import Dropout, Layer, LayerNorm, Linear
from dynet_cy.ops import api as ops
from dynet_cy.pretrained.blocks import ACTIVATIONS, JointAttention
from dynet_cy.pretrained.config import Config
from dynet_cy.pretrained.encoder import Embeddings, Encoder
from dynet_cy.pretrained.heads import HeadPlan
from dynet_cy.pretrained.positions import FULL, NEAR, layer_kinds
from dynet_cy.pretrained.settings import PLAIN_KEYS, Settings

_BASES = {FULL: ("global_rope_theta", 160000.0), NEAR: ("local_rope_theta", 10000.0)}


class _ModernBlock(Layer):
    """A block that normalizes the inputs of its parts; the feed-forward part has a gate."""

    def __init__(self, settings: Settings, model: ParameterCollection, config: Config, number: int, kind: str) -> None:
        s = settings
        super().__init__(model)
        self.activation = ACTIVATIONS[s.activation]
        self.dropout = Dropout(config.rate("mlp_dropout", 0.0))
        self.hidden_dim = s.hidden_dim
        bias = config.flag("mlp_bias")
        # The vectors of pieces have been normalized.
        self.attention_norm = _norm(s, self.collection, config) if number else None
        window = config.size("local_attention", 128, 2) // 2 if kind == NEAR else None
        biased, place = config.flag("attention_bias"), {"base": _base(config, kind), "window": window}
        self.attention = JointAttention(s, self.collection, biased, biased, positions="rotary", **place)
        self.norm = _norm(s, self.collection, config)
        self.inner = Linear(s.dim, 2 * s.hidden_dim, self.collection, bias)
        self.outer = Linear(s.hidden_dim, s.dim, self.collection, bias)

    def __call__(self, x: Expression) -> Expression:
        """The columns, each with information from the others.

        Args:
            x: shape ``{dim,n}``
        """
        found = self.attention(x if self.attention_norm is None else self.attention_norm(x))
        x = x + self.attention.dropout(found)
        both = self.inner(self.norm(x))
        value, gate = (ops.pick_range(both, i * self.hidden_dim, (i + 1) * self.hidden_dim) for i in range(2))
        return x + self.outer(self.dropout(ops.cmult(self.activation(value), gate)))


class ModernBert(Encoder):
    """ModernBERT (Warner et al., "Smarter, better, faster, longer", ACL 2025). See `Encoder` for arguments and
    methods.
    """

    model_types = {"modernbert": "ModernBertModel"}
    keys = {
        **PLAIN_KEYS,
        "positions": ("max_position_embeddings", 8192),
        "activation": ("hidden_activation", "gelu"),
        "eps": ("norm_eps", 1e-5),
        "dropout": ("embedding_dropout", 0.0),
        "attention_dropout": ("attention_dropout", 0.0),
    }
    prefix = "model."
    names = {
        "embeddings.pieces": "embeddings.tok_embeddings",
        "embeddings.norm": "embeddings.norm",
        "layers.*.attention_norm": "layers.*.attn_norm",
        "layers.*.attention.joint": "layers.*.attn.Wqkv",
        "layers.*.attention.output": "layers.*.attn.Wo",
        "layers.*.norm": "layers.*.mlp_norm",
        "layers.*.inner": "layers.*.mlp.Wi",
        "layers.*.outer": "layers.*.mlp.Wo",
        "norm": "final_norm",
    }

    def _first_position(self) -> None:
        return None

    def _head_plan(self, kind: str) -> HeadPlan:
        config = self.config
        names = {"head.dense": "head.dense", "head.norm": "head.norm"}
        names |= {"head": "decoder"} if kind == "masked" else {"head.output": "classifier"}
        activation = config.choice("classifier_activation", ACTIVATIONS, "gelu")
        return HeadPlan(names, activation, False, config.flag("classifier_bias"), config.flag("norm_bias"))

    def _text_vector(self, x: Expression) -> Expression:
        kind = self.config.choice("classifier_pooling", ("cls", "mean"), "cls")
        return ops.mean_dim(x, [1], False) if kind == "mean" else super()._text_vector(x)

    def _make_embeddings(self) -> Any:
        return Embeddings(self.settings, self.collection, None, lambda place: _norm(self.settings, place, self.config))

    def _make_layers(self) -> list[Any]:
        self.norm = _norm(self.settings, self.collection, self.config)
        return super()._make_layers()

    def _make_block(self, number: int) -> Layer:
        every = self.config.size("global_attn_every_n_layers", 3)
        near = layer_kinds(self.config, [i % every > 0 for i in range(self.settings.layers)])[number]
        return _ModernBlock(self.settings, self.collection, self.config, number, NEAR if near else FULL)


def _norm(settings: Settings, model: ParameterCollection, config: Config) -> LayerNorm:
    return LayerNorm(settings.dim, model, settings.eps, config.flag("norm_bias"))


def _base(config: Config, kind: str) -> float:
    """The base of rotary positions, from the settings of newer files or of older ones."""
    given = config.get("rope_parameters")
    if given is None:
        return config.number(*_BASES[kind])
    if not isinstance(given, dict) or not isinstance(given.get(kind, {}), dict):
        raise config.wrong("rope_parameters", "settings for each kind of attention")
    inner = Config(given.get(kind) or {}, f"{config.source}, rope_parameters")
    inner.only("rope_type", "default")
    return inner.number("rope_theta", _BASES[kind][1])
