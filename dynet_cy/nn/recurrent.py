"""Recurrent networks as layers: a matrix with a column for each position becomes another one."""

from __future__ import annotations

import abc
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Callable, overload

import numpy as np
import numpy.typing as npt

from dynet_cy.functions.arguments import Input
from dynet_cy.graph import Expression
from dynet_cy.model.weights import Weights
from dynet_cy.model.whole import CollectionOrLayer
from dynet_cy.nn.layer import Layer, share
from dynet_cy.rnn.birnn import BiRNNBuilder
from dynet_cy.rnn.builder import _RNNBuilder
from dynet_cy.rnn.gru import GRUBuilder
from dynet_cy.rnn.lstm import VanillaLSTMBuilder
from dynet_cy.rnn.simple import SimpleRNNBuilder

__all__ = ["GRU", "LSTM", "RNN"]


class _Recurrent(Layer):
    """A builder of recurrent networks as a layer.

    Attributes:
        rnn: the builder, for single steps: ``layer.rnn.initial_state()``
    """

    @property
    @abc.abstractmethod
    def _builder(self) -> Callable[..., _RNNBuilder]:
        """A factory of the builder of one direction."""

    def __init__(
        self,
        input_dim: int,
        hidden_dim: int,
        model: CollectionOrLayer,
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        checkpoint: bool | int = False,
        *,
        init: str | None = None,
    ) -> None:
        self.input_dim = self._size(input_dim, "input_dim")
        self.hidden_dim = self._size(hidden_dim, "hidden_dim")
        self.layers = self._size(layers, "layers")
        self.bidirectional = bool(bidirectional)
        rate = share(dropout, type(self).__name__, "dropout")
        spec = (self.input_dim, self.hidden_dim, self.layers, self.bidirectional, rate)
        super().__init__(model, (*spec, checkpoint) if checkpoint else spec)
        sizes = (self.layers, self.input_dim, self.output_dim, self.collection)
        self.rnn: _RNNBuilder | BiRNNBuilder
        if self.bidirectional:
            self.rnn = BiRNNBuilder(*sizes, self._builder, checkpoint=checkpoint)
        else:
            self.rnn = self._builder(*sizes, checkpoint=checkpoint)
        self.rnn.set_dropout(rate)
        self._set_init(init)

    @property
    def output_dim(self) -> int:
        """The length of the columns of the result: `hidden_dim`, or twice that in both directions."""
        return self.hidden_dim * (1 + self.bidirectional)

    @overload
    def __call__(self, x: Sequence[Expression]) -> list[Expression]: ...

    @overload
    def __call__(self, x: Input) -> Expression: ...

    def __call__(self, x: Any) -> Any:
        """The outputs of the top layer at each position.

        Args:
            x: shape ``{input_dim,n}``, a column for each position, or ``{input_dim}`` for one; or a list of expressions
                of shape ``{input_dim}``

        Returns:
            Expression of shape ``{output_dim,n}`` or ``{output_dim}``; for a list, a list. An empty sentence has an
            empty result: ``{output_dim,0}`` for ``{input_dim,0}``, [] for [].

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows, or more than two axes
        """
        if isinstance(x, (list, tuple)) and (not x or any(isinstance(part, Expression) for part in x)):
            return self.rnn.transduce(x)
        return self.rnn.transduce(self._checked(x, self.input_dim))

    def load_pytorch(self, weights: Mapping[str, Any] | str | os.PathLike[str] | Any, prefix: str = "") -> None:
        self.rnn.load_pytorch(weights, prefix)

    def _take_pytorch(self, weights: Weights) -> None:
        self.rnn._take_pytorch(weights)

    def pytorch_state_dict(self, prefix: str = "", cell: bool = False) -> dict[str, npt.NDArray[np.float32]]:
        """The parameters as PyTorch's network has them: by its names, in its order of gates, as new arrays; see
        `VanillaLSTMBuilder.pytorch_state_dict`.

        Args:
            prefix: the beginning of the names, such as `encoder.`
            cell: names of a cell: `weight_ih` instead of `weight_ih_l0`; for one layer in one direction

        Example:
            >>> import dynet_cy as dy
            >>> layer = dy.nn.GRU(3, 4, dy.ParameterCollection())
            >>> {name: array.shape for name, array in layer.pytorch_state_dict().items()}
            {'weight_ih_l0': (12, 3), 'weight_hh_l0': (12, 4), 'bias_ih_l0': (12,), 'bias_hh_l0': (12,)}
        """
        return self.rnn.pytorch_state_dict(prefix, cell)


class LSTM(_Recurrent):
    """A long short-term memory over the columns of a matrix: `VanillaLSTMBuilder`, in both directions `BiRNNBuilder`.

    Args:
        input_dim: length of the columns of x
        hidden_dim: length of the state in each direction
        model: where the parameters go
        layers: number of layers
        bidirectional: whether a second network reads backwards; its outputs come below those of the first one
        dropout: the rate of `set_dropout`: inputs and states of all layers, with the same mask at all positions
        checkpoint: which states are kept for backward, as the attribute of this name of builders says (default: all)
        init: "pytorch" for the initial values of PyTorch; see `Layer.initialize`. Default: that of the builder

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is less than 1, `dropout` is not between 0 and 1, or `checkpoint` is less than 0

    Example:
        >>> import dynet_cy as dy
        >>> layer = dy.nn.LSTM(3, 4, dy.ParameterCollection(), bidirectional=True)
        >>> layer(dy.zeros((3, 5))).dim()
        ((8, 5), 1)
    """

    @property
    def _builder(self) -> Callable[..., _RNNBuilder]:
        return VanillaLSTMBuilder


class GRU(_Recurrent):
    """A gated recurrent unit over the columns of a matrix: `GRUBuilder` with ``reset_after=True``, as PyTorch computes
    it, in both directions `BiRNNBuilder`.

    Args:
        input_dim: length of the columns of x
        hidden_dim: length of the state in each direction
        model: where the parameters go
        layers: number of layers
        bidirectional: whether a second network reads backwards; its outputs come below those of the first one
        dropout: the rate of `set_dropout`: inputs and states of all layers, with the same mask at all positions
        checkpoint: which states are kept for backward, as the attribute of this name of builders says (default: all)
        init: "pytorch" for the initial values of PyTorch; see `Layer.initialize`. Default: that of the builder

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is less than 1, `dropout` is not between 0 and 1, or `checkpoint` is less than 0

    Example:
        >>> import dynet_cy as dy
        >>> layer = dy.nn.GRU(3, 4, dy.ParameterCollection())
        >>> layer(dy.zeros((3, 5))).dim()
        ((4, 5), 1)
    """

    @property
    def _builder(self) -> Callable[..., _RNNBuilder]:
        return partial(GRUBuilder, reset_after=True)


class RNN(_Recurrent):
    """A simple recurrent network with tanh over the columns of a matrix: `SimpleRNNBuilder`, in both directions
    `BiRNNBuilder`.

    Args:
        input_dim: length of the columns of x
        hidden_dim: length of the state in each direction
        model: where the parameters go
        layers: number of layers
        bidirectional: whether a second network reads backwards; its outputs come below those of the first one
        dropout: the rate of `set_dropout`: inputs and states of all layers, with the same mask at all positions
        checkpoint: which states are kept for backward, as the attribute of this name of builders says (default: all)
        init: "pytorch" for the initial values of PyTorch; see `Layer.initialize`. Default: that of the builder

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is less than 1, `dropout` is not between 0 and 1, or `checkpoint` is less than 0

    Example:
        >>> import dynet_cy as dy
        >>> layer = dy.nn.RNN(3, 4, dy.ParameterCollection())
        >>> layer(dy.zeros((3, 5))).dim()
        ((4, 5), 1)
    """

    @property
    def _builder(self) -> Callable[..., _RNNBuilder]:
        return SimpleRNNBuilder
