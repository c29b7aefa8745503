"""Expressions: the number of a node and the version of its graph, which is checked on each use."""

import opcode
import sys
import warnings
from numbers import Real

import numpy as np

cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from dynet_cy.core.dynet_rules cimport follows_dynet
from dynet_cy.core.interrupts cimport runs_handlers
from dynet_cy.core.tensor cimport Dim, size_of, total_of
from dynet_cy.core.unlocked cimport HAS_GIL, revived
from dynet_cy.graph.computing cimport (
    compute_node, doubles_of, forget_values, full_shape, gradient_of, is_elsewhere, list_of, note_asked,
    parameter_here, run_pass, value_here,
)
from dynet_cy.graph.current cimport current_graph, graph_here
from dynet_cy.graph.graph cimport ComputationGraph, owner_of, raise_in_item
from dynet_cy.graph.hooks cimport engine_of
from dynet_cy.graph.looked_up cimport note_looked_up
from dynet_cy.graph.messages cimport describe_dim, made_at, made_by, made_in
from dynet_cy.graph.structs cimport (
    COMPUTED, NEEDS_GRAD, REVERT_BITS, RUNNING, SHARED, TRAINABLE, Graph, Node, Use, args_of, drop_unneeded, holder_in,
    nodes_of, same_renewal, set_holder, state_of, uses_of,
)
from dynet_cy.graph.table cimport Table, claim, graph_at, graph_table, hold, is_used, let_go, raise_running, release
from dynet_cy.memory.bridge cimport array_of, capsule_of, shape_of, taking_numbers
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport op_at

from dynet_cy.equivalents import advice
from dynet_cy.graph.hooks import operators as functions

cdef extern from *:
    """
    /* Room for a shape that `dim_of` has copied; it is used again when this thread has asked for as many others. */
    #define DY_DIMS 32
    static inline dy_dim *dy_room_for_dim(void) {
        static _Thread_local dy_dim dims[DY_DIMS];
        static _Thread_local unsigned next = 0;
        return &dims[next++ % DY_DIMS];
    }
    """
    Dim* room_for_dim "dy_room_for_dim"() noexcept

cdef extern from *:
    """
    #include <stdatomic.h>
    /* How many values NumPy has asked for without Python running on, which begins with a pending call. */
    static atomic_int dy_asked = 0;
    static int dy_runs_on(void *nothing) { (void)nothing; dy_asked = 0; return 0; }
    static inline int dy_asked_before(void) { return dy_asked; }
    static inline void dy_begin_call(int asked) {
        dy_asked = Py_AddPendingCall(dy_runs_on, NULL) == 0 ? asked : 0;
    }
    """
    int asked_before "dy_asked_before"() noexcept
    void begin_call "dy_begin_call"(int asked) noexcept

cdef Table* table = graph_table()


class StaleExpressionError(RuntimeError):
    """An expression of a graph that has been renewed, reverted or closed, or
    that is not the current graph of this thread.

    Example:
        >>> x = dy.inputVector([1])
        >>> _ = dy.renew_cg()
        >>> x.value()
        Traceback (most recent call last):
            ...
        dynet_cy.graph.expressions.StaleExpressionError: expression 0 is stale
    """


cdef object as_object(Expression x):
    """An array of no axes that holds an expression."""
    array = np.empty((), object)
    array[()] = x
    return array


# Functions of NumPy, and the operators of expressions that stand for them beside numbers.
_operators = {
    np.add: OPERATOR_ADD, np.subtract: OPERATOR_SUB, np.multiply: OPERATOR_MUL, np.true_divide: OPERATOR_DIV,
    np.power: OPERATOR_POW, np.matmul: OPERATOR_MATMUL, np.less: OPERATOR_LESS, np.less_equal: OPERATOR_LESS_EQUAL,
    np.greater: OPERATOR_GREATER, np.greater_equal: OPERATOR_GREATER_EQUAL,
}


cdef class _UfuncRule:
    """`__array_ufunc__` of expressions: None, which leaves NumPy's operators to them; a function, where the program
    calls one of NumPy's by name; DyNet's rule in its programs."""

    def __get__(self, instance, owner):
        return _on_objects if follows_dynet() else _on_expressions if program_does(CALLS) else None


def _on_objects(x, ufunc, method, *inputs, **settings):
    """A function of NumPy that takes expressions as objects, as in DyNet: arrays of them element by element.

    Operators with arrays of numbers take an expression as a whole, as in any program.
    """
    if method == "__call__" and not settings and ufunc in _operators and any([is_numeric(a) for a in inputs]):
        return operators[<int>_operators[ufunc]](inputs[0], inputs[1])
    inputs = [as_object(a) if isinstance(a, Expression) else a for a in inputs]
    return getattr(ufunc, method)(*inputs, **settings)


def _on_expressions(x, ufunc, method, *inputs, **settings):
    """A function of NumPy that takes expressions: its operators are those of expressions, others say what to write."""
    if method == "__call__" and not settings and ufunc in _operators:
        return operators[<int>_operators[ufunc]](inputs[0], inputs[1])
    if ufunc in (np.equal, np.not_equal) and not all([isinstance(a, Expression) for a in inputs]):
        x.__eq__(inputs[0] if inputs[1] is x else inputs[1])        # `array == e`: it may warn, and is not equal
        return ufunc is np.not_equal
    raise TypeError(f"np.{ufunc.__name__} takes no expressions{advice('ufunc', ufunc.__name__)}")


cdef bint is_numeric(x):
    return isinstance(x, (np.ndarray, np.generic)) and x.dtype != object


cdef object reduced(Expression x, str name, axis, keepdims, dict numpy):
    """A reduction, by a method or by NumPy's function of the same name, which passes further arguments."""
    for key, value in numpy.items():
        if key not in ("dtype", "out") or value is not None:
            raise TypeError(f"{name}: an expression has no argument {key}={value!r} there")
    if numpy and follows_dynet():
        return getattr(as_object(x), name)(axis=axis, keepdims=keepdims)
    return functions[name](x, axis, keepdims)


@cython.freelist(512)
cdef class Expression:
    """A node of a computation graph: a value that is computed when it is requested.

    Expressions are made by ops, not by calling this class.  An expression is
    valid until its graph is renewed (`renew_cg`), reverted to a checkpoint
    before it, or closed; using it later raises `StaleExpressionError`.

    Example:
        >>> x = dy.inputVector([1, 2])
        >>> y = dy.squared_norm(2 * x + 1)
        >>> y.value(), x.dim()
        (34.0, ((2,), 1))
        >>> y.backward(full=True)
        >>> x.gradient()
        array([12., 20.])
    """

    cdef uint32_t enter(self) except? 0xFFFFFFFF:
        cdef Graph* g = current_graph()
        cdef uint64_t version = g.version           # another thread may begin to run it
        if self.version == version:
            return self.index
        if version != RUNNING and same_renewal(self.version, version):
            if survives(g, self):
                self.version = version
                return self.index
        raise_stale(self, g)

    cdef Expression own(self):
        return self

    cdef Graph* graph(self) except NULL:
        cdef uint64_t version = 0
        cdef Graph* g = own_graph(self, &version)
        if g != NULL:
            if self.version == version:
                return g
            if version == RUNNING:
                raise_running()
            if survives(g, self):
                self.version = version
                return g
        raise_stale(self, g)

    def dim(self):
        """Shape and batch size: ``((d0, d1, ...), batch_size)``.

        Example:
            >>> dy.zeros((2, 3), batch_size=4).dim()
            ((2, 3), 4)
        """
        cdef const Dim* d = dim_of(self)
        return shape_of(d), d.bd

    @property
    def shape(self):
        """Shape of one batch element, a tuple.

        Example:
            >>> dy.zeros((2, 3), batch_size=4).shape
            (2, 3)
        """
        return shape_of(dim_of(self))

    @property
    def batch_size(self):
        """Number of batch elements; 1 if there is no batch.

        Example:
            >>> dy.zeros((2, 3), batch_size=4).batch_size
            4
        """
        return dim_of(self).bd

    def forward(self, recalculate=False):
        """Compute the value, and everything it depends on, without returning it.

        Args:
            recalculate: compute all of the graph again, including values already computed; False by default.

        Example:
            >>> y = dy.tanh(dy.inputVector([0, 0]))
            >>> y.forward()
            >>> y.value()                   # already known
            [0.0, 0.0]
        """
        compute(owned(self), recalculate)

    def npvalue(self, recalculate=False):
        """The value as a new float64 array; the batch, if any, is the last axis.

        Args:
            recalculate: as in `forward`; False by default.

        Example:
            >>> dy.inputTensor([[1, 2], [3, 4]]).npvalue()
            array([[1., 2.],
                   [3., 4.]])
        """
        cdef Look x
        _held = look(owned(self), recalculate, &x)
        return doubles_of(x.v, full_shape(x.dim))

    def tensor_value(self, recalculate=False):
        """The value as a Tensor, with argmax, topk and sampling; it stays valid when the graph is renewed.

        Args:
            recalculate: as in `forward`; False by default.

        Example:
            >>> scores = dy.inputVector([1, 5, 3]).tensor_value()
            >>> _ = dy.renew_cg()
            >>> scores.argmax().as_numpy()
            array([1])
        """
        from dynet_cy.graph.tensor import Tensor
        return Tensor(self.npvalue(recalculate), len(self.dim()[0]))

    def value(self, recalculate=False):
        """The value.  For a scalar or vector: a float if there is one element, else a flat
        list as from `vec_value`.  With more than one axis, even of size 1: an array as
        from `npvalue`.

        Args:
            recalculate: as in `forward`; False by default.

        Example:
            >>> dy.scalarInput(3).value(), dy.inputVector([1, 2]).value()
            (3.0, [1.0, 2.0])
            >>> dy.inputTensor([[1, 2], [3, 4]]).value()
            array([[1., 2.],
                   [3., 4.]])
        """
        cdef Look x
        _held = look(owned(self), recalculate, &x)
        cdef size_t n = total_of(x.dim)
        if x.dim.nd > 1:
            return doubles_of(x.v, full_shape(x.dim))
        return x.v[0] if n == 1 else list_of(x.v, n)

    def vec_value(self, recalculate=False):
        """All elements as a flat list, column-major, the batch last.

        Args:
            recalculate: as in `forward`; False by default.

        Example:
            >>> dy.inputTensor([[1, 2], [3, 4]]).vec_value()
            [1.0, 3.0, 2.0, 4.0]
        """
        cdef Look x
        _held = look(owned(self), recalculate, &x)
        return list_of(x.v, total_of(x.dim))

    def scalar_value(self, recalculate=False):
        """The value as a float.

        Args:
            recalculate: as in `forward`; False by default.

        Raises:
            ValueError: the expression has more than one element.

        Example:
            >>> dy.squared_norm(dy.inputVector([3, 4])).scalar_value()
            25.0
        """
        cdef Look x
        _held = look(owned(self), recalculate, &x)
        if total_of(x.dim) != 1:
            raise ValueError(
                f"scalar_value: the expression has shape {describe_dim(x.dim)}, not one element{made(self)}")
        return x.v[0]

    def item(self):
        """The value of an expression of one element as a float: `scalar_value` by NumPy's name.

        Example:
            >>> dy.squared_norm(dy.inputVector([3, 4])).item()
            25.0
        """
        return self.scalar_value()

    # ---- methods that arrays have too; modules of ops fill them in

    @property
    def T(self):
        """The axes in reverse order: the transpose of a matrix; a vector is unchanged.

        Example:
            >>> dy.inputTensor([[1, 2], [3, 4]]).T.npvalue()
            array([[1., 3.],
                   [2., 4.]])
        """
        return functions["T"](self)

    def reshape(self, *shape):
        """The same elements, column by column, in another shape; see `dynet_cy.reshape`.

        Args:
            shape: the sizes of the axes, one by one or as a tuple; one of them may be -1, which is then inferred.

        Raises:
            DimensionError: the new shape has more or fewer elements.

        Example:
            >>> dy.zeros((4, 6)).reshape(-1, 3).shape
            (8, 3)
        """
        return functions["reshape"](self, shape[0] if len(shape) == 1 else shape)

    def sum(self, axis=None, keepdims=False, **numpy):
        """Sum of each batch element along some axes.

        Args:
            axis: one axis, several, or None for all (default); negative ones count from the end.
            keepdims: whether the axes stay, with one element each (default: False).
            numpy: `dtype` and `out`, which NumPy's function passes; they must be None.

        Returns:
            An expression, of shape ``{1}`` if no axis is left.

        Raises:
            DimensionError: there is no such axis, or it is given twice.

        Example:
            >>> dy.inputTensor([[1, 2], [3, 4]]).sum(axis=-1).npvalue()
            array([3., 7.])
        """
        return reduced(self, "sum", axis, keepdims, numpy)

    def mean(self, axis=None, keepdims=False, **numpy):
        """Mean of each batch element along some axes; see `sum`.

        Args:
            axis: one axis, several, or None for all (default); negative ones count from the end.
            keepdims: keep them, with one element (default: no).
            numpy: as in `sum`.

        Example:
            >>> dy.inputTensor([[1, 2], [3, 4]]).mean(axis=0).npvalue()
            array([2., 3.])
        """
        return reduced(self, "mean", axis, keepdims, numpy)

    def max(self, axis=None, keepdims=False, **numpy):
        """Greatest element of each batch element along some axes; see `sum` and `dynet_cy.max_dim`.

        Args:
            axis: one axis, several, or None for all (default); negative ones count from the end.
            keepdims: keep them, with one element (default: no).
            numpy: as in `sum`.

        Example:
            >>> dy.inputTensor([[1, 2], [3, 4]]).max().value()
            4.0
        """
        return reduced(self, "max", axis, keepdims, numpy)

    def min(self, axis=None, keepdims=False, **numpy):
        """Least element of each batch element along some axes; see `sum` and `dynet_cy.min_dim`.

        Args:
            axis: one axis, several, or None for all (default); negative ones count from the end.
            keepdims: keep them, with one element (default: no).
            numpy: as in `sum`.

        Example:
            >>> dy.inputTensor([[1, 2], [3, 4]]).min(axis=1).npvalue()
            array([1., 3.])
        """
        return reduced(self, "min", axis, keepdims, numpy)

    def backward(self, full=False):
        """Add the gradient of this scalar to the gradients of all parameters.

        Runs forward first if needed.  With several batch elements, the
        gradient of their sum is taken.

        Args:
            full: compute gradients of all expressions, including those that depend on
                no parameter, so that `gradient` returns them, even after an update.
                This takes twice as long. Default: False.

        Raises:
            ValueError: an element of the batch is not a scalar.
            RuntimeError: the graph was renewed with ``forward_only=True``.

        Example:
            >>> W = model.add_parameters(2, init=3)
            >>> dy.squared_norm(W).backward()
            >>> W.grad_as_array()
            array([6., 6.], dtype=float32)
        """
        cdef Expression own = owned(self)
        cdef ComputationGraph graph = claimed(own)
        try:
            go_backward(graph, own.index, full)
        finally:
            release(table, &graph.g)

    def gradient(self):
        """The gradient of the last `backward` with respect to this expression, as an array.

        It is zero if the loss does not depend on the expression.

        For a parameter, it is the gradient with respect to this one expression of it, in
        this graph and from the last backward only; the parameter's `grad_as_array` adds
        up the gradients of all its expressions, graphs and backward passes.

        All constants of one parameter in a graph (`const_parameter(p)`, `p.expr()`) are
        one expression, whose gradient is the sum over all their uses; see `const_parameter` for
        programs with ``import dynet``.

        After ``backward(full=True)``, gradients stay available until the next backward or
        renewal, whatever happens to the parameters.  A plain ``backward()`` leaves out the
        gradients of parameters' expressions and of expressions that depend on no
        parameter.  The first request for one of these runs backward a second time, which
        needs the same values: call this before the parameters are updated.

        Raises:
            RuntimeError: no backward was run, or none from a later expression; or a
                second backward is needed, but values of parameters have changed.

        Example:
            >>> W = model.add_parameters(2, init=1)
            >>> trainer = dy.SimpleSGDTrainer(model)
            >>> dy.squared_norm(W).backward(full=True)
            >>> trainer.update()
            >>> W.gradient()            # of this loss
            array([2., 2.])
        """
        cdef Expression own = owned(self)
        cdef ComputationGraph graph = claimed(own)
        try:
            return gradient_from_last(graph, own.index)
        finally:
            release(table, &graph.g)

    def __len__(self):
        cdef const Dim* d = dim_of(self)
        return d.d[0] if d.nd else 1

    def __repr__(self):
        cdef Looks x
        if describe(self, &x):
            name = op_at(x.op).name.decode()
            return f"<expression {self.index} {name} {describe_dim(&x.dim)}{made_by(x.origin)}>"
        return f"<expression {self.index} of a graph renewed since>"

    def __reduce__(self):
        raise TypeError("expressions do not pickle; save parameters or values instead")

    def __iter__(self):
        for i in range(len(self)):
            yield self[i]

    def __getitem__(self, index):
        return functions["getitem"](self, index)

    def __add__(self, other):
        return operators[OPERATOR_ADD](self, other)

    def __radd__(self, other):
        return operators[OPERATOR_ADD](other, self)

    def __sub__(self, other):
        return operators[OPERATOR_SUB](self, other)

    def __rsub__(self, other):
        return operators[OPERATOR_SUB](other, self)

    def __mul__(self, other):
        return operators[OPERATOR_MUL](self, other)

    def __rmul__(self, other):
        return operators[OPERATOR_MUL](other, self)

    def __truediv__(self, other):
        return operators[OPERATOR_DIV](self, other)

    def __rtruediv__(self, other):
        return operators[OPERATOR_DIV](other, self)

    def __pow__(self, other, modulus):
        if modulus is not None:
            return NotImplemented
        return operators[OPERATOR_POW](self, other)

    def __rpow__(self, other, modulus):
        if modulus is not None:
            return NotImplemented
        return operators[OPERATOR_POW](other, self)

    def __neg__(self):
        return operators[OPERATOR_NEG](self, None)

    def __matmul__(self, other):
        return operators[OPERATOR_MATMUL](self, other)

    def __rmatmul__(self, other):
        return operators[OPERATOR_MATMUL](other, self)

    def __lt__(self, other):
        return operators[OPERATOR_LESS](self, other)

    def __le__(self, other):
        return operators[OPERATOR_LESS_EQUAL](self, other)

    def __gt__(self, other):
        return operators[OPERATOR_GREATER](self, other)

    def __ge__(self, other):
        return operators[OPERATOR_GREATER_EQUAL](self, other)

    def __abs__(self):
        return functions["abs"](self)

    def __bool__(self):
        cdef Looks x
        cdef bint known = describe(self, &x)
        if known and x.valid and op_at(x.op).truth:
            return truth_of(self)
        if not known or total_of(&x.dim) == 1:          # the truth of several numbers cannot be meant
            say_once("an Expression is always true, whatever its value; write `if e.value():` for the value, and "
                     "`if e is not None:` to ask whether there is one", TESTS)
        return True

    def __eq__(self, other):
        if isinstance(other, Real):
            say_once("an Expression never equals a number; write `e.value() == x` to compare its value", COMPARISONS)
        return NotImplemented               # only equal to itself

    def __hash__(self):
        return <Py_hash_t>(<size_t><void*>self >> 4)

    def __float__(self):
        """The value, if it is one number."""
        return self.scalar_value()

    def __int__(self):
        """The value, if it is one number, without its fraction."""
        return int(self.scalar_value())

    def __format__(self, spec):
        """With a format, the value, which must be one number: ``f"{loss:.3f}"``; without one, `repr`."""
        return format(self.scalar_value(), spec) if spec else repr(self)

    def __array__(self, dtype=None, copy=None):
        """The value, for numpy; in programs written for DyNet the expression itself, as an object."""
        if taking_numbers() or (follows_dynet() and (dtype is None or dtype == object)):
            return as_object(self)
        if copy is False:
            raise ValueError("the value of an expression can only be copied")
        array = self.npvalue()
        if ARRAY_OF_VALUES not in said:
            note_array(owned(self))
        return array if dtype is None else array.astype(dtype)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """The value for other libraries: `np.from_dlpack(e)` and `torch.from_dlpack(e)` call this.

        float32, with the batch as the last axis. It is a copy, which the other library then owns: the graph reuses its
        own memory after `renew_cg`.

        Raises:
            BufferError: `copy` is False, or a device other than the CPU is requested.
        """
        if copy is False:
            raise BufferError("the value of an expression can only be copied: its graph reuses the memory")
        cdef Look x
        _held = look(owned(self), False, &x)
        return capsule_of(array_of(x.v, full_shape(x.dim)), "the value of an expression", stream, max_version,
                          dl_device)

    def __dlpack_device__(self):
        """The CPU, even if the value was computed elsewhere."""
        return (1, 0)

    # NumPy must leave `array * expression` to the expression, not loop over elements.
    __array_ufunc__ = _UfuncRule()


cdef class ForwardExpression(Expression):
    """A node of a forward-only graph, which the graph keeps for as long as this object lives.

    There is at most one such object for each node, so that the graph can renumber its nodes.
    """

    def set(self, values):
        """Inputs of such a graph cannot be changed."""
        raise RuntimeError("set: the graph was renewed with forward_only=True, which drops what that needs")

    def set_index(self, index):
        """Indices of such a graph cannot be changed."""
        raise RuntimeError("set_index: the graph was renewed with forward_only=True, which drops what that needs")

    def __dealloc__(self):
        cdef Graph* g
        cdef Use* use
        hold(table, self.slot)              # any thread may drop the last reference
        g = graph_at(table, self.slot)
        if g != NULL and same_renewal(self.version, g.renewal) and self.index < g.n_nodes:
            use = &uses_of(g)[self.index]
            if holder_in(use) == <void*>self:
                set_holder(use, NULL)
                if not is_used(table, g):   # else its memory is freed when nodes are renumbered
                    drop_unneeded(g, self.index)
        let_go(table, self.slot)


# ---- values ------------------------------------------------------------------

cdef Graph* compute_here(Expression x, bint recalculate) except NULL:
    """Compute an expression if needed; its graph."""
    cdef Graph* g = x.graph()
    if recalculate:
        forget_values(g)
    if not state_of(g)[x.index] & COMPUTED:
        while compute_node(g, x.index, x):
            g = x.graph()
            if state_of(g)[x.index] & COMPUTED:
                return g
        compact_if_due(g)
    elif g.early:
        note_asked(g, x.index)
    return g


cdef int compact_if_due(Graph* g) except -1:
    if not g.forward_only or g.n_nodes < g.compact_at:
        return 0
    if not HAS_GIL and graph_here() != g:           # the thread that adds nodes may be looking up numbers
        return 0
    return owner_of(g).compact(renumber)


cdef void renumber(void* holder, uint32_t index, uint64_t version) noexcept:
    (<Expression>holder).index = index
    (<Expression>holder).version = version


cdef int go_backward(ComputationGraph graph, uint32_t index, bint full) except -1:
    cdef Graph* g = &graph.g
    cdef Node* x
    raise_in_item(graph, "backward", "let the items return their losses, and call backward once, on the sum")
    if g.forward_only:
        raise RuntimeError("backward: the graph was renewed with forward_only=True, which drops what that needs")
    graph.warn_of_growth()
    if not state_of(g)[index] & COMPUTED:
        run_pass(g, &index, 1)
    x = nodes_of(g) + index
    if size_of(&x.dim) != 1:
        raise ValueError(
            f"backward: the expression has shape {describe_dim(&x.dim)}, not one element"
            f"{made_at(g, index)}; reduce it first, for example with sum_elems")
    g.backward_from = -1
    graph.given = None
    given = None
    if full:
        from dynet_cy.graph.given import keep_given         # it needs this module
        given = keep_given(graph, index)
    engine_of(g).backward(g, index, full)
    if follows_dynet():
        note_looked_up(g, index)
    g.backward_from = index
    graph.given = given
    return graph.note_values()


cdef object gradient_from_last(ComputationGraph graph, uint32_t index):
    cdef Graph* g = &graph.g
    if g.backward_from < 0 or index > <uint32_t>g.backward_from:
        raise RuntimeError("gradient: run backward on an expression made after this one first")
    cdef uint8_t state = state_of(g)[index]
    if state & SHARED or not state & NEEDS_GRAD:
        from dynet_cy.graph.given import given              # it needs this module
        return given(graph, index)
    return gradient_of(g, index, state_of(g))


# ---- reading -------------------------------------------------------------------
#
# Without a GIL another thread may be adding nodes meanwhile, and lists of nodes move when they grow.  So what is read
# is copied while the slot is held; what takes longer claims the graph.

cdef struct Look:                   # a value
    const Dim* dim
    const float* v
    Dim own
    float one
    void* object                    # of a parameter

cdef struct Looks:                  # a node in words
    Dim dim
    uint16_t op
    uint32_t origin
    bint valid                      # the graph was not renewed, and does not run

cdef enum:
    COPIED
    LARGER                          # there was no room for it
    STORED                          # it is that of a parameter
    ELSEWHERE                       # it has to be fetched from a device
    MISSING                         # it is not computed, or the graph has changed


cdef inline object look(Expression x, bint recalculate, Look* to):
    """Compute an expression if needed, and find its value, which holds as long as the result."""
    cdef Graph* g
    cdef Node* node
    if not HAS_GIL:
        return copy_of(x, recalculate, to)
    g = compute_here(x, recalculate)
    node = nodes_of(g) + x.index
    to.dim = &node.dim
    to.v = value_here(g, node)
    return None


cdef object copy_of(Expression x, bint recalculate, Look* to):
    cdef bytearray held = None
    cdef float* v = &to.one
    cdef size_t room = 1
    cdef int found
    compute(x, recalculate)
    to.dim = &to.own
    while True:
        found = copy_value(x, v, room, to)
        if found == COPIED:
            to.v = v
            return held
        if found == STORED:
            to.v = parameter_here(<Param*>to.object, False)
            return x
        if found == LARGER:
            room = total_of(&to.own)
            held = bytearray(room * sizeof(float))
            v = <float*><char*>held
        elif found == ELSEWHERE:
            fetch(x)
        else:
            compute(x, False)


cdef int copy_value(Expression x, float* v, size_t room, Look* to) noexcept nogil:
    cdef Graph* g
    cdef Node* node
    cdef size_t n
    cdef int found = MISSING
    hold(table, x.slot)
    g = graph_at(table, x.slot)
    if g != NULL and x.version == g.version and state_of(g)[x.index] & COMPUTED:
        node = nodes_of(g) + x.index
        to.own = node.dim
        to.object = node.object
        n = total_of(&node.dim)
        if node.val == NULL:
            found = STORED
        elif is_elsewhere(g, node):
            found = ELSEWHERE
        elif n > room:
            found = LARGER
        else:
            memcpy(v, node.val, n * sizeof(float))
            found = COPIED
    let_go(table, x.slot)
    return found


cdef int fetch(Expression x) except -1:
    cdef ComputationGraph graph = claimed(x)
    try:
        value_here(&graph.g, nodes_of(&graph.g) + x.index)
    finally:
        release(table, &graph.g)
    return 0


cdef int compute(Expression x, bint recalculate) except -1:
    cdef ComputationGraph graph
    if HAS_GIL:
        compute_here(x, recalculate)
        return 0
    if is_computed(x) and not recalculate:
        return 0
    graph = claimed(x)
    try:
        compute_here(x, recalculate)
    finally:
        release(table, &graph.g)
    return 0


cdef bint is_computed(Expression x) noexcept:
    """Whether there is nothing to do, and nothing to note."""
    cdef Graph* g
    cdef bint found, early = False
    hold(table, x.slot)
    g = graph_at(table, x.slot)
    found = g != NULL and x.version == g.version and state_of(g)[x.index] & COMPUTED
    if found:
        early = g.early != 0
    let_go(table, x.slot)
    return found and not (early and graph_here() == g)


cdef ComputationGraph claimed(Expression x):
    """The graph of an expression, claimed for this thread, which has to release it."""
    cdef ComputationGraph graph = None
    cdef Graph* g
    x.graph()
    hold(table, x.slot)
    g = graph_at(table, x.slot)
    if g != NULL and same_renewal(x.version, g.renewal):
        graph = revived(table.owners[x.slot])
    let_go(table, x.slot)
    if graph is None:
        raise_stale(x, NULL)
    claim(table, &graph.g)
    try:
        x.graph()                   # it may have been renewed before it was claimed
    except BaseException:
        release(table, &graph.g)
        raise
    return graph


cdef const Dim* dim_of(Expression x) except NULL:
    cdef Expression own = owned(x)
    cdef Graph* g = own.graph()
    cdef Dim* copied
    if HAS_GIL:
        return &nodes_of(g)[own.index].dim
    copied = room_for_dim()
    while not copy_dim(own, copied):
        own.graph()
    return copied


cdef bint copy_dim(Expression x, Dim* to) noexcept nogil:
    cdef Graph* g
    cdef bint found
    hold(table, x.slot)
    g = graph_at(table, x.slot)
    found = g != NULL and x.version == g.version
    if found:
        to[0] = nodes_of(g)[x.index].dim
    let_go(table, x.slot)
    return found


cdef bint describe(Expression x, Looks* to) noexcept nogil:
    """Copy what can be said of a node; False: its graph has been renewed."""
    cdef Graph* g
    cdef const Node* node
    cdef bint found
    hold(table, x.slot)
    g = graph_at(table, x.slot)
    found = g != NULL and same_renewal(x.version, g.renewal) and x.index < g.n_nodes
    if found:
        node = nodes_of(g) + x.index
        to.dim = node.dim
        to.op = node.op
        to.origin = made_in(g, x.index)
        to.valid = x.version == g.version
    let_go(table, x.slot)
    return found


cdef str made(Expression x):
    """Where an expression was made, as messages have it."""
    cdef Looks of
    return made_by(of.origin) if describe(owned(x), &of) else ""


# ---- operators ---------------------------------------------------------------

cdef OperatorHook operators[OPERATOR_COUNT]


cdef int set_operator(int which, OperatorHook hook) except -1:
    operators[which] = hook
    return 0


cdef bint truth_of(Expression comparison) except -1:
    """The truth of a comparison, which must have one element, for `if`."""
    cdef const Dim* d = dim_of(comparison)
    if total_of(d) != 1:
        raise ValueError(
            f"a comparison of shape {describe_dim(d)} is neither true nor false; ask for its sum, or pick an element")
    return comparison.scalar_value() != 0


# Instructions of Python with which a program itself, rather than a function such as `filter` or `list.index` that it
# calls, asks for a truth value or compares.
cdef frozenset TESTS = frozenset(
    {code for name, code in opcode.opmap.items() if name in ("TO_BOOL", "UNARY_NOT") or name.partition("IF_")[2]})
cdef frozenset CALLS = frozenset({code for name, code in opcode.opmap.items() if "CALL" in name})
cdef frozenset COMPARISONS = frozenset({opcode.opmap["COMPARE_OP"]})
cdef int EXTENDED_ARG = opcode.EXTENDED_ARG

cdef str ARRAY_OF_VALUES = (
    "an array of expressions holds their values, and nothing is trained through it; write `dy.esum(list)` for the sum, "
    "`dy.average(list)` for the mean, `dy.concatenate(list)` for one expression of all, and "
    "`[e.value() for e in list]` for the values")

cdef set said = set()


cdef bint program_does(frozenset instructions) except -1:
    """Whether one of these instructions of the program is running."""
    frame = sys._getframe()
    cdef bytes code = frame.f_code.co_code
    cdef Py_ssize_t at = frame.f_lasti
    while <unsigned char>code[at] == EXTENDED_ARG:      # up to Python 3.10 the position of the prefix
        at += 2
    return <unsigned char>code[at] in instructions


cdef int say_once(str message, frozenset instructions) except -1:
    """Warn once of something that is legal, but probably a mistake if one of these instructions does it."""
    if message not in said and (instructions is None or program_does(instructions)):
        said.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=1)
    return 0


cdef int note_array(Expression x) except -1:
    """NumPy has asked for the value of an expression: warn if it makes one array of several that need gradients.

    It asks one by one, so what matters is whether the program has run on since it asked before. The functions of NumPy
    that join arrays ask from Python, in a module of their own.
    """
    cdef Graph* g
    cdef bint joins = sys._getframe().f_globals.get("__name__", "").endswith(("shape_base", "shape_base_impl"))
    cdef int before = asked_before() if runs_handlers() else 0      # only this thread runs pending calls
    if joins or before == 1:
        g = x.graph()
        if is_to_be_trained(g, x.index):
            say_once(ARRAY_OF_VALUES, None)
    if runs_handlers():
        begin_call(before + 1)
    return 0


cdef bint is_to_be_trained(Graph* g, uint32_t index) except -1:
    """Whether a value depends on parameters, and no backward has come to it yet."""
    cdef bytearray needed
    cdef const Node* x
    cdef uint32_t i, j
    if g.forward_only or (g.backward_from >= 0 and index <= <uint32_t>g.backward_from):
        return False
    needed = bytearray(index + 1)
    needed[index] = True
    for i in reversed(range(index + 1)):
        if needed[i]:
            x = nodes_of(g) + i
            if state_of(g)[i] & TRAINABLE:
                return True
            for j in range(x.nargs):
                needed[args_of(g, x)[j]] = True
    return False


# ---- whether an expression is stale ------------------------------------------

cdef inline Graph* own_graph(Expression x, uint64_t* version) noexcept:
    """The graph that x belongs to, and its version, or NULL if it has been renewed or closed; another graph may now
    have its slot."""
    cdef Graph* g
    hold(table, x.slot)                     # another thread may be closing its graph
    g = graph_at(table, x.slot)
    if g != NULL and not same_renewal(x.version, g.renewal):
        g = NULL
    if g != NULL:
        version[0] = g.version
    let_go(table, x.slot)
    return g


cdef bint survives(Graph* g, Expression x):
    """True if x was made before all checkpoints to which its graph has since been reverted."""
    cdef uint64_t epoch = x.version & ((<uint64_t>1 << REVERT_BITS) - 1)
    for reverted_at, n_nodes in owner_of(g).reverts:
        if reverted_at >= epoch:
            return x.index < <uint32_t>n_nodes
    return True


cdef int raise_stale(Expression x, Graph* g) except -1:
    cdef uint64_t version = 0
    cdef Graph* own = own_graph(x, &version)
    if x.version == 0:
        raise StaleExpressionError("an Expression made by hand belongs to no graph")
    if g != NULL and g.version == RUNNING:
        raise_running()
    if own != NULL:
        if own == g:
            raise StaleExpressionError(
                f"expression {x.index} was made after the checkpoint that its graph went back to")
        raise StaleExpressionError(
            f"expression {x.index} belongs to another graph than the current one of this thread; "
            "`with graph:` makes a graph the current one, and expressions of different graphs do not mix")
    raise StaleExpressionError(
        f"expression {x.index} is stale: its graph has been renewed (renew_cg) or closed since")
