"""Attention: multi-head, pointer and biaffine."""

from __future__ import annotations

import functools
import operator
from typing import NamedTuple, Union

import numpy as np
import numpy.typing as npt

from dynet_cy.functions.arguments import Input
from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection, Parameters
from dynet_cy.model.weights import Array, Weights
from dynet_cy.nn.basic import Dropout
from dynet_cy.nn.layer import Layer, Stored, further, set_uniform
from dynet_cy.nn.positions import Base, bias_of_rows, distances, rotate
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
        """These keys and values, and further ones after them."""
        return KeysValues(
            ops.concatenate([self.keys, more.keys], d=1), ops.concatenate([self.values, more.values], d=1)
        )


Memory = Union[Input, KeysValues]


def _columns(shape: tuple[int, ...]) -> int:
    return shape[1] if len(shape) > 1 else 1


class MultiHeadAttention(Layer):
    """For each query and head, a mean of values, weighted by how well their keys match the query (Vaswani et al.,
    "Attention is all you need", NeurIPS 2017).

    With d = head_dim, head i of the queries x and the memory m is V softmax(K' Q / sqrt(d)), where Q, K and V are
    rows d i to d (i + 1) of Wq x + bq, Wk m + bk and Wv m + bv. The result is Wo times the concatenated heads, plus bo.

    Parameters: Wq (heads d, dim), Wk and Wv (kv_heads d, dim) and Wo (dim, heads d), Glorot; bq, bk, bv and bo, zeros;
    with relative positions a table of 2 max_distance + 1 biases for each head, zeros.

    Args:
        dim: length of the columns
        heads: number of heads, which divides dim if there is no head_dim
        model: where the parameters go
        dropout: rate of dropout of the weights in training mode
        bias: whether there are bq, bk, bv and bo
        positions: None; "rotary": queries and keys are rotated by angles that grow with their positions (Su et al.,
            "RoFormer", 2021; element i is paired with element i + d / 2); or "relative": each score gets a learnt bias
            for its head and distance (Raffel et al., "T5", JMLR 2020, with distances clipped as in Shaw et al., NAACL
            2018)
        max_distance: for "relative": greater distances count as this one
        kv_heads: number of heads of keys and values, each of which serves as many heads of queries (Ainslie et al.,
            "GQA", EMNLP 2023); with fewer of them, the caches of decoders are smaller. None, the default: `heads`
        head_dim: length of a head's part of queries, keys and values; None, the default: dim / heads
        window: the greatest distance of a key from its query in self-attention; None, the default: any. See
            `scaled_dot_product_attention`
        base: for "rotary"; see `rotate`
        scale: what scores are multiplied by; None, the default: 1 / sqrt(head_dim)
        init: "pytorch" for the initial values of PyTorch; see `Layer.initialize`. Default: those above

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is less than 1, heads do not divide dim, kv_heads not heads, there are no such positions,
            or for "rotary" head_dim is odd

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
        kv_heads: int | None = None,
        head_dim: int | None = None,
        window: int | None = None,
        base: Base = 10000.0,
        scale: float | None = None,
        *,
        init: str | None = None,
    ) -> None:
        self.dim = self._size(dim, "dim")
        self.heads = self._size(heads, "heads")
        self.max_distance = self._size(max_distance, "max_distance")
        self.kv_heads = self._size(self.heads if kv_heads is None else kv_heads, "kv_heads")
        self.window = None if window is None else self._size(window, "window")
        self.base = float(base) if isinstance(base, (int, float)) else tuple(float(angle) for angle in base)
        if self.heads % self.kv_heads:
            raise ValueError(f"MultiHeadAttention: {kv_heads} kv_heads do not divide {heads} heads")
        if head_dim is None and self.dim % self.heads:
            raise ValueError(f"MultiHeadAttention: {heads} heads do not divide a dim of {dim}")
        if positions not in (None, "rotary", "relative"):
            expected = "expected None, 'rotary' or 'relative'"
            raise ValueError(f"MultiHeadAttention: argument positions: {expected}, got {positions!r}")
        self.head_dim = self._size(self.dim // self.heads if head_dim is None else head_dim, "head_dim")
        self.scale = self.head_dim**-0.5 if scale is None else float(scale)
        if positions == "rotary" and self.head_dim % 2:
            got = f"{dim} / {heads}" if head_dim is None else head_dim
            raise ValueError(f"MultiHeadAttention: rotary positions need an even dim / heads, got {got}")
        self.dropout = Dropout(dropout)
        self.positions = positions
        more = further((kv_heads, head_dim, window, self.base, scale), (None, None, None, 10000.0, None))
        super().__init__(
            model, (self.dim, self.heads, self.dropout.rate, bool(bias), self.positions, self.max_distance, *more)
        )
        self._add_projections(bool(bias))
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

    def _add_projections(self, bias: bool) -> None:
        """Add the parameters of `_project`."""
        inner, shared = self.heads * self.head_dim, self.kv_heads * self.head_dim
        rows = {"q": inner, "k": shared, "v": shared, "o": self.dim}
        self._weights = [self._matrix(n, inner if c == "o" else self.dim, "W" + c) for c, n in rows.items()]
        self._biases = [self._vector(n, 0.0, "b" + c) if bias else None for c, n in rows.items()]

    def __call__(
        self,
        x: Input,
        memory: Memory | None = None,
        *,
        causal: bool = False,
        mask: Expression | npt.ArrayLike | None = None,
        bias: Expression | None = None,
    ) -> Expression:
        """The attention of the columns of x to those of the memory.

        Args:
            x: the source of the queries, shape ``{dim,m}`` or ``{dim}``
            memory: the source of keys and values, ``{dim,n}``, or the result of `keys_values`; x itself when None
            causal: whether query j may attend only to keys 0 to j
            mask: booleans of shape (n, m) or (n, 1), with the batch, if any, as a third axis, or a comparison of
                such a shape: whether a query may attend to a key. Masks are not needed for sentences of different
                lengths. A query that may attend to no key attends to all.
            bias: added to the scores, ``{n,m}`` or ``{n,m,heads}``, such as those of `RelativeBias` and `alibi`

        Returns:
            Expression of the shape of x.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows, or a mask of another shape
        """
        x = self._checked(x, self.dim)
        queries, past = self._queries_and_memory(x, memory)
        window = self.window if memory is None else None
        return self._project(3, self._found(queries, past, 0, causal, mask, bias, self.dropout.now, window))

    def weights(
        self,
        x: Input,
        memory: Memory | None = None,
        *,
        causal: bool = False,
        mask: Expression | npt.ArrayLike | None = None,
        bias: Expression | None = None,
    ) -> Expression:
        """The attention weight of each key for each query.

        Args:
            x, memory, causal, mask, bias: as in a call

        Returns:
            Expression of shape ``{n,m}``, whose columns sum to 1, with a batch element for each head of each batch
            element.
        """
        x = self._checked(x, self.dim)
        queries, past = self._queries_and_memory(x, memory)
        shape, batch = x.dim()
        n, columns = past.columns, _columns(shape)
        # If the values are one-hot vectors, their weighted mean is the vector of weights.
        ones = np.tile(np.eye(n, dtype=np.float32), (self.kv_heads, 1))
        past = KeysValues(past.keys, ops.inputTensor(ones))
        window = self.window if memory is None else None
        found = self._found(queries, past, 0, causal, mask, bias, 0.0, window)
        found = ops.reshape(found, (n, self.heads, columns), batch)
        return ops.reshape(ops.transpose(found, (0, 2, 1)), (n, columns), self.heads * batch)

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
        return KeysValues(self._placed(1, memory, first), self._project(2, memory))

    def step(
        self, x: Input, past: KeysValues | None = None, *, bias: Expression | None = None
    ) -> tuple[Expression, KeysValues]:
        """Causal attention of the next columns of a sequence, given the previous ones: the result of a call with
        `causal=True` for these columns.

        Args:
            x: the next column ``{dim}``, or several ``{dim,m}``
            past: keys and values of the previous columns, from the last step; None at the beginning
            bias: as in a call; n is the number of all columns up to here

        Returns:
            Expression of the shape of x, and keys and values of all columns up to here.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows
        """
        x = self._checked(x, self.dim)
        first = 0 if past is None else past.columns
        queries, here = self._projected(x, first)
        past = here if past is None else past.joined(here)
        found = self._found(queries, past, first, True, None, bias, self.dropout.now, self.window)
        return self._project(3, found), past

    # ---- parts

    def _queries_and_memory(self, x: Expression, memory: Memory | None) -> tuple[Expression, KeysValues]:
        if memory is None:
            return self._projected(x, 0)
        return self._placed(0, x, 0), memory if isinstance(memory, KeysValues) else self.keys_values(memory)

    def _projected(self, x: Expression, first: int) -> tuple[Expression, KeysValues]:
        """Queries, keys and values of columns from position `first` on."""
        return self._placed(0, x, first), KeysValues(self._placed(1, x, first), self._project(2, x))

    def _placed(self, which: int, x: Expression, first: int) -> Expression:
        """Queries or keys, rotated by their positions if these are rotary."""
        y = self._project(which, x)
        heads = self.kv_heads if which else self.heads
        return rotate(y, heads, first, self.base) if self.positions == "rotary" else y

    def _found(
        self,
        queries: Expression,
        past: KeysValues,
        first: int,
        causal: bool,
        mask: Expression | npt.ArrayLike | None,
        bias: Expression | None,
        dropout: float,
        window: int | None,
    ) -> Expression:
        """The results of all heads, stacked."""
        return ops.scaled_dot_product_attention(
            queries,
            self._for_all_heads(past.keys),
            self._for_all_heads(past.values),
            self.heads,
            bias=self._bias(queries, past, first, mask, bias),
            causal=causal,
            first=first,
            dropout=dropout,
            scale=self.scale,
            window=window,
        )

    def _for_all_heads(self, x: Expression) -> Expression:
        """Keys or values with the rows of a head for each head of queries."""
        if self.kv_heads == self.heads:
            return x
        rows = np.arange(x.dim()[0][0]).reshape(self.kv_heads, -1)
        return ops.select_rows(x, np.repeat(rows, self.heads // self.kv_heads, axis=0).ravel())

    def _bias(
        self,
        x: Expression,
        past: KeysValues,
        first: int,
        mask: Expression | npt.ArrayLike | None,
        given: Expression | None,
    ) -> Expression | None:
        """The sum of what is added to the scores."""
        if self._distances is None and mask is None:
            return given
        shape, batch = x.dim()
        n, queries, parts = past.columns, _columns(shape), [] if given is None else [given]
        if self._distances is not None:
            away = np.clip(distances(n, queries, first), -self.max_distance, self.max_distance)
            parts.append(bias_of_rows(self._distances, away + self.max_distance))
        if mask is not None:
            parts.append(self._masked(mask, n, queries, batch))
        return functools.reduce(operator.add, parts)

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

    def _take_pytorch(self, weights: Weights) -> None:
        if self.positions is not None:
            raise NotImplementedError(f"MultiHeadAttention.load_pytorch: PyTorch has no {self.positions} positions")
        if (self.kv_heads, self.heads * self.head_dim) != (self.heads, self.dim):
            raise NotImplementedError("MultiHeadAttention.load_pytorch: PyTorch has no kv_heads, and no head_dim")
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
    """Biaffine scores of pairs of columns: x' U y + u' x + v' y + b, one for each class (Dozat and Manning, "Deep
    biaffine attention for neural dependency parsing", ICLR 2017).

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
