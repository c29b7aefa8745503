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
        options = {"kv_heads": s.kv_heads, "head_dim": s.head_dim, **options}
        super().__init__(s.dim, s.heads, model, s.attention_dropout, bias, **options)

    def _add_projections(self, bias: bool) -> None:
        inner, shared = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.query = Linear(self.dim, inner, self.collection, bias)
        self.key = Linear(self.dim, shared, self.collection, bias)
        self.value = Linear(self.dim, shared, self.collection, bias)
        self.output = Linear(inner, self.dim, self.collection, self.output_bias)

    def _project(self, which: int, x: Expression) -> Expression:
        return (self.query, self.key, self.value, self.output)[which](x)

    # Those of its linear layers.
    _as_pytorch = Layer._as_pytorch
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


Maker = Callable[[ParameterCollection], Any]


class Block(Layer):
    """Attention, in a decoder also to an encoder's vectors, then a feed-forward part, each with a residual connection,
    and a norm after it, as in BERT, or before it.

    Args:
        settings: those of the model
        model: where the parameters go
        attention: makes the attention; None, the default: an `Attention`
        norm: makes a norm; None, the default: a `LayerNorm`
        norm_first: whether norms come before
        causal: whether columns attend to the previous ones only
        cross: makes the attention to an encoder's vectors; None, the default: there is none
        gated: whether the feed-forward part has a gate
        bias: whether its layers have b
        inner_dropout: the rate of dropout within it
    """

    def __init__(
        self,
        settings: Settings,
        model: ParameterCollection,
        attention: Maker | None = None,
        norm: Maker | None = None,
        *,
        norm_first: bool = False,
        causal: bool = False,
        cross: Maker | None = None,
        gated: bool = False,
        bias: bool = True,
        inner_dropout: float = 0.0,
    ) -> None:
        s = settings
        super().__init__(model)
        make = norm or (lambda place: LayerNorm(s.dim, place, s.eps))
        self.norm_first, self.causal = norm_first, causal
        self.activation = ACTIVATIONS[s.activation]
        self.dropout = Dropout(s.dropout)
        self.inner_dropout = Dropout(inner_dropout)
        self.attention = Attention(s, self.collection) if attention is None else attention(self.collection)
        self.attention_norm = make(self.collection)
        self.cross = self.cross_norm = None
        if cross is not None:
            self.cross, self.cross_norm = cross(self.collection), make(self.collection)
        self.gate: Any = Linear(s.dim, s.hidden_dim, self.collection, bias) if gated else None
        self.inner = Linear(s.dim, s.hidden_dim, self.collection, bias)
        self.outer = Linear(s.hidden_dim, s.dim, self.collection, bias)
        if norm_first:
            self.norm = make(self.collection)
        else:
            self.output_norm = make(self.collection)

    def __call__(self, x: Expression, bias: Expression | None = None) -> Expression:
        """The columns, each with information from the others, or from the previous ones.

        Args:
            x: shape ``{dim,n}``
            bias: that of attention
        """
        found = self.attention(self._before(self.attention_norm, x), causal=self.causal, bias=bias)
        return self._fed(self._after(self.attention_norm, x, found))

    def step(
        self,
        x: Expression,
        past: KeysValues | None = None,
        memory: KeysValues | None = None,
        bias: Expression | None = None,
    ) -> tuple[Expression, KeysValues]:
        """The next columns of a decoder, and keys and values of all.

        Args:
            x: shape ``{dim}`` or ``{dim,m}``
            past: keys and values of the previous columns; None at the beginning
            memory: those of the encoder's vectors, if there is attention to them
            bias: that of attention
        """
        found, past = self.attention.step(self._before(self.attention_norm, x), past, bias=bias)
        x = self._after(self.attention_norm, x, found)
        if self.cross is not None:
            x = self._after(self.cross_norm, x, self.cross(self._before(self.cross_norm, x), memory))
        return self._fed(x), past

    def _fed(self, x: Expression) -> Expression:
        norm = self.norm if self.norm_first else self.output_norm
        y = self._before(norm, x)
        hidden = self.inner(y)
        hidden = self.activation(hidden) if self.gate is None else ops.cmult(self.activation(self.gate(y)), hidden)
        return self._after(norm, x, self.outer(self.inner_dropout(hidden)))

    def _before(self, norm: Any, x: Expression) -> Expression:
        """The input of a part."""
        return norm(x) if self.norm_first else x

    def _after(self, norm: Any, x: Expression, found: Expression) -> Expression:
        """x plus the result of a part."""
        return x + self.dropout(found) if self.norm_first else norm.after(x, found, self.dropout.now)
