"""Transformers: layers and stacks of encoders and decoders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Union

import numpy.typing as npt

from dynet_cy.functions.arguments import Input, as_input
from dynet_cy.graph import Expression
from dynet_cy.graph.regions import checkpoint
from dynet_cy.model import ParameterCollection
from dynet_cy.model.weights import Weights
from dynet_cy.nn.attention import KeysValues, Memory, MultiHeadAttention
from dynet_cy.nn.basic import Activation, Dropout, GatedLinear, LayerNorm, Linear, RMSNorm
from dynet_cy.nn.layer import Layer, further
from dynet_cy.nn.positions import Base
from dynet_cy.ops.registry import DimensionError

__all__ = [
    "DecoderState",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]

Past = Union[KeysValues, None]


class DecoderState(NamedTuple):
    """The state of a decoder, to which its next step attends. A state belongs to a graph, and is immutable.

    Attributes:
        past: keys and values of the previous columns, for each layer; None at the beginning
        memory: keys and values of the memory that the decoder attends to, for each layer
    """

    past: tuple[Past, ...]
    memory: tuple[KeysValues, ...]

    def position(self) -> int:
        """The number of columns so far."""
        return 0 if self.past[0] is None else self.past[0].columns


_NORMS = ("layer", "rms")
# Of the options from `attention_dropout` to `base`.
_DEFAULTS = (None, None, None, "layer", False, True, None, None, None, 10000.0)


def _norm(kind: str, of: Any, eps: float | None) -> LayerNorm | RMSNorm:
    """A norm of a layer or stack."""
    if kind not in _NORMS:
        expected = f"expected one of {', '.join(_NORMS)}, got {kind!r:.80}"
        raise ValueError(f"{type(of).__name__}: argument norm: {expected}")
    if kind == "layer":
        return LayerNorm(of.dim, of.collection, eps, of.bias)
    return RMSNorm(of.dim, of.collection, *(() if eps is None else (eps,)))


def _gated(value: Any, layer: Layer) -> bool:
    """The argument `gated` of a layer or stack, which other libraries give as the name of an activation."""
    if isinstance(value, str):
        raise TypeError(
            f"{type(layer).__name__}: argument gated: expected True or False, got {value!r:.80}; "
            'SwiGLU is gated=True, activation="silu", and GeGLU gated=True, activation="gelu"'
        )
    return bool(value)


class _Block(Layer):
    """The base of encoder and decoder layers: sublayers with residual connections and norms, the last of which is two
    linear layers with an activation in between.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        hidden_dim: int,
        model: ParameterCollection,
        dropout: float = 0.0,
        activation: str = "rectify",
        norm_first: bool = False,
        positions: str | None = None,
        eps: float | None = None,
        max_distance: int = 16,
        attention_dropout: float | None = None,
        hidden_dropout: float | None = None,
        activation_dropout: float | None = None,
        norm: str = "layer",
        gated: bool = False,
        bias: bool = True,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        window: int | None = None,
        base: Base = 10000.0,
        *,
        init: str | None = None,
    ) -> None:
        self.dim = self._size(dim, "dim")
        self.heads = self._size(heads, "heads")
        self.hidden_dim = self._size(hidden_dim, "hidden_dim")
        self.norm_first = bool(norm_first)
        rates = [dropout if rate is None else rate for rate in (attention_dropout, hidden_dropout, activation_dropout)]
        self.dropout = Dropout(rates[1])
        self.activation = Activation(activation)
        self.activation_dropout = Dropout(rates[2])
        sizes = (self.dim, heads, self.hidden_dim)
        options = (float(dropout), activation, self.norm_first, positions, eps, max_distance)
        self.gated, self.bias = _gated(gated, self), bool(bias)
        base = base if isinstance(base, (int, float)) else tuple(map(float, base))
        settings = (attention_dropout, hidden_dropout, activation_dropout, norm, self.gated, self.bias)
        grouped = (kv_heads, head_dim)
        more = further((*settings, *grouped, window, base), _DEFAULTS)
        super().__init__(model, (*sizes, *options, *more))
        self.attention = MultiHeadAttention(
            dim, heads, self.collection, rates[0], self.bias, positions, max_distance, *grouped, window, base
        )
        self._add_attention(rates[0], grouped)
        self.linear1: GatedLinear | Linear
        if self.gated:
            self.linear1 = GatedLinear(dim, hidden_dim, self.collection, activation, self.bias)
        else:
            self.linear1 = Linear(dim, hidden_dim, self.collection, self.bias)
        self.linear2 = Linear(hidden_dim, dim, self.collection, self.bias)
        self.norms = [_norm(norm, self, eps) for _ in range(self._sublayers)]
        self._set_init(init)

    _sublayers = 2

    def _add_attention(self, rate: float, grouped: tuple[int | None, int | None]) -> None:
        """Add the sublayers of a derived class between attention and the linear layers."""

    def _before(self, which: int, x: Expression) -> Expression:
        """The input of a sublayer."""
        return self.norms[which](x) if self.norm_first else x

    def _after(self, which: int, x: Expression, found: Expression) -> Expression:
        """x plus the output of a sublayer."""
        if self.norm_first:
            return x + self.dropout(found)
        return self.norms[which].after(x, found, self.dropout.now)

    def _feed_forward(self, x: Expression) -> Expression:
        which = self._sublayers - 1
        hidden = self.linear1(self._before(which, x))
        hidden = self.activation_dropout(hidden if self.gated else self.activation(hidden))
        return self._after(which, x, self.linear2(hidden))

    def _take_pytorch(self, weights: Weights) -> None:
        self.attention._take_pytorch(weights.below("self_attn"))
        self.linear1._take_pytorch(weights.below("linear1"))
        self.linear2._take_pytorch(weights.below("linear2"))
        for i, norm in enumerate(self.norms, 1):
            norm._take_pytorch(weights.below(f"norm{i}"))


class TransformerEncoderLayer(_Block):
    """Self-attention, then two linear layers for each column, both with residual connections (Vaswani et al.,
    "Attention is all you need", NeurIPS 2017).

        x = norm(x + attention(x));  x = norm(x + W2 f(W1 x + b1) + b2)

    or, with `norm_first`, x + attention(norm(x)) and so on (Xiong et al., "On layer normalization in the Transformer
    architecture", ICML 2020).

    Parameters: those of `MultiHeadAttention`, two `Linear` and two `LayerNorm`.

    Args:
        dim: length of the columns
        heads: number of heads, which divides dim
        hidden_dim: length of the vectors between the linear layers
        model: where the parameters go
        dropout: the rate of each kind of dropout, in training mode, for which no other is given (default: 0)
        activation: the name of f; see `Activation`
        norm_first: whether norms come first
        positions: None, "rotary" or "relative"; see `MultiHeadAttention`
        eps: of the norms; see `LayerNorm`
        max_distance: see `MultiHeadAttention`
        attention_dropout: of the weights of attention
        hidden_dropout: of the outputs of sublayers
        activation_dropout: of f(...), between the linear layers; BERT has none there, torch.nn the same as elsewhere
        norm: "layer", or "rms" for `RMSNorm`
        gated: whether f(W1 x + b1) is multiplied by a third linear layer, as in `GatedLinear` (Shazeer, "GLU variants
            improve Transformer", 2020)
        bias: whether linear layers, attention and layer norms have b
        kv_heads, head_dim, window, base: see `MultiHeadAttention`
        init: "pytorch" for the initial values of PyTorch; see `Layer.initialize`. Default: those above

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is out of its range, or there is no such activation

    Example:
        >>> import dynet_cy as dy
        >>> layer = dy.nn.TransformerEncoderLayer(8, 2, 16, dy.ParameterCollection())
        >>> layer(dy.zeros((8, 5))).dim()
        ((8, 5), 1)
    """

    def __call__(
        self,
        x: Input,
        *,
        causal: bool = False,
        mask: Expression | npt.ArrayLike | None = None,
        bias: Expression | None = None,
    ) -> Expression:
        """The columns, each with information from the others.

        Args:
            x: shape ``{dim,n}``
            causal, mask, bias: see `MultiHeadAttention`

        Returns:
            Expression of the shape of x.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows, or a mask of another shape
        """
        x = x if isinstance(x, Expression) else self._checked(x, self.dim)
        found = self.attention(self._before(0, x), causal=causal, mask=mask, bias=bias)
        return self._feed_forward(self._after(0, x, found))

    def step(
        self, x: Input, past: KeysValues | None = None, *, bias: Expression | None = None
    ) -> tuple[Expression, KeysValues]:
        """Run the layer with `causal=True` for the next columns; see `MultiHeadAttention.step`.

        Args:
            x: shape ``{dim}`` or ``{dim,m}``
            past: from the last step; None at the beginning
            bias: see `MultiHeadAttention.step`
        """
        x = x if isinstance(x, Expression) else self._checked(x, self.dim)
        found, past = self.attention.step(self._before(0, x), past, bias=bias)
        return self._feed_forward(self._after(0, x, found)), past


class TransformerDecoderLayer(_Block):
    """Causal self-attention, attention to a memory, then two linear layers for each column, each with a residual
    connection (Vaswani et al., "Attention is all you need", NeurIPS 2017).

    Parameters: those of two `MultiHeadAttention`, two `Linear` and three `LayerNorm`.

    Args:
        dim, heads, hidden_dim, model, dropout, activation, norm_first: see `TransformerEncoderLayer`
        eps, max_distance, attention_dropout, hidden_dropout, activation_dropout, init: see `TransformerEncoderLayer`
        norm, gated, bias, kv_heads, head_dim, base: see `TransformerEncoderLayer`
        positions: those of the self-attention; the attention to the memory has none

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is out of its range, or there is no such activation

    Example:
        >>> import dynet_cy as dy
        >>> layer = dy.nn.TransformerDecoderLayer(8, 2, 16, dy.ParameterCollection())
        >>> layer(dy.zeros((8, 5)), dy.zeros((8, 7))).dim()
        ((8, 5), 1)
    """

    _sublayers = 3

    def _add_attention(self, rate: float, grouped: tuple[int | None, int | None]) -> None:
        self.cross = MultiHeadAttention(self.dim, self.heads, self.collection, rate, self.bias, None, 16, *grouped)

    def __call__(
        self,
        x: Input,
        memory: Memory,
        *,
        mask: Expression | npt.ArrayLike | None = None,
        bias: Expression | None = None,
    ) -> Expression:
        """The columns, each with information from the previous ones and from the memory.

        Args:
            x: shape ``{dim,m}``
            memory: shape ``{dim,n}``, or its keys and values, `layer.cross.keys_values(memory)`
            mask: which columns of the memory may be attended to; see `MultiHeadAttention`
            bias: added to the scores of the self-attention, ``{m,m}`` or ``{m,m,heads}``

        Returns:
            Expression of the shape of x.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows, or a mask of another shape
        """
        x = x if isinstance(x, Expression) else self._checked(x, self.dim)
        found = self.attention(self._before(0, x), causal=True, bias=bias)
        return self._rest(self._after(0, x, found), memory, mask)

    def step(
        self, x: Input, past: KeysValues | None, memory: Memory, *, bias: Expression | None = None
    ) -> tuple[Expression, KeysValues]:
        """Run the layer for the next columns; see `MultiHeadAttention.step`.

        Args:
            x: shape ``{dim}`` or ``{dim,m}``
            past: from the last step; None at the beginning
            memory: as in a call
            bias: that of the self-attention; see `MultiHeadAttention.step`
        """
        x = x if isinstance(x, Expression) else self._checked(x, self.dim)
        found, past = self.attention.step(self._before(0, x), past, bias=bias)
        return self._rest(self._after(0, x, found), memory, None), past

    def _rest(self, x: Expression, memory: Memory, mask: Expression | npt.ArrayLike | None) -> Expression:
        found = self.cross(self._before(1, x), memory, mask=mask)
        return self._feed_forward(self._after(1, x, found))

    def _take_pytorch(self, weights: Weights) -> None:
        super()._take_pytorch(weights)
        self.cross._take_pytorch(weights.below("multihead_attn"))


class _Stack(Layer):
    """A stack of blocks, followed by a norm."""

    _block: type[Any]

    def __init__(
        self,
        layers: int,
        dim: int,
        heads: int,
        hidden_dim: int,
        model: ParameterCollection,
        dropout: float = 0.0,
        activation: str = "rectify",
        norm_first: bool = False,
        positions: str | None = None,
        eps: float | None = None,
        max_distance: int = 16,
        final_norm: bool | None = None,
        checkpoint: bool = False,
        attention_dropout: float | None = None,
        hidden_dropout: float | None = None,
        activation_dropout: float | None = None,
        norm: str = "layer",
        gated: bool = False,
        bias: bool = True,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        window: int | None = None,
        base: Base = 10000.0,
        *,
        init: str | None = None,
    ) -> None:
        count = self._size(layers, "layers")
        options = (dropout, activation, bool(norm_first), positions, eps, max_distance)
        rates = (attention_dropout, hidden_dropout, activation_dropout)
        base = base if isinstance(base, (int, float)) else tuple(map(float, base))
        more = (*rates, norm, _gated(gated, self), bool(bias), kv_heads, head_dim, window, base)
        final = bool(norm_first if final_norm is None else final_norm)
        self.checkpoint = bool(checkpoint)
        rest = further((self.checkpoint, *more), (False, *_DEFAULTS))
        super().__init__(model, (count, dim, heads, hidden_dim, *options, final, *rest))
        self.dim, self.bias = dim, bool(bias)
        self.layers = [self._block(dim, heads, hidden_dim, self.collection, *options, *more) for _ in range(count)]
        self.norm = _norm(norm, self, eps) if final else None
        self._set_init(init)

    def _run(self, x: Input, *args: Input, all_layers: bool, **settings: Any) -> Any:
        """The result of the last layer, or x and those of all layers."""
        states = [x if isinstance(x, Expression) else as_input(x, type(self).__name__)]
        for layer in self.layers:
            given = states[-1], *args
            states.append(checkpoint(layer, *given, **settings) if self.checkpoint else layer(*given, **settings))
        states[-1] = self._finish(states[-1])
        return states if all_layers else states[-1]

    def _finish(self, x: Expression) -> Expression:
        return x if self.norm is None else self.norm(x)

    def _take_pytorch(self, weights: Weights) -> None:
        for i, layer in enumerate(self.layers):
            layer._take_pytorch(weights.below(f"layers.{i}"))
        if self.norm is not None:
            self.norm._take_pytorch(weights.below("norm"))


class TransformerEncoder(_Stack):
    """A stack of `TransformerEncoderLayer`. With `causal=True` or `step`, it is the decoder of a language model.

    Args:
        layers: number of layers, at least 1
        dim, heads, hidden_dim, model, dropout, activation, norm_first, positions: see `TransformerEncoderLayer`
        eps, max_distance, attention_dropout, hidden_dropout, activation_dropout, init: see `TransformerEncoderLayer`
        norm, gated, bias, kv_heads, head_dim, base: see `TransformerEncoderLayer`
        final_norm: whether a `LayerNorm` follows; None, the default, for yes with `norm_first` and else no
        checkpoint: whether calls drop the values within layers and compute them again in backward, for less memory; see
            `dynet_cy.checkpoint`. The attribute of this name changes it later. Default: False

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is out of its range, or there is no such activation

    Example:
        >>> import dynet_cy as dy
        >>> encoder = dy.nn.TransformerEncoder(2, 8, 2, 16, dy.ParameterCollection())
        >>> encoder(dy.zeros((8, 5))).dim()
        ((8, 5), 1)
        >>> first, state = encoder.step(dy.zeros(8))  # word by word, to generate text
        >>> second, state = encoder.step(dy.zeros(8), state)
    """

    _block = TransformerEncoderLayer

    def __call__(
        self,
        x: Input,
        *,
        causal: bool = False,
        mask: Expression | npt.ArrayLike | None = None,
        bias: Expression | None = None,
        all_layers: bool = False,
    ) -> Any:
        """The columns, each with information from the others.

        Args:
            x: shape ``{dim,n}``
            causal, mask, bias: see `MultiHeadAttention`
            all_layers: whether to return x and the results of all layers, the last one after the final norm

        Returns:
            Expression of the shape of x; with `all_layers` a list of them.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows, or a mask of another shape
        """
        return self._run(x, all_layers=all_layers, causal=causal, mask=mask, bias=bias)

    def step(
        self, x: Input, state: Sequence[Past] | None = None, *, bias: Expression | None = None
    ) -> tuple[Expression, tuple[KeysValues, ...]]:
        """Run the layer with `causal=True` for the next columns, from keys and values of the previous ones.

        Args:
            x: the next column ``{dim}``, or several ``{dim,m}``
            state: from the last step; None at the beginning
            bias: see `MultiHeadAttention.step`

        Returns:
            Expression of the shape of x, and the state after it: keys and values for each layer.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows, or the state of another stack
        """
        y = x if isinstance(x, Expression) else as_input(x, type(self).__name__)
        past = _for_layers(state, self)
        found: list[KeysValues] = []
        for layer, before in zip(self.layers, past):
            y, after = layer.step(y, before, bias=bias)
            found.append(after)
        return self._finish(y), tuple(found)


class TransformerDecoder(_Stack):
    """A stack of `TransformerDecoderLayer`.

    Args:
        layers: number of layers, at least 1
        dim, heads, hidden_dim, model, dropout, activation, norm_first, positions: see `TransformerDecoderLayer`
        eps, max_distance, attention_dropout, hidden_dropout, activation_dropout, init: see `TransformerDecoderLayer`
        final_norm: whether a `LayerNorm` follows; None, the default, for yes with `norm_first` and else no
        checkpoint: whether calls drop the values within layers and compute them again in backward, for less memory; see
            `dynet_cy.checkpoint`. The attribute of this name changes it later. Default: False

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is out of its range, or there is no such activation

    Example:
        >>> import dynet_cy as dy
        >>> decoder = dy.nn.TransformerDecoder(2, 8, 2, 16, dy.ParameterCollection())
        >>> memory = dy.zeros((8, 7))
        >>> decoder(dy.zeros((8, 5)), memory).dim()  # in training, when all words are known
        ((8, 5), 1)
        >>> state = decoder.start(memory)  # word by word, to generate text
        >>> first, state = decoder.step(dy.zeros(8), state)
        >>> second, state = decoder.step(dy.zeros(8), state)
    """

    _block = TransformerDecoderLayer

    def __call__(
        self,
        x: Input,
        memory: Input,
        *,
        mask: Expression | npt.ArrayLike | None = None,
        bias: Expression | None = None,
        all_layers: bool = False,
    ) -> Any:
        """The columns, each with information from the previous ones and from the memory.

        Args:
            x: shape ``{dim,m}``
            memory: shape ``{dim,n}``
            mask: which columns of the memory may be attended to; see `MultiHeadAttention`
            bias: see `TransformerDecoderLayer`
            all_layers: whether to return x and the results of all layers, the last one after the final norm

        Returns:
            Expression of the shape of x; with `all_layers` a list of them.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows, or a mask of another shape
        """
        return self._run(x, memory, all_layers=all_layers, mask=mask, bias=bias)

    def start(self, memory: Input) -> DecoderState:
        """The state before the first step.

        Args:
            memory: shape ``{dim,n}``

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows
        """
        return DecoderState((None,) * len(self.layers), tuple(layer.cross.keys_values(memory) for layer in self.layers))

    def step(self, x: Input, state: DecoderState, *, bias: Expression | None = None) -> tuple[Expression, DecoderState]:
        """Run the layer for the next columns.

        Args:
            x: the next column ``{dim}``, or several ``{dim,m}``
            state: from `start`, or from the last step
            bias: that of the self-attention; see `MultiHeadAttention.step`

        Returns:
            Expression of the shape of x, and the state after it.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows, or the state of another stack
        """
        y = x if isinstance(x, Expression) else as_input(x, type(self).__name__)
        past: list[Past] = []
        for layer, before, memory in zip(self.layers, _for_layers(state.past, self), state.memory):
            y, after = layer.step(y, before, memory, bias=bias)
            past.append(after)
        return self._finish(y), DecoderState(tuple(past), state.memory)


def _for_layers(state: Sequence[Past] | None, stack: _Stack) -> Sequence[Past]:
    if state is None:
        return (None,) * len(stack.layers)
    if len(state) != len(stack.layers):
        name = type(stack).__name__
        raise DimensionError(
            f"{name}.step: argument state: expected one of {len(stack.layers)} layers, got {len(state)}"
        )
    return state
