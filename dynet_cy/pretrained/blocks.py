"""The parts of Transformer encoders: attention with a layer for each projection, blocks, norms, activations."""

from __future__ import annotations

from collections.abc import Callable

from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection
from dynet_cy.nn import Dropout, Layer, LayerNorm, Linear
from dynet_cy.nn.layer import ACTIVATIONS as _activations
from dynet_cy.ops import api as ops
from dynet_cy.pretrained.settings import Settings

__all__ = ["ACTIVATIONS", "Attention", "Block"]


ACTIVATIONS: dict[str, Callable[[Expression], Expression]] = {
    **_activations,
    "gelu_accurate": _activations["gelu_new"],
    "gelu_fast": _activations["gelu_new"],
    "gelu_python": _activations["gelu"],
    "swish": _activations["silu"],
}
"""Activations by the names that Hugging Face has for them."""


class Attention(Layer):
    """Self-attention in several heads, with a `Linear` for queries, keys, values and results.

    Args:
        dim: length of the columns
        heads: number of heads, which divides dim
        model: where the parameters go
        dropout: rate of dropout of the weights in training mode
    """

    def __init__(self, dim: int, heads: int, model: ParameterCollection, dropout: float = 0.0) -> None:
        super().__init__(model, (dim, heads, dropout))
        self.heads = heads
        self.dropout = Dropout(dropout)
        self.query = Linear(dim, dim, self.collection)
        self.key = Linear(dim, dim, self.collection)
        self.value = Linear(dim, dim, self.collection)
        self.output = Linear(dim, dim, self.collection)

    def __call__(self, x: Expression, bias: Expression | None = None) -> Expression:
        """The attention of the columns of x to each other.

        Args:
            x: shape ``{dim,n}``
            bias: added to the scores, ``{n,n}`` or ``{n,n,heads}``; keys are rows, queries columns
        """
        found = ops.scaled_dot_product_attention(
            self.query(x), self.key(x), self.value(x), self.heads, bias=bias, dropout=self.dropout.now
        )
        return self.output(found)


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

    def _attention(self, settings: Settings) -> Layer:
        return Attention(settings.dim, settings.heads, self.collection, settings.attention_dropout)

    def __call__(self, x: Expression, *context: Expression) -> Expression:
        """The columns, each with information from the others.

        Args:
            x: shape ``{dim,n}``
            context: further arguments of attention
        """
        x = self.attention_norm.after(x, self.attention(x, *context), self.dropout.now)
        found = self.outer(self.activation(self.inner(x)))
        return self.output_norm.after(x, found, self.dropout.now)
