"""Computation graphs, the functions on the current one, and their settings."""

import sys
import warnings

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from dynet_cy.core.atomic cimport Setting
from dynet_cy.core.dynet_rules cimport follows_dynet
from dynet_cy.core.unlocked cimport let_be_revived
from dynet_cy.graph.current cimport (
    current_graph, enter_graph, forget_current, graph_here, leave_graph, leave_running, set_new_graph,
)
from dynet_cy.graph.forgetting cimport (
    LEAST_TO_COMPACT, Renumber, compact_nodes, forget, forget_since, more_epochs, next_epoch, take_back,
)
from dynet_cy.graph.hooks cimport ENGINE_CPU, ENGINE_GPU, sibling_hooks, engine
from dynet_cy.graph.placing cimport let_move
from dynet_cy.graph.random_state cimport take_stream
from dynet_cy.graph.structs cimport (
    GRAPH_ARENAS, GRAPH_ARRAYS, REVERT_BITS, RUNNING, Graph, drop_unneeded, nodes_of, set_holder, uses_of,
)
from dynet_cy.graph.table cimport (
    Table, check_unused, claim, enter_table, give_back_all, graph_table, hold, is_used, leave_table, let_go, release,
)
from dynet_cy.memory.arena cimport (
    arena_close, arena_open, arena_rewind, array_close, array_open, array_push, array_rewind, out_of_memory, shortages,
)
from dynet_cy.memory.mirror cimport default_device
from dynet_cy.memory.storage cimport Storage
from dynet_cy.ops.registry cimport op_at

from dynet_cy.devices import check_device, device_name
from dynet_cy.graph.hooks import operators
from dynet_cy.memory import mirror

cdef enum:
    MOST_SHOWN = 200                # larger graphs are not drawn automatically in notebooks

cdef extern from *:
    uint64_t atomic_add "__atomic_add_fetch"(uint64_t* p, uint64_t n, int order) nogil
    int RELAXED "__ATOMIC_RELAXED"
    void set_version "atomic_store_explicit"(uint64_t* p, uint64_t n, int order) nogil
    int RELEASE "memory_order_release"

cdef Table* table = graph_table()
# A checkpoint: the sizes of everything at that point.
cdef struct Point:
    uint32_t n_nodes
    uint32_t n_batches
    uint32_t n_order
    size_t nodes_top
    size_t args_top
    size_t items_top
    size_t values_top
    size_t scratch_top
    size_t tables_top
    uint32_t n_forgets

cdef uint64_t renewals = 0              # of all graphs, in any thread
cdef Setting default_strategy = 1


cdef class Requests:
    """The collector of requests for values."""

    cdef bint wait_for(self, object wanted) except -1:
        raise NotImplementedError

    cdef bint inside(self) except -1:
        raise NotImplementedError


cdef class ComputationGraph:
    """A separate graph, independent of the implicit graph of each thread.

    As a context manager it becomes the current graph: ops add their nodes to it.
    It is then current in this thread or, within a task of asyncio or another
    context (see `contextvars`), in this task and those that it starts.
    Several threads may each work on a graph of their own; forward and backward
    run without the GIL.

    Args:
        autobatching: how nodes are scheduled: 0 in the order they were made, 1 batched
            by agenda, 2 batched by depth; None, the default, for the global setting.

    Example:
        >>> with dy.ComputationGraph() as graph:
        ...     y = dy.tanh(dy.inputVector([0]))
        ...     y.value(), len(graph)
        (0.0, 2)
    """

    def __cinit__(self):
        memset(&self.g, 0, sizeof(Graph))

    def __init__(self, autobatching=None):
        cdef int i
        if self.g.nodes.memory != NULL:
            raise RuntimeError("ComputationGraph.__init__ was called twice")
        for i in range(GRAPH_ARRAYS):
            array_open(&self.g.arrays[i], True)
        for i in range(GRAPH_ARENAS):
            arena_open(&self.g.arenas[i], True)
        self.g.shortages = shortages()
        let_be_revived(self)
        enter_table(&self.g, <void*>self)
        self.keep = {}
        self.leaves = {}
        self.renew(autobatching=autobatching)
        take_stream(&self.g)

    def __dealloc__(self):
        cdef int i
        cdef Graph* g = &self.g
        leave_table(g)
        forget_current()
        if g.device_graphs != NULL:
            engine(ENGINE_GPU).close(g)
        if engine(ENGINE_CPU).closed != NULL:
            engine(ENGINE_CPU).closed(g)
        for i in range(GRAPH_ARRAYS):
            array_close(&g.arrays[i])
        for i in range(GRAPH_ARENAS):
            arena_close(&g.arenas[i])

    cdef int warn_of_growth(self) except -1:
        """Warn once if the program seems to have forgotten `renew_cg`."""
        if self.warned or not self.n_at_backward or self.g.n_nodes <= self.n_at_backward or not self.values_changed():
            return 0
        self.warned = True
        warnings.warn(
            f"backward: the graph grew from {self.n_at_backward} to {self.g.n_nodes} nodes across an update of "
            "parameters.  Call renew_cg() before each example: else every pass takes longer than the one before",
            RuntimeWarning, stacklevel=1)

    cdef int note_values(self) except -1:
        """At the end of backward: record the number of nodes, and of changes of each storage."""
        self.n_at_backward = self.g.n_nodes
        for storage in self.keep:
            self.keep[storage] = (<Storage>storage).changes

    cdef bint values_changed(self) except -1:
        """Whether values of parameters have changed since the last backward."""
        for storage, changes in self.keep.items():
            if changes is not None and <uint64_t>changes != (<Storage>storage).changes:
                return True
        return False

    cdef int compact(self, Renumber renumber) except -1:
        """Renumber the needed nodes, unless there are checkpoints, which hold numbers of nodes."""
        cdef uint32_t* numbers = NULL
        if not self.checkpoints:
            hold(table, self.g.slot)
            numbers = compact_nodes(&self.g, renumber)
            let_go(table, self.g.slot)
        if numbers != NULL:
            try:
                self.leaves = {key: numbers[index] for key, index in self.leaves.items()}
            finally:
                free(numbers)
        return 0

    def __enter__(self):
        enter_graph(self, &self.g)
        return self

    def __exit__(self, kind=None, value=None, traceback=None):      # *exc_info would need memory
        leave_graph(self)
        return False

    def renew(self, immediate_compute=False, check_validity=False, autobatching=None, forward_only=False):
        """Drop all nodes of this graph; its expressions become stale.

        The graph keeps its memory for the next nodes.

        Args:
            immediate_compute: compute each node when it is made (default: False).
            check_validity: after computing, raise ValueError if a value that
                was computed is not finite. Default: False.
            autobatching: see the class; the global setting when None.
            forward_only: there will be no backward.  A value is dropped, and its
                memory reused, as soon as no expression refers to it and everything
                that uses it has been computed.  Has no effect together with
                immediate_compute. Default: False.

        Returns:
            This graph.

        Example:
            >>> with dy.ComputationGraph() as graph:
            ...     x = dy.inputVector([1, 2])
            ...     _ = graph.renew(immediate_compute=True)
            ...     len(graph)
            0
        """
        cdef Graph* g = &self.g
        cdef bint immediate = immediate_compute, checks = check_validity, forward = forward_only, has_room
        cdef int strategy
        raise_in_item(self, "renew_cg", "renew it before the map")
        if autobatching is None:
            strategy = default_strategy
        else:
            strategy = checked_strategy(autobatching)
        claim(table, g)
        try:
            hold(table, g.slot)
            has_room = begin_renewal(g, strategy, immediate, checks, forward)
            let_go(table, g.slot)
            self.keep.clear()
            self.given = None
            self.n_at_backward = 0
            self.leaves.clear()
            self.checkpoints = []
            self.reverts = []
        finally:
            release(table, g)
        if not has_room:
            out_of_memory("the list of free memory")
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
        check_unused(table, g)
        raise_in_item(self, "cg_checkpoint", "use forward_only=True, which frees what is no longer needed")
        self.checkpoints.append(Point(
            g.n_nodes, g.n_batches, g.n_order, g.nodes.top, g.args.top, g.items.top,
            g.values.top, g.scratch.top, g.tables.top, g.n_forgets))
        g.n_kept = g.n_nodes

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
        raise_in_item(self, "cg_revert", "use forward_only=True, which frees what is no longer needed")
        claim(table, &self.g)
        try:
            self.leave_checkpoint()
        finally:
            release(table, &self.g)

    cdef int leave_checkpoint(self) except -1:
        cdef Graph* g = &self.g
        cdef Point to
        if not self.checkpoints:
            raise RuntimeError("cg_revert: there is no checkpoint since the graph was renewed")
        epoch = g.version & ((<uint64_t>1 << REVERT_BITS) - 1)
        if more_epochs(g) == 0:
            raise RuntimeError(f"cg_revert: {epoch} reverts since the graph was renewed; renew it")
        to = self.checkpoints.pop()
        g.n_kept = self.checkpoints[-1]["n_nodes"] if self.checkpoints else 0
        if g.n_forgets != to.n_forgets:     # values from before the checkpoint have been dropped
            forget(g)
        while self.reverts and self.reverts[-1][1] >= to.n_nodes:
            self.reverts.pop()
        self.reverts.append((epoch, to.n_nodes))
        hold(table, g.slot)
        go_back(g, &to)
        let_go(table, g.slot)
        self.leaves = {key: index for key, index in self.leaves.items() if index < g.n_nodes}
        self.n_at_backward = 0

    def __len__(self):
        return self.g.n_nodes

    def __repr__(self):
        return f"<ComputationGraph of {self.g.n_nodes} nodes>"

    def _repr_svg_(self):
        """A picture of the graph, for notebooks, of a large one with its scopes as boxes.

        None where it would be too large to read, or empty.
        """
        from dynet_cy.graph.drawing import shown        # it needs this module
        return shown(self, MOST_SHOWN)

    def op_names(self):
        """Names of the ops of all nodes, in the order in which they were made.

        Example:
            >>> y = dy.tanh(dy.inputVector([1, 2]))
            >>> dy.cg().op_names()
            ['input', 'tanh']
        """
        claim(table, &self.g)
        try:
            return [op_at(nodes_of(&self.g)[i].op).name.decode() for i in range(self.g.n_nodes)]
        finally:
            release(table, &self.g)

    def n_batches(self):
        """Number of calls in which the computed nodes ran.

        Example:
            >>> graph = dy.cg().renew(autobatching=1)
            >>> dy.forward([dy.tanh(dy.inputVector([i, 1])) for i in range(10)])
            >>> len(graph), graph.n_batches()       # ten inputs, and ten tanh in one call
            (20, 1)
        """
        return self.g.n_batches

    # DyNet's methods that refer to a node by its number, counted from 0 in the order in which nodes are made.

    def _node(self, index):
        from dynet_cy.graph.nodes import expression     # it needs this module
        return expression(self, index)

    def forward(self, index):
        """Compute the value of a node, given by its number in the order in which nodes are made.

        Args:
            index: the number of the node, from 0.

        Raises:
            IndexError: there is no such node.

        Example:
            >>> y = dy.tanh(dy.inputVector([0, 0]))
            >>> dy.cg().forward(1)          # computes y
            >>> y.value()
            [0.0, 0.0]
        """
        self._node(index).forward()

    def forward_scalar(self, index):
        """The value of a node of one element, as a float; see `forward` and `Expression.scalar_value`.

        Args:
            index: the number of the node, from 0.

        Example:
            >>> y = dy.squared_norm(dy.inputVector([3, 4]))
            >>> dy.cg().forward_scalar(1)
            25.0
        """
        return self._node(index).scalar_value()

    def forward_vec(self, index):
        """The value of a node as a list, column by column; see `forward`.

        Args:
            index: the number of the node, from 0.

        Example:
            >>> y = 2 * dy.inputVector([3, 4])
            >>> dy.cg().forward_vec(1)
            [6.0, 8.0]
        """
        return self._node(index).vec_value()

    def inc_forward(self, index):
        """The same as `forward`: values that have been computed are not computed again.

        Args:
            index: the number of the node, from 0.

        Example:
            >>> y = dy.tanh(dy.inputVector([0, 0]))
            >>> dy.cg().inc_forward(1)
            >>> y.value()
            [0.0, 0.0]
        """
        self.forward(index)

    def inc_forward_scalar(self, index):
        """The same as `forward_scalar`.

        Args:
            index: the number of the node, from 0.

        Example:
            >>> y = dy.squared_norm(dy.inputVector([3, 4]))
            >>> dy.cg().inc_forward_scalar(1)
            25.0
        """
        return self.forward_scalar(index)

    def inc_forward_vec(self, index):
        """The same as `forward_vec`.

        Args:
            index: the number of the node, from 0.

        Example:
            >>> y = 2 * dy.inputVector([3, 4])
            >>> dy.cg().inc_forward_vec(1)
            [6.0, 8.0]
        """
        return self.forward_vec(index)

    def backward(self, index, full=False):
        """`Expression.backward` of a node, given by its number.

        Args:
            index: the number of the node, from 0.
            full: whether constants and inputs get gradients too (default: no).

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
            device: "CPU" or "GPU:0" and so on; "": the device where it is first used.

        Raises:
            ValueError: there are more or fewer numbers than the shape and the batch size need.

        Example:
            >>> dy.cg().inputMatrixLiteral([1, 2, 3, 4, 5, 6], (2, 3)).npvalue()
            array([[1., 3., 5.],
                   [2., 4., 6.]])
        """
        with self:
            return operators["inputMatrixLiteral"](v, d, batch_size, device)

    def inputSparseTensor(self, idxs, v, dim, batch_size=1, defval=0.0, device=""):
        """An input in this graph that has the same number almost everywhere.

        Args:
            idxs: the positions of the other numbers, counted column by column and then batch by batch.
            v: the numbers at these positions.
            dim: shape of one batch element.
            batch_size: number of batch elements (default: 1).
            defval: the number everywhere else (default: 0).
            device: "CPU" or "GPU:0" and so on; "": the device where it is first used.

        Raises:
            IndexError: a position is out of range.
            ValueError: the number of positions is not that of numbers.

        Example:
            >>> dy.cg().inputSparseTensor([0, 3], [5, 6], (2, 2), defval=1).npvalue()
            array([[5., 1.],
                   [1., 6.]])
        """
        with self:
            return operators["inputSparseTensor"](idxs, v, dim, batch_size, defval, device)

    def print_graphviz(self):
        """Write the graph to standard error, in the language of Graphviz.

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
        """Write values and gradients of all computed nodes.  This computes nothing.

        Args:
            filename: file to write; standard output if empty.
            show_values: write values (default: True).
            show_gradients: write the gradients that the last backward left (default: True).
            nan_check_only: write "valid", or "invalid" where there is a nan or an
                infinity, instead of numbers. Default: False.

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


cdef ComputationGraph owner_of(const Graph* g):
    return <ComputationGraph>table.owners[g.slot]


cdef object new_graph(Graph** g):
    cdef ComputationGraph graph = ComputationGraph()
    g[0] = &graph.g
    return graph


set_new_graph(new_graph)


cdef int raise_in_item(ComputationGraph graph, str what, str instead) except -1:
    """Raise if an item of a batched map is running: it must not do this to the graph that it shares with others."""
    if graph.requests is not None and graph.requests.inside():
        raise RuntimeError(
            f"{what} in an item of batched_map or a call of a Server: others use the same graph; {instead}")
    return 0


cdef bint begin_renewal(Graph* g, int strategy, bint immediate, bint check_validity, bint forward_only) noexcept:
    """Drop all nodes.  False if there is no memory for the list of free memory."""
    cdef int i
    g.strategy = strategy
    if g.siblings != NULL:
        sibling_hooks().cut(g, 0, False)
    g.renewal = atomic_add(&renewals, 1, RELAXED) << REVERT_BITS
    set_version(&g.version, g.renewal, RELEASE)
    g.n_renewals += 1
    g.stream = (<uint64_t>g.stream_number << 32) | g.n_renewals
    g.n_nodes = g.n_batches = g.n_order = 0
    g.draws = 0
    g.draw_key = 0
    g.n_forgets = 0
    g.forward_ms = 0
    g.n_passes = 0
    g.has_empty = False
    g.may_raise = False
    g.n_kept = 0
    g.backward_from = -1
    g.device = default_device()
    g.multi_device = False
    g.immediate = immediate
    g.check_validity = check_validity
    g.forward_only = forward_only and not immediate
    g.compact_at = LEAST_TO_COMPACT
    for i in range(GRAPH_ARRAYS):
        array_rewind(&g.arrays[i], 0)
    for i in range(GRAPH_ARENAS):
        arena_rewind(&g.arenas[i], 0)
    if g.shortages != shortages():
        give_back_all(g)
    if g.forward_only:
        # Allocate the list of holes now: when memory is short, there must be room to record what is free.
        if array_push(&g.holes, 1) == NULL:
            return False
        array_rewind(&g.holes, 0)
    return True


cdef void go_back(Graph* g, const Point* to) noexcept:
    """Drop the nodes made, and the values computed, since a checkpoint."""
    cdef uint32_t i
    if g.siblings != NULL:
        sibling_hooks().cut(g, to.n_nodes, False)
    next_epoch(g)
    if g.forward_only:
        for i in range(g.n_nodes - to.n_nodes):
            set_holder(&uses_of(g)[g.n_nodes - 1 - i], NULL)
            drop_unneeded(g, g.n_nodes - 1 - i)
    g.n_nodes = to.n_nodes
    take_back(g, to.nodes_top, to.args_top, to.items_top)
    if g.multi_device:
        let_move(g)
    if not g.forward_only:                  # forward-only graphs have dropped their values above
        forget_since(g, to.n_batches, to.n_order, to.values_top, to.scratch_top, to.tables_top)
    g.backward_from = -1


# ---- the current graph -------------------------------------------------------

cdef ComputationGraph current():
    return owner_of(current_graph())


def renew_cg(immediate_compute=False, check_validity=False, autobatching=None, forward_only=False):
    """Renew the current graph, before building for the next example.

    All expressions of it become stale; parameters stay.

    Args:
        immediate_compute: compute each node when it is made (default: False).
        check_validity: raise ValueError if a computed value is not finite (default: False).
        autobatching: 0 off, 1 batched by agenda, 2 batched by depth; the global
            setting when None.
        forward_only: there will be no backward.  A value is dropped, and its memory
            reused, as soon as no expression refers to it and everything that uses it has
            been computed: for large minibatches and long sequences (default: False).

    Returns:
        The graph.

    Example:
        >>> x = dy.tanh(dy.inputVector([1, 2]))
        >>> graph = dy.renew_cg()
        >>> len(graph)
        0
    """
    leave_if_running()
    return current().renew(immediate_compute, check_validity, autobatching, forward_only)


cdef int leave_if_running() except -1:
    """In a program written for DyNet: begin the next example although a thread that took too long runs the graph."""
    cdef Graph* g
    cdef bint used
    if not follows_dynet():
        return 0
    g = current_graph()
    hold(table, g.slot)
    used = is_used(table, g)
    let_go(table, g.slot)
    return leave_running(g) if used else 0


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


# ---- settings ----------------------------------------------------------------

cdef int checked_strategy(strategy) except -1:
    number = int(strategy)
    if number not in (0, 1, 2):
        raise ValueError(
            f"autobatching must be 0 (off), 1 (by agenda) or 2 (by depth), not {strategy!r}")
    return number


def set_autobatching(strategy):
    """Set how graphs are scheduled, from their next renewal on; the current graph, if it is empty, at once.

    Args:
        strategy: 0 in the order they were made, 1 batched by agenda, 2 batched by depth.
    """
    global default_strategy
    cdef Graph* g = graph_here()
    default_strategy = checked_strategy(strategy)
    if g != NULL and g.n_nodes == 0 and g.version != RUNNING:
        g.strategy = default_strategy


def set_default_device(int device):
    """Set where graphs run, from their next renewal on (the current graph, if it is empty, at once), and where new
    collections live.

    Args:
        device: 0 for the CPU, 1 + n for GPU number n.

    Raises:
        RuntimeError: there is no such device.
    """
    cdef Graph* g = graph_here()
    if device:
        check_device(device_name(device), "set_default_device")
    mirror.set_default_device(device)
    if g != NULL and g.n_nodes == 0 and g.version != RUNNING:
        g.device = device
        g.multi_device = False


def autobatching():
    """The default schedule of graphs: see `set_autobatching`."""
    return default_strategy
