"""The simple recurrent network of Elman, "Finding Structure in Time", Cognitive Science 14 (1990)."""

from __future__ import annotations

import numpy as np

from dynet_cy.model import ParameterCollection, Parameters
from dynet_cy.model.weights import Array
from dynet_cy.rnn.builder import _RNNBuilder, rate
from dynet_cy.rnn.state import SIMPLE_STEP, Binding, Steps

__all__ = ["SimpleRNNBuilder"]


class SimpleRNNBuilder(_RNNBuilder):
    """Recurrent network with tanh (Elman, 1990), in each layer

        h[t] = tanh(W_x x[t] + W_h h[t-1] + b)

    Parameters of a layer, in the order of `get_parameters()`: W_x (hidden_dim, input_dim of the layer), W_h
    (hidden_dim, hidden_dim), both Glorot; b (hidden_dim,), zeros. Sub-collection: `simple-rnn-builder`.

    `initial_state` takes one vector a layer: h.

    Dropout is that of Gal and Ghahramani, "A Theoretically Grounded Application of Dropout in Recurrent Neural
    Networks", NeurIPS 2016: in each layer one mask on x and one on h[t-1], the same at all steps.

    Args:
        layers: number of layers
        input_dim: length of the inputs
        hidden_dim: length of the outputs
        model: where the parameters go
        checkpoint: which states are kept for backward, as the attribute of this name says (default: all)

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is less than 1

    Example:
        >>> rnn = dy.SimpleRNNBuilder(1, 3, 4, model)
        >>> state = rnn.initial_state().add_input(dy.inputVector([1, 2, 3]))
        >>> state.output().dim()
        ((4,), 1)
    """

    _collection_name = "simple-rnn-builder"
    _n_rates = 2

    def set_dropouts(self, d: float, d_h: float) -> None:
        """Set the dropout rates, each from 0 to 1: `d` of the input of each layer, `d_h` of h[t-1].

        Raises:
            ValueError: not between 0 and 1

        Example:
            >>> rnn = dy.SimpleRNNBuilder(1, 3, 4, model)
            >>> rnn.set_dropouts(0.3, 0.2)
            >>> rnn.initial_state().transduce([dy.inputVector([1, 2, 3])])[0].dim()
            ((4,), 1)
        """
        self._set_rates((rate(d, self, "set_dropouts", "d"), rate(d_h, self, "set_dropouts", "d_h")))

    def _add_layer(self, model: ParameterCollection, input_dim: int) -> list[Parameters]:
        n = self.hidden_dim
        return [self._matrix(n, input_dim), self._matrix(n, n), self._bias(n)]

    def _pytorch_gates(self) -> int:
        return 1

    def _from_pytorch(self, w_ih: Array, w_hh: Array, b_ih: Array, b_hh: Array) -> list[Array]:
        return [w_ih, w_hh, b_ih + b_hh]

    def _to_pytorch(self, arrays: list[Array]) -> tuple[Array, Array, Array, Array]:
        w_x, w_h, b = arrays
        return w_x, w_h, b, np.zeros_like(b)

    def _make_steps(self, binding: Binding) -> Steps:
        return Steps(self, SIMPLE_STEP, [(w_x, w_h, b) for w_x, w_h, b in binding.exprs])
