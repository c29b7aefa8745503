"""The base class of RNN builders: parameters, states, dropout masks."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Optional, TypeVar, overload

import numpy.typing as npt

from dynet_cy.core.cells import settle
from dynet_cy.functions.arguments import Input
from dynet_cy.graph import Expression, StaleExpressionError, cg_version
from dynet_cy.graph.making import to_device
from dynet_cy.graph.nodes import device
from dynet_cy.model import ParameterCollection, Parameters
from dynet_cy.model.collection import are_beside, stored, take_place
from dynet_cy.model.given import collection_of
from dynet_cy.model.weights import Array
from dynet_cy.model.whole import CollectionOrLayer
from dynet_cy.ops.api import inputVector, random_bernoulli
from dynet_cy.rnn.pytorch import LikePyTorch
from dynet_cy.rnn.state import Binding, RNNState, Steps

_WIDEST = 40  # letters of an argument in the text of a builder
AS_FEW = 2**32 - 1  # of `_every`

Masks = list[tuple[Optional[Expression], ...]]
Builder = TypeVar("Builder", bound="_RNNBuilder")


class DrawnMasks:
    """Dropout masks of the layers that states share: for each batch size, drawn when a step first needs them, and again
    when the rates have changed."""

    def __init__(self, batch_size: int = 0) -> None:
        self.batch_size = batch_size  # of all steps; 0: that of the step
        self._rates: tuple[float, ...] = ()
        self._drawn: dict[int, Masks] = {}

    def of(self, rates: tuple[float, ...], batch_size: int, draw: Callable[[int], Masks]) -> Masks:
        if self._rates != rates:
            self._rates, self._drawn = rates, {}
        masks = self._drawn.get(batch_size)
        if masks is None or not all(is_fresh(e) for e in masks[-1] if e is not None):
            masks = self._drawn[batch_size] = draw(batch_size)
        return masks


class _RNNBuilder(LikePyTorch):
    """Base class of the builders.

    A builder owns parameters, in a sub-collection of `model`, and computes states of a recurrent network from them:
    `initial_state()` returns an `RNNState`, on which the network runs.

    Args:
        layers: number of layers, at least 1; the input of a layer is the output of the one below
        input_dim: length of the inputs, at least 1
        hidden_dim: length of the vectors of the state and of the outputs, at least 1
        model: where the parameters go
        checkpoint: see the attribute of this name

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is less than 1
    """

    spec: tuple[Any, ...]
    """The arguments of the constructor without the collection, as `from_spec` needs them."""

    # For derived classes: the name of the sub-collection, and whether states have cells besides hidden vectors.
    _collection_name: ClassVar[str]
    _has_cells: ClassVar[bool] = False
    _n_rates: ClassVar[int] = 1  # of dropout

    _binding: Binding | None = None
    _every = 0  # which states `checkpoint` keeps; AS_FEW: none that need not be

    def __init__(
        self,
        layers: int,
        input_dim: int,
        hidden_dim: int,
        model: CollectionOrLayer,
        *,
        checkpoint: bool | int = False,
    ) -> None:
        name = type(self).__name__
        self.checkpoint = checkpoint
        self.layers = positive_integer(layers, name, "layers")
        self.input_dim = positive_integer(input_dim, name, "input_dim")
        self.hidden_dim = positive_integer(hidden_dim, name, "hidden_dim")
        model = collection_of(model, name)
        self.spec = (self.layers, self.input_dim, self.hidden_dim)
        self._collection = model.add_subcollection(self._collection_name)
        self._rates = (0.0,) * self._n_rates
        self._dropping = False
        self._plain = True
        self._parameters = [
            self._add_layer(model, self.hidden_dim if layer else self.input_dim) for layer in range(self.layers)
        ]
        take_place_of_former(self)

    @property
    def checkpoint(self) -> bool | int:
        """The states to keep for backward; others are dropped and computed again (`dynet_cy.checkpoint`).

        With k, every k-th state of `transduce` and `add_inputs` is kept; with True, those that need the least memory.
        False or 0, the default, keeps everything. Results are the same to the last bit. What the program reads outside
        of the network is kept in any case, such as outputs, and so are the products of all inputs.

        Raises:
            TypeError: neither a bool nor an integer
            ValueError: less than 0

        Example:
            >>> rnn = dy.LSTMBuilder(1, 3, 4, model, checkpoint=8)
            >>> last = rnn.transduce([dy.inputVector([1, 2, 3])] * 100)[-1]
            >>> dy.squared_norm(last).backward()
            >>> rnn.checkpoint = False
        """
        return True if self._every == AS_FEW else self._every

    @checkpoint.setter
    def checkpoint(self, value: bool | int) -> None:
        self._every = every_state(value, type(self).__name__)

    # ---- for derived classes

    def _add_layer(self, model: ParameterCollection, input_dim: int) -> list[Parameters]:
        """Add the parameters of one layer to the collection, in the order of the model file."""
        raise NotImplementedError

    def _bind_params(self, binding: Binding, update: bool) -> None:
        """Set `binding.params`, if it is not simply the expressions of the parameters."""

    def _make_steps(self, binding: Binding) -> Steps | None:
        """The steps of the network in a graph; None if the class always uses its own `_step`."""
        raise NotImplementedError

    def _mask_shapes(self, input_dim: int) -> tuple[tuple[int, float], ...]:
        """The length and the dropout rate of each mask of a layer."""
        return (input_dim, self._rates[0]), (self.hidden_dim, self._rates[-1])

    def _options(self, binding: Binding, batch_size: int) -> tuple[Masks | None, float, float]:
        """The options of a step, used while `_plain` is false: dropout masks of each layer for the input, h and c; the
        rate of dropout that is drawn at every step; the deviation of noise on the weights."""
        return self._masks(binding, 1), 0.0, 0.0

    def _matrix(self, rows: int, columns: int) -> Parameters:
        return self._collection.add_parameters((rows, columns), init="glorot")

    def _bias(self, rows: int) -> Parameters:
        return self._collection.add_parameters((rows,), init=0.0)

    # ---- weights of PyTorch

    def _pytorch_parts(self) -> list[tuple[_RNNBuilder, int, str]]:
        return [(self, layer, f"_l{layer}") for layer in range(self.layers)]

    def _pytorch_gates(self) -> int:
        """The number of gates in PyTorch's matrices, if it has such a network."""
        raise NotImplementedError(f"{type(self).__name__}: PyTorch has no such network, and so no weights for it")

    def _from_pytorch(self, w_ih: Array, w_hh: Array, b_ih: Array, b_hh: Array) -> list[Array]:
        """The values of the parameters of a layer, in their order."""
        raise NotImplementedError

    def _to_pytorch(self, arrays: list[Array]) -> tuple[Array, Array, Array, Array]:
        """PyTorch's two matrices and two biases, from the values of the parameters of a layer."""
        raise NotImplementedError

    # ---- states

    @property
    def num_h0_components(self) -> int:
        """The largest number of vectors for `initial_state(vecs)`: `layers`, or twice that with cells.

        Example:
            >>> dy.GRUBuilder(2, 3, 4, model).num_h0_components, dy.LSTMBuilder(2, 3, 4, model).num_h0_components
            (2, 4)
        """
        return 2 * self.layers if self._has_cells else self.layers

    def initial_state(self, vecs: Iterable[Expression] | None = None, update: bool = True) -> RNNState:
        """A state to start from. The first call in a graph puts the parameters into the graph.

        Args:
            vecs: vectors of the state, each of shape (hidden_dim,), in the order of `RNNState.set_s`; None (the
                default) for an empty state, which acts like zeros
            update: whether gradients reach the parameters (default: yes). The first call in a graph decides.

        Raises:
            TypeError: `vecs` are not expressions
            ValueError: another number of vectors, or other shapes

        Example:
            >>> rnn = dy.GRUBuilder(1, 3, 4, model)
            >>> state = rnn.initial_state([dy.ones(4)])
            >>> state.add_input(dy.inputVector([1, 2, 3])).output().dim()
            ((4,), 1)
        """
        binding = self._binding
        if binding is None or binding.version != cg_version() or not is_fresh(binding.exprs[-1][-1]):
            binding = self._bind(update)
        elif self._dropping:
            binding = self._binding = binding.again()
        if vecs is None:
            return binding.start
        return self._set_s(binding.start, vecs, "initial_state", "vecs")

    @overload
    def transduce(self, xs: Expression | npt.NDArray[Any]) -> Expression: ...  # type: ignore[overload-overlap]

    @overload
    def transduce(self, xs: Iterable[Input]) -> list[Expression]: ...

    def transduce(self, xs: Any) -> Any:
        """The outputs of the top layer at each position, from a new initial state; `[]` for no inputs.

        Args:
            xs: the inputs, each of shape (input_dim,); or a matrix, an expression or array of shape ``{input_dim,n}``,
                with a column for each

        Returns:
            As many expressions as inputs, ``initial_state().transduce(xs)``; for a matrix, one of shape
            ``{hidden_dim,n}``.

        Example:
            >>> rnn = dy.LSTMBuilder(1, 3, 8, model)
            >>> [h.dim() for h in rnn.transduce([dy.inputVector([1, 2, 3])] * 2)]
            [((8,), 1), ((8,), 1)]
        """
        return self.initial_state().transduce(xs)

    def initial_state_from_raw_vectors(self, vecs: Iterable[Any], update: bool = True) -> RNNState:
        """`initial_state` from numbers.

        Args:
            vecs: lists of numbers or one-dimensional arrays, each of length hidden_dim, in the order of
                `RNNState.set_s`
            update: as in `initial_state`

        Example:
            >>> state = dy.GRUBuilder(1, 3, 2, model).initial_state_from_raw_vectors([[1, 2]])
            >>> state.output().value()
            [1.0, 2.0]
        """
        start = self.initial_state(None, update)
        return self._set_s(start, [inputVector(vec) for vec in vecs], "initial_state_from_raw_vectors", "vecs")

    def _bind(self, update: bool) -> Binding:
        exprs = [[p.expr(update) for p in layer] for layer in self._parameters]
        binding = Binding(self, cg_version(), exprs, DrawnMasks())
        self._bind_params(binding, update)
        binding.steps = self._make_steps(binding)
        self._binding = binding
        return binding

    def _set_h(self, state: RNNState, es: Iterable[Expression] | None) -> RNNState:
        h = self._vectors("set_h", "es", es, (self.layers,), "the h of each layer")
        c = state._c
        return RNNState(state._binding, state, h, c, h[-1], self._batch_of(h if c is None else h + c))

    def _set_s(self, state: RNNState, es: Iterable[Expression] | None, method: str, argument: str) -> RNNState:
        n = self.layers
        if not self._has_cells:
            h = self._vectors(method, argument, es, (n,), "the h of each layer")
            return RNNState(state._binding, state, h, None, h[-1], self._batch_of(h))
        what = "the c of each layer, or the c and then the h of each layer"
        s = self._vectors(method, argument, es, (n, 2 * n), what)
        kept = state._h if len(s) == n else s[n:]
        out = None if kept is None else kept[-1]
        return RNNState(
            state._binding, state, kept, s[:n], out, self._batch_of(s[:n] if kept is None else s[:n] + kept)
        )

    def _batch_of(self, es: tuple[Expression, ...]) -> int:
        """The batch size of vectors; 0 if they differ or are not vectors."""
        dims = {e.dim() for e in es}
        if len(dims) == 1:
            shape, batch = dims.pop()
            if len(shape) == 1:
                return batch
        return 0

    def _vectors(
        self, method: str, argument: str, es: Iterable[Expression] | None, counts: tuple[int, ...], what: str
    ) -> tuple[Expression, ...]:
        """`es` as a tuple, or an exception that says what is wrong with it."""
        where = f"{type(self).__name__}.{method}: argument {argument}"
        vectors = tuple(as_expression(e, where) for e in es or ())
        shapes = [e.dim()[0] for e in vectors]
        if len(vectors) not in counts or any(shape[0] != self.hidden_dim for shape in shapes):
            number = " or ".join(str(count) for count in counts)
            got = f"{len(vectors)} of shapes {', '.join(map(str, shapes))}" if vectors else "none"
            raise ValueError(f"{where}: expected {number} vectors of shape ({self.hidden_dim},) ({what}), got {got}")
        return vectors

    # ---- running

    def _step(self, state: RNNState, x: Expression) -> RNNState:
        """The state after an input for which `binding.steps` cannot be used."""
        raise NotImplementedError

    def _transduce(self, state: RNNState, xs: list[Expression]) -> list[Expression]:
        steps = state._binding.steps
        made = None if steps is None else steps.transduce(state, xs)
        if made is None:
            made = [after._out for after in state.add_inputs(xs) if after._out is not None]
        return made

    # ---- dropout

    def set_dropout(self, f: float) -> None:
        """Set the rate of all dropout of the builder.

        Args:
            f: the probability that an element is dropped, from 0 (no dropout, the default of a builder) to 1

        Raises:
            ValueError: not between 0 and 1

        Example:
            >>> rnn = dy.LSTMBuilder(1, 3, 4, model)
            >>> rnn.set_dropout(0.3)
            >>> rnn.initial_state().transduce([dy.inputVector([1, 2, 3])])[0].dim()
            ((4,), 1)
        """
        self._set_rates((rate(f, self, "set_dropout", "f"),) * len(self._rates))

    def disable_dropout(self) -> None:
        """Set all dropout rates to 0.

        Example:
            >>> rnn = dy.LSTMBuilder(1, 3, 4, model)
            >>> rnn.set_dropout(0.3)
            >>> rnn.disable_dropout()
        """
        self._set_rates((0.0,) * len(self._rates))

    training = True
    """Whether dropout is active; see `train`."""

    def train(self: Builder, mode: bool = True) -> Builder:
        """Set training mode, the mode of a new builder. Rates do not change; layers that hold a builder call this.

        Args:
            mode: False for evaluation mode, like `eval()` (default: True)

        Returns:
            The builder.

        Example:
            >>> rnn = dy.LSTMBuilder(1, 3, 4, model)
            >>> rnn.set_dropout(0.3)
            >>> rnn = rnn.train(False)      # nothing is dropped now
        """
        self.training = bool(mode)
        self._set_rates(self._rates)
        return self

    def eval(self: Builder) -> Builder:
        """Set evaluation mode: nothing is dropped, whatever the rates.

        Returns:
            The builder.

        Example:
            >>> rnn = dy.LSTMBuilder(1, 3, 4, model).eval()
        """
        return self.train(False)

    def _set_rates(self, rates: tuple[float, ...]) -> None:
        self._rates = rates
        self._dropping = self.training and any(rates)
        self._note_plain()

    def _note_plain(self) -> None:
        """Set `_plain`: whether steps need no options."""
        self._plain = not self._dropping

    def set_dropout_masks(self, batch_size: int = 1) -> None:
        """Draw new masks for the state that `initial_state` returned last, and for later ones. States of before keep
        theirs, so that each sentence of an automatic minibatch can have its own.

        Args:
            batch_size: how many different masks there are, one for each element of a batch. Default: 1

        Raises:
            ValueError: `initial_state` was not called in this graph, or `batch_size` is less than 1

        Example:
            >>> rnn = dy.LSTMBuilder(1, 3, 4, model)
            >>> rnn.set_dropout(0.3)
            >>> state = rnn.initial_state()
            >>> rnn.set_dropout_masks(batch_size=2)
            >>> state.add_input(dy.zeros(3, batch_size=2)).output().dim()
            ((4,), 2)
        """
        name = f"{type(self).__name__}.set_dropout_masks"
        batch_size = positive_integer(batch_size, name, "batch_size")
        binding = self._binding
        if binding is None or binding.version != cg_version():
            raise ValueError(f"{name}: call initial_state first: the masks belong to the graph")
        binding.masks = DrawnMasks(batch_size)
        self._masks(binding, batch_size)

    def _masks(self, binding: Binding, batch_size: int) -> Masks:
        """The masks of a step for this batch size, unless `set_dropout_masks` has set another one."""
        batch_size = binding.mask_batch = binding.masks.batch_size or batch_size
        return binding.masks.of(self._rates, batch_size, lambda n: self._draw_masks(n, binding.exprs))

    def _draw_masks(self, batch_size: int, parameters: list[list[Expression]]) -> Masks:
        return [
            tuple(
                dropout_mask(n, p, batch_size, device(layer[0]))
                for n, p in self._mask_shapes(self.hidden_dim if i else self.input_dim)
            )
            for i, layer in enumerate(parameters)
        ]

    # ---- parameters

    def param_collection(self) -> ParameterCollection:
        """The sub-collection that holds the parameters.

        Example:
            >>> dy.GRUBuilder(1, 3, 4, model).param_collection().name()
            '/gru-builder/'
        """
        return self._collection

    def get_parameters(self) -> list[list[Parameters]]:
        """The parameters: one list a layer, in the order documented by the class.

        Example:
            >>> ((W_x, W_h, b),) = dy.SimpleRNNBuilder(1, 3, 4, model).get_parameters()
            >>> W_x.shape(), W_h.shape(), b.shape()
            ((4, 3), (4, 4), (4,))
        """
        return [list(layer) for layer in self._parameters]

    def get_parameter_expressions(self) -> list[list[Expression]]:
        """The expressions of `get_parameters()` that the builder uses in the current graph.

        Raises:
            ValueError: `initial_state` was not called since the graph was renewed

        Example:
            >>> rnn = dy.SimpleRNNBuilder(1, 3, 4, model)
            >>> state = rnn.initial_state()
            >>> [x.dim() for x in rnn.get_parameter_expressions()[0]]
            [((4, 3), 1), ((4, 4), 1), ((4,), 1)]
        """
        binding = self._binding
        if binding is None or binding.version != cg_version() or not is_fresh(binding.exprs[-1][-1]):
            raise ValueError(
                f"{type(self).__name__}.get_parameter_expressions: the parameters are not in the current graph: "
                "call initial_state first"
            )
        return [list(layer) for layer in binding.exprs]

    # ---- the object itself

    def whoami(self) -> str:
        """The name of the class.

        Example:
            >>> dy.GRUBuilder(1, 3, 4, model).whoami()
            'GRUBuilder'
        """
        return type(self).__name__

    @classmethod
    def from_spec(cls: type[Builder], spec: Sequence[Any], model: ParameterCollection) -> Builder:
        """A builder like the one with this `spec`, with its own parameters in `model`.

        Example:
            >>> rnn = dy.GRUBuilder(1, 3, 4, model)
            >>> dy.GRUBuilder.from_spec(rnn.spec, dy.ParameterCollection()).spec
            (1, 3, 4)
        """
        layers, input_dim, hidden_dim, *options = spec
        return cls(layers, input_dim, hidden_dim, model, *options)

    def __getstate__(self) -> dict[str, Any]:
        # Expressions belong to a graph: a copy gets its own from its own initial_state.
        state = dict(vars(self))
        state.pop("_binding", None)
        return state

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {outline(self.spec)}>"


def take_place_of_former(builder: Any) -> None:
    """Replace the builder that a cell of a notebook has made in the same variable before; called by constructors."""
    own = {getattr(x, "__code__", None) for cls in type(builder).__mro__ for x in vars(cls).values()}
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code in own:
        frame = frame.f_back  # without f_locals, which would change what a caller has of its own `locals()`
    settle(builder, frame, stored, are_beside, take_place)


def outline(spec: Sequence[Any]) -> str:
    """The arguments of a constructor in a few words: classes and functions by name, large values by their size."""
    shown = [_brief(value) for value in spec]
    return f"({shown[0]},)" if len(shown) == 1 else f"({', '.join(shown)})"


def _brief(value: Any) -> str:
    if isinstance(value, functools.partial):
        return ", ".join(
            [_brief(value.func), *map(_brief, value.args), *(f"{k}={_brief(v)}" for k, v in value.keywords.items())]
        )
    text = value.__name__ if isinstance(value, type) or callable(value) and hasattr(value, "__name__") else repr(value)
    if len(text) <= _WIDEST:
        return text
    return f"{type(value).__name__} of {len(value):,}" if hasattr(value, "__len__") else f"{text[: _WIDEST - 3]}..."


def every_state(value: bool | int, where: str) -> int:
    """`checkpoint` of a builder as a number: 0 for all states, `AS_FEW` for as few as possible."""
    if isinstance(value, bool):
        return AS_FEW if value else 0
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{where}: checkpoint: expected a bool or an integer, got {value!r}") from None
    if not 0 <= number < AS_FEW:
        raise ValueError(f"{where}: checkpoint: expected at least 0, got {number}")
    return number


def positive_integer(value: Any, where: str, argument: str) -> int:
    """An integer of at least 1, which may be given as a float."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{where}: argument {argument}: expected an integer, got {value!r}") from None
    if number < 1:
        raise ValueError(f"{where}: argument {argument}: expected at least 1, got {number}")
    return number


def rate(value: float, builder: _RNNBuilder, method: str, argument: str) -> float:
    """A dropout rate, checked."""
    number = float(value)
    if not 0.0 <= number <= 1.0:
        where = f"{type(builder).__name__}.{method}: argument {argument}"
        raise ValueError(f"{where}: expected a probability between 0 and 1, got {value}")
    return number


def dropout_mask(n: int, p: float, batch_size: int, where: str) -> Expression | None:
    """0 with probability p, else 1 / (1 - p), on a device if it is named; None if nothing is to be dropped."""
    if p == 0.0:
        return None
    mask = random_bernoulli((n,), 1.0 - p, 1.0 if p == 1.0 else 1.0 / (1.0 - p), batch_size)
    return mask if where == device(mask) else to_device(mask, where)


def is_fresh(e: Expression) -> bool:
    """Whether an expression of this graph is still valid: `cg_revert` may have dropped it."""
    try:
        e.dim()
    except StaleExpressionError:
        return False
    return True


def as_expression(e: Any, where: str) -> Expression:
    """An expression, which may be given as parameters."""
    if isinstance(e, Parameters):
        return e.expr(True)
    if not isinstance(e, Expression):
        raise TypeError(f"{where}: expected expressions, got {type(e).__name__}")
    return e
