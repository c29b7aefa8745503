"""The gated recurrent unit of Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", EMNLP 2014."""

from __future__ import annotations

from dynet_cy.model import ParameterCollection, Parameters
from dynet_cy.rnn.builder import Masks, _RNNBuilder
from dynet_cy.rnn.state import GRU_STEP, Binding, Steps

__all__ = ["GRUBuilder"]


class GRUBuilder(_RNNBuilder):
    """Gated recurrent unit (Cho et al., 2014), in each layer

        z    = sigmoid(W_zx x[t] + W_zh h[t-1] + b_z)
        r    = sigmoid(W_rx x[t] + W_rh h[t-1] + b_r)
        g    = tanh(W_hx x[t] + W_hh (r * h[t-1]) + b_h)
        h[t] = (1 - z) * h[t-1] + z * g

    Parameters of a layer, in the order of `get_parameters()`: W_zx, W_zh, b_z, W_rx, W_rh, b_r, W_hx, W_hh, b_h.
    ``W_?x`` are (hidden_dim, input_dim of the layer), ``W_?h`` (hidden_dim, hidden_dim), all Glorot; biases
    (hidden_dim,), zeros. Sub-collection: `gru-builder`.

    `initial_state` takes one vector a layer: h.

    Dropout masks (`set_dropout`) are drawn at every step: for the input of each layer and the output of the top layer.
    The state is not dropped out, so `output()` then differs from `h()[-1]`.

    Args:
        layers: number of layers
        input_dim: length of the inputs
        hidden_dim: length of the outputs
        model: where the parameters go

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is less than 1

    Example:
        >>> rnn = dy.GRUBuilder(1, 3, 4, model)
        >>> state = rnn.initial_state().add_input(dy.inputVector([1, 2, 3]))
        >>> state.output().dim()
        ((4,), 1)
    """

    _collection_name = "gru-builder"

    def _add_layer(self, model: ParameterCollection, input_dim: int) -> list[Parameters]:
        n = self.hidden_dim
        return [p for _ in range(3) for p in (self._matrix(n, input_dim), self._matrix(n, n), self._bias(n))]

    def _make_steps(self, binding: Binding) -> Steps:
        return Steps(self, GRU_STEP, [tuple(layer) for layer in binding.exprs])

    def _options(self, binding: Binding, batch_size: int) -> tuple[Masks | None, float, float]:
        return None, self._rates[0], 0.0
