"""States of recurrent networks: returned by `initial_state()` of a builder and continued by `add_input()`."""

import warnings
import weakref

cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from dynet_cy.core.tensor cimport Dim
from dynet_cy.core.threads cimport follows_dynet
from dynet_cy.graph.expressions cimport Expression, dim_of, number_in
from dynet_cy.graph.making cimport add_node, apply, apply2, claim_current, expression, release_current, wrap
from dynet_cy.graph.origin cimport enter_scope, noting, set_scope
from dynet_cy.graph.structs cimport Extra, Graph, nodes_of
from dynet_cy.graph.table cimport current_graph
from dynet_cy.kernels.kernels cimport DY_BINARY_mul
from dynet_cy.ops.elementwise cimport BINARY
from dynet_cy.ops.linalg cimport AFFINE
from dynet_cy.ops.random cimport DROPOUT, NOISE
from dynet_cy.ops.recurrent cimport (
    GATED, NOTHING, TREE_C, TREE_H, Step, coupled_step, fast_step, gru_reset_after_step, gru_step, lstm_step, set_gates,
    set_logistic, set_tree, simple_step,
)

from dynet_cy.functions.arguments import as_input, by_columns, columns, matrix
from dynet_cy.graph.regions import drop_between
from dynet_cy.ops.elementwise import esum
from dynet_cy.ops.inputs import zeros
from dynet_cy.ops.registry import DimensionError


# ==== state =======================================================================================

cdef class Binding:
    """A builder's parameters in one graph.  States refer to it, so that graphs do not get mixed up."""

    cdef readonly object builder     # type: _RNNBuilder
    cdef readonly object version     # type: int
    cdef readonly list exprs         # type: list[list[Expression]]  # as get_parameter_expressions returns them
    cdef public list params         # type: list[Any]  # what the builder computes with: one item a layer
    cdef public object masks        # type: DrawnMasks  # those that have been drawn: see `dynet_cy.rnn.builder`
    cdef public int mask_batch      # the batch size of those of the current step
    cdef public Steps steps         # type: Steps | None  # None: the builder makes each step
    cdef readonly RNNState start

    def __init__(
        self, builder: _RNNBuilder, version: int, list exprs: list[list[Expression]], masks: DrawnMasks
    ) -> None:
        self.builder = builder
        self.version = version
        self.exprs = exprs
        self.params = exprs
        self.masks = masks
        self.start = RNNState(self, None, None, None, None, 0)

    def again(self) -> Binding:
        """A binding for further states, which may get their own masks."""
        cdef Binding other = Binding(self.builder, self.version, self.exprs, self.masks)
        other.params, other.steps = self.params, self.steps
        return other


cdef class StepKind:
    """A kind of network: how the nodes of a step are made."""

    cdef Step make
    cdef bint cells                 # whether states have cells in addition to hidden vectors
    cdef bint vectors               # whether inputs, states and masks must be vectors of one batch size


cdef bint warned_of_no_output = False


cdef int warn_of_no_output(object builder) except -1:
    """Warn once that the output of a state is None; a program of DyNet knows."""
    global warned_of_no_output
    if not warned_of_no_output and not follows_dynet():
        warned_of_no_output = True
        warnings.warn(
            f"{type(builder).__name__}: `output()` of a state before its first input is None; call `add_input(x)` "
            "first, or begin with `initial_state(vectors)`; `if state.h():` asks whether there is an output",
            RuntimeWarning, stacklevel=1)
    return 0


cdef StepKind kind_of(Step make, bint cells, bint vectors):
    cdef StepKind kind = StepKind.__new__(StepKind)
    kind.make = make
    kind.cells = cells
    kind.vectors = vectors
    return kind


SIMPLE_STEP: StepKind = kind_of(simple_step, False, False)
GRU_STEP: StepKind = kind_of(gru_step, False, False)
GRU_RESET_AFTER_STEP: StepKind = kind_of(gru_reset_after_step, False, False)
COUPLED_STEP: StepKind = kind_of(coupled_step, True, False)
FAST_STEP: StepKind = kind_of(fast_step, True, False)
LSTM_STEP: StepKind = kind_of(lstm_step, True, True)

# Masks of a layer: those of the input, of the hidden vector and of the cell.
cdef enum:
    MASKS = 3


cdef class Steps:
    """The steps of a network whose layers all consist of the same few nodes, which are made without calling Python.

    Args:
        builder: its `_plain` tells whether steps currently need no options; else its `_options` returns these.
        kind: the kind of network.
        weights: the weights of each layer, in the order of the step in `ops/recurrent.pyx`.
    """

    cdef object builder
    cdef StepKind kind
    cdef list weights
    cdef uint32_t layers
    cdef uint32_t per_layer
    cdef uint32_t* numbers          # the nodes of the weights
    cdef uint32_t* noisy            # those of one layer, with noise
    cdef uint32_t* masks
    cdef uint64_t version           # the version of the graph to which `numbers` belong
    # Settings of the current step.
    cdef bint masked
    cdef Extra dropout              # of the input of each layer and of the output, drawn again for each step; its rate
    cdef Extra noise                # on the weights, drawn again for each step; its standard deviation

    def __cinit__(
        self, builder: _RNNBuilder, StepKind kind not None, list weights: list[tuple[Expression, ...]]
    ) -> None:
        self.builder = builder
        self.kind = kind
        self.layers = len(weights)
        self.per_layer = len(weights[0])
        self.weights = [w for layer in weights for w in layer]
        self.numbers = <uint32_t*>malloc(((self.layers + 1) * self.per_layer + self.layers * MASKS) * sizeof(uint32_t))
        if self.numbers == NULL:
            raise MemoryError("the steps of a recurrent network")
        self.noisy = self.numbers + self.layers * self.per_layer
        self.masks = self.noisy + self.per_layer

    def __dealloc__(self):
        free(self.numbers)

    cdef bint set_up_step(self, Graph* g, RNNState state, uint32_t batch) except -1:
        """Find the weights in the current graph `g`, and the settings of steps; False if the masks do not fit."""
        cdef uint32_t i, k, drawn
        if self.version != g.version:
            for k in range(<uint32_t>len(self.weights)):
                self.numbers[k] = number_in(g, self.weights[k])
            self.version = g.version
        self.masked = False
        self.dropout.attrs[0].f = self.noise.attrs[0].f = 0
        if self.builder._plain:
            return True
        masks, self.dropout.attrs[0].f, self.noise.attrs[0].f = self.builder._options(state._binding, batch)
        if masks is None:
            return True
        self.masked = True
        for i in range(self.layers):
            for k in range(<uint32_t>MASKS):
                mask = masks[i][k] if k < len(masks[i]) else None
                self.masks[i * MASKS + k] = NOTHING if mask is None else number_in(g, mask)
        drawn = <uint32_t>state._binding.mask_batch
        return not self.kind.vectors or drawn == 1 or drawn == batch

    cdef bint fits(self, Graph* g, RNNState state, uint32_t x) except -1:
        """Whether the nodes can be made from a state and an input."""
        cdef const Dim* dim = &nodes_of(g)[x].dim
        if self.kind.vectors and (dim.nd != 1 or ((state._h is not None or state._c is not None)
                                                  and dim.bd != state._batch)):
            return False
        return self.set_up_step(g, state, dim.bd)

    cdef object zeros_for(self, RNNState state, uint32_t batch):
        """Zeros in place of the vectors that a state does not have; None if the step does not need them."""
        if not self.kind.vectors or (state._h is not None and state._c is not None):
            return None
        return zeros((self.builder.hidden_dim,), batch_size=batch)

    cdef int start(self, Graph* g, RNNState state, uint32_t i, object zero, uint32_t* h, uint32_t* c) except -1:
        """The nodes from which layer i continues."""
        cdef uint32_t none = NOTHING if zero is None else number_in(g, zero)
        h[0] = none if state._h is None else number_in(g, state._h[i])
        c[0] = none if state._c is None else number_in(g, state._c[i])
        return 0

    cdef int make(self, Graph* g, uint32_t i, uint32_t x, uint32_t* h, uint32_t* c) except -1:
        """The nodes of layer i for one input."""
        cdef const uint32_t* weights = self.numbers + i * self.per_layer
        cdef uint32_t k
        if self.noise.attrs[0].f != 0:
            for k in range(self.per_layer):
                self.noisy[k] = add_node(g, NOISE, &weights[k], 1, &self.noise)
            weights = self.noisy
        x = self.dropped(g, x)
        return self.kind.make(g, weights, self.masks + i * MASKS if self.masked else NULL, x, h, c)

    cdef uint32_t dropped(self, Graph* g, uint32_t x) except? 0xFFFFFFFF:
        return add_node(g, DROPOUT, &x, 1, &self.dropout) if self.dropout.attrs[0].f != 0 else x

    cdef RNNState after(self, RNNState state, object x):
        """The state after an input; None if the step cannot be made here."""
        cdef Graph* g = claim_current()
        try:
            return self.stepped(g, state, x)
        finally:
            release_current(g)

    cdef RNNState stepped(self, Graph* g, RNNState state, object x):
        cdef uint32_t i, h, c, batch, at = number_in(g, expression(x, "add_input", "x"))
        cdef list hs = [], cs = []
        cdef RNNState made
        if not self.fits(g, state, at):
            return None
        batch = nodes_of(g)[at].dim.bd
        zero = self.zeros_for(state, batch)
        for i in range(self.layers):
            self.start(g, state, i, zero, &h, &c)
            self.make(g, i, at, &h, &c)
            at = h
            hs.append(wrap(g, h))
            if self.kind.cells:
                cs.append(wrap(g, c))
        made = RNNState.__new__(RNNState)
        made._binding = state._binding
        made._prev = weakref.ref(state) if g.forward_only else state
        made._h = tuple(hs)
        made._c = tuple(cs) if self.kind.cells else None
        made._out = wrap(g, self.dropped(g, at)) if self.dropout.attrs[0].f != 0 else made._h[self.layers - 1]
        made._batch = batch
        return made

    def transduce(self, RNNState state not None, list xs: list[Expression]) -> list[Expression] | None:
        """The outputs after each of the inputs; None if the steps cannot be made here.

        This goes layer by layer: all inputs of a layer are known before its first step, so their products with its
        weights can be computed at once.
        """
        cdef Graph* g = claim_current()
        try:
            return self.transduced(g, state, xs)
        finally:
            release_current(g)

    cdef list transduced(self, Graph* g, RNNState state, list xs):
        cdef uint32_t i, h, c, at = number_in(g, expression(xs[0], "transduce", "xs[0]"))
        cdef uint32_t batch = nodes_of(g)[at].dim.bd, every = self.builder._every, first, j
        cdef const Dim* dim
        cdef list made
        if not self.fits(g, state, at):
            return None
        for x in xs:
            dim = dim_of(expression(x, "transduce", "xs"))
            if self.kind.vectors and (dim.nd != 1 or dim.bd != batch):
                return None
        zero = self.zeros_for(state, batch)
        for i in range(self.layers):
            self.start(g, state, i, zero, &h, &c)
            made = []
            first = g.n_nodes
            for j, x in enumerate(xs):
                self.make(g, i, number_in(g, x), &h, &c)
                made.append(wrap(g, h))
                if every and (j + 1) % every == 0:
                    drop_between(first, sorted({h, c}) if self.kind.cells else (h,))
                    first = g.n_nodes
            if every:
                drop_between(first, ())
            xs = made
        if self.dropout.attrs[0].f == 0:
            return xs
        return [wrap(g, self.dropped(g, number_in(g, x))) for x in xs]


cdef str scope_name(builder):
    """The scope of a builder's nodes: the name of the collection of its parameters."""
    return builder.param_collection().name().rstrip("/").rsplit("/", 1)[-1]


def in_scope_of(builder: Any, function: Callable[..., _Result], *arguments: Any) -> _Result:
    """Call a function that creates nodes for a builder, in the builder's scope."""
    cdef uint32_t outside
    if not noting:
        return function(*arguments)
    outside = enter_scope(scope_name(builder))
    try:
        return function(*arguments)
    finally:
        set_scope(outside)


def to_predecessor(state: object) -> object:
    """A state's reference to its predecessor: a weak one in a forward-only graph."""
    return state if state is None or not current_graph().forward_only else weakref.ref(state)


def predecessor(kept: object) -> Any:
    """The state to which a reference made by `to_predecessor` points."""
    if not isinstance(kept, weakref.ref):
        return kept
    state = kept()
    if state is None:
        raise RuntimeError(
            "prev: the state is gone; in a graph renewed with forward_only=True the program has to keep the states "
            "that it goes back to")
    return state


cdef list read_inputs(builder, list xs, str method):
    """The inputs of a call that has failed, with expressions in place of arrays and lists of numbers; None if there are
    no such.  An error that names the builder, if one is wrong.

    So inputs that are expressions, as nearly all are, are not looked at before.
    """
    where = f"{type(builder).__name__}.{method}"
    cdef list read = [as_input(x, where) for x in xs]
    for x in read:
        shape, _ = x.dim()
        if (shape[0] if shape else 1) != builder.input_dim:
            raise DimensionError(
                f"{where}: the input has shape {shape}, but the builder was made for inputs of {builder.input_dim} "
                "elements") from None
    return None if all([a is b for a, b in zip(xs, read)]) else read


# Programs keep states in long chains, by `prev`.
@cython.trashcan(True)
@cython.freelist(64)
@cython.auto_pickle(False)
cdef class RNNState:
    """A recurrent network after some inputs.

    States never change: `add_input`, `set_h` and `set_s` return new ones, so that any state can be continued any
    number of times. A state is valid as long as the graph in which its builder's `initial_state` made it.

    States are made by builders, not by calling this class.

    Example:
        >>> first = dy.LSTMBuilder(1, 3, 4, model).initial_state()
        >>> second = first.add_input(dy.inputVector([1, 2, 3]))
        >>> second.output().dim()
        ((4,), 1)
        >>> second.prev() is first
        True
    """

    # h and c hold one vector per layer; None means zeros.
    # batch: the batch size of all of them; 0 if they differ, are not vectors, or it is not needed.
    cdef readonly Binding _binding
    # prev: a weak reference in a forward-only graph, so that a long loop keeps only what it uses.
    cdef readonly object _prev          # type: object
    cdef object __weakref__
    cdef readonly tuple _h              # type: tuple[Expression, ...] | None
    cdef readonly tuple _c              # type: tuple[Expression, ...] | None
    cdef readonly Expression _out       # type: Expression | None
    cdef readonly uint32_t _batch

    def __init__(
        self, Binding binding not None, RNNState prev: RNNState | None, tuple h: tuple[Expression, ...] | None,
        tuple c: tuple[Expression, ...] | None, Expression out: Expression | None, uint32_t batch
    ) -> None:
        self._binding = binding
        self._prev = to_predecessor(prev)
        self._h = h
        self._c = c
        self._out = out
        self._batch = batch

    def add_input(self, x: Input) -> RNNState:
        """The state after one more input.

        Args:
            x: the input, of shape (input_dim,), possibly batched: an expression, an array, or a list of numbers

        Raises:
            StaleExpressionError: the graph was renewed since the state was made
            TypeError: `x` is none of these
            DimensionError: the shape of `x` does not fit

        Example:
            >>> state = dy.LSTMBuilder(1, 3, 4, model).initial_state()
            >>> state.add_input(dy.inputVector([1, 2, 3])).output().dim()
            ((4,), 1)
        """
        try:
            return self.after(x)
        except (AttributeError, TypeError, DimensionError):
            read = read_inputs(self._binding.builder, [x], "add_input")
            if read is None:
                raise
        return self.after(read[0])

    cdef RNNState after(self, object x):
        cdef uint32_t outside
        if not noting:
            return self.next_one(x)
        outside = enter_scope(scope_name(self._binding.builder))
        try:
            return self.next_one(x)
        finally:
            set_scope(outside)

    cdef RNNState next_one(self, object x):
        cdef Binding binding = self._binding
        cdef RNNState state = None
        if binding.steps is not None:
            state = binding.steps.after(self, x)
        return binding.builder._step(self, x) if state is None else state

    def add_inputs(self, xs: Iterable[Input]) -> list[RNNState]:
        """The states after each of the inputs, added one after the other; `[]` for no inputs.

        If you only need the outputs, use `transduce`, which is faster.

        Args:
            xs: the inputs, one for each step, as for `add_input`; or a matrix, an expression or array of shape
                ``{input_dim,n}``, with a column for each step

        Example:
            >>> state = dy.LSTMBuilder(1, 3, 4, model).initial_state()
            >>> len(state.add_inputs([dy.inputVector([1, 2, 3]), dy.inputVector([4, 5, 6])]))
            2
        """
        cdef list states = []
        cdef RNNState state = self
        builder = self._binding.builder
        x = None if isinstance(xs, list) else matrix(xs)        # no function of Python for a list
        if x is not None:
            xs = columns(x, builder.input_dim, f"{type(builder).__name__}.add_inputs")
        cdef uint32_t every = builder._every, first = current_graph().n_nodes, j
        for j, x in enumerate(xs):
            try:
                state = state.after(x)
            except (AttributeError, TypeError, DimensionError):
                read = read_inputs(builder, [x], "add_inputs")
                if read is None:
                    raise
                state = state.after(read[0])
            states.append(state)
            if every and (j + 1) % every == 0:
                drop_between(first, state.numbers(first))
                first = current_graph().n_nodes
        if every:
            drop_between(first, ())
        return states

    cdef list numbers(self, uint32_t first):
        """The numbers of the nodes from `first` on that hold the vectors of this state, in rising order."""
        cdef Graph* g = current_graph()
        return sorted({n for n in [number_in(g, x) for x in (*(self._h or ()), *(self._c or ()))] if n >= first})

    # stub: (self, xs: Expression | npt.NDArray[Any]) -> Expression  # type: ignore[overload-overlap]
    # stub: (self, xs: Iterable[Input]) -> list[Expression]
    def transduce(self, xs):
        """The outputs after each of the inputs, added one after the other; `[]` for no inputs.

        The same as `[state.output() for state in self.add_inputs(xs)]` (but with other dropout masks, if the builder
        draws one at every step), with fewer objects, and built layer by layer.

        Args:
            xs: the inputs, one for each step, as for `add_input`; or a matrix, an expression or array of shape
                ``{input_dim,n}``, with a column for each step

        Returns:
            A list of expressions; for a matrix, an expression of shape ``{hidden_dim,n}``.

        Example:
            >>> state = dy.LSTMBuilder(1, 3, 4, model).initial_state()
            >>> [output.dim() for output in state.transduce([dy.inputVector([1, 2, 3]), dy.inputVector([4, 5, 6])])]
            [((4,), 1), ((4,), 1)]
        """
        builder = self._binding.builder
        x = None if isinstance(xs, list) else matrix(xs)        # no function of Python for a list
        if x is not None:
            reader = f"{type(builder).__name__}.transduce"
            return by_columns(self.transduce, x, builder.input_dim, builder.hidden_dim, reader)
        cdef list inputs = list(xs), read
        if not inputs:
            return []
        try:
            return in_scope_of(builder, builder._transduce, self, inputs)
        except (AttributeError, TypeError, DimensionError):
            read = read_inputs(builder, inputs, "transduce")
            if read is None:
                raise
        return in_scope_of(builder, builder._transduce, self, read)

    def output(self) -> Expression | Any:
        """The output of the top layer; None before the first input, unless the state was set, with one warning in a
        process, as most programs do not expect it. `if state.h():` asks whether there is an output.

        This is `h()[-1]`, except for a `GRUBuilder` with dropout, which drops out its output but not its state.

        Example:
            >>> state = dy.LSTMBuilder(1, 3, 4, model).initial_state()
            >>> state.add_input(dy.inputVector([1, 2, 3])).output().dim()
            ((4,), 1)
        """
        if self._out is not None:
            return self._out
        h = self.h()
        if h:
            return h[-1]
        warn_of_no_output(self._binding.builder)
        return None

    def h(self) -> tuple[Expression, ...]:
        """The hidden vectors of the layers, bottom first, each of shape (hidden_dim,); `()` in an empty state.

        Example:
            >>> state = dy.LSTMBuilder(1, 3, 4, model).initial_state()
            >>> state.h(), len(state.add_input(dy.inputVector([1, 2, 3])).h())
            ((), 1)
        """
        if self._h is None:
            return () if self._c is None else self._zeros()
        return self._h

    def s(self) -> tuple[Expression, ...]:
        """All vectors of the state: the cells of the layers, for a builder that has cells, then `h()`.

        Example:
            >>> state = dy.LSTMBuilder(1, 3, 4, model).initial_state()
            >>> [vector.dim() for vector in state.add_input(dy.inputVector([1, 2, 3])).s()]
            [((4,), 1), ((4,), 1)]
        """
        if self._c is None:
            if self._h is None:
                return ()
            return (*self._zeros(), *self._h) if self._binding.builder._has_cells else self._h
        return (*self._c, *self.h())

    def set_h(self, es: Iterable[Expression] | None = None) -> RNNState:
        """A state with other hidden vectors; cells do not change.

        Args:
            es: one vector of shape (hidden_dim,) a layer, bottom first

        Raises:
            TypeError: not expressions
            ValueError: another number of vectors, or other shapes

        Example:
            >>> state = dy.LSTMBuilder(1, 3, 4, model).initial_state()
            >>> state.set_h([dy.ones(4)]).output().npvalue()
            array([1., 1., 1., 1.])
        """
        return self._binding.builder._set_h(self, es)

    def set_s(self, es: Iterable[Expression] | None = None) -> RNNState:
        """A state with other vectors, in the order of `s()`.

        Args:
            es: one vector of shape (hidden_dim,) a layer, bottom first. A builder with cells takes the cells of all
                layers (hidden vectors then do not change), or the cells and then the hidden vectors of all layers.

        Raises:
            TypeError: not expressions
            ValueError: another number of vectors, or other shapes

        Example:
            >>> state = dy.LSTMBuilder(1, 3, 4, model).initial_state()
            >>> state.set_s([dy.zeros(4), dy.ones(4)]).output().npvalue()
            array([1., 1., 1., 1.])
        """
        return self._binding.builder._set_s(self, es, "set_s", "es")

    def prev(self) -> RNNState | None:
        """The state from which this one was made; None for the first.

        Raises:
            RuntimeError: the graph was renewed with ``forward_only=True``, and the program has not kept that state.

        Example:
            >>> state = dy.LSTMBuilder(1, 3, 4, model).initial_state()
            >>> state.add_input(dy.inputVector([1, 2, 3])).prev() is state
            True
        """
        return predecessor(self._prev)

    def b(self) -> _RNNBuilder:
        """The builder.

        Example:
            >>> state = dy.LSTMBuilder(1, 3, 4, model).initial_state()
            >>> type(state.b()).__name__
            'VanillaLSTMBuilder'
        """
        return self._binding.builder

    def _zeros(self):
        builder = self._binding.builder
        return tuple(zeros((builder.hidden_dim,)) for _ in range(builder.layers))

    def __reduce__(self) -> NoReturn:
        raise TypeError("states of recurrent networks do not pickle; save the builder, or values of the state, instead")

    def __repr__(self):
        return f"<RNNState of {self._binding.builder!r}>"


# ==== tree steps ==================================================================================
#
# Steps of Tree-LSTMs: the nodes of the graph for a node of a tree.

cdef list checked(object builder, object x, object children):
    """The children, after checking them; without x, there must be one."""
    cdef list states = list(children)
    cdef bint is_any = x is not None
    cdef Py_ssize_t i
    kind = builder._state
    for i in range(len(states)):
        state = states[i]
        if state is None:
            continue
        if not isinstance(state, kind):
            raise TypeError(f"{type(builder).__name__}.add_input: argument children: {i} is a {type(state).__name__}, "
                            f"no {kind.__name__}")
        is_any = True
    if not is_any:
        raise ValueError(f"{type(builder).__name__}.add_input: a node needs an input or a child")
    return states


cdef object read_optional(object builder, object x):
    """The input of a node of a tree; None where it has none."""
    return x if x is None or isinstance(x, Expression) else as_input(x, f"{type(builder).__name__}.add_input")


cdef object finished(object builder, object gates, object c):
    return tuple.__new__(builder._state, (apply2(TREE_H, c, gates), c))


def nary_step(builder: NaryTreeLSTMBuilder, x: Input | None, children: Iterable[TreeState | None]) -> TreeState:
    """The state of a node of a tree, by an `NaryTreeLSTMBuilder`."""
    cdef list states = checked(builder, x, children)
    x = read_optional(builder, x)
    cdef uint32_t n = builder.N
    cdef Extra extra
    cdef list terms, cells, u = builder._u
    cdef Py_ssize_t i
    if len(states) > n:
        raise ValueError(
            f"{type(builder).__name__}.add_input: {len(states)} children are given, {n} are possible")
    while states and states[-1] is None:
        states.pop()
    terms = [builder._b]
    if x is not None:
        terms += [builder._w, x]
    cells = [None]
    for i in range(len(states)):
        state = states[i]
        if state is None:
            cells.append(zeros((builder.hidden_dim,)))
        else:
            h, c = <tuple>state
            terms += [u[i], h]
            cells.append(c)
    set_gates(&extra, 3 + n, 2, 1)
    gates = cells[0] = apply(GATED, terms, &extra)
    set_tree(&extra, n)
    return finished(builder, gates, apply(TREE_C, cells, &extra))


def child_sum_step(
    builder: ChildSumTreeLSTMBuilder, x: Input | None, children: Iterable[TreeState | None]
) -> TreeState:
    """The state of a node of a tree, by a `ChildSumTreeLSTMBuilder`."""
    cdef list states = [state for state in checked(builder, x, children) if state is not None]
    x = read_optional(builder, x)
    cdef Extra extra
    cdef list terms = [builder._b], forget = [builder._b_f], cells
    if x is not None:
        terms += [builder._w, x]
        if states:
            forget = [apply(AFFINE, [builder._b_f, builder._w_f, x], NULL)]
    if states:
        terms += [builder._u, esum([state[0] for state in states])]
    set_gates(&extra, 3, 2, 1)
    gates = apply(GATED, terms, &extra)
    set_tree(&extra, 0)
    cells = [apply(TREE_C, [gates], &extra)]
    set_logistic(&extra)
    u_f = builder._u_f
    for h, c in states:
        cells.append(apply2(BINARY[<int>DY_BINARY_mul], apply(GATED, forget + [u_f, h], &extra), c))
    return finished(builder, gates, esum(cells) if states else cells[0])
