"""Long short-term memory: Hochreiter and Schmidhuber, Neural Computation 9 (1997), and its variants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection, Parameters
from dynet_cy.model.weights import Array
from dynet_cy.model.whole import CollectionOrLayer
from dynet_cy.ops.api import (
    affine_transform,
    cmult,
    concatenate,
    esum,
    inputVector,
    layer_norm,
    logistic,
    noise,
    pick_range,
    tanh,
    vanilla_lstm_c,
    vanilla_lstm_h,
    zeros,
)
from dynet_cy.rnn.builder import Masks, _RNNBuilder, rate
from dynet_cy.rnn.pytorch import rows_of
from dynet_cy.rnn.state import COUPLED_STEP, FAST_STEP, LSTM_STEP, Binding, RNNState, Steps

__all__ = [
    "CompactVanillaLSTMBuilder",
    "CoupledLSTMBuilder",
    "FastLSTMBuilder",
    "LSTMBuilder",
    "SparseLSTMBuilder",
    "VanillaLSTMBuilder",
]


# The blocks of PyTorch's gates, in the order of those here; and the other way round.
_PYTORCH_ORDER = 0, 1, 3, 2

NO_MASKS: tuple[Expression | None, Expression | None] = (None, None)


class _Layer(NamedTuple):
    """The expressions of a layer with stacked gates."""

    w_x: Expression
    w_h: Expression
    b: Expression  # with the forget bias, minus the 1 that vanilla_lstm_gates adds
    norm: list[Expression] | None  # gain and bias of W_h h, of W_x x, of c


class _StackedGates(_RNNBuilder):
    """The LSTM whose four gates share one matrix, in the order input, forget, output, candidate.

    A step takes four nodes a layer if inputs and states are vectors of one batch size. Otherwise it is made of
    ordinary ops, which broadcast.
    """

    _has_cells = True
    _n_rates = 2
    _default_mask_batch = 1  # the batch size of masks, without set_dropout_masks; 0: that of the input

    ln_lstm = False
    forget_bias = 1.0
    weightnoise_std = 0.0
    _norms: Sequence[list[Parameters]] = ()

    def set_dropouts(self, d: float, d_r: float) -> None:
        """Set the dropout rates, each from 0 to 1: `d` of the input of each layer, `d_r` of h[t-1].

        Raises:
            ValueError: not between 0 and 1

        Example:
            >>> rnn = dy.LSTMBuilder(1, 3, 4, model)
            >>> rnn.set_dropouts(0.3, 0.2)
            >>> rnn.initial_state().transduce([dy.inputVector([1, 2, 3])])[0].dim()
            ((4,), 1)
        """
        self._set_rates((rate(d, self, "set_dropouts", "d"), rate(d_r, self, "set_dropouts", "d_r")))

    def _add_layer(self, model: ParameterCollection, input_dim: int) -> list[Parameters]:
        n = self.hidden_dim
        layer = [self._matrix(4 * n, input_dim), self._matrix(4 * n, n), self._bias(4 * n)]
        if self.ln_lstm:
            # In the given collection, not in the builder's: this is where DyNet's model files have them.
            sizes = [(rows, value) for rows in (4 * n, 4 * n, n) for value in (1.0, 0.0)]
            self._norms = [*self._norms, [model.add_parameters((rows,), init=value) for rows, value in sizes]]
        return layer

    def _bind_params(self, binding: Binding, update: bool) -> None:
        n = self.hidden_dim
        # Without fused gates (ln_lstm) nothing else adds the forget bias.
        extra = self.forget_bias if self.ln_lstm else self.forget_bias - 1.0
        shift = inputVector([0.0] * n + [extra] * n + [0.0] * (2 * n)) if extra else None
        binding.params = [_Layer(w_x, w_h, b if shift is None else b + shift, None) for w_x, w_h, b in binding.exprs]
        if self.ln_lstm:
            binding.params = [
                layer._replace(norm=[p.expr(update) for p in norm]) for layer, norm in zip(binding.params, self._norms)
            ]

    # ---- weights of PyTorch, whose gates are i, f, g, o

    def _pytorch_gates(self) -> int:
        return super()._pytorch_gates() if self.ln_lstm else 4

    def _from_pytorch(self, w_ih: Array, w_hh: Array, b_ih: Array, b_hh: Array) -> list[Array]:
        w_x, w_h, b = (rows_of(array, _PYTORCH_ORDER) for array in (w_ih, w_hh, b_ih + b_hh))
        b[self.hidden_dim : 2 * self.hidden_dim] -= self.forget_bias
        return [w_x, w_h, b]

    def _to_pytorch(self, arrays: list[Array]) -> tuple[Array, Array, Array, Array]:
        w_x, w_h, b = (rows_of(array, _PYTORCH_ORDER) for array in arrays)
        b[self.hidden_dim : 2 * self.hidden_dim] += self.forget_bias
        return w_x, w_h, b, np.zeros_like(b)

    # ---- running

    def _options(self, binding: Binding, batch_size: int) -> tuple[Masks | None, float, float]:
        masks = self._masks(binding, self._default_mask_batch or batch_size) if self._dropping else None
        return masks, 0.0, self.weightnoise_std

    def _step(self, state: RNNState, x: Expression) -> RNNState:
        binding = state._binding
        shape, batch = x.dim()
        masks, *_ = self._options(binding, batch)
        fits = self._fits(state, len(shape), batch, masks is not None)
        cell = self._norm_cell if self.ln_lstm and fits else self._plain_cell
        h, c = state._h, state._c
        new_h: list[Expression] = []
        new_c: list[Expression] = []
        for i, params in enumerate(binding.params):
            mask = NO_MASKS if masks is None else masks[i]
            x, cell_state = cell(params, mask, x, None if h is None else h[i], None if c is None else c[i])
            new_h.append(x)
            new_c.append(cell_state)
        hs, cs = tuple(new_h), tuple(new_c)
        return RNNState(binding, state, hs, cs, x, batch if fits else self._batch_of(hs + cs))

    def _note_plain(self) -> None:
        self._plain = not (self._dropping or self.weightnoise_std)

    def _make_steps(self, binding: Binding) -> Steps | None:
        return None if self.ln_lstm else Steps(self, LSTM_STEP, [tuple(layer[:3]) for layer in binding.params])

    def _fits(self, state: RNNState, rank: int, batch: int, masked: bool) -> bool:
        """Whether inputs, state and masks are vectors of one batch size, as the LSTM ops require."""
        if rank != 1 or ((state._h is not None or state._c is not None) and state._batch != batch):
            return False
        return not masked or state._binding.mask_batch in (1, batch)

    def _norm_cell(
        self,
        params: _Layer,
        masks: Sequence[Expression | None],
        x: Expression,
        h: Expression | None,
        c: Expression | None,
    ) -> tuple[Expression, Expression]:
        n = self.hidden_dim
        sums = self._norm_sums(params, masks, x, h, c)
        gates = concatenate([logistic(pick_range(sums, 0, 3 * n)), tanh(pick_range(sums, 3 * n, 4 * n))])
        if c is None:
            c = zeros((n,), batch_size=x.dim()[1])
        c = vanilla_lstm_c(c, gates)
        assert params.norm is not None
        return vanilla_lstm_h(layer_norm(c, params.norm[4], params.norm[5]), gates), c

    def _norm_sums(
        self,
        params: _Layer,
        masks: Sequence[Expression | None],
        x: Expression,
        h: Expression | None,
        c: Expression | None,
    ) -> Expression:
        """The gates before their nonlinearities, with layer normalization."""
        w_x, w_h, b, norm = params
        assert norm is not None
        g_h, b_h, g_x, b_x = norm[:4]
        terms = [layer_norm(w_x * masked(x, masks[0]), g_x, b_x)]
        if h is not None:
            terms.append(layer_norm(w_h * masked(h, masks[1]), g_h, b_h))
        elif c is not None:
            terms.append(b_h)  # the normalized zeros; an empty state adds nothing
        terms.append(b)
        return esum(terms)

    def _plain_cell(
        self,
        params: _Layer,
        masks: Sequence[Expression | None],
        x: Expression,
        h: Expression | None,
        c: Expression | None,
    ) -> tuple[Expression, Expression]:
        """A step by ordinary ops, which broadcast."""
        n = self.hidden_dim
        if self.ln_lstm:
            sums = self._norm_sums(params, masks, x, h, c)
        else:
            w_x, w_h, b, _ = self._noisy(params) if self.weightnoise_std else params
            factors = [b, w_x, masked(x, masks[0])]
            if h is not None:
                factors += [w_h, masked(h, masks[1])]
            sums = affine_transform(factors)
        i = logistic(pick_range(sums, 0, n))
        f = pick_range(sums, n, 2 * n)
        f = logistic(f if self.ln_lstm else f + 1.0)
        o = logistic(pick_range(sums, 2 * n, 3 * n))
        g = cmult(i, tanh(pick_range(sums, 3 * n, 4 * n)))
        c = g if c is None else cmult(f, c) + g
        squashed = tanh(c if params.norm is None else layer_norm(c, params.norm[4], params.norm[5]))
        return cmult(o, squashed), c

    def _noisy(self, params: _Layer) -> _Layer:
        w_x, w_h, b, norm = params
        std = self.weightnoise_std
        return _Layer(noise(w_x, std), noise(w_h, std), noise(b, std), norm)


class VanillaLSTMBuilder(_StackedGates):
    """Long short-term memory with a forget gate and without peepholes (Hochreiter and Schmidhuber, 1997; Gers et al.,
    "Learning to Forget", Neural Computation 12, 2000), in each layer

        i    = sigmoid(W_ix x[t] + W_ih h[t-1] + b_i)
        f    = sigmoid(W_fx x[t] + W_fh h[t-1] + b_f + forget_bias)
        o    = sigmoid(W_ox x[t] + W_oh h[t-1] + b_o)
        g    = tanh(W_gx x[t] + W_gh h[t-1] + b_g)
        c[t] = f * c[t-1] + i * g
        h[t] = o * tanh(c[t])

    With `ln_lstm` (Ba et al., "Layer Normalization", 2016) W_x x[t], W_h h[t-1] and the c[t] inside of tanh are
    normalized by `layer_norm`, each with a gain and a bias of its own.

    Parameters of a layer, in the order of `get_parameters()`: W_x (4 hidden_dim, input_dim of the layer), W_h
    (4 hidden_dim, hidden_dim), both Glorot over the whole matrix; b (4 hidden_dim,), zeros. Rows: i, f, o, g.
    Sub-collection: `vanilla-lstm-builder`. The parameters of `ln_lstm` go into `model` itself, after those three of the
    same layer: gain and bias of W_h h (4 hidden_dim,), of W_x x (4 hidden_dim,), of c (hidden_dim,); gains ones, biases
    zeros.

    `initial_state` takes one vector a layer, c, or two: the c of all layers, then the h of all layers.

    Dropout is that of Gal and Ghahramani, "A Theoretically Grounded Application of Dropout in Recurrent Neural
    Networks", NeurIPS 2016: in each layer one mask on x and one on h[t-1], the same for all gates and at all steps.

    Args:
        layers: number of layers
        input_dim: length of the inputs
        hidden_dim: length of the outputs
        model: where the parameters go
        ln_lstm: layer normalization (default: no)
        forget_bias: added in the forget gate (default: 1.0); it is not a parameter, and not part of b
        checkpoint: which states are kept for backward, as the attribute of this name says (default: all)

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is less than 1

    Example:
        >>> rnn = dy.VanillaLSTMBuilder(1, 3, 4, model)
        >>> state = rnn.initial_state().add_input(dy.inputVector([1, 2, 3]))
        >>> state.output().dim()
        ((4,), 1)
    """

    _collection_name = "vanilla-lstm-builder"

    def __init__(
        self,
        layers: int,
        input_dim: int,
        hidden_dim: int,
        model: CollectionOrLayer,
        ln_lstm: bool = False,
        forget_bias: float = 1.0,
        *,
        checkpoint: bool | int = False,
    ) -> None:
        self.ln_lstm = bool(ln_lstm)
        self.forget_bias = float(forget_bias)
        super().__init__(layers, input_dim, hidden_dim, model, checkpoint=checkpoint)
        self.spec = (*self.spec, self.ln_lstm, self.forget_bias)


LSTMBuilder = VanillaLSTMBuilder


class SparseLSTMBuilder(VanillaLSTMBuilder):
    """`VanillaLSTMBuilder` with pruned weights: those of the smallest magnitude count as zero (Narang et al.,
    "Exploring Sparsity in Recurrent Neural Networks", ICLR 2017). `set_sparsity` sets how many; increase it step by
    step during training.

    Parameters of a layer, in the order of `get_parameters()`: W_x, W_h and b as in `VanillaLSTMBuilder`, then the masks
    of W_x and of W_h: ones, and zeros where weights are pruned; they are saved with the model and not trained.
    Sub-collection: `vanilla-lstm-builder`, in the order W_x, W_h, mask of W_x, mask of W_h, b. Pruned weights have no
    gradient.

    Args:
        layers: number of layers
        input_dim: length of the inputs
        hidden_dim: length of the outputs
        model: where the parameters go
        ln_lstm: layer normalization (default: no)
        forget_bias: added in the forget gate (default: 1.0)
        checkpoint: which states are kept for backward, as the attribute of this name says (default: all)

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is less than 1

    Example:
        >>> rnn = dy.SparseLSTMBuilder(1, 3, 4, model)
        >>> rnn.set_sparsity(0.5)
        >>> rnn.initial_state().transduce([dy.inputVector([1, 2, 3])])[0].dim()
        ((4,), 1)
    """

    _weight_masks: Sequence[list[Parameters]] = ()

    def _bias(self, rows: int) -> Parameters:
        # The masks come before the bias in the collection.
        shapes = ((rows, self.hidden_dim if self._weight_masks else self.input_dim), (rows, self.hidden_dim))
        masks = [self._collection.add_parameters(shape, init=1.0) for shape in shapes]
        for mask in masks:
            mask.set_updated(False)
        self._weight_masks = [*self._weight_masks, masks]
        return super()._bias(rows)

    def _bind_params(self, binding: Binding, update: bool) -> None:
        super()._bind_params(binding, update)
        binding.params = [
            layer._replace(w_x=cmult(layer.w_x, mask_x.expr()), w_h=cmult(layer.w_h, mask_h.expr()))
            for layer, (mask_x, mask_h) in zip(binding.params, self._weight_masks)
        ]

    def get_parameters(self) -> list[list[Parameters]]:
        """The parameters: W_x, W_h, b, the mask of W_x and the mask of W_h of each layer.

        Example:
            >>> rnn = dy.SparseLSTMBuilder(1, 3, 4, model)
            >>> [parameter.shape() for parameter in rnn.get_parameters()[0]]
            [(16, 3), (16, 4), (16,), (16, 3), (16, 4)]
        """
        return [[*layer, *masks] for layer, masks in zip(self._parameters, self._weight_masks)]

    def set_sparsity(self, sparsity: float) -> None:
        """Prune weights: those of the smallest magnitude in all W_x and W_h of all layers together.

        Weights that are already pruned count as the smallest. This takes effect at the next `initial_state` of a new
        graph.

        Args:
            sparsity: the fraction of the weights to prune, from 0 (none) to 1 (all)

        Raises:
            ValueError: not between 0 and 1

        Example:
            >>> rnn = dy.SparseLSTMBuilder(1, 3, 4, model)
            >>> rnn.set_sparsity(0.5)
        """
        part = rate(sparsity, self, "set_sparsity", "sparsity")
        masks = [mask for layer in self._weight_masks for mask in layer]
        weights = [w for layer in self._parameters for w in layer[:2]]
        sizes = [np.abs(w.as_array() * mask.as_array()).reshape(-1, order="F") for w, mask in zip(weights, masks)]
        size = np.concatenate(sizes)
        kept = np.zeros(len(size), np.float32)
        kept[np.argsort(-size, kind="stable")[: int(len(size) * (1.0 - part))]] = 1.0
        for mask, values in zip(masks, np.split(kept, np.cumsum([len(own) for own in sizes])[:-1])):
            mask.set_value(values.reshape(mask.shape(), order="F"))


class CompactVanillaLSTMBuilder(_StackedGates):
    """`VanillaLSTMBuilder` with forget bias 1 and without layer normalization, with the same formulas.

    It has parameters of the same shapes in the same order; the sub-collection is `compact-vanilla-lstm-builder`. It
    differs in the dropout masks, which are drawn for the batch size of the input, so that the elements of a batch
    have different masks, and in weight noise (`set_weightnoise`).

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
        >>> rnn = dy.CompactVanillaLSTMBuilder(1, 3, 4, model)
        >>> state = rnn.initial_state().add_input(dy.inputVector([1, 2, 3]))
        >>> state.output().dim()
        ((4,), 1)
    """

    _collection_name = "compact-vanilla-lstm-builder"
    _default_mask_batch = 0

    def set_weightnoise(self, std: float) -> None:
        """Add Gaussian noise to W_x, W_h and b, drawn again at every step.

        Args:
            std: its standard deviation; 0 (the default of a builder) for no noise

        Raises:
            ValueError: `std` is negative

        Example:
            >>> rnn = dy.CompactVanillaLSTMBuilder(1, 3, 4, model)
            >>> rnn.set_weightnoise(0.1)
            >>> rnn.initial_state().transduce([dy.inputVector([1, 2, 3])])[0].dim()
            ((4,), 1)
        """
        if not std >= 0.0:
            raise ValueError(
                f"{type(self).__name__}.set_weightnoise: argument std: expected a number of at least 0, got {std}"
            )
        self.weightnoise_std = float(std)
        self._note_plain()


class CoupledLSTMBuilder(_RNNBuilder):
    """Long short-term memory with peepholes and one gate for input and forgetting (Gers and Schmidhuber, "Recurrent
    Nets that Time and Count", IJCNN 2000; the coupling: Greff et al., "LSTM: A Search Space Odyssey", 2017), in each
    layer

        i    = sigmoid(W_ix x[t] + W_ih h[t-1] + W_ic c[t-1] + b_i)
        g    = tanh(W_cx x[t] + W_ch h[t-1] + b_c)
        c[t] = (1 - i) * c[t-1] + i * g
        o    = sigmoid(W_ox x[t] + W_oh h[t-1] + W_oc c[t] + b_o)
        h[t] = o * tanh(c[t])

    Parameters of a layer, in the order of `get_parameters()`: W_ix, W_ih, W_ic, b_i, W_ox, W_oh, W_oc, b_o, W_cx, W_ch,
    b_c. ``W_?x`` are (hidden_dim, input_dim of the layer), ``W_?h`` and ``W_?c`` (hidden_dim, hidden_dim), all Glorot;
    biases (hidden_dim,), zeros. Sub-collection: `lstm-builder`.

    `initial_state` takes one vector a layer, c, or two: the c of all layers, then the h of all layers.

    Dropout (`set_dropout`) is that of Gal and Ghahramani (NeurIPS 2016): in each layer one mask on x, one on h[t-1] and
    one on the c in the peepholes, the same for all gates and at all steps.

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
        >>> rnn = dy.CoupledLSTMBuilder(1, 3, 4, model)
        >>> state = rnn.initial_state().add_input(dy.inputVector([1, 2, 3]))
        >>> state.output().dim()
        ((4,), 1)
    """

    _collection_name = "lstm-builder"
    _has_cells = True

    def _peephole(self) -> Parameters:
        return self._matrix(self.hidden_dim, self.hidden_dim)

    def _add_layer(self, model: ParameterCollection, input_dim: int) -> list[Parameters]:
        n = self.hidden_dim
        gates = [
            p
            for _ in range(2)
            for p in (self._matrix(n, input_dim), self._matrix(n, n), self._peephole(), self._bias(n))
        ]
        return [*gates, self._matrix(n, input_dim), self._matrix(n, n), self._bias(n)]

    def _mask_shapes(self, input_dim: int) -> tuple[tuple[int, float], ...]:
        p = self._rates[0]
        return (input_dim, p), (self.hidden_dim, p), (self.hidden_dim, p)

    def _make_steps(self, binding: Binding) -> Steps:
        return Steps(self, COUPLED_STEP, [tuple(layer) for layer in binding.exprs])


class FastLSTMBuilder(CoupledLSTMBuilder):
    """`CoupledLSTMBuilder` without its peepholes.

    As in DyNet, there are parameters for diagonal peepholes, W_ic and W_oc as (hidden_dim, 1), Glorot, but they are not
    used, and dropout rates have no effect. Sub-collection: `fast-lstm-builder`.

    `initial_state` takes one vector a layer, c, or two: the c of all layers, then the h of all layers.

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
        >>> rnn = dy.FastLSTMBuilder(1, 3, 4, model)
        >>> state = rnn.initial_state().add_input(dy.inputVector([1, 2, 3]))
        >>> state.output().dim()
        ((4,), 1)
    """

    _collection_name = "fast-lstm-builder"

    def _peephole(self) -> Parameters:
        return self._matrix(self.hidden_dim, 1)

    def _set_rates(self, rates: tuple[float, ...]) -> None:
        self._rates = rates

    def _make_steps(self, binding: Binding) -> Steps:
        return Steps(self, FAST_STEP, [tuple(layer) for layer in binding.exprs])


def masked(e: Expression, mask: Expression | None) -> Expression:
    """An expression times its dropout mask, if it has one."""
    return e if mask is None else cmult(e, mask)
