"""Graphs and expressions.

One module, since either class needs the other one's C functions. In this order: expressions and their values; making
nodes; forgetting and compacting what was computed; graphs; the current graph; settings and random state.
"""

import contextvars
import sys
import threading
import warnings
from numbers import Real

import numpy as np

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from dynet_cy.core.interrupts cimport raised_here
from dynet_cy.core.tensor cimport DRAW_WORDS, Dim, size_of, total_of
from dynet_cy.graph.origin cimport current_origin, noting, place_at
from dynet_cy.memory.arena cimport (
    arena_close, arena_offset, arena_open, arena_rewind, arena_trim, array_close, array_open, array_push, array_rewind,
    array_trim, out_of_memory, set_reclaim, shortages,
)
from dynet_cy.memory.bridge cimport array_of, taking_numbers
from dynet_cy.memory.bridge cimport shape_of as bridge_shape_of
from dynet_cy.memory.changes cimport see_whole
from dynet_cy.memory.mirror cimport default_device, mirrors
from dynet_cy.memory.storage cimport Param, Storage, give_back_panels
from dynet_cy.ops.registry cimport Op, Shapes, op_at

from dynet_cy.devices import check_device, device_name
from dynet_cy.kernels import draws
from dynet_cy.memory import mirror
from dynet_cy.memory.storage import parameter_names
from dynet_cy.ops.registry import DimensionError


cdef extern from *:
    """
    /* The current graph where this thread was when the version of its context was that; NULL: none was made yet. */
    static _Thread_local dy_graph *dy_current = NULL;
    static _Thread_local uint64_t dy_context_version = 0;

    /* The value of a context variable with a default of None.  This needs no memory. */
    static PyObject *dy_context_value(PyObject *variable) {
        PyObject *value = NULL;
        PyContextVar_Get(variable, NULL, &value);
        return value;
    }

    static inline uint64_t dy_context_version_now(void) { return PyThreadState_Get()->context_ver; }

    /* Whether this runs in a context that something has entered, such as a task of asyncio, and not in that which a
     * thread or greenlet has of itself: only the latter can be entered. */
    static int dy_context_entered(void) {
        PyObject *context = PyThreadState_Get()->context;
        if (context == NULL)
            return 0;
        if (PyContext_Enter(context) == 0)
            return PyContext_Exit(context);
        PyErr_Clear();
        return 1;
    }

    /* 1 when the number of elements, batch included, overflows what is addressable. */
    static inline int dy_too_large(const dy_dim *x) {
        uint64_t n = x->bd;
        for (uint32_t i = 0; i < x->nd; i++)
            if (__builtin_mul_overflow(n, (uint64_t)x->d[i], &n))
                return 1;
        return n >> 46 != 0;
    }
    """
    Graph* dy_current
    uint64_t dy_context_version
    uint64_t dy_context_version_now()
    object context_value "dy_context_value"(object variable)
    bint context_entered "dy_context_entered"() except -1
    bint dy_too_large(const Dim* x) nogil

cdef extern from *:
    """
    /* The error that is set, which is then no longer set. */
    static PyObject *dy_take_error(void) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        PyErr_NormalizeException(&type, &value, &traceback);
        Py_XDECREF(type);
        Py_XDECREF(traceback);
        return value;
    }
    """
    object take_error "dy_take_error"()

ctypedef int (*QuietDimRule)(const Shapes* s, Dim* y) noexcept

cdef enum:
    MAX_GRAPHS = 65536
    MOST_ON_STACK = 8
    FETCHED_TOGETHER = 1 << 16      # bytes; copying so many from a device takes about as long as asking for them
    MOST_SHOWN = 200                # nodes of a picture that notebooks show without being asked

# The version of a graph while it runs without the GIL: no expression has it.
cdef uint64_t RUNNING = 0xFFFFFFFFFFFFFFFFu
# Low bits of a version count the reverts since the renewal, and the times that nodes were numbered anew.
cdef int REVERT_BITS = 28

cdef Graph* graphs[MAX_GRAPHS]
cdef void* owners[MAX_GRAPHS]           # the ComputationGraph of each, borrowed
cdef uint32_t n_slots = 0
cdef uint64_t renewals = 0
cdef uint32_t streams = 0

# Streams of a state that was put back, with their renewals, for graphs that are not made yet.
cdef list awaited = []
cdef int default_strategy = 1
# A graph that only goes forward numbers its nodes anew when there are twice as many as needed, and this many.
cdef uint32_t LEAST_TO_COMPACT = 4096

cdef Engine[ENGINE_COUNT] engines

# Python hooks that families fill: operators on expressions.
_operators = {}


class _Local(threading.local):
    entered = None                          # the innermost graph that was entered in this thread
    implicit = None                         # its graph outside of those


_local = _Local()


class StaleExpressionError(RuntimeError):
    """An expression of a graph that has been renewed, reverted or closed, or
    that is not the current graph of this thread.

    Example:
        >>> x = dy.inputVector([1])
        >>> _ = dy.renew_cg()
        >>> x.value()
        Traceback (most recent call last):
            ...
        dynet_cy.graph.graph.StaleExpressionError: expression 0 is stale
    """


cdef Engine* engine(int kind) noexcept:
    return &engines[kind]


cdef Beside beside
cdef PassHooks passes


cdef Beside* beside_hooks() noexcept:
    return &beside


cdef PassHooks* pass_hooks() noexcept:
    return &passes


cdef Engine* engine_of(const Graph* g) noexcept:
    return &engines[ENGINE_MULTI_DEVICE if g.multi_device else ENGINE_GPU if g.device else ENGINE_CPU]


# ---- expressions -------------------------------------------------------------

@cython.freelist(512)
cdef class Expression:
    """A node of a computation graph: a value that will be computed when asked for.

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

    cdef int enter(self) except -1:
        cdef Graph* g = current_graph()
        if self.version == g.version:
            return 0
        if g.version != RUNNING and same_renewal(self.version, g.version):
            if survives(g, self):
                self.version = g.version
                return 0
        raise_stale(self, g)

    cdef Graph* graph(self) except NULL:
        cdef Graph* g = graphs[self.slot] if self.slot < n_slots else NULL
        if g != NULL:
            if self.version == g.version:
                return g
            if same_renewal(self.version, g.renewal):
                if g.version == RUNNING:
                    raise_running()
                if survives(g, self):
                    self.version = g.version
                    return g
        raise_stale(self, g)

    def dim(self):
        """Shape and batch size: ``((d0, d1, ...), batch_size)``.

        Example:
            >>> dy.zeros((2, 3), batch_size=4).dim()
            ((2, 3), 4)
        """
        cdef const Dim* d = dim_of(self)
        return bridge_shape_of(d), d.bd

    @property
    def shape(self):
        """Shape of one batch element, a tuple.

        Example:
            >>> dy.zeros((2, 3), batch_size=4).shape
            (2, 3)
        """
        return bridge_shape_of(dim_of(self))

    @property
    def batch_size(self):
        """Number of batch elements; 1 where there is no batch.

        Example:
            >>> dy.zeros((2, 3), batch_size=4).batch_size
            4
        """
        return dim_of(self).bd

    def forward(self, recalculate=False):
        """Compute the value, and what it needs, without returning it.

        Args:
            recalculate: compute all of the graph anew, also what is computed; False by default.

        Example:
            >>> y = dy.tanh(dy.inputVector([0, 0]))
            >>> y.forward()
            >>> y.value()                   # is known: nothing is computed
            [0.0, 0.0]
        """
        compute(self, recalculate)

    def npvalue(self, recalculate=False):
        """The value as a new float64 array; the batch, if any, is the last axis.

        Args:
            recalculate: as in `forward`; False by default.

        Example:
            >>> dy.inputTensor([[1, 2], [3, 4]]).npvalue()
            array([[1., 2.],
                   [3., 4.]])
        """
        cdef Graph* g = compute(self, recalculate)
        cdef Node* x = nodes_of(g) + self.index
        return doubles_of(value_here(g, x), full_shape(&x.dim))

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
        """The value: of a scalar or vector a float for one element and else a flat
        list, the batch last, as `vec_value` gives it; with more axes, also of
        size 1, an array as `npvalue` gives it.

        Args:
            recalculate: as in `forward`; False by default.

        Example:
            >>> dy.scalarInput(3).value(), dy.inputVector([1, 2]).value()
            (3.0, [1.0, 2.0])
            >>> dy.inputTensor([[1, 2], [3, 4]]).value()
            array([[1., 2.],
                   [3., 4.]])
        """
        cdef Graph* g = compute(self, recalculate)
        cdef Node* x = nodes_of(g) + self.index
        cdef size_t n = total_of(&x.dim)
        cdef const float* v = value_here(g, x)
        if x.dim.nd > 1:
            return doubles_of(v, full_shape(&x.dim))
        return v[0] if n == 1 else list_of(v, n)

    def vec_value(self, recalculate=False):
        """All elements as a flat list, column-major, the batch last.

        Args:
            recalculate: as in `forward`; False by default.

        Example:
            >>> dy.inputTensor([[1, 2], [3, 4]]).vec_value()
            [1.0, 3.0, 2.0, 4.0]
        """
        cdef Graph* g = compute(self, recalculate)
        cdef Node* x = nodes_of(g) + self.index
        return list_of(value_here(g, x), total_of(&x.dim))

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
        cdef Graph* g = compute(self, recalculate)
        cdef Node* x = nodes_of(g) + self.index
        if total_of(&x.dim) != 1:
            raise ValueError(
                f"scalar_value: the expression has shape {describe_dim(&x.dim)}, not one element"
                f"{made_at(g, self.index)}")
        return value_here(g, x)[0]

    def item(self):
        """The value of an expression of one element as a float: `scalar_value` by the name that arrays have for it.

        Example:
            >>> dy.squared_norm(dy.inputVector([3, 4])).item()
            25.0
        """
        return self.scalar_value()

    # ---- what arrays have as methods; the family of each fills them in

    @property
    def T(self):
        """The axes in the opposite order: of a matrix its transpose, of a vector the vector itself.

        Example:
            >>> dy.inputTensor([[1, 2], [3, 4]]).T.npvalue()
            array([[1., 3.],
                   [2., 4.]])
        """
        return _operators["T"](self)

    def reshape(self, *shape):
        """The same elements, column by column, in another shape; see `dynet_cy.reshape`.

        Args:
            shape: the sizes of the axes, one by one or as a tuple; one of them may be -1, which is then worked out.

        Raises:
            DimensionError: the new shape has more or fewer elements.

        Example:
            >>> dy.zeros((4, 6)).reshape(-1, 3).shape
            (8, 3)
        """
        return _operators["reshape"](self, shape[0] if len(shape) == 1 else shape)

    def sum(self, axis=None, keepdims=False):
        """Sum of each batch element along some axes.

        Args:
            axis: a number, which may count from the end, or several of them; all axes when None.
            keepdims: whether the axes stay, with one element each (default: False).

        Returns:
            An expression; ``{1}`` where no axis is left.

        Raises:
            DimensionError: there is no such axis, or it is given twice.

        Example:
            >>> dy.inputTensor([[1, 2], [3, 4]]).sum(axis=-1).npvalue()
            array([3., 7.])
        """
        return _operators["sum"](self, axis, keepdims)

    def mean(self, axis=None, keepdims=False):
        """Mean of each batch element along some axes; see `sum`.

        Example:
            >>> dy.inputTensor([[1, 2], [3, 4]]).mean(axis=0).npvalue()
            array([2., 3.])
        """
        return _operators["mean"](self, axis, keepdims)

    def max(self, axis=None, keepdims=False):
        """Greatest element of each batch element along some axes; see `sum` and `dynet_cy.max_dim`.

        Example:
            >>> dy.inputTensor([[1, 2], [3, 4]]).max().value()
            4.0
        """
        return _operators["max"](self, axis, keepdims)

    def min(self, axis=None, keepdims=False):
        """Least element of each batch element along some axes; see `sum` and `dynet_cy.min_dim`.

        Example:
            >>> dy.inputTensor([[1, 2], [3, 4]]).min(axis=1).npvalue()
            array([1., 3.])
        """
        return _operators["min"](self, axis, keepdims)

    def backward(self, full=False):
        """Add the gradient of this scalar to the gradients of all parameters.

        Runs forward first where needed.  With several batch elements, the
        gradient of their sum is taken.

        Args:
            full: compute gradients of all expressions, also of those that no
                parameter lies behind, so that `gradient` gives them, after an update
                too.  It takes twice as long. Default: False.

        Raises:
            ValueError: an element of the batch is not a scalar.
            RuntimeError: the graph was renewed with ``forward_only=True``.

        Example:
            >>> W = model.add_parameters(2, init=3)
            >>> dy.squared_norm(W).backward()
            >>> W.grad_as_array()
            array([6., 6.], dtype=float32)
        """
        cdef Graph* g = self.graph()
        cdef ComputationGraph graph = <ComputationGraph>owners[g.slot]
        cdef Node* x
        raise_in_item(<ComputationGraph>owners[g.slot], "backward",
                      "let the items return their losses, and call backward once, on the sum")
        if g.forward_only:
            raise RuntimeError(
                "backward: the graph was renewed with forward_only=True, which drops what that needs")
        graph.warn_of_growth()
        if not state_of(g)[self.index] & COMPUTED:
            run_pass(g, &self.index, 1)
        x = nodes_of(g) + self.index
        if size_of(&x.dim) != 1:
            raise ValueError(
                f"backward: the expression has shape {describe_dim(&x.dim)}, not one element{made_at(g, self.index)}; "
                "reduce it first, for example with sum_elems")
        g.backward_from = -1
        graph.given = None
        given = None
        if full:
            from dynet_cy.graph.given import keep_given         # it needs this module
            given = keep_given(graph, self.index)
        engine_of(g).backward(g, self.index, full)
        g.backward_from = self.index
        graph.given = given
        graph.note_values()

    def gradient(self):
        """The gradient that the last `backward` gave this expression, as an array.

        It is zero where the loss does not depend on the expression.

        Of a parameter it is what reached this expression of it: neither what other
        graphs and other backward passes gave the parameter, which `grad_as_array` of
        the parameter adds up, nor what reached its other expressions.

        All constants of one parameter in a graph (`const_parameter(p)`, `p.expr()`) are
        one expression, which has the sum of what reached them.

        After ``backward(full=True)`` this holds until the next backward or renewal,
        whatever happens to the parameters.  After a plain ``backward()`` the first one
        asked for that it need not compute (that of a parameter's expression, or of one
        without a parameter behind it) costs another pass backward over the graph, with
        the same values: ask before the parameters are updated.

        Raises:
            RuntimeError: no backward was run, or not over this expression; or the
                other pass is needed, and values of parameters have changed since.

        Example:
            >>> W = model.add_parameters(2, init=1)
            >>> trainer = dy.SimpleSGDTrainer(model)
            >>> dy.squared_norm(W).backward(full=True)
            >>> trainer.update()
            >>> W.gradient()            # of this loss
            array([2., 2.])
        """
        cdef Graph* g = self.graph()
        if g.backward_from < 0 or self.index > <uint32_t>g.backward_from:
            raise RuntimeError("gradient: run backward on an expression made after this one first")
        cdef uint8_t state = state_of(g)[self.index]
        if state & SHARED or not state & NEEDS_GRAD:
            from dynet_cy.graph.given import given              # it needs this module
            return given(<ComputationGraph>owners[g.slot], self.index)
        return gradient_of(g, self.index, state)

    def __len__(self):
        cdef const Dim* d = dim_of(self)
        return d.d[0] if d.nd else 1

    def __repr__(self):
        cdef Graph* g = graphs[self.slot] if self.slot < n_slots else NULL
        if g != NULL and same_renewal(self.version, g.renewal) and self.index < g.n_nodes:
            name = op_at(nodes_of(g)[self.index].op).name.decode()
            return (f"<expression {self.index} {name} {describe_dim(&nodes_of(g)[self.index].dim)}"
                    f"{made_at(g, self.index)}>")
        return f"<expression {self.index} of a graph renewed since>"

    def __reduce__(self):
        raise TypeError("expressions do not pickle; save parameters or values instead")

    def __iter__(self):
        for i in range(len(self)):
            yield self[i]

    def __getitem__(self, index):
        return _operators["getitem"](self, index)

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
        return _operators["abs"](self)

    def __bool__(self):
        cdef Graph* g = graphs[self.slot] if self.slot < n_slots else NULL
        if g != NULL and self.version == g.version and op_at(nodes_of(g)[self.index].op).truth:
            return truth_of(self)
        say_once("an Expression is always true, whatever its value; write `if e.value():` for the value, and "
                 "`if e is not None:` to ask whether there is one")
        return True

    def __eq__(self, other):
        if isinstance(other, Real):
            say_once("an Expression never equals a number; write `e.value() == x` to compare its value")
        return NotImplemented               # it equals itself alone

    def __hash__(self):
        return <Py_hash_t>(<size_t><void*>self >> 4)

    def __float__(self):
        """The value, if it is one number."""
        return self.scalar_value()

    def __format__(self, spec):
        """As `repr` without a format; else the value, which must be one number: ``f"{loss:.3f}"``."""
        return format(self.scalar_value(), spec) if spec else repr(self)

    def __array__(self, dtype=None, copy=None):
        """The value, for numpy."""
        if taking_numbers():
            array = np.empty((), object)
            array[()] = self
            return array
        if copy is False:
            raise ValueError("the value of an expression can only be copied")
        array = self.npvalue()
        return array if dtype is None else array.astype(dtype)

    # numpy must leave `array * expression` to the expression, not loop over elements.
    __array_ufunc__ = None


cdef class ForwardExpression(Expression):
    """A node of a graph that only goes forward: it is needed while this is there.

    There is at most one for each node, so that the graph can number its nodes anew.
    """

    def set(self, values):
        """Inputs of such a graph cannot be set anew."""
        raise RuntimeError("set: the graph was renewed with forward_only=True, which drops what that needs")

    def set_index(self, index):
        """Indices of such a graph cannot be set anew."""
        raise RuntimeError("set_index: the graph was renewed with forward_only=True, which drops what that needs")

    def __dealloc__(self):
        cdef Graph* g = graphs[self.slot] if self.slot < n_slots else NULL
        cdef Use* use
        if g == NULL or not same_renewal(self.version, g.renewal) or self.index >= g.n_nodes:
            return
        use = &uses_of(g)[self.index]
        if use.holder == <void*>self:
            use.holder = NULL
            if g.version != RUNNING:        # else its room is free again when nodes are numbered anew
                drop_unneeded(g, self.index)


cdef bint truth_of(Expression comparison) except -1:
    """What `if` asks of a comparison: whether it holds, where that is one question."""
    cdef const Dim* d = dim_of(comparison)
    if total_of(d) != 1:
        raise ValueError(
            f"a comparison of shape {describe_dim(d)} is neither true nor false; ask for its sum, or pick an element")
    return comparison.scalar_value() != 0


cdef set said = set()


cdef int say_once(str message) except -1:
    """Warn of a trap that a program may have meant to step into."""
    if message not in said:
        said.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=1)
    return 0


cdef OperatorHook operators[OPERATOR_COUNT]


cdef int set_operator(int which, OperatorHook hook) except -1:
    operators[which] = hook
    return 0


cdef inline bint same_renewal(uint64_t a, uint64_t b) noexcept:
    return a >> REVERT_BITS == b >> REVERT_BITS


cdef bint survives(Graph* g, Expression x):
    """True if x was made before all checkpoints that its graph went back to since."""
    cdef uint64_t epoch = x.version & ((<uint64_t>1 << REVERT_BITS) - 1)
    for reverted_at, n_nodes in (<ComputationGraph>owners[g.slot]).reverts:
        if reverted_at >= epoch:
            return x.index < <uint32_t>n_nodes
    return True


cdef int raise_running() except -1:
    raise RuntimeError("this graph is running in another thread, or in this one below the handler of a signal")


cdef int raise_stale(Expression x, Graph* g) except -1:
    cdef Graph* own = graphs[x.slot] if x.slot < n_slots else NULL
    if x.version == 0:
        raise StaleExpressionError("an Expression made by hand belongs to no graph")
    if g != NULL and g.version == RUNNING:
        raise_running()
    if own != NULL and same_renewal(own.renewal, x.version):
        if own == g:
            raise StaleExpressionError(
                f"expression {x.index} was made after the checkpoint that its graph went back to")
        raise StaleExpressionError(
            f"expression {x.index} belongs to another graph than the current one of this thread; "
            "expressions of different graphs do not mix")
    raise StaleExpressionError(
        f"expression {x.index} is stale: its graph has been renewed (renew_cg) or closed since")


cdef const Dim* dim_of(Expression x) except NULL:
    cdef Graph* g = x.graph()
    return &nodes_of(g)[x.index].dim


cdef Graph* compute(Expression x, bint recalculate) except NULL:
    cdef Graph* g = x.graph()
    if recalculate:
        forget(g)
    if not state_of(g)[x.index] & COMPUTED:
        if requested(g, x):
            return x.graph()
        compute_beside(g, x.index)
        if g.forward_only and g.n_nodes >= g.compact_at:
            compact(<ComputationGraph>owners[g.slot])
    elif g.early:
        beside.asked(g, x.index)
    return g


cdef int compute_beside(Graph* g, uint32_t index) except -1:
    """Compute a value that is asked for, and those beside it that are likely to be asked for next."""
    cdef const uint32_t* targets = &index
    cdef uint64_t raised
    cdef uint32_t n = 1
    if g.strategy and not g.immediate and beside.ask != NULL:
        n = beside.ask(g, &index, &targets)
    if n == 1:
        return run_pass(g, targets, n)
    raised = raised_here()
    try:
        return run_pass(g, targets, n)
    except (MemoryError, ValueError):       # perhaps for a value that nobody has asked for
        beside.failed(g)
        if raised_here() != raised:         # it is of the handler of a signal
            raise
    return run_pass(g, &index, 1)


cdef int run_pass(Graph* g, const uint32_t* targets, uint32_t n) except -1:
    cdef uint64_t begun
    cdef uint32_t ran = g.n_order
    if not passes.on:
        return engine_of(g).forward(g, targets, n, g.strategy)
    begun = passes.begin()
    engine_of(g).forward(g, targets, n, g.strategy)
    passes.end(g, n, g.n_order - ran, (<ComputationGraph>owners[g.slot]).requests is not None, begun)
    return 0


cdef bint any_uncomputed(Graph* g, const uint32_t* nodes, uint32_t n) noexcept:
    cdef uint32_t i
    for i in range(n):
        if not state_of(g)[nodes[i]] & COMPUTED:
            return True
    return False


cdef bint requested(Graph* g, object wanted) except -1:
    """Let the item of a batched map that is running wait until its expressions are computed with those of others.

    False where there is no such item: then they are to be computed now.
    """
    cdef Requests requests = (<ComputationGraph>owners[g.slot]).requests
    return requests is not None and requests.wait_for(wanted)


cdef int raise_in_item(ComputationGraph graph, str what, str instead) except -1:
    """Refuse what an item of a batched map must not do to the graph that it shares with others."""
    if graph.requests is not None and graph.requests.inside():
        raise RuntimeError(
            f"{what} in an item of batched_map or a call of a Server: others use the same graph; {instead}")
    return 0


cdef float* floats_here(Graph* g, uint32_t node, float* v, size_t n) except? NULL:
    """Floats of a node in an arena, after they were fetched where it runs on a device."""
    cdef int device = device_of(g, node)
    if device and n:
        engines[ENGINE_GPU].fetch(g, device, v, n)
    return v


cdef float* parameter_here(Param* p, bint gradient) except? NULL:
    """The value or gradient of a parameter, after it was fetched where it lives on a device."""
    cdef float* v = p.grad if gradient else p.value
    see_whole()
    if p.device and p.size:
        mirrors().fetch(p.device, p.device_grad if gradient else p.device_value, v, p.size)
    return v


cdef float* value_here(Graph* g, Node* x) except? NULL:
    """The value of a computed node; on a device, small values of one batch are fetched together."""
    cdef uint32_t number = <uint32_t>(x - nodes_of(g))
    cdef Batch* batch
    cdef uint32_t j
    if x.val == NULL:
        return parameter_here(<Param*>x.object, False)
    if x.batch == NO_BATCH or device_of(g, number) == 0 or state_of(g)[number] & SENT:      # inputs are here
        return x.val
    batch = &batches_of(g)[x.batch]
    if batch.count > 1 and batch.bytes <= FETCHED_TOGETHER:
        floats_here(g, number, batch.y, batch.bytes // sizeof(float))
        for j in range(batch.count):
            state_of(g)[order_of(g)[batch.first + j]] |= SENT
    else:
        floats_here(g, number, x.val, total_of(&x.dim))
        state_of(g)[number] |= SENT
    return x.val


cdef list compute_all(object expressions, str op, bint recalculate):
    """Compute expressions of one graph together, so that they batch with each other."""
    cdef list xs = list(expressions)
    cdef uint32_t i, n = len(xs)
    cdef uint32_t* targets
    cdef Graph* g
    for i in range(n):
        if not isinstance(xs[i], Expression):
            raise TypeError(f"{op}: argument {i} must be an Expression, not {type(xs[i]).__name__}")
    if n == 0:
        return xs
    g = (<Expression>xs[0]).graph()
    targets = <uint32_t*>malloc(n * sizeof(uint32_t))
    if targets == NULL:
        raise MemoryError(f"{op}: {n} expressions")
    try:
        for i in range(n):
            if (<Expression>xs[i]).graph() != g:
                raise StaleExpressionError(f"{op}: argument {i} is of another graph than argument 0")
            targets[i] = (<Expression>xs[i]).index
        if recalculate:
            forget(g)
        if any_uncomputed(g, targets, n):
            if requested(g, xs):
                return xs
            run_pass(g, targets, n)
        if g.early:
            for i in range(n):
                beside.asked(g, targets[i])
    finally:
        free(targets)
    if g.forward_only and g.n_nodes >= g.compact_at:
        compact(<ComputationGraph>owners[g.slot])
    return xs


def forward(exps, recalculate=False):
    """Compute expressions of one graph together.

    Args:
        exps: a list of them.
        recalculate: compute all of the graph anew (default: False).

    Example:
        >>> x, y = dy.inputVector([1, 2]), dy.inputVector([3, 4])
        >>> dy.forward([dy.sum_elems(x), dy.sum_elems(y)])
    """
    compute_all(exps, "forward", recalculate)


def npvalues(exps, recalculate=False):
    """The values of expressions of one graph, computed together, as arrays: see `npvalue`.

    Raises:
        TypeError: one of them is no expression.

    Example:
        >>> dy.npvalues([dy.inputVector([1, 2]), dy.inputVector([3])])
        [array([1., 2.]), array([3.])]
    """
    return [x.npvalue() for x in compute_all(exps, "npvalues", recalculate)]


def values(exps, recalculate=False):
    """The values of expressions of one graph, computed together: see `value`.

    Raises:
        TypeError: one of them is no expression.

    Example:
        >>> dy.values([dy.sum_elems(dy.inputVector([1, 2])), dy.scalarInput(3)])
        [3.0, 3.0]
    """
    return [x.value() for x in compute_all(exps, "values", recalculate)]


cdef tuple full_shape(const Dim* d):
    """The shape with the batch, if any, as its last axis."""
    shape = bridge_shape_of(d)
    return shape + (d.bd,) if d.bd > 1 else shape


cdef object gradient_of(Graph* g, uint32_t index, uint8_t state):
    """New array with the gradient of a node in an arena, whose state is this."""
    cdef Node* x = nodes_of(g) + index
    if state & LIVE:
        return doubles_of(floats_here(g, index, gradient_at(g, x.val), total_of(&x.dim)), full_shape(&x.dim))
    return np.zeros(full_shape(&x.dim), order="F")    # perhaps it has no value even


cdef object doubles_of(const float* v, tuple shape):
    """New array with a copy of the floats at v; float64, as sums and logs outside expect of numpy."""
    return array_of(v, shape).astype(np.float64)


cdef tuple shape_of(const Dim* d):
    return bridge_shape_of(d)


cdef str describe_dim(const Dim* d):
    text = "{" + ",".join([str(d.d[i]) for i in range(d.nd)]) + "}"
    return f"{text} x {d.bd}" if d.bd > 1 else text


cdef list list_of(const float* v, size_t n):
    cdef size_t i, end, at = 0
    found = []
    while at < n:                               # handlers of signals run between blocks
        end = min(n, at + (1 << 20))
        found += [v[i] for i in range(at, end)]
        if end < n:
            PyErr_CheckSignals()
        at = end
    return found


# ---- making nodes ------------------------------------------------------------

cdef uint32_t add_node(Graph* g, const Op* op, const uint32_t* args, uint32_t n,
                       Extra* extra) except? 0xFFFFFFFF:
    """Append a node.  Nothing is changed when an error is raised."""
    cdef const Dim* few[MOST_ON_STACK]
    cdef const Dim** many
    cdef Dim* y = room_for_node(g)
    if n <= MOST_ON_STACK:
        shape_node(g, op, args, n, extra, few, y)
    else:
        many = <const Dim**>malloc(n * sizeof(void*))
        if many == NULL:
            raise MemoryError(f"{op.name.decode()}: {n} arguments")
        try:
            shape_node(g, op, args, n, extra, many, y)
        finally:
            free(many)
    return append(g, op, args, n, extra)


cdef inline Dim* room_for_node(Graph* g) except NULL:
    """Where the shape of the next node stands.  It is written there by the rule of its op:
    a copy, right after it was written in small pieces, would wait for them."""
    cdef Node* node
    if g.version == RUNNING:
        raise_running()
    node = <Node*>array_push(&g.nodes, sizeof(Node))
    if node == NULL:
        out_of_memory("a node of the graph")
    g.nodes.top -= sizeof(Node)                     # `append` takes the room
    return &node.dim


cdef inline int shape_node(Graph* g, const Op* op, const uint32_t* args, uint32_t n,
                           Extra* extra, const Dim** dims, Dim* y) except -1:
    """The shape of a node to be.  `dims` is room for those of its arguments."""
    cdef Shapes s
    cdef uint32_t i
    cdef Node* nodes = nodes_of(g)
    s.bd = 1
    for i in range(n):
        dims[i] = &nodes[args[i]].dim
        if dims[i].bd != s.bd and dims[i].bd != 1 and not op.any_batch:
            if s.bd != 1:
                fail(g, op, args, n, f"batch sizes {s.bd} and {dims[i].bd} differ")
            s.bd = dims[i].bd
    s.n = n
    s.x = dims
    if extra != NULL:
        s.attrs = extra.attrs
        s.items = extra.items
        s.n_items = extra.n_items
        s.object = extra.object
    else:
        s.attrs = NULL
        s.items = NULL
        s.n_items = 0
        s.object = NULL
    y.bd = s.bd
    # Called as if it could not raise: a try block costs more than the rest of this function.
    if (<QuietDimRule>op.dim)(&s, y) == -1:
        fail(g, op, args, n, None)
    if dy_too_large(y):
        fail(g, op, args, n, f"the result {describe_dim(y)} is too large")
    return 0


cdef int fail(Graph* g, const Op* op, const uint32_t* args, uint32_t n, str reason) except -1:
    """Raise with the reason, or with that of the error now set, and all arguments."""
    kind = DimensionError
    if reason is None:
        error = take_error()
        if not isinstance(error, (DimensionError, IndexError)):
            raise error
        kind = type(error)
        reason = str(error)
    raise kind(explain(op, reason, args, n, nodes_of(g), g))


cdef uint32_t append(Graph* g, const Op* op, const uint32_t* args, uint32_t n,
                     Extra* extra) except? 0xFFFFFFFF:
    """Make a node of the room whose shape has been written."""
    cdef size_t nodes_top = g.nodes.top, args_top = g.args.top
    cdef size_t items_top = g.items.top
    cdef Node* node = nodes_of(g) + g.n_nodes
    cdef int device = placed(g, op, args, n, extra)
    cdef uint8_t* state = <uint8_t*>array_push(&g.state, 1)
    cdef Use* use = <Use*>array_push(&g.uses, sizeof(Use)) if g.forward_only else NULL
    cdef uint32_t* own_args
    cdef uint32_t* items = NULL
    cdef uint32_t i, item_count = 0, n_items = 0
    if n > MOST_ON_STACK and <char*>(args + n) == g.args.base + args_top:       # `apply` has put them there
        own_args = <uint32_t*>args
        args_top -= n * sizeof(uint32_t)
    else:
        own_args = <uint32_t*>array_push(&g.args, n * sizeof(uint32_t))
    if op.random:
        item_count = DRAW_WORDS
        n_items = node.dim.bd * DRAW_WORDS
    elif extra != NULL and extra.n_items:
        item_count = extra.item_count
        n_items = extra.n_items
        if n_items == item_count:                   # one for all of the batch
            n_items *= node.dim.bd
    if n_items:
        items = <uint32_t*>array_push(&g.items, n_items * sizeof(uint32_t))
    if (state == NULL or own_args == NULL or (n_items and items == NULL)
            or (g.forward_only and use == NULL) or (g.multi_device and array_push(&g.devices, 1) == NULL)):
        take_back(g, nodes_top, args_top, items_top)
        out_of_memory("a node of the graph")
    node.op = <uint16_t>op.id
    node.item_count = <uint16_t>item_count
    node.nargs = n
    node.args = <uint32_t>(args_top // sizeof(uint32_t))
    node.items = <uint32_t>(items_top // sizeof(uint32_t))
    node.batch = NO_BATCH
    node.val = NULL
    if own_args != args:
        for i in range(n):
            own_args[i] = args[i]
    if op.random:
        for i in range(node.dim.bd):
            items[i * DRAW_WORDS] = g.draws + i
            items[i * DRAW_WORDS + 1] = <uint32_t>g.draw_key
            items[i * DRAW_WORDS + 2] = <uint32_t>(g.draw_key >> 32)
        g.draws += node.dim.bd
    elif n_items:
        i = 0
        while i < n_items:                          # range() with a step would be Python's
            memcpy(items + i, extra.items, extra.n_items * sizeof(uint32_t))
            i += extra.n_items
    if extra != NULL:
        memcpy(node.attrs, extra.attrs, sizeof(node.attrs))
        node.object = extra.object
        node.val = extra.val
        state[0] = extra.state
    else:
        memset(node.attrs, 0, sizeof(node.attrs))
        node.object = NULL
        state[0] = 0
    if use != NULL:
        use.holder = NULL
        use.consumers = 0
        for i in range(n):
            uses_of(g)[own_args[i]].consumers += 1
    i = g.n_nodes
    if g.multi_device:
        g.devices.base[i] = <char>device
    if noting:
        note_origin(g)
    g.n_nodes += 1
    g.nodes.top += sizeof(Node)
    if g.immediate and not state[0] & COMPUTED:
        try:
            engine_of(g).forward(g, &i, 1, 0)
        except Exception:
            g.n_nodes -= 1
            take_back(g, nodes_top, args_top, items_top)
            raise
    return i


cdef void note_origin(Graph* g) noexcept:
    """Note what makes the next node, a line and a scope; without room it is not known."""
    cdef size_t n = (g.n_nodes + <size_t>1) * sizeof(uint32_t)
    cdef uint32_t* room = <uint32_t*>array_push(&g.origins, n - g.origins.top)
    if room != NULL:
        memset(room, 0, <size_t>(g.origins.base + n - <char*>room))     # of those before nothing was noted
        (<uint32_t*>g.origins.base)[g.n_nodes] = current_origin()


cdef void take_back(Graph* g, size_t nodes_top, size_t args_top, size_t items_top) noexcept:
    """Give back the memory of the node after the last."""
    g.nodes.top = nodes_top
    g.args.top = args_top
    g.items.top = items_top
    g.state.top = g.n_nodes
    g.uses.top = g.n_nodes * sizeof(Use) if g.forward_only else 0
    g.devices.top = g.n_nodes if g.multi_device else 0
    g.origins.top = min(g.origins.top, g.n_nodes * sizeof(uint32_t))


cdef inline int placed(Graph* g, const Op* op, const uint32_t* args, uint32_t n, const Extra* extra) except -1:
    """Where a node is to run, for graphs on several devices."""
    if g.multi_device or (extra != NULL and extra.device and extra.device - 1 != g.device):
        return place_node(g, op, args, n, extra)
    return 0


cdef int place_node(Graph* g, const Op* op, const uint32_t* args, uint32_t n, const Extra* extra) except -1:
    """Where a node is to run: where that was asked for, or where its arguments do.

    Inputs for which nobody asked follow the others.
    """
    cdef uint8_t* devices
    cdef bint asked = extra != NULL and extra.device
    cdef int device = -1
    cdef uint32_t i
    if not g.multi_device:
        mix(g)
    devices = <uint8_t*>g.devices.base
    if n == 0 and not asked:
        return g.device | (MOVABLE if extra != NULL and extra.val != NULL else 0)
    for i in range(n if not asked else 0):
        if not devices[args[i]] & MOVABLE:
            if device >= 0 and devices[args[i]] != device:
                raise ValueError(explain(
                    op, "the arguments are on different devices; to_device brings one to another", args, n,
                    nodes_of(g), g))
            device = devices[args[i]]
    if device < 0:
        device = g.device
    for i in range(n):
        if devices[args[i]] & MOVABLE:
            devices[args[i]] = <uint8_t>device
    return extra.device - 1 if asked else device


cdef int mix(Graph* g) except -1:
    """Let the nodes of a graph have a device each from now on; so far all are on that of the graph."""
    cdef uint8_t* devices = <uint8_t*>array_push(&g.devices, g.n_nodes)
    if devices == NULL:
        out_of_memory("the devices of a graph")
    memset(devices, g.device, g.n_nodes)
    let_move(g)
    g.multi_device = True
    return 0


cdef void let_move(Graph* g) noexcept:
    """Let inputs that nothing uses, and for which no device was asked for, go where they are used next."""
    cdef uint8_t* devices = <uint8_t*>g.devices.base
    cdef Node* x
    cdef uint32_t i, k
    for i in range(g.n_nodes):
        x = &nodes_of(g)[i]
        if x.nargs == 0 and x.val != NULL and x.batch == NO_BATCH and x.attrs[0].u == 0:
            devices[i] |= <uint8_t>MOVABLE
        for k in range(x.nargs):
            devices[args_of(g, x)[k]] &= <uint8_t>~MOVABLE
    for i in range(g.n_nodes):
        if devices[i] & MOVABLE and devices[i] != (g.device | MOVABLE):
            devices[i] = <uint8_t>(g.device | MOVABLE)
            state_of(g)[i] &= <uint8_t>~SENT


cdef list argument_names(const Op* op, uint32_t n):
    names = op.args.decode().split()
    if names and names[-1].endswith("..."):
        stem = names.pop()[:-3]
        names += [f"{stem}[{i}]" for i in range(n - len(names))]
    return names


cdef str source_of_node(const Graph* g, uint32_t index):
    cdef const Node* x = &nodes_of(g)[index]
    if state_of(g)[index] & SHARED:
        return "parameter " + parameter_names.get((<Param*>x.object).id, "?")
    return op_at(x.op).name.decode()


cdef str made_at(const Graph* g, uint32_t index):
    cdef uint32_t number = 0 if state_of(g)[index] & SHARED else origin_of(g, index)   # parameters have names
    return f", made{place_at(number)}" if number else ""


cdef explain(const Op* op, str reason, const uint32_t* args, uint32_t n, const Node* nodes,
             Graph* g):
    """The reason, and every argument by name with its shape, where it comes from and, where there are several
    devices, on which one it is."""
    names = argument_names(op, n)
    shapes, sources = [], []
    for i in range(n):
        shapes.append(describe_dim(&nodes[args[i]].dim))
        sources.append(source_of_node(g, args[i]))
        if g.multi_device:
            sources[i] += " on " + device_name(device_of(g, args[i]))
        sources[i] += made_at(g, args[i])
    if n > 12:                                      # long lists: both ends tell enough
        shown = list(range(6)) + list(range(n - 6, n))
    else:
        shown = list(range(n))
    name_width = max([len(names[i]) for i in shown], default=0)
    width = max([len(shapes[i]) for i in shown], default=0)
    lines = [f"{op.name.decode()}: {reason}"]
    lines += [f"    {names[i]:{name_width}}  {shapes[i]:{width}}  {sources[i]}" for i in shown]
    return "\n".join(lines)


cdef Expression wrap(Graph* g, uint32_t index):
    """A node as an expression."""
    cdef Expression y
    if g.forward_only:
        if uses_of(g)[index].holder != NULL:
            return <Expression>uses_of(g)[index].holder
        y = ForwardExpression.__new__(ForwardExpression)
        uses_of(g)[index].holder = <void*>y
    else:
        y = Expression.__new__(Expression)
    y.version = g.version
    y.slot = g.slot
    y.index = index
    return y


cdef inline uint32_t argument(Graph** g, const Op* op, uint32_t i, object x) except? 0xFFFFFFFF:
    """The number of x in the current graph `g`, or an error that names op and argument."""
    if not isinstance(x, Expression):
        raise_type(op, i, x)
    if g[0] == NULL or (<Expression>x).version != g[0].version:
        (<Expression>x).enter()
        g[0] = dy_current                           # it may be the first of the thread
    return (<Expression>x).index


cdef int raise_type(const Op* op, uint32_t i, object x) except -1:
    names = op.args.decode().split()
    name = names[i] if i < len(names) and not names[i].endswith("...") else f"argument {i}"
    raise_not_expression(op.name.decode(), name, x)


cdef int raise_not_expression(str function, str name, object x) except -1:
    raise TypeError(f"{function}: {name} must be an Expression, not {type(x).__name__}")


cdef Expression expression(object x, str function, str name):
    """x as an expression of the current graph: for functions that look at its shape
    before they make a node."""
    if not isinstance(x, Expression):
        raise_not_expression(function, name, x)
    (<Expression>x).enter()
    return <Expression>x


cdef list sequence(object xs, const char* function):
    """The expressions of a list argument."""
    if not isinstance(xs, (list, tuple)) and not hasattr(xs, "__iter__"):
        raise TypeError(
            f"{function.decode()}: a list of Expressions is needed, not {type(xs).__name__}")
    return list(xs)


cdef Expression apply1x(const Op* op, object x, Extra* extra):
    """The node op(x), in the current graph."""
    cdef Graph* g = here()                          # once: finding what a thread has costs
    cdef uint32_t a = argument(&g, op, 0, x)
    return wrap(g, add_node(g, op, &a, 1, extra))


cdef Expression apply1(const Op* op, object x):
    return apply1x(op, x, NULL)


cdef Expression apply2x(const Op* op, object a, object b, Extra* extra):
    """The node op(a, b), in the current graph."""
    cdef Graph* g = here()
    cdef uint32_t args[2]
    args[0] = argument(&g, op, 0, a)
    args[1] = argument(&g, op, 1, b)
    return wrap(g, add_node(g, op, args, 2, extra))


cdef Expression apply2(const Op* op, object a, object b):
    return apply2x(op, a, b, NULL)


cdef Expression apply(const Op* op, object xs, Extra* extra):
    """The node op(xs...), in the current graph.  xs: a sequence of expressions."""
    cdef Graph* g = current_graph()
    cdef list arguments = <list>xs if type(xs) is list else sequence(xs, op.name)
    cdef uint32_t few[MOST_ON_STACK]
    cdef uint32_t* args = few
    cdef uint32_t n = len(arguments)
    cdef uint32_t i
    cdef size_t top
    if n == 0:
        raise ValueError(f"{op.name.decode()}: the list of arguments is empty")
    if n <= MOST_ON_STACK:
        for i in range(n):
            few[i] = argument(&g, op, i, arguments[i])
        return wrap(g, add_node(g, op, few, n, extra))
    # First all that may add nodes of their own (parameters), then the list in
    # its final place: it costs no allocation.
    for i in range(n):
        argument(&g, op, i, arguments[i])
    top = g.args.top
    args = <uint32_t*>array_push(&g.args, n * sizeof(uint32_t))
    if args == NULL:
        out_of_memory(f"{n} arguments of {op.name.decode()}")
    for i in range(n):
        args[i] = (<Expression>arguments[i]).index
    try:
        i = add_node(g, op, args, n, extra)
    except BaseException:
        g.args.top = top
        raise
    return wrap(g, i)


cdef uint32_t leaf_index(const Op* op, const Dim* dim, Extra* extra) except? 0xFFFFFFFF:
    """A node without arguments and of a given shape, in the current graph."""
    cdef Graph* g = current_graph()
    room_for_node(g)[0] = dim[0]
    return append(g, op, NULL, 0, extra)


cdef Expression leaf(const Op* op, const Dim* dim, Extra* extra):
    cdef uint32_t index = leaf_index(op, dim, extra)
    return wrap(dy_current, index)


cdef float* place(size_t n) except NULL:
    """Room for the value of a leaf of the current graph."""
    cdef Graph* g = current_graph()
    if g.version == RUNNING:
        raise_running()
    cdef float* v = <float*>take_values(g, max(n, <size_t>1) * sizeof(float))
    if v == NULL:
        out_of_memory("an input")
    return v


# ---- forgetting what was computed --------------------------------------------

cdef int forget(Graph* g) except -1:
    """Make the graph as if nothing had been computed, so that inputs may change."""
    cdef uint32_t i
    cdef uint8_t* state = state_of(g)
    cdef Node* nodes = nodes_of(g)
    cdef size_t end, inputs_end = 0
    if g.forward_only:
        raise RuntimeError("recalculate: the graph was renewed with forward_only=True, which drops what that needs")
    lock_graph(g)
    if g.beside != NULL:
        beside.cut(g, 0, False)
    for i in range(g.n_nodes):
        if nodes[i].batch != NO_BATCH:
            state[i] &= <uint8_t>~(COMPUTED | SENT)
            nodes[i].batch = NO_BATCH
            nodes[i].val = NULL
        elif nodes[i].val != NULL:
            state[i] &= <uint8_t>~SENT                  # its numbers may change now
            end = arena_offset(&g.values, nodes[i].val)
            inputs_end = max(inputs_end, end + total_of(&nodes[i].dim) * sizeof(float))
    # The room of values computed after the last input is free again, so that
    # a graph may be run with new inputs for ever.
    arena_rewind(&g.values, inputs_end)
    arena_rewind(&g.scratch, 0)
    arena_rewind(&g.tables, 0)
    g.n_batches = 0
    g.n_order = 0
    array_rewind(&g.batches, 0)
    array_rewind(&g.order, 0)
    g.backward_from = -1
    g.n_forgets += 1
    unlock_graph(g)
    return 0


cdef void forget_since(Graph* g, uint32_t n_batches, uint32_t n_order, size_t values_top,
                       size_t scratch_top, size_t tables_top) noexcept:
    """Drop the values that were computed since there were so many batches."""
    cdef uint32_t i
    g.n_batches = min(g.n_batches, n_batches)
    g.n_order = min(g.n_order, n_order)
    for i in range(g.n_nodes):
        if nodes_of(g)[i].batch != NO_BATCH and nodes_of(g)[i].batch >= g.n_batches:
            state_of(g)[i] &= <uint8_t>~(COMPUTED | SENT)
            nodes_of(g)[i].batch = NO_BATCH
            nodes_of(g)[i].val = NULL
    array_rewind(&g.order, g.n_order * sizeof(uint32_t))
    array_rewind(&g.batches, g.n_batches * sizeof(Batch))
    arena_rewind(&g.values, min(g.values.top, values_top))
    arena_rewind(&g.scratch, min(g.scratch.top, scratch_top))
    arena_rewind(&g.tables, min(g.tables.top, tables_top))


cdef int compact(ComputationGraph graph) except -1:
    """Number the needed nodes of a graph that only goes forward anew, without gaps, so that it can go on for ever.

    Checkpoints hold numbers of nodes, so nothing is done while there are any.
    """
    cdef Graph* g = &graph.g
    cdef Node* nodes = nodes_of(g)
    cdef Batch* batches = batches_of(g)
    cdef Use* uses = uses_of(g)
    cdef uint8_t* state = state_of(g)
    cdef uint32_t* args = <uint32_t*>g.args.base
    cdef uint32_t* items = <uint32_t*>g.items.base
    cdef uint32_t* numbers
    cdef uint32_t i, k = 0, b, n_live = 0, n_args = 0, n_items = 0, n, own
    cdef Node* x
    for i in range(g.n_nodes):
        drop_unneeded(g, i)                 # whose expression went while the graph ran, in another thread or a handler
        n_live += not state[i] & DROPPED
    g.compact_at = max(LEAST_TO_COMPACT, 2 * n_live)
    if graph.checkpoints or g.n_nodes < g.compact_at or more_epochs(g) == 0:
        return 0
    numbers = <uint32_t*>malloc(g.n_nodes * sizeof(uint32_t))
    if numbers == NULL:
        return 0                            # perhaps the next time
    next_epoch(g)
    for b in range(g.n_batches):
        batches[b].first = k                # its new number; what it ran is not asked for again
        k += batches[b].live != 0
    for i in range(g.n_nodes):
        if not state[i] & DROPPED and nodes[i].batch != NO_BATCH:
            nodes[i].batch = batches[nodes[i].batch].first
    k = 0
    for b in range(g.n_batches):
        if batches[b].live:
            batches[k] = batches[b]
            batches[k].first = batches[k].count = 0
            k += 1
    g.n_batches = k
    g.n_order = 0
    array_rewind(&g.batches, k * sizeof(Batch))
    array_rewind(&g.order, 0)
    k = 0
    for i in range(g.n_nodes):
        if state[i] & DROPPED:
            numbers[i] = <uint32_t>-1
            continue
        x = &nodes[k]
        x[0] = nodes[i]
        if state[i] & COMPUTED:             # its arguments may be gone
            x.nargs = x.item_count = 0
        for n in range(x.nargs):
            args[n_args + n] = numbers[args[x.args + n]]
        x.args = n_args
        n_args += x.nargs
        own = x.item_count * x.dim.bd
        for n in range(own):
            items[n_items + n] = items[x.items + n]
        x.items = n_items
        n_items += own
        state[k] = state[i]
        uses[k] = uses[i]
        if g.multi_device:
            g.devices.base[k] = g.devices.base[i]
        if (k + <size_t>1) * sizeof(uint32_t) <= g.origins.top:
            (<uint32_t*>g.origins.base)[k] = origin_of(g, i)
        if uses[k].holder != NULL:
            (<Expression>uses[k].holder).index = k
            (<Expression>uses[k].holder).version = g.version
        numbers[i] = k
        k += 1
    if g.beside != NULL:
        beside.renumber(g, numbers)
    g.n_nodes = k
    take_back(g, k * sizeof(Node), n_args * sizeof(uint32_t), n_items * sizeof(uint32_t))
    graph.leaves = {key: numbers[index] for key, index in graph.leaves.items()}
    free(numbers)
    return 0


cdef uint64_t more_epochs(const Graph* g) noexcept:
    """How often expressions of the graph can be made stale before it must be renewed."""
    return ~g.version & ((<uint64_t>1 << REVERT_BITS) - 1)


cdef void next_epoch(Graph* g) noexcept:
    """Let expressions of the graph be looked at again when they are used."""
    g.version += 1
    g.renewal = g.version


# ---- graphs ------------------------------------------------------------------

cdef class Requests:
    """Who collects requests for values."""

    cdef bint wait_for(self, object wanted) except -1:
        raise NotImplementedError

    cdef bint inside(self) except -1:
        raise NotImplementedError


cdef class ComputationGraph:
    """A graph of its own, beside the implicit one of each thread.

    As a context manager it becomes the current graph: ops add their nodes to it.
    It is that of the thread, or, within a task of asyncio or another context that
    was entered (see `contextvars`), of this task and of those that it starts.
    Several threads may each work on a graph of their own; forward and backward
    run without the GIL.

    Args:
        autobatching: how nodes are scheduled: 0 in order of making, 1 batched
            by agenda, 2 batched by depth; the global setting when None.

    Example:
        >>> with dy.ComputationGraph() as graph:
        ...     y = dy.tanh(dy.inputVector([0]))
        ...     y.value(), len(graph)
        (0.0, 2)
    """

    def __cinit__(self):
        memset(&self.g, 0, sizeof(Graph))

    def __init__(self, autobatching=None):
        global n_slots, streams
        cdef uint32_t slot = 0
        cdef int i
        if self.g.nodes.memory != NULL:
            raise RuntimeError("ComputationGraph.__init__ was called twice")
        while slot < n_slots and graphs[slot] != NULL:
            slot += 1
        if slot == <uint32_t>MAX_GRAPHS:
            raise RuntimeError(f"more than {MAX_GRAPHS} graphs are open")
        for i in range(GRAPH_ARRAYS):
            array_open(&self.g.arrays[i], True)
        for i in range(GRAPH_ARENAS):
            arena_open(&self.g.arenas[i], True)
        self.g.shortages = shortages()
        self.g.slot = slot
        if awaited:
            self.g.stream_number, count = awaited.pop(0)
        else:
            self.g.stream_number, count = streams, 0
            streams += 1
        graphs[slot] = &self.g
        owners[slot] = <void*>self
        n_slots = max(n_slots, slot + 1)
        self.keep = {}
        self.leaves = {}
        self.renew(autobatching=autobatching)
        # Random streams count the renewals that the program asks for.
        self.g.n_renewals = count
        self.g.stream = <uint64_t>self.g.stream_number << 32 | self.g.n_renewals

    def __dealloc__(self):
        global dy_current
        cdef int i
        cdef Graph* g = &self.g
        if g.nodes.memory != NULL and graphs[g.slot] == g:
            graphs[g.slot] = NULL
            owners[g.slot] = NULL
        if dy_current == g:
            dy_current = NULL
        if g.device_graphs != NULL:
            engines[ENGINE_GPU].close(g)
        if engines[ENGINE_CPU].closed != NULL:
            engines[ENGINE_CPU].closed(g)
        for i in range(GRAPH_ARRAYS):
            array_close(&g.arrays[i])
        for i in range(GRAPH_ARENAS):
            arena_close(&g.arenas[i])

    cdef int warn_of_growth(self) except -1:
        """Say once that `renew_cg` was forgotten, if that is how it looks."""
        if self.warned or not self.n_at_backward or self.g.n_nodes <= self.n_at_backward or not self.values_changed():
            return 0
        self.warned = True
        warnings.warn(
            f"backward: the graph grew from {self.n_at_backward} to {self.g.n_nodes} nodes across an update of "
            "parameters.  Call renew_cg() before each example: else every pass takes longer than the one before",
            RuntimeWarning, stacklevel=1)

    cdef int note_values(self) except -1:
        """Remember where parameters are, and the graph, at the end of backward."""
        self.n_at_backward = self.g.n_nodes
        for storage in self.keep:
            self.keep[storage] = (<Storage>storage).changes

    cdef bint values_changed(self) except -1:
        """Whether values of parameters have changed since the last backward."""
        for storage, changes in self.keep.items():
            if changes is not None and <uint64_t>changes != (<Storage>storage).changes:
                return True
        return False

    def __enter__(self):
        global dy_current, dy_context_version
        outer = innermost(context_value(_entered))
        if outer is None and not context_entered():
            _local.entered = entering(self, innermost(_local.entered))
        else:
            _entered.set(entering(self, outer))
        dy_context_version = dy_context_version_now()
        dy_current = &self.g
        return self

    def __exit__(self, kind=None, value=None, traceback=None):      # *exc_info would need memory
        cdef _Entered inner = innermost(context_value(_entered))
        cdef bint of_context = inner is not None
        if not of_context:
            inner = innermost(_local.entered)
        if inner is None or inner.graph is not self:
            raise RuntimeError("graphs must be left in the reverse order of entering, "
                               "in the thread and the task that entered them")
        try:
            if of_context:
                _entered.set(inner.outer)
            else:
                _local.entered = inner.outer
        except MemoryError:
            inner.left = True
        look_around()
        return False

    def renew(self, immediate_compute=False, check_validity=False, autobatching=None, forward_only=False):
        """Drop all nodes of this graph; its expressions become stale.

        Memory stays with the graph for the next nodes.

        Args:
            immediate_compute: compute each node when it is made (default: False).
            check_validity: after computing, raise ValueError if a value that
                was computed is not finite. Default: False.
            autobatching: see the class; the global setting when None.
            forward_only: there will be no backward.  A value is dropped, and its
                memory used again, when no expression refers to it and all that
                it is an argument of has been computed.  Has no effect on a graph
                that computes each node when it is made. Default: False.

        Returns:
            This graph.

        Example:
            >>> with dy.ComputationGraph() as graph:
            ...     x = dy.inputVector([1, 2])
            ...     _ = graph.renew(immediate_compute=True)
            ...     len(graph)
            0
        """
        global renewals
        cdef int i
        cdef Graph* g = &self.g
        if g.version == RUNNING:
            raise_running()
        raise_in_item(self, "renew_cg", "renew it before the map")
        if autobatching is None:
            g.strategy = default_strategy
        else:
            g.strategy = checked_strategy(autobatching)
        if g.beside != NULL:
            beside.cut(g, 0, False)
        renewals += 1
        g.renewal = renewals << REVERT_BITS
        g.version = g.renewal
        g.n_renewals += 1
        g.stream = (<uint64_t>g.stream_number << 32) | g.n_renewals
        g.n_nodes = g.n_batches = g.n_order = 0
        g.draws = 0
        g.draw_key = 0
        g.n_forgets = 0
        g.forward_ms = 0
        g.backward_from = -1
        g.device = default_device()
        g.multi_device = False
        g.immediate = bool(immediate_compute)
        g.check_validity = bool(check_validity)
        g.forward_only = forward_only and not immediate_compute
        g.compact_at = LEAST_TO_COMPACT
        for i in range(GRAPH_ARRAYS):
            array_rewind(&g.arrays[i], 0)
        for i in range(GRAPH_ARENAS):
            arena_rewind(&g.arenas[i], 0)
        if g.shortages != shortages():
            give_back_all(g)
        self.keep.clear()
        self.given = None
        self.n_at_backward = 0
        self.leaves.clear()
        self.checkpoints = []
        self.reverts = []
        if g.forward_only:
            # When memory is short, the list of what is free must not be what there is no room for.
            if array_push(&g.holes, 1) == NULL:
                out_of_memory("the list of free memory")
            array_rewind(&g.holes, 0)
        return self

    def version(self):
        """A number that grows with each renewal of any graph.

        Example:
            >>> graph = dy.cg()
            >>> before = graph.version()
            >>> graph.renew().version() > before
            True
        """
        return self.g.renewal >> REVERT_BITS

    def checkpoint(self):
        """Remember the state of the graph, for `revert`.  Checkpoints nest.

        Example:
            >>> graph, x = dy.cg(), dy.inputVector([1, 2])
            >>> graph.checkpoint()
            >>> y = dy.tanh(x)
            >>> graph.revert()
            >>> len(graph)
            1
        """
        cdef Graph* g = &self.g
        if g.version == RUNNING:
            raise_running()
        raise_in_item(self, "cg_checkpoint", "use forward_only=True, which frees what is no longer needed")
        self.checkpoints.append((
            g.n_nodes, g.n_batches, g.n_order, g.nodes.top, g.args.top, g.items.top,
            g.values.top, g.scratch.top, g.tables.top, g.n_forgets))

    def revert(self):
        """Go back to the last checkpoint: nodes made since are dropped, values
        computed since are forgotten, and their memory is free again.

        Raises:
            RuntimeError: there is no checkpoint since the graph was renewed.

        Example:
            >>> graph, x = dy.cg(), dy.inputVector([1, 2])
            >>> graph.checkpoint()
            >>> y = 2 * x
            >>> graph.revert()
            >>> x.value(), len(graph)
            ([1.0, 2.0], 1)
        """
        cdef Graph* g = &self.g
        cdef uint32_t i
        if g.version == RUNNING:
            raise_running()
        raise_in_item(self, "cg_revert", "use forward_only=True, which frees what is no longer needed")
        if not self.checkpoints:
            raise RuntimeError("cg_revert: there is no checkpoint since the graph was renewed")
        epoch = g.version & ((<uint64_t>1 << REVERT_BITS) - 1)
        if more_epochs(g) == 0:
            raise RuntimeError(f"cg_revert: {epoch} reverts since the graph was renewed; renew it")
        (n_nodes, n_batches, n_order, nodes_top, args_top, items_top, values_top,
         scratch_top, tables_top, n_forgets) = self.checkpoints.pop()
        if g.n_forgets != n_forgets:        # what stood at the checkpoint has been dropped
            forget(g)
        while self.reverts and self.reverts[-1][1] >= n_nodes:
            self.reverts.pop()
        self.reverts.append((epoch, n_nodes))
        if g.beside != NULL:
            beside.cut(g, n_nodes, False)
        next_epoch(g)
        if g.forward_only:
            for i in range(g.n_nodes - <uint32_t>n_nodes):
                uses_of(g)[g.n_nodes - 1 - i].holder = NULL
                drop_unneeded(g, g.n_nodes - 1 - i)
        g.n_nodes = n_nodes
        self.leaves = {key: index for key, index in self.leaves.items() if index < n_nodes}
        take_back(g, nodes_top, args_top, items_top)
        if g.multi_device:
            let_move(g)
        if not g.forward_only:              # there only what was dropped above is forgotten
            forget_since(g, n_batches, n_order, values_top, scratch_top, tables_top)
        g.backward_from = -1
        self.n_at_backward = 0

    def __len__(self):
        return self.g.n_nodes

    def __repr__(self):
        return f"<ComputationGraph of {self.g.n_nodes} nodes>"

    def _repr_svg_(self):
        """A picture of the graph, for notebooks; None where it would be too large to read, or empty."""
        from dynet_cy.graph.drawing import draw         # it needs this module
        return draw(graph=self).svg if 0 < self.g.n_nodes <= MOST_SHOWN else None

    def op_names(self):
        """Names of the ops of all nodes, in the order of making.

        Example:
            >>> y = dy.tanh(dy.inputVector([1, 2]))
            >>> dy.cg().op_names()
            ['input', 'tanh']
        """
        return [op_at(nodes_of(&self.g)[i].op).name.decode() for i in range(self.g.n_nodes)]

    def n_batches(self):
        """Number of calls that the computed nodes were run in.

        Example:
            >>> graph = dy.cg().renew(autobatching=1)
            >>> dy.forward([dy.tanh(dy.inputVector([i, 1])) for i in range(10)])
            >>> len(graph), graph.n_batches()       # ten inputs, and ten tanh in one call
            (20, 1)
        """
        return self.g.n_batches

    # DyNet's methods that name a node by its number, from 0 in the order of making.

    def _node(self, index):
        from dynet_cy.graph.nodes import expression     # it needs this module
        return expression(self, index)

    def forward(self, index):
        """Compute the value of a node, given by its number in the order of making.

        Raises:
            IndexError: there is no such node.

        Example:
            >>> y = dy.tanh(dy.inputVector([0, 0]))
            >>> dy.cg().forward(1)          # of y, whose value is known now
            >>> y.value()
            [0.0, 0.0]
        """
        self._node(index).forward()

    def forward_scalar(self, index):
        """The value of a node of one element, as a float; see `forward` and `Expression.scalar_value`.

        Example:
            >>> y = dy.squared_norm(dy.inputVector([3, 4]))
            >>> dy.cg().forward_scalar(1)
            25.0
        """
        return self._node(index).scalar_value()

    def forward_vec(self, index):
        """The value of a node as a list, column by column; see `forward`.

        Example:
            >>> y = 2 * dy.inputVector([3, 4])
            >>> dy.cg().forward_vec(1)
            [6.0, 8.0]
        """
        return self._node(index).vec_value()

    def inc_forward(self, index):
        """The same as `forward`: what is computed is not computed again.

        Example:
            >>> y = dy.tanh(dy.inputVector([0, 0]))
            >>> dy.cg().inc_forward(1)
            >>> y.value()
            [0.0, 0.0]
        """
        self.forward(index)

    def inc_forward_scalar(self, index):
        """The same as `forward_scalar`.

        Example:
            >>> y = dy.squared_norm(dy.inputVector([3, 4]))
            >>> dy.cg().inc_forward_scalar(1)
            25.0
        """
        return self.forward_scalar(index)

    def inc_forward_vec(self, index):
        """The same as `forward_vec`.

        Example:
            >>> y = 2 * dy.inputVector([3, 4])
            >>> dy.cg().inc_forward_vec(1)
            [6.0, 8.0]
        """
        return self.forward_vec(index)

    def backward(self, index, full=False):
        """`Expression.backward` of a node, given by its number.

        Example:
            >>> x = dy.inputVector([3, 4])
            >>> y = dy.squared_norm(x)
            >>> dy.cg().backward(1, full=True)
            >>> x.gradient()
            array([6., 8.])
        """
        self._node(index).backward(full)

    def inputMatrixLiteral(self, v, d, batch_size=1, device=""):
        """`inputTensorTranspose` in this graph: numbers column by column as an input.

        Args:
            v: a flat list of numbers.
            d: shape of one batch element.
            batch_size: number of batch elements (default: 1).
            device: "CPU" or "GPU:0" and so on; "" for where it is used first.

        Raises:
            ValueError: there are more or fewer numbers than the shape and the batch size need.

        Example:
            >>> dy.cg().inputMatrixLiteral([1, 2, 3, 4, 5, 6], (2, 3)).npvalue()
            array([[1., 3., 5.],
                   [2., 4., 6.]])
        """
        with self:
            return _operators["inputMatrixLiteral"](v, d, batch_size, device)

    def inputSparseTensor(self, idxs, v, dim, batch_size=1, defval=0.0, device=""):
        """An input in this graph that has one number nearly everywhere.

        Args:
            idxs: the places of the others, counted column by column and then batch by batch.
            v: the numbers there.
            dim: shape of one batch element.
            batch_size: number of batch elements (default: 1).
            defval: the number everywhere else (default: 0).
            device: "CPU" or "GPU:0" and so on; "" for where it is used first.

        Raises:
            IndexError: a place lies outside.
            ValueError: there are more or fewer places than numbers.

        Example:
            >>> dy.cg().inputSparseTensor([0, 3], [5, 6], (2, 2), defval=1).npvalue()
            array([[5., 1.],
                   [1., 6.]])
        """
        with self:
            return _operators["inputSparseTensor"](idxs, v, dim, batch_size, defval, device)

    def print_graphviz(self):
        """Write the graph to the standard error, in the language of Graphviz.

        Example:
            >>> import contextlib, sys
            >>> y = dy.tanh(dy.inputVector([1, 2]))
            >>> with contextlib.redirect_stderr(sys.stdout):
            ...     dy.cg().print_graphviz()
            digraph ...
        """
        from dynet_cy.graph.show import dot     # it needs this module
        sys.stderr.write(dot(self))

    def dump(self, filename="", show_values=True, show_gradients=True, nan_check_only=False):
        """Write values and gradients of all computed nodes.  Nothing is computed for it.

        Args:
            filename: file to write; the standard output if empty.
            show_values: write values (default: True).
            show_gradients: write the gradients that the last backward left (default: True).
            nan_check_only: write "valid", or "invalid" where there is a nan or an
                infinity, in the place of numbers. Default: False.

        Raises:
            OSError: the file cannot be written.

        Example:
            >>> y = (2 * dy.inputVector([1, 2])).value()
            >>> dy.cg().dump("values", show_gradients=False)
            >>> with open("values") as file:
            ...     print(*file.read().split())
            Node 0 Value: 1 2 Node 1 Value: 2 4
        """
        from dynet_cy.graph.show import dump    # it needs this module
        dump(self, filename, show_values, show_gradients, nan_check_only)


# ---- memory that others need ---------------------------------------------------

cdef void give_back_unused(const void* asking) noexcept with gil:
    """Let graphs that no other thread runs give back the memory above their bump pointers, and storages what is packed.

    `asking` is the arena or array that has no more room, perhaps of a graph that runs.
    """
    cdef Graph* g
    cdef uint32_t slot
    cdef int i
    for slot in range(n_slots):
        g = graphs[slot]
        if g == NULL or (g.version == RUNNING and not is_part(g, asking)):
            continue
        for i in range(GRAPH_ARRAYS):
            array_trim(&g.arrays[i])
        for i in range(GRAPH_ARENAS):
            arena_trim(&g.arenas[i])
    give_back_panels()


cdef inline bint is_part(const Graph* g, const void* p) noexcept nogil:
    return <const char*>g <= <const char*>p < <const char*>(g + 1)


cdef void give_back_all(Graph* g) noexcept:
    """Let a graph without nodes have no memory, as there has been too little."""
    cdef bint poison = g.nodes.poison
    cdef int i
    for i in range(GRAPH_ARRAYS):
        array_close(&g.arrays[i])
        array_open(&g.arrays[i], poison)
    for i in range(GRAPH_ARENAS):
        arena_trim(&g.arenas[i])
    g.shortages = shortages()


set_reclaim(give_back_unused)


# ---- the current graph -------------------------------------------------------

# The innermost graph that was entered, or None.  A task of asyncio, or what else has entered a context of its own, has
# one there; it goes before that of the thread in `_local.entered`.
_entered = contextvars.ContextVar("dynet_cy.entered", default=None)


cdef class _Entered:
    """A graph that was entered, and the one around it."""

    cdef ComputationGraph graph
    cdef _Entered outer
    cdef bint left                          # there was no memory to put the one around it in its place


cdef _Entered entering(ComputationGraph graph, _Entered outer):
    cdef _Entered x = _Entered.__new__(_Entered)
    x.graph = graph
    x.outer = outer
    return x


cdef _Entered innermost(_Entered x):
    """The innermost of the graphs from x outwards that was not left; None: there is none."""
    while x is not None and x.left:
        x = x.outer
    return x


cdef void look_around() noexcept:
    """Find the current graph: the context may be another one than before."""
    global dy_current, dy_context_version
    cdef _Entered inner = innermost(context_value(_entered))
    cdef ComputationGraph graph
    if inner is None:
        inner = innermost(_local.entered)
    graph = _local.implicit if inner is None else inner.graph
    dy_current = NULL if graph is None else &graph.g
    dy_context_version = dy_context_version_now()


cdef inline Graph* here() noexcept:
    """The current graph, or NULL where none was made yet."""
    if dy_context_version != dy_context_version_now():
        look_around()
    return dy_current


cdef Graph* current_graph() except NULL:
    """The current graph; the implicit one of the thread is made at need."""
    global dy_current
    cdef ComputationGraph implicit
    if here() == NULL:
        implicit = ComputationGraph()
        _local.implicit = implicit          # lives as long as the thread
        dy_current = &implicit.g
    return dy_current


cdef ComputationGraph current():
    return <ComputationGraph>owners[current_graph().slot]


cdef int lock_graph(Graph* g) except -1:
    """Take the graph for running: no other thread may use it meanwhile."""
    if g.version == RUNNING:
        raise_running()
    see_whole()
    g.version = RUNNING
    return 0


cdef void unlock_graph(Graph* g) noexcept nogil:
    g.version = g.renewal


cdef int asked_device(object name, str where) except -1:
    return 0 if name == "" else 1 + check_device(name, where)


def renew_cg(immediate_compute=False, check_validity=False, autobatching=None, forward_only=False):
    """Renew the current graph, before building for the next example.

    All expressions of it become stale; parameters stay.

    Args:
        immediate_compute: compute each node when it is made (default: False).
        check_validity: raise ValueError if a computed value is not finite (default: False).
        autobatching: 0 off, 1 batched by agenda, 2 batched by depth; the global
            setting when None.
        forward_only: there will be no backward.  A value is dropped, and its memory
            used again, when no expression refers to it and all that it is an argument
            of has been computed: for large minibatches and long sequences (default: False).

    Returns:
        The graph.

    Example:
        >>> x = dy.tanh(dy.inputVector([1, 2]))
        >>> graph = dy.renew_cg()
        >>> len(graph)
        0
    """
    return current().renew(immediate_compute, check_validity, autobatching, forward_only)


def cg():
    """The current graph: that of the innermost `with`, else the thread's own.

    Example:
        >>> x = dy.inputVector([1, 2])
        >>> len(dy.cg())
        1
    """
    return current()


def cg_version():
    """A number that changes when the current graph is renewed.

    Example:
        >>> before = dy.cg_version()
        >>> _ = dy.renew_cg()
        >>> dy.cg_version() > before
        True
    """
    return current().version()


def cg_checkpoint():
    """Remember the state of the current graph, for `cg_revert`.

    Example:
        >>> x = dy.inputVector([1, 2])
        >>> dy.cg_checkpoint()
        >>> y = dy.tanh(x)
        >>> dy.cg_revert()
        >>> len(dy.cg())
        1
    """
    current().checkpoint()


def cg_revert():
    """Go back to the last `cg_checkpoint` of the current graph.

    Raises:
        RuntimeError: there is none since the graph was renewed.

    Example:
        >>> x = dy.inputVector([1, 2])
        >>> dy.cg_checkpoint()
        >>> y = dy.tanh(x)
        >>> dy.cg_revert()
        >>> len(dy.cg())
        1
    """
    current().revert()


# ---- settings and random state -----------------------------------------------

cdef int checked_strategy(strategy) except -1:
    number = int(strategy)
    if number not in (0, 1, 2):
        raise ValueError(
            f"autobatching must be 0 (off), 1 (by agenda) or 2 (by depth), not {strategy!r}")
    return number


def set_autobatching(strategy):
    """Set how graphs are scheduled from their next renewal on; an empty current one at once.

    Args:
        strategy: 0 in order of making, 1 batched by agenda, 2 batched by depth.
    """
    global default_strategy
    cdef Graph* g = here()
    default_strategy = checked_strategy(strategy)
    if g != NULL and g.n_nodes == 0 and g.version != RUNNING:
        g.strategy = default_strategy


def set_default_device(int device):
    """Set where graphs run from their next renewal on, an empty current one at once, and where collections live that
    are made from now on.

    Args:
        device: 0 for the CPU, 1 + n for GPU number n.

    Raises:
        RuntimeError: there is no such device.
    """
    cdef Graph* g = here()
    if device:
        check_device(device_name(device), "set_default_device")
    mirror.set_default_device(device)
    if g != NULL and g.n_nodes == 0 and g.version != RUNNING:
        g.device = device
        g.multi_device = False


def autobatching():
    """How graphs are scheduled that are renewed without saying so: see `set_autobatching`."""
    return default_strategy


def set_seed(seed):
    """Set the seed of all random streams, and begin the streams anew.

    Dropout masks, noise and initial values follow from it and from the order in
    which graphs, nodes and parameters are made, not from batching.

    Example:
        >>> dy.reset_random_seed(3)
        >>> first = dy.random_normal(2).npvalue()
        >>> _ = dy.renew_cg()
        >>> dy.reset_random_seed(3)
        >>> bool((dy.random_normal(2).npvalue() == first).all())
        True
    """
    global streams
    cdef uint32_t slot
    draws.set_seed(seed)
    awaited.clear()
    streams = 0
    for slot in range(n_slots):
        if graphs[slot] != NULL:
            graphs[slot].n_renewals = 0
            graphs[slot].draws = 0
            forget_requests(graphs[slot])
            graphs[slot].stream = <uint64_t>graphs[slot].stream_number << 32
            streams = max(streams, graphs[slot].stream_number + 1)


cdef void forget_requests(Graph* g) noexcept:
    """Let a graph not know any more what was asked for one by one.

    What it knows decides which nodes run together, and so in which order sums are rounded: who goes on from a state
    that was saved, here or in another process, is to have the same bits.
    """
    if g.beside != NULL and g.version != RUNNING:
        beside.cut(g, 0, True)


def random_state():
    """Where all random streams are, as plain data for `set_random_state`."""
    cdef uint32_t slot
    renewals = list(awaited)
    for slot in range(n_slots):
        if graphs[slot] != NULL:
            forget_requests(graphs[slot])
            renewals.append((graphs[slot].stream_number, graphs[slot].n_renewals))
    return {"seed": draws.seed(), "host": draws.host_position(), "streams": streams,
            "renewals": sorted(renewals)}


def set_random_state(state):
    """Let all random streams go on as they would have where `random_state` was called.

    Graphs are told from each other by the order in which they were made: those that
    are there now come first, and the next that are made after them.  It holds from
    the next renewal on.
    """
    global streams
    cdef uint32_t slot
    set_seed(state["seed"])
    draws.set_host_position(state["host"])
    streams = state["streams"]
    awaited[:] = [(number, count) for number, count in state["renewals"]]
    there = [(graphs[slot].stream_number, slot) for slot in range(n_slots) if graphs[slot] != NULL]
    for _, slot in sorted(there):
        if awaited:
            graphs[slot].stream_number, graphs[slot].n_renewals = awaited.pop(0)
        else:
            graphs[slot].stream_number, graphs[slot].n_renewals = streams, 0
            streams += 1
