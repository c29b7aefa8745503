"""The gated recurrent unit of Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", EMNLP 2014."""

from __future__ import annotations

import numpy as np

from dynet_cy.model import ParameterCollection, Parameters
from dynet_cy.model.weights import Array
from dynet_cy.model.whole import CollectionOrLayer
from dynet_cy.rnn.builder import Masks, _RNNBuilder
from dynet_cy.rnn.state import GRU_RESET_AFTER_STEP, GRU_STEP, Binding, Steps

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

    With `reset_after` the reset gate is applied after the product, as in PyTorch, cuDNN and Keras, and g has a further
    bias, the last parameter of a layer:

        g    = tanh(W_hx x[t] + b_h + r * (W_hh h[t-1] + b_r_h))

    `initial_state` takes one vector a layer: h.

    Dropout masks (`set_dropout`) are drawn at every step: for the input of each layer and the output of the top layer.
    The state is not dropped out, so `output()` then differs from `h()[-1]`. After `set_dropout_masks` they are those of
    Gal and Ghahramani (NeurIPS 2016) instead: in each layer one mask on x and one on the h[t-1] of products, the same
    at all steps.

    Args:
        layers: number of layers
        input_dim: length of the inputs
        hidden_dim: length of the outputs
        model: where the parameters go
        reset_after: apply the reset gate after the product (default: before, as in the paper)
        checkpoint: which states are kept for backward, as the attribute of this name says (default: all)

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

    def __init__(
        self,
        layers: int,
        input_dim: int,
        hidden_dim: int,
        model: CollectionOrLayer,
        reset_after: bool = False,
        *,
        checkpoint: bool | int = False,
    ) -> None:
        self.reset_after = bool(reset_after)
        super().__init__(layers, input_dim, hidden_dim, model, checkpoint=checkpoint)
        if self.reset_after:
            self.spec = (*self.spec, True)

    def _add_layer(self, model: ParameterCollection, input_dim: int) -> list[Parameters]:
        n = self.hidden_dim
        gates = [p for _ in range(3) for p in (self._matrix(n, input_dim), self._matrix(n, n), self._bias(n))]
        return [*gates, self._bias(n)] if self.reset_after else gates

    def _make_steps(self, binding: Binding) -> Steps:
        kind = GRU_RESET_AFTER_STEP if self.reset_after else GRU_STEP
        return Steps(self, kind, [tuple(layer) for layer in binding.exprs])

    # ---- weights of PyTorch, whose gates are r, z, n, with h[t] = (1 - z) n + z h[t-1]

    def _pytorch_gates(self) -> int:
        if not self.reset_after:
            raise NotImplementedError(
                f"{type(self).__name__}: PyTorch's GRU applies the reset gate after the product with the matrix: make "
                "the builder with reset_after=True"
            )
        return 3

    def _from_pytorch(self, w_ih: Array, w_hh: Array, b_ih: Array, b_hh: Array) -> list[Array]:
        (w_r, w_z, w_n), (u_r, u_z, u_n) = np.split(w_ih, 3), np.split(w_hh, 3)
        (b_r, b_z, b_n), (c_r, c_z, c_n) = np.split(b_ih, 3), np.split(b_hh, 3)
        return [-w_z, -u_z, -(b_z + c_z), w_r, u_r, b_r + c_r, w_n, u_n, b_n, c_n]

    def _to_pytorch(self, arrays: list[Array]) -> tuple[Array, Array, Array, Array]:
        w_z, u_z, b_z, w_r, u_r, b_r, w_n, u_n, b_n, c_n = arrays
        zeros = np.zeros_like(b_n)
        joined = [w_r, -w_z, w_n], [u_r, -u_z, u_n], [b_r, -b_z, b_n], [zeros, zeros, c_n]
        w_ih, w_hh, b_ih, b_hh = map(np.concatenate, joined)
        return w_ih, w_hh, b_ih, b_hh

    def _options(self, binding: Binding, batch_size: int) -> tuple[Masks | None, float, float]:
        if binding.masks.batch_size:
            return self._masks(binding, batch_size), 0.0, 0.0
        return None, self._rates[0], 0.0
