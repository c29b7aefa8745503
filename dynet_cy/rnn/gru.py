"""The gated recurrent unit of Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", EMNLP 2014."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection, Parameters
from dynet_cy.ops.api import affine_transform, cmult, dropout, gru_h, logistic_affine, tanh_affine
from dynet_cy.rnn.builder import _RNNBuilder
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
    The state is not dropped out, so that `output()` is then not `h()[-1]`.

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

    def _output(self, h: Expression) -> Expression:
        return dropout(h, self._rates[0])

    def _cell(
        self,
        params: Any,
        masks: Sequence[Expression | None] | None,
        x: Expression,
        h: Expression | None,
        c: Expression | None,
    ) -> tuple[Expression, Expression | None]:
        w_zx, w_zh, b_z, w_rx, w_rh, b_r, w_hx, w_hh, b_h = params
        if self._dropping:
            x = dropout(x, self._rates[0])
        # The products with the inputs need no step before: batched, they are one product for all steps.
        p_z, p_r, p_g = (affine_transform(layer) for layer in ([b_z, w_zx, x], [b_r, w_rx, x], [b_h, w_hx, x]))
        if h is None:
            return cmult(logistic_affine([p_z]), tanh_affine([p_g])), None
        r = logistic_affine([p_r, w_rh, h])
        g = tanh_affine([p_g, w_hh, cmult(r, h)])
        return gru_h(h, logistic_affine([p_z, w_zh, h]), g), None

    def _make_steps(self, binding: Binding) -> Steps:
        return Steps(self, GRU_STEP, [tuple(layer) for layer in binding.exprs])
