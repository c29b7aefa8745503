"""Attention: multi-head, pointer and biaffine."""

from __future__ import annotations

from typing import Any, NamedTuple, Union

import numpy as np
import numpy.typing as npt

from dynet_cy.functions.arguments import Input
from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection, Parameters
from dynet_cy.model.weights import Array, Weights
from dynet_cy.nn.basic import Dropout
from dynet_cy.nn.layer import Layer, Stored, set_uniform
from dynet_cy.nn.positions import distance_bias, rotate
from dynet_cy.ops import api as ops
from dynet_cy.ops.registry import DimensionError

__all__ = ["BiaffineAttention", "KeysValues", "MultiHeadAttention", "PointerAttention"]

# Added to the scores of masked keys: enough that their weights are 0.
_FORBIDDEN = -1e9


class KeysValues(NamedTuple):
    """The keys and values of all heads, to which attention attends.

    The projections belong to a graph. Decoders use them as a cache; they are immutable, so the continuations of a beam
    can share them.

    Attributes:
        keys: shape ``{dim,n}``, the heads below each other
        values: likewise
    """

    keys: Expression
    values: Expression

    @property
    def columns(self) -> int:
        """The number of columns."""
        return _columns(self.keys.dim()[0])

    def joined(self, more: KeysValues) -> KeysValues:
        """These, followed by further ones."""
        return KeysValues(
            ops.concatenate([self.keys, more.keys], d=1), ops.concatenate([self.values, more.values], d=1)
        )


Memory = Union[Input, KeysValues]


def _columns(shape: tuple[int, ...]) -> int:
    return shape[1] if len(shape) > 1 else 1


class MultiHeadAttention(Layer):
    """For each query and head, a mean of values, weighted by how well their keys match the query (Vaswani et al.,
    "Attention is all you need", NeurIPS 2017).

    With d = dim / heads, head i of the queries x and the memory m is V softmax(K' Q / sqrt(d)), where Q, K and V are
    rows d i to d (i + 1) of Wq x + bq, Wk m + bk and Wv m + bv. The result is Wo times the concatenated heads, plus bo.

    Parameters: Wq, Wk, Wv and Wo (dim, dim), Glorot; bq, bk, bv and bo (dim,), zeros; with relative positions a table
    of 2 max_distance + 1 biases for each head, zeros.

    Args:
        dim: length of the columns
        heads: number of heads, which divides dim
        model: where the parameters go
        dropout: rate of dropout of the weights in training mode
        bias: whether there are bq, bk, bv and bo
        positions: None; "rotary": queries and keys are rotated by angles that grow with their positions (Su et al.,
            "RoFormer", 2021; element i is paired with element i + d / 2); or "relative": each score gets a learnt bias
            for its head and distance (Raffel et al., "T5", JMLR 2020, with distances clipped as in Shaw et al., NAACL
            2018)
        max_distance: for "relative": greater distances count as this one
        init: "pytorch" for the initial values of PyTorch; see `Layer.initialize`. Default: those above

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is less than 1, heads do not divide dim, there are no such positions, or for "rotary" dim /
            heads is odd

    Example:
        >>> import dynet_cy as dy
        >>> attention = dy.nn.MultiHeadAttention(8, 2, dy.ParameterCollection())
        >>> attention(dy.zeros((8, 5))).dim()  # self-attention
        ((8, 5), 1)
        >>> attention(dy.zeros((8, 5)), dy.zeros((8, 7))).dim()  # attention to another sentence
        ((8, 5), 1)
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        model: ParameterCollection,
        dropout: float = 0.0,
        bias: bool = True,
        positions: str | None = None,
        max_distance: int = 16,
        *,
        init: str | None = None,
    ) -> None:
        self.dim = self._size(dim, "dim")
        self.heads = self._size(heads, "heads")
        self.max_distance = self._size(max_distance, "max_distance")
        if self.dim % self.heads:
            raise ValueError(f"MultiHeadAttention: {heads} heads do not divide a dim of {dim}")
        if positions not in (None, "rotary", "relative"):
            expected = "expected None, 'rotary' or 'relative'"
            raise ValueError(f"MultiHeadAttention: argument positions: {expected}, got {positions!r}")
        if positions == "rotary" and self.dim // self.heads % 2:
            raise ValueError(f"MultiHeadAttention: rotary positions need an even dim / heads, got {dim} / {heads}")
        self.dropout = Dropout(dropout)
        self.positions = positions
        super().__init__(
            model, (self.dim, self.heads, self.dropout.rate, bool(bias), self.positions, self.max_distance)
        )
        names = ("q", "k", "v", "o")
        self._weights = [self._matrix(self.dim, self.dim, "W" + name) for name in names]
        self._biases = [self._vector(self.dim, 0.0, "b" + name) if bias else None for name in names]
        self._distances = None
        if positions == "relative":
            rows = 2 * self.max_distance + 1
            self._distances = self.collection.add_lookup_parameters((rows, self.heads), init=0.0, name="distances")
        self._set_init(init)

    def _as_pytorch(self) -> None:
        *inputs, output = self._weights
        set_uniform((6 / (4 * self.dim)) ** 0.5, *inputs)  # Glorot, for one matrix of all three
        set_uniform(self.dim**-0.5, output)
        set_uniform(0.0, *self._biases)

    def __call__(
        self,
        x: Input,
        memory: Memory | None = None,
        *,
        causal: bool = False,
        mask: Expression | npt.ArrayLike | None = None,
    ) -> Expression:
        """The attention of the columns of x to those of the memory.

        Args:
            x: the source of the queries, shape ``{dim,m}`` or ``{dim}``
            memory: the source of keys and values, ``{dim,n}``, or the result of `keys_values`; x itself when None
            causal: whether query j may attend only to keys 0 to j
            mask: booleans of shape (n, m) or (n, 1), with the batch, if any, as a third axis, or a comparison of
                such a shape: whether a query may attend to a key. Masks are not needed for sentences of different
                lengths. A query that may attend to no key attends to all.

        Returns:
            Expression of the shape of x.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows, or a mask of another shape
        """
        x = self._checked(x, self.dim)
        return self._attend(x, self._memory(x, memory), 0, causal, mask)

    def weights(
        self,
        x: Input,
        memory: Memory | None = None,
        *,
        causal: bool = False,
        mask: Expression | npt.ArrayLike | None = None,
    ) -> Expression:
        """The weight of each key for each query.

        Args:
            x, memory, causal, mask: as in a call

        Returns:
            Expression of shape ``{n,m}``, whose columns sum to 1, with a batch element for each head of each batch
            element.
        """
        x = self._checked(x, self.dim)
        past = self._memory(x, memory)
        shape, batch = x.dim()
        n, queries = past.columns, _columns(shape)
        # If the values are one-hot vectors, their weighted mean is the vector of weights.
        ones = np.tile(np.eye(n, dtype=np.float32), (self.heads, 1))
        past = KeysValues(past.keys, ops.inputTensor(ones))
        found = ops.reshape(self._found(x, past, 0, causal, mask, 0.0), (n, self.heads, queries), batch)
        return ops.reshape(ops.transpose(found, (0, 2, 1)), (n, queries), self.heads * batch)

    def keys_values(self, memory: Input, first: int = 0) -> KeysValues:
        """Keys and values of a memory, to reuse in several calls.

        Args:
            memory: shape ``{dim,n}`` or ``{dim}``
            first: the position of its first column

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows
        """
        memory = self._checked(memory, self.dim, "memory")
        return self._keys_values(memory, first)

    def _keys_values(self, memory: Expression, first: int = 0) -> KeysValues:
        return KeysValues(self._placed(1, memory, first), self._project(2, memory))

    def step(self, x: Input, past: KeysValues | None = None) -> tuple[Expression, KeysValues]:
        """Causal attention of the next columns of a sequence, given the previous ones: the result of a call with
        `causal=True` for these columns.

        Args:
            x: the next column ``{dim}``, or several ``{dim,m}``
            past: keys and values of the previous columns, from the last step; None at the beginning

        Returns:
            Expression of the shape of x, and keys and values of all columns up to here.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows
        """
        x = self._checked(x, self.dim)
        first = 0 if past is None else past.columns
        here = self._keys_values(x, first)
        past = here if past is None else past.joined(here)
        return self._attend(x, past, first, True, None), past

    # ---- parts

    def _memory(self, x: Expression, memory: Memory | None) -> KeysValues:
        if memory is None:
            return self._keys_values(x)
        return memory if isinstance(memory, KeysValues) else self.keys_values(memory)

    def _placed(self, which: int, x: Expression, first: int) -> Expression:
        """Queries or keys, rotated by their positions if these are rotary."""
        y = self._project(which, x)
        return rotate(y, self.heads, first) if self.positions == "rotary" else y

    def _attend(
        self, x: Expression, past: KeysValues, first: int, causal: bool, mask: Expression | npt.ArrayLike | None
    ) -> Expression:
        return self._project(3, self._found(x, past, first, causal, mask, self.dropout.now))

    def _found(
        self,
        x: Expression,
        past: KeysValues,
        first: int,
        causal: bool,
        mask: Expression | npt.ArrayLike | None,
        dropout: float,
    ) -> Expression:
        """The results of all heads, stacked."""
        bias = None
        if self._distances is not None or mask is not None:
            bias = self._bias(x, past, first, mask)
        return ops.scaled_dot_product_attention(
            self._placed(0, x, first),
            past.keys,
            past.values,
            self.heads,
            bias=bias,
            causal=causal,
            first=first,
            dropout=dropout,
        )

    def _bias(
        self, x: Expression, past: KeysValues, first: int, mask: Expression | npt.ArrayLike | None
    ) -> Expression | None:
        """The bias that is added to the scores."""
        shape, batch = x.dim()
        n, queries, found = past.columns, _columns(shape), None
        if self._distances is not None:
            found = distance_bias(self._distances, self.heads, n, queries, first)
        if mask is not None:
            penalties = self._masked(mask, n, queries, batch)
            found = penalties if found is None else found + penalties
        return found

    def _masked(self, mask: Expression | npt.ArrayLike, n: int, queries: int, batch: int) -> Expression:
        if isinstance(mask, Expression):
            shape = mask.dim()[0]
            if shape not in {(n, queries), (n, 1)} and not (shape == (n,) and queries == 1):
                expected = f"({n}, {queries}) or ({n}, 1)"
                raise DimensionError(f"MultiHeadAttention: argument mask: expected shape {expected}, got {shape}")
            return ops.where(mask, ops.zeros(shape), _FORBIDDEN)
        truths = np.asarray(mask)
        if truths.shape not in {(n, columns, *more) for columns in (queries, 1) for more in ((), (batch,))}:
            expected = f"({n}, {queries}) or ({n}, 1), and perhaps ({batch},)"
            raise DimensionError(f"MultiHeadAttention: argument mask: expected shape {expected}, got {truths.shape}")
        penalties = np.where(truths, np.float32(0), np.float32(_FORBIDDEN))
        return ops.inputTensor(penalties, batched=penalties.ndim == 3)

    def _project(self, which: int, x: Expression) -> Expression:
        return self._affine(self._weights[which], x, self._biases[which])

    def _trained(self) -> Any:
        yield from self._weights
        yield from (bias for bias in self._biases if bias is not None)
        if self._distances is not None:
            yield self._distances

    def _take_pytorch(self, weights: Weights) -> None:
        if self.positions is not None:
            raise NotImplementedError(f"MultiHeadAttention.load_pytorch: PyTorch has no {self.positions} positions")
        d = self.dim
        joined = weights.pop("in_proj_weight", (3 * d, d))
        parts: list[tuple[Stored, Array]] = list(zip(self._weights, np.split(joined, 3)))
        parts.append((self._weights[3], weights.pop("out_proj.weight", (d, d))))
        biases = [b for b in self._biases if b is not None]
        if biases:
            parts += zip(biases, np.split(weights.pop("in_proj_bias", (3 * d,)), 3))
            parts.append((biases[3], weights.pop("out_proj.bias", (d,))))
        for parameter, array in parts:
            weights.put(parameter, array)


class PointerAttention(Layer):
    """A score of each column of a memory for a query: v' tanh(W m + U q + b) (Bahdanau, Cho and Bengio, ICLR 2015; as
    pointers, Vinyals, Fortunato and Jaitly, NeurIPS 2015). The softmax of the scores points at a column; the columns
    times the softmax are a weighted mean.

    Parameters: W (hidden_dim, memory_dim), U (hidden_dim, query_dim) and v (1, hidden_dim), Glorot; b (hidden_dim,),
    zeros.

    Args:
        memory_dim: length of the columns of the memory
        query_dim: length of a query
        hidden_dim: length of the vector inside tanh
        model: where the parameters go

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is less than 1

    Example:
        >>> import dynet_cy as dy
        >>> pointer = dy.nn.PointerAttention(6, 4, 8, dy.ParameterCollection())
        >>> pointer(dy.zeros((6, 5)), dy.zeros(4)).dim()
        ((5,), 1)
    """

    def __init__(self, memory_dim: int, query_dim: int, hidden_dim: int, model: ParameterCollection) -> None:
        self.memory_dim = self._size(memory_dim, "memory_dim")
        self.query_dim = self._size(query_dim, "query_dim")
        self.hidden_dim = self._size(hidden_dim, "hidden_dim")
        super().__init__(model, (self.memory_dim, self.query_dim, self.hidden_dim))
        self.W = self._matrix(self.hidden_dim, self.memory_dim)
        self.U = self._matrix(self.hidden_dim, self.query_dim, "U")
        self.v = self._matrix(1, self.hidden_dim, "v")
        self.b = self._vector(self.hidden_dim)

    def keys(self, memory: Input) -> Expression:
        """W m, for calls with many queries.

        Args:
            memory: shape ``{memory_dim,n}``

        Returns:
            Expression of shape ``{hidden_dim,n}``.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows
        """
        memory = self._checked(memory, self.memory_dim, "memory")
        return self.W * memory

    def __call__(self, memory: Input, query: Input, keys: Expression | None = None) -> Expression:
        """The scores of the columns.

        Args:
            memory: shape ``{memory_dim,n}``
            query: shape ``{query_dim}``
            keys: `keys(memory)`, if already computed

        Returns:
            Expression of shape ``{n}``.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another shape
        """
        memory = self._checked(memory, self.memory_dim, "memory")
        query = self._checked(query, self.query_dim, "query")
        if len(query.dim()[0]) > 1:
            raise DimensionError(f"PointerAttention: argument query: expected a vector, got {query.dim()[0]}")
        keys = self.keys(memory) if keys is None else keys
        asked = ops.affine_transform([self.b, self.U, query])
        scores = self.v * ops.tanh(keys + asked)
        return ops.reshape(scores, (_columns(memory.dim()[0]),), scores.dim()[1])


class BiaffineAttention(Layer):
    """A score of each pair of columns: x' U y + u' x + v' y + b, one for each class (Dozat and Manning, "Deep biaffine
    attention for neural dependency parsing", ICLR 2017).

    With `bias`, a 1 is appended to x and y, and U has a further row and column for it, which hold u, v and b.

    Parameters: U (classes (x_dim + 1), y_dim + 1), Glorot; (classes x_dim, y_dim) if `bias` is False.

    Args:
        x_dim: length of the columns of x
        y_dim: length of the columns of y
        model: where the parameters go
        classes: number of scores of a pair
        bias: whether there are u, v and b

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is less than 1

    Example:
        >>> import dynet_cy as dy
        >>> arcs = dy.nn.BiaffineAttention(6, 4, dy.ParameterCollection())
        >>> arcs(dy.zeros((6, 5)), dy.zeros((4, 3))).dim()
        ((5, 3), 1)
        >>> labels = dy.nn.BiaffineAttention(6, 4, dy.ParameterCollection(), classes=10)
        >>> labels(dy.zeros((6, 5)), dy.zeros((4, 3))).dim()
        ((5, 3, 10), 1)
    """

    def __init__(self, x_dim: int, y_dim: int, model: ParameterCollection, classes: int = 1, bias: bool = True) -> None:
        self.x_dim = self._size(x_dim, "x_dim")
        self.y_dim = self._size(y_dim, "y_dim")
        self.classes = self._size(classes, "classes")
        self.bias = bool(bias)
        super().__init__(model, (self.x_dim, self.y_dim, self.classes, self.bias))
        self.U: Parameters = self._matrix(self.classes * (self.x_dim + self.bias), self.y_dim + self.bias, "U")

    def __call__(self, x: Input, y: Input) -> Expression:
        """The scores of all pairs.

        Args:
            x: shape ``{x_dim,n}``
            y: shape ``{y_dim,m}``

        Returns:
            Expression of shape ``{n,m}``, or ``{n,m,classes}``.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows
        """
        x, y = self._checked(x, self.x_dim), self._checked(y, self.y_dim, "y")
        n, m = _columns(x.dim()[0]), _columns(y.dim()[0])
        if self.bias:
            x, y = self._with_one(x, n), self._with_one(y, m)
        rows = self.x_dim + self.bias
        right = self.U * y
        scores = ops.transpose(ops.reshape(x, (rows, n), x.dim()[1]))
        scores = scores * ops.reshape(right, (rows, self.classes * m), right.dim()[1])
        batch = scores.dim()[1]
        if self.classes == 1:
            return ops.reshape(scores, (n, m), batch)
        return ops.transpose(ops.reshape(scores, (n, self.classes, m), batch), (0, 2, 1))

    def _with_one(self, x: Expression, columns: int) -> Expression:
        shape, batch = x.dim()
        return ops.concatenate([x, ops.ones((1, *shape[1:]), batch)])
