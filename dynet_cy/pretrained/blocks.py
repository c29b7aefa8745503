"""The parts of Transformer encoders: attention with a layer for each projection, blocks, norms, activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection
from dynet_cy.nn import Dropout, KeysValues, Layer, LayerNorm, Linear, MultiHeadAttention, rotate
from dynet_cy.nn.layer import ACTIVATIONS as _activations
from dynet_cy.ops import api as ops
from dynet_cy.pretrained.settings import Settings

__all__ = ["ACTIVATIONS", "Attention", "Block", "JointAttention"]


ACTIVATIONS: dict[str, Callable[[Expression], Expression]] = {
    **_activations,
    "gelu_accurate": _activations["gelu_new"],
    "gelu_fast": _activations["gelu_new"],
    "gelu_python": _activations["gelu"],
    "swish": _activations["silu"],
}
"""Activations by the names that Hugging Face has for them."""


class Attention(MultiHeadAttention):
    """Attention with a `Linear` for queries, keys, values and results, which adapters may wrap.

    Args:
        settings: those of the model
        model: where the parameters go
        bias: whether queries, keys and values have b
        output_bias: whether the results have b
        options: further ones of `MultiHeadAttention`
    """

    def __init__(
        self,
        settings: Settings,
        model: ParameterCollection,
        bias: bool = True,
        output_bias: bool = True,
        **options: Any,
    ) -> None:
        s = settings
        self.output_bias = output_bias
        heads = {"kv_heads": s.kv_heads, "head_dim": s.head_dim}
        super().__init__(s.dim, s.heads, model, s.attention_dropout, bias, **heads, **options)

    def _add_projections(self, bias: bool) -> None:
        inner, shared = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.query = Linear(self.dim, inner, self.collection, bias)
        self.key = Linear(self.dim, shared, self.collection, bias)
        self.value = Linear(self.dim, shared, self.collection, bias)
        self.output = Linear(inner, self.dim, self.collection, self.output_bias)

    def _project(self, which: int, x: Expression) -> Expression:
        return (self.query, self.key, self.value, self.output)[which](x)

    _take_pytorch = Layer._take_pytorch


class JointAttention(Attention):
    """Attention with one `Linear` for queries, keys and values together."""

    def _add_projections(self, bias: bool) -> None:
        inner = self.heads * self.head_dim
        self.joint = Linear(self.dim, 3 * inner, self.collection, bias)
        self.output = Linear(inner, self.dim, self.collection, self.output_bias)

    def _projected(self, x: Expression, first: int) -> tuple[Expression, KeysValues]:
        joint, inner = self.joint(x), self.heads * self.head_dim
        turned = joint
        if self.positions == "rotary":
            turned = rotate(ops.pick_range(joint, 0, 2 * inner), 2 * self.heads, first, self.base)
        parts = ((turned, 0), (turned, 1), (joint, 2))
        query, key, value = (ops.pick_range(y, i * inner, (i + 1) * inner) for y, i in parts)
        return query, KeysValues(key, value)

    def _project(self, which: int, x: Expression) -> Expression:
        return self.output(x)  # the others are projected together


class Block(Layer):
    """A layer of BERT: attention, then two linear layers, both with a residual connection and a norm after it.

    Args:
        settings: those of the encoder
        model: where the parameters go
    """

    def __init__(self, settings: Settings, model: ParameterCollection) -> None:
        s = settings
        super().__init__(model)
        self.activation = ACTIVATIONS[s.activation]
        self.dropout = Dropout(s.dropout)
        self.attention = self._attention(s)
        self.attention_norm = LayerNorm(s.dim, self.collection, s.eps)
        self.inner = Linear(s.dim, s.hidden_dim, self.collection)
        self.outer = Linear(s.hidden_dim, s.dim, self.collection)
        self.output_norm = LayerNorm(s.dim, self.collection, s.eps)

    def _attention(self, settings: Settings) -> Attention:
        return Attention(settings, self.collection)

    def __call__(self, x: Expression, bias: Expression | None = None) -> Expression:
        """The columns, each with information from the others.

        Args:
            x: shape ``{dim,n}``
            bias: that of attention
        """
        x = self.attention_norm.after(x, self.attention(x, bias=bias), self.dropout.now)
        found = self.outer(self.activation(self.inner(x)))
        return self.output_norm.after(x, found, self.dropout.now)
