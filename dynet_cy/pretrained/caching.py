"""Attention for decoders: keys and values are kept, so that the next column is all that a step computes."""

from __future__ import annotations

import numpy as np

from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection
from dynet_cy.nn import Dropout, KeysValues, Layer, Linear
from dynet_cy.ops import api as ops
from dynet_cy.pretrained.settings import Settings

__all__ = ["CachedAttention"]


class CachedAttention(Layer):
    """Attention in several heads with a `Linear` for queries, keys, values and results, for one step after the other.

    There may be fewer heads of keys and values than of queries (Ainslie et al., "GQA", EMNLP 2023), and heads of any
    size.

    Args:
        settings: those of the model
        model: where the parameters go
        bias: whether queries, keys and values have b
        output_bias: whether the results have b
        scale: what scores are multiplied by; None: the root of the length of a head's queries, inverted
    """

    def __init__(
        self,
        settings: Settings,
        model: ParameterCollection,
        bias: bool = True,
        output_bias: bool = True,
        scale: float | None = None,
    ) -> None:
        s = settings
        super().__init__(model)
        self.heads, self.kv_heads, self.head_dim, self.scale = s.heads, s.kv_heads, s.head_dim, scale
        self.dropout = Dropout(s.attention_dropout)
        self._add_projections(s, bias)
        self.output = Linear(s.heads * s.head_dim, s.dim, self.collection, output_bias)

    def _add_projections(self, settings: Settings, bias: bool) -> None:
        s = settings
        self.query = Linear(s.dim, s.heads * s.head_dim, self.collection, bias)
        self.key = Linear(s.dim, s.kv_heads * s.head_dim, self.collection, bias)
        self.value = Linear(s.dim, s.kv_heads * s.head_dim, self.collection, bias)

    def step(
        self, x: Expression, past: KeysValues | None = None, bias: Expression | None = None
    ) -> tuple[Expression, KeysValues]:
        """The attention of the next columns to themselves and the previous ones.

        Args:
            x: the columns, ``{dim,m}`` or ``{dim}``
            past: keys and values of the previous columns; None at the beginning
            bias: added to the scores, ``{n,m,heads}``, with n columns in all

        Returns:
            Expression of the shape of x, and keys and values of all columns.
        """
        first = 0 if past is None else past.columns
        queries, here = self._projected(x, first)
        past = here if past is None else past.joined(here)
        return self._attended(queries, past, bias, True, first), past

    def __call__(self, x: Expression, memory: KeysValues | None = None, bias: Expression | None = None) -> Expression:
        """The attention of columns to all of them, or to all columns of a memory.

        Args:
            x: the columns, ``{dim,m}`` or ``{dim}``
            memory: what `keys_values` returns; None: x
            bias: added to the scores, ``{n,m,heads}``
        """
        if memory is None:
            queries, memory = self._projected(x, 0)
        else:
            queries = self.query(x)
        return self._attended(queries, memory, bias)

    def keys_values(self, memory: Expression) -> KeysValues:
        """Keys and values of a memory, for several calls.

        Args:
            memory: shape ``{dim,n}``
        """
        return KeysValues(self.key(memory), self.value(memory))

    def _projected(self, x: Expression, first: int) -> tuple[Expression, KeysValues]:
        """Queries, keys and values of columns from position `first` on."""
        return self.query(x), self.keys_values(x)

    def _attended(
        self,
        queries: Expression,
        past: KeysValues,
        bias: Expression | None,
        causal: bool = False,
        first: int = 0,
    ) -> Expression:
        found = ops.scaled_dot_product_attention(
            queries,
            self._for_all_heads(past.keys),
            self._for_all_heads(past.values),
            self.heads,
            bias=bias,
            causal=causal,
            first=first,
            dropout=self.dropout.now,
            scale=self.scale,
        )
        return self.output(found)

    def _for_all_heads(self, x: Expression) -> Expression:
        """Keys or values with the rows of a head for each head of queries."""
        if self.kv_heads == self.heads:
            return x
        rows = np.arange(self.kv_heads * self.head_dim).reshape(self.kv_heads, self.head_dim)
        return ops.select_rows(x, np.repeat(rows, self.heads // self.kv_heads, axis=0).ravel())
