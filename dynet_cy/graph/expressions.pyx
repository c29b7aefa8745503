"""Graphs and expressions: an expression is the number of a node and the version of its graph, checked on each use."""

import gc
import opcode
import sys
import warnings
from numbers import Real

import numpy as np

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject, PyTypeObject, destructor
from libc.stdint cimport SIZE_MAX, int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from dynet_cy.core.mutex cimport pthread_mutex_lock, pthread_mutex_unlock
from dynet_cy.core.tensor cimport INTEGERS, Dim, const_integers, size_of, total_of
from dynet_cy.core.threads cimport (
    HAS_GIL, RELAXED, RELEASE, Setting, Unlocked, acquire_lock, atomic_add, atomic_store, follows_dynet, let_be_revived,
    raised_here, release_lock, revived, runs_handlers, set_number,
)
from dynet_cy.graph.origin cimport describe_dim, made_at, made_by, made_in, note_read, noting
from dynet_cy.graph.structs cimport (
    COMPUTED, GRAPH_ARENAS, GRAPH_ARRAYS, LIVE, NEEDS_GRAD, NO_BATCH, NO_NODE, REVERT_BITS,
    RUNNING, SENT, SHARED, TRAINABLE, VIEWS, Absorbed, Assumed, Batch, Graph, Node, PassHooks, Speculation, Use,
    args_of, batches_of, device_of, drop_unneeded, engine, forget_stretches, gradient_of_node, holder_in,
    is_dropped, is_gradient_gone, items_of, let_node_go, nodes_of, order_of, pass_hooks, same_renewal, set_holder,
    speculation_hooks, state_of, uses_of,
)
from dynet_cy.graph.table cimport (
    LEAST_TO_COMPACT, Renumber, Table, check_unused, claim, compact_nodes, current_graph, enter_graph, enter_table,
    epochs_left, forget_current, give_back_all, graph_at, graph_here, graph_table, hold, is_used, leave_graph,
    leave_running, leave_table, let_go, let_move, next_epoch, raise_running, release, release_values,
    release_values_since, set_new_graph, truncate_nodes,
)
from dynet_cy.kernels.kernels cimport K
from dynet_cy.memory.arena cimport (
    arena_close, arena_open, arena_rewind, arena_trim, arena_unite, array_close, array_open, array_push, array_rewind,
    exceeds_limit, limit_memory, memory_open, out_of_memory, shortages,
)
from dynet_cy.memory.bridge cimport array_of, capsule_of, shape_of, taking_numbers
from dynet_cy.memory.storage cimport (
    Param, Storage, default_device, forget_gradient, mirrors, note_gradient, readers, see_whole, touch,
)
from dynet_cy.ops.registry cimport op_at
from dynet_cy.schedule.budget cimport assume_at_first, is_crowded, is_limited, save_more
from dynet_cy.schedule.compaction cimport part_batches

from dynet_cy.core.devices import check_device, device_name
from dynet_cy.graph.structs import operators as functions
from dynet_cy.graph.table import may_be_garbage, note_referred_to
from dynet_cy.graph.tensor import Tensor
from dynet_cy.hints.equivalents import of_arguments, of_numpy
from dynet_cy.kernels import kernels
from dynet_cy.memory import storage as parameter_storage


# ==== random state ================================================================================
#
# Random streams of graphs: one for each graph and renewal; graphs are numbered in the order in which they are made.

cdef Table* table = graph_table()
cdef uint32_t streams = 0

# Streams of a restored state, with their renewals, for graphs that do not exist yet.
cdef list awaited = []
cdef Unlocked streams_lock              # guards both


cdef int next_stream(Graph* g) except -1:
    """Give a new graph its stream.  Only renewals by the program count, not that of the constructor."""
    global streams
    cdef uint32_t number, count
    acquire_lock(&streams_lock)
    try:
        if awaited:
            number, count = awaited.pop(0)
        else:
            number, count = streams, 0
            streams += 1
    finally:
        release_lock(&streams_lock)
    hold(table, g.slot)
    g.stream_number = number
    g.n_renewals = count
    g.stream = <uint64_t>number << 32 | count
    let_go(table, g.slot)
    return 0


def reset_random_seed(seed: int):
    """Set the seed of all random streams, and restart them.

    Dropout masks, noise and initial values follow from it and from the order in
    which graphs, nodes and parameters are made, not from batching.  Graphs that the
    program still refers to keep their places in that order, before all graphs that
    are made afterwards.  The others do not count, even if Python has not freed them
    yet: `gc.collect` is called if there are graphs that were made since the last call.

    Example:
        >>> dy.reset_random_seed(3)
        >>> first = dy.random_normal(2).npvalue()
        >>> _ = dy.renew_cg()
        >>> dy.reset_random_seed(3)
        >>> bool((dy.random_normal(2).npvalue() == first).all())
        True
    """
    global streams
    cdef Graph* g
    cdef uint32_t slot, n = 0
    free_garbage()
    kernels.set_seed(seed)
    for slot in range(table.n_slots):
        hold(table, slot)
        g = table.graphs[slot]
        if g != NULL:
            g.n_renewals = 0
            g.draws = 0
            forget_requests(g)
            atomic_store(&g.stream, <uint64_t>g.stream_number << 32, RELAXED)   # the graph may be running
            n = max(n, g.stream_number + 1)
        let_go(table, slot)
    acquire_lock(&streams_lock)
    try:
        awaited.clear()
        streams = n
    finally:
        release_lock(&streams_lock)


cdef int free_garbage() except -1:
    """Free graphs that only cycles of references keep alive: when Python does so depends on all that it has made.

    A graph that a collection has left once is not looked at again, since a collection takes milliseconds.
    """
    if may_be_garbage():
        gc.collect()
        note_referred_to()
    return 0


cdef void forget_requests(Graph* g) noexcept:
    """Clear what a graph has learned from values that were read one at a time.

    The record decides which nodes run together, and so in which order sums are rounded. Training resumed from a saved
    state, here or in another process, must get the same bits.
    """
    if g.speculation != NULL and g.version != RUNNING:
        speculation_hooks().cut(g, 0, True)


cdef list streams_of_graphs(bint reset):
    """The stream number, number of renewals, and slot of each graph."""
    cdef Graph* g
    cdef uint32_t slot, number = 0, count = 0
    found = []
    for slot in range(table.n_slots):
        hold(table, slot)
        g = table.graphs[slot]
        if g != NULL:
            if reset:
                forget_requests(g)
            number = g.stream_number
            count = g.n_renewals
        let_go(table, slot)
        if g != NULL:
            found.append((number, count, slot))
    return found


def random_state() -> dict[str, Any]:
    """The state of all random streams, as plain data for `set_random_state`."""
    free_garbage()
    renewals = [(number, count) for number, count, _ in streams_of_graphs(True)]
    acquire_lock(&streams_lock)
    try:
        renewals += awaited
        n = streams
    finally:
        release_lock(&streams_lock)
    return {"seed": kernels.seed(), "host": kernels.host_position(), "streams": n, "renewals": sorted(renewals)}


def set_random_state(state: dict[str, Any]):
    """Restore all random streams to their state when `random_state` was called.

    Graphs are identified by the order in which they were made: first those that exist
    now, then those made next.  The state takes effect at the next renewal.
    """
    global streams
    cdef uint32_t slot, number, count
    reset_random_seed(state["seed"])
    kernels.set_host_position(state["host"])
    restored = [(number, count) for number, count in state["renewals"]]
    existing = sorted((number, slot) for number, _, slot in streams_of_graphs(False))
    acquire_lock(&streams_lock)
    try:
        streams = state["streams"]
        awaited[:] = restored
        for _, slot in existing:
            if awaited:
                number, count = awaited.pop(0)
            else:
                number, count = streams, 0
                streams += 1
            hold(table, slot)
            if table.graphs[slot] != NULL:
                table.graphs[slot].stream_number = number
                table.graphs[slot].n_renewals = count
            let_go(table, slot)
    finally:
        release_lock(&streams_lock)


# ==== graph =======================================================================================
#
# Computation graphs, the functions on the current one, and their settings.

cdef enum:
    MOST_SHOWN = 200                # larger graphs are not drawn automatically in notebooks

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
        mem: the limit of its memory, until it is renewed, as that of `renew_cg`. Default: None.

    Example:
        >>> with dy.ComputationGraph() as graph:
        ...     y = dy.tanh(dy.inputVector([0]))
        ...     y.value(), len(graph)
        (0.0, 2)
    """

    def __cinit__(self):
        memset(&self.g, 0, sizeof(Graph))

    def __init__(self, autobatching: int | None = None, mem: float | None = None) -> None:
        cdef int i
        if self.g.nodes.memory != NULL:
            raise RuntimeError("ComputationGraph.__init__ was called twice")
        memory_open(&self.g.memory)
        for i in range(GRAPH_ARRAYS):
            array_open(&self.g.arrays[i], True, &self.g.memory)
        for i in range(GRAPH_ARENAS):
            arena_open(&self.g.arenas[i], True, &self.g.memory)
        self.g.shortages = shortages()
        let_be_revived(self)
        enter_table(&self.g, <void*>self)
        self.keep = {}
        self.leaves = {}
        self.renew(autobatching=autobatching, mem=mem)
        next_stream(&self.g)

    def __dealloc__(self):
        cdef int i
        cdef Graph* g = &self.g
        leave_table(g)
        forget_current()
        if g.device_graphs != NULL:
            engine().close(g)
        if engine().closed != NULL:
            engine().closed(g)
        for i in range(GRAPH_ARRAYS):
            array_close(&g.arrays[i])
        for i in range(GRAPH_ARENAS):
            arena_close(&g.arenas[i])

    cdef int warn_of_update(self, str what) except -1:
        """Warn once that the graph went on although parameters had changed since its last backward."""
        if self.warned:
            return 0
        self.warned = True
        before, now = self.n_at_backward, self.g.n_nodes
        grew = f"grew from {before} to {now} nodes across" if now > before else f"of {now} nodes goes on after"
        values = "" if follows_dynet() else (
            ": it computes with their new values now, whatever it has computed with those before (DyNet keeps the "
            "values of first use)")
        slower = ", or every pass takes longer than the one before" if now > before else ""
        warnings.warn(
            f"{what}: call renew_cg() before each example{slower}: the graph {grew} an update of parameters{values}",
            RuntimeWarning, stacklevel=1)

    cdef int note_values(self) except -1:
        """At the end of backward: record the number of nodes, and of changes of each storage."""
        self.n_at_backward = self.g.n_nodes
        for storage in self.keep:
            self.keep[storage] = (<Storage>storage).changes.n

    cdef bint values_changed(self) except -1:
        """Whether values of parameters have changed since the last backward."""
        for storage, changes in self.keep.items():
            if changes is not None and <uint64_t>changes != (<Storage>storage).changes.n:
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
                self.asked = self.g.n_nodes
                self.kept_to = 0
            finally:
                free(numbers)
        return 0

    def __enter__(self) -> ComputationGraph:
        enter_graph(self, &self.g)
        return self

    def __exit__(
        self, kind: object = None, value: object = None, traceback: object = None
    ) -> Literal[False]:      # *exc_info would need memory
        leave_graph(self)
        return False

    def renew(
        self, immediate_compute=False, check_validity=False, autobatching: int | None = None, forward_only=False,
        mem: float | None = None
    ) -> ComputationGraph:
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
            mem: how many megabytes the graph may take: see `renew_cg`. Default: None, no
                limit but that of the process.

        Raises:
            TypeError: mem is not a number.
            ValueError: mem is not positive.

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
        cdef bint immediate = immediate_compute, checks = check_validity, forward = forward_only, has_capacity
        cdef int strategy
        cdef size_t most = limit_of(mem)
        raise_in_item(self, "renew_cg", "renew it before the map")
        if autobatching is None:
            strategy = default_strategy
        else:
            strategy = checked_strategy(autobatching)
        claim(table, g)
        try:
            hold(table, g.slot)
            has_capacity = begin_renewal(g, strategy, immediate, checks, forward, most)
            let_go(table, g.slot)
            self.keep.clear()
            self.further_gradients = None
            self.n_at_backward = 0
            self.leaves.clear()
            self.asked = self.kept_to = 0
            self.kept = self.kept_of = None
            self.checkpoints = []
            self.reverts = []
        finally:
            release(table, g)
        if not has_capacity:
            out_of_memory("the list of free memory")
        return self

    def version(self) -> int:
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
        if epochs_left(g) == 0:
            raise RuntimeError(f"cg_revert: {epoch} reverts since the graph was renewed; renew it")
        to = self.checkpoints.pop()
        g.n_kept = self.checkpoints[-1]["n_nodes"] if self.checkpoints else 0
        if g.n_forgets != to.n_forgets:     # values from before the checkpoint have been dropped
            release_values(g)
        while self.reverts and self.reverts[-1][1] >= to.n_nodes:
            self.reverts.pop()
        self.reverts.append((epoch, to.n_nodes))
        hold(table, g.slot)
        go_back(g, &to)
        let_go(table, g.slot)
        self.leaves = {key: index for key, index in self.leaves.items() if index < g.n_nodes}
        self.asked = min(self.asked, g.n_nodes)
        self.kept_to = min(self.kept_to, g.n_nodes)
        self.n_at_backward = 0

    def __len__(self) -> int:
        return self.g.n_nodes

    def __repr__(self):
        return f"<ComputationGraph of {self.g.n_nodes} nodes>"

    def _repr_svg_(self):
        """A picture of the graph, for notebooks, of a large one with its scopes as boxes.

        None where it would be too large to read, or empty.
        """
        return functions["shown"](self, MOST_SHOWN)

    def op_names(self) -> list[str]:
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

    def n_batches(self) -> int:
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
        return functions["node"](self, index)

    def forward(self, index: int):
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

    def forward_scalar(self, index: int) -> float:
        """The value of a node of one element, as a float; see `forward` and `Expression.scalar_value`.

        Args:
            index: the number of the node, from 0.

        Example:
            >>> y = dy.squared_norm(dy.inputVector([3, 4]))
            >>> dy.cg().forward_scalar(1)
            25.0
        """
        return self._node(index).scalar_value()

    def forward_vec(self, index: int) -> list[float]:
        """The value of a node as a list, column by column; see `forward`.

        Args:
            index: the number of the node, from 0.

        Example:
            >>> y = 2 * dy.inputVector([3, 4])
            >>> dy.cg().forward_vec(1)
            [6.0, 8.0]
        """
        return self._node(index).vec_value()

    def inc_forward(self, index: int):
        """Compute a node, as `forward` does; computed values are not computed again.

        Args:
            index: the number of the node, from 0.

        Example:
            >>> y = dy.tanh(dy.inputVector([0, 0]))
            >>> dy.cg().inc_forward(1)
            >>> y.value()
            [0.0, 0.0]
        """
        self.forward(index)

    def inc_forward_scalar(self, index: int) -> float:
        """The value of a node of one element, as `forward_scalar`.

        Args:
            index: the number of the node, from 0.

        Example:
            >>> y = dy.squared_norm(dy.inputVector([3, 4]))
            >>> dy.cg().inc_forward_scalar(1)
            25.0
        """
        return self.forward_scalar(index)

    def inc_forward_vec(self, index: int) -> list[float]:
        """The value of a node as a list, as `forward_vec`.

        Args:
            index: the number of the node, from 0.

        Example:
            >>> y = 2 * dy.inputVector([3, 4])
            >>> dy.cg().inc_forward_vec(1)
            [6.0, 8.0]
        """
        return self.forward_vec(index)

    def backward(self, index: int, full=False):
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

    def inputMatrixLiteral(self, v: npt.ArrayLike, d: Iterable[int] | int, batch_size=1, device="") -> Expression:
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
            return functions["inputMatrixLiteral"](v, d, batch_size, device)

    def inputSparseTensor(
        self, idxs: npt.ArrayLike, v: npt.ArrayLike, dim: Iterable[int] | int, batch_size=1, defval=0.0, device=""
    ) -> Expression:
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
            return functions["inputSparseTensor"](idxs, v, dim, batch_size, defval, device)

    def print_graphviz(self):
        """Write the graph to standard error, in the language of Graphviz.

        Example:
            >>> import contextlib, sys
            >>> y = dy.tanh(dy.inputVector([1, 2]))
            >>> with contextlib.redirect_stderr(sys.stdout):
            ...     dy.cg().print_graphviz()
            digraph ...
        """
        sys.stderr.write(functions["dot"](self))

    def dump(self, filename: str | PathLike[str] = "", show_values=True, show_gradients=True, nan_check_only=False):
        """Write values and gradients of all computed nodes.  This computes only what the graph has dropped.

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
        functions["dump"](self, filename, show_values, show_gradients, nan_check_only)


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


cdef bint begin_renewal(Graph* g, int strategy, bint immediate, bint check_validity, bint forward_only,
                        size_t most) noexcept:
    """Drop all nodes.  False if there is no memory for the list of free memory."""
    cdef int i
    g.strategy = strategy
    if g.speculation != NULL:
        speculation_hooks().cut(g, 0, False)
    g.renewal = atomic_add(&renewals, 1, RELAXED) << REVERT_BITS
    set_number(&g.version, g.renewal, RELEASE)
    g.n_renewals += 1
    g.keeps_for -= g.keeps_for != 0
    g.spares_for -= g.spares_for != 0
    g.stream = (<uint64_t>g.stream_number << 32) | g.n_renewals
    g.n_nodes = g.n_batches = g.n_order = 0
    g.draws = 0
    g.draw_key = 0
    g.n_forgets = 0
    g.again_ns = g.missing = 0
    assume_at_first(g)
    g.forward_ms = 0
    g.n_passes = 0
    g.stale_gradients = False
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
    forget_stretches(g)
    for i in range(GRAPH_ARENAS):
        arena_rewind(&g.arenas[i], 0)
        if engine().close != NULL:    # a program that uses devices may use them in this graph
            g.arenas[i].mirrored = True
        if not g.device and g.device_graphs == NULL:    # recorded passes of devices hold addresses of their arenas
            arena_unite(&g.arenas[i])
    limit_memory(&g.memory, most)
    if g.shortages != shortages() or exceeds_limit(&g.memory):
        give_back_all(g)
    if g.forward_only:
        # Allocate the list of holes now: when memory is short, free memory must still be recorded.
        if array_push(&g.free_values, 1) == NULL:
            return False
        array_rewind(&g.free_values, 0)
    return True


cdef void go_back(Graph* g, const Point* to) noexcept:
    """Drop the nodes made, and the values computed, since a checkpoint."""
    cdef uint32_t i
    if g.speculation != NULL:
        speculation_hooks().cut(g, to.n_nodes, False)
    next_epoch(g)
    if g.forward_only:
        for i in range(g.n_nodes - to.n_nodes):
            set_holder(&uses_of(g)[g.n_nodes - 1 - i], NULL)
            drop_unneeded(g, g.n_nodes - 1 - i)
    g.n_nodes = to.n_nodes
    truncate_nodes(g, to.nodes_top, to.args_top, to.items_top)
    if g.multi_device:
        let_move(g)
    if not g.forward_only:                  # forward-only graphs have dropped their values above
        release_values_since(g, to.n_batches, to.n_order, to.values_top, to.scratch_top, to.tables_top)
    g.backward_from = -1


# ---- the current graph -------------------------------------------------------

cdef ComputationGraph current():
    return owner_of(current_graph())


def arena_bytes() -> dict[str, int]:
    """Bytes that the arenas of the current graph hold, in use or kept for reuse, by name."""
    cdef ComputationGraph graph = current()
    cdef uint32_t i, k
    held = dict.fromkeys(("values", "gradients", "scratch", "tables"), 0)
    for i, name in enumerate(held):
        for k in range(graph.g.arenas[i].n):
            held[name] += graph.g.arenas[i].segments[k].charged
    return held


def renew_cg(
    immediate_compute=False, check_validity=False, autobatching: int | None = None, forward_only=False,
    mem: float | None = None
) -> ComputationGraph:
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
        mem: how many megabytes (2**20 bytes) this graph may take, until it is renewed: its
            values, gradients and nodes, without parameters. Where that is too little, values are
            dropped after forward and computed again in backward. Default: None, no limit but
            that of the process (``--dynet-mem``), which holds in any case.

    Returns:
        The graph.

    Raises:
        TypeError: mem is not a number.
        ValueError: mem is not positive.

    Computing raises MemoryError where a limit is too low whatever is dropped.

    Example:
        >>> x = dy.tanh(dy.inputVector([1, 2]))
        >>> graph = dy.renew_cg()
        >>> len(graph)
        0
    """
    leave_if_running()
    return current().renew(immediate_compute, check_validity, autobatching, forward_only, mem)


cdef size_t limit_of(mem) except? 0:
    """Megabytes as bytes; 0 for None."""
    if mem is None:
        return 0
    if isinstance(mem, bool) or not isinstance(mem, (int, float, np.integer, np.floating)):
        raise TypeError(f"renew_cg: mem must be a number of megabytes, not {type(mem).__name__}")
    if not 0 < mem <= (1 << 43):
        raise ValueError(f"renew_cg: mem must be a positive number of megabytes, not {mem}")
    return max(<size_t>(<double>mem * (1 << 20)), <size_t>1)


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


def cg() -> ComputationGraph:
    """The current graph: that of the innermost `with`, else the thread's own.

    Example:
        >>> x = dy.inputVector([1, 2])
        >>> len(dy.cg())
        1
    """
    return current()


def cg_version() -> int:
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


def set_autobatching(strategy: int):
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
    parameter_storage.set_default_device(device)
    if g != NULL and g.n_nodes == 0 and g.version != RUNNING:
        g.device = device
        g.multi_device = False


def autobatching() -> int:
    """The default schedule of graphs: see `set_autobatching`."""
    return default_strategy


# ==== computing ===================================================================================
#
# Passes for requested values, and values as floats, arrays and lists.

cdef enum:
    FETCHED_TOGETHER = 1 << 16      # bytes; copying this many from a device takes about as long as requesting them

cdef Speculation* speculation = speculation_hooks()
cdef PassHooks* passes = pass_hooks()


cdef class SharedRequests(Requests):
    """Requests of items that share a graph."""

    cdef int let_read(self) except -1:
        raise NotImplementedError

    cdef int check_set(self, uint32_t node, str what) except -1:
        raise NotImplementedError


# ---- passes ------------------------------------------------------------------

cdef int forget_values(Graph* g) except -1:
    """Drop all computed values, once other items of a batched map have read theirs.  Lists of nodes may move
    meanwhile."""
    cdef SharedRequests requests = owner_of(g).requests
    if requests is not None:
        requests.let_read()
    return_kept(owner_of(g))
    return release_values(g)


cdef int forget_to_set(Graph* g, uint32_t index, str what) except -1:
    cdef SharedRequests requests = owner_of(g).requests
    if requests is not None:
        requests.check_set(index, what)
    return forget_values(g)


cdef bint compute_node(Graph* g, uint32_t index, object wanted) except -1:
    """Compute a node; True if `wanted`, its expression, waited for other items of a batched map: it may now be stale,
    or an item that was ended may have dropped its value since."""
    if requested(g, wanted):
        return True
    compute_early(g, index)
    return False


cdef bint compute_nodes(Graph* g, const uint32_t* targets, uint32_t n, object wanted) except -1:
    """Compute several nodes, as `compute_node`; some may be computed already. `wanted` is the list of expressions."""
    cdef uint32_t i
    if any_uncomputed(g, targets, n):
        if requested(g, wanted):
            return True
        run_pass(g, targets, n)
    if g.early:
        for i in range(n):
            note_asked(g, targets[i])
    return False


cdef void note_asked(Graph* g, uint32_t index) noexcept:
    """Note that a computed value was requested; needed if g.early is not 0."""
    hold(table, g.slot)
    speculation.asked(g, index)
    let_go(table, g.slot)


cdef int compute_early(Graph* g, uint32_t index) except -1:
    """Compute a requested value, and similar ones that are likely to be requested next."""
    cdef const uint32_t* targets = &index
    cdef uint64_t raised
    cdef uint32_t n = 1
    if g.strategy and not g.immediate and speculation.ask != NULL:
        hold(table, g.slot)
        n = speculation.ask(g, &index, &targets)
        let_go(table, g.slot)
    if n == 1:
        return run_pass(g, targets, n)
    raised = raised_here()
    try:
        return run_pass(g, targets, n)
    except (MemoryError, ValueError):       # perhaps caused by a value that was not requested
        hold(table, g.slot)
        speculation.failed(g)
        let_go(table, g.slot)
        if raised_here() != raised:         # raised by a signal handler
            raise
    return run_pass(g, &index, 1)


cdef bint is_to_warn(ComputationGraph graph) except -1:
    """Whether to warn if the graph computes something: parameters have changed since its last backward."""
    if graph.warned or not graph.n_at_backward or not graph.values_changed():
        return False
    # As in DyNet, it goes on with the values that it has read: only its growth matters.
    return not follows_dynet() or graph.g.n_nodes > graph.n_at_backward


cdef int run_pass(Graph* g, const uint32_t* targets, uint32_t n) except -1:
    cdef uint64_t begun
    cdef uint32_t ran = g.n_order
    cdef bint warns = is_to_warn(owner_of(g))
    if passes.on:
        begun = passes.begin_pass()
        go_forward(g, targets, n)
        passes.end(g, n, g.n_order - ran, owner_of(g).requests is not None, begun)
    else:
        go_forward(g, targets, n)
    if warns and 0 < ran < g.n_order:       # not if all is computed anew, or values were only computed again
        owner_of(g).warn_of_update("forward")
    return 0


cdef inline int go_forward(Graph* g, const uint32_t* targets, uint32_t n) except -1:
    if follows_dynet():
        note_first_use(owner_of(g), targets, n)
    if is_limited(g) or g.device or g.multi_device:     # the memory of a device is a limit too
        return go_forward_within(g, targets, n)
    return engine().forward(g, targets, n, g.strategy)


cdef int go_forward_within(Graph* g, const uint32_t* targets, uint32_t n) except -1:
    """Run a pass within the limit of memory: if it is short, run it again with fewer values that are kept."""
    cdef uint32_t n_batches = g.n_batches, n_order = g.n_order
    cdef size_t values_top = g.values.top, scratch_top = g.scratch.top, tables_top = g.tables.top
    cdef Assumed before = g.assumed
    note_values_read(g)
    if g.forward_only and is_crowded(g):        # before values have taken what other memory is needed for
        part_batches(g)
    first = None
    while True:
        try:
            return engine().forward(g, targets, n, g.strategy)
        except MemoryError as error:
            first = first or error
            if g.forward_only and part_batches(g):
                continue
            if not may_save(g) or not save_more(g):
                g.assumed = before
                # What a device has left becomes the limit of the graph, so later errors do not speak of the device.
                raise (first if g.device or g.multi_device else error) from None
            hold(table, g.slot)
            release_values_since(g, n_batches, n_order, values_top, scratch_top, tables_top)
            trim_arenas(g)
            let_go(table, g.slot)


cdef bint may_save(const Graph* g) noexcept:
    """Whether passes of a graph can do with less memory if they drop values."""
    return is_limited(g) and not (g.forward_only or g.immediate)


cdef void trim_arenas(Graph* g) noexcept:
    cdef int i
    if g.backward_from < 0:                     # else the program can ask for gradients
        arena_rewind(&g.grads, 0)
    for i in range(GRAPH_ARENAS):
        arena_trim(&g.arenas[i], SIZE_MAX)


cdef int note_values_read(Graph* g) except -1:
    """Before the first pass of a graph, record how often values of its parameters have changed."""
    cdef ComputationGraph graph = owner_of(g)
    for storage, changes in graph.keep.items():
        if changes is None:
            graph.keep[storage] = (<Storage>storage).changes.n
    return 0


cdef bint any_uncomputed(Graph* g, const uint32_t* nodes, uint32_t n) noexcept:
    cdef uint32_t i
    for i in range(n):
        if not state_of(g)[nodes[i]] & COMPUTED:
            return True
    return False


cdef bint requested(Graph* g, object wanted) except -1:
    """If an item of a batched map is running, suspend it until its expressions are computed along with other items'.

    False if there is no such item: the caller then computes them at once.
    """
    cdef Requests requests = owner_of(g).requests
    return requests is not None and requests.wait_for(wanted)


# ---- where values are --------------------------------------------------------

cdef float* floats_here(Graph* g, uint32_t node, float* v, size_t n) except? NULL:
    """Floats of a node in an arena, fetched first if the node is on a device."""
    cdef int device = device_of(g, node)
    if device and n:
        engine().fetch(g, device, v, n)
    return v


cdef float* parameter_here(Param* p, bint gradient) except? NULL:
    """The value or gradient of a parameter, fetched first if it lives on a device."""
    cdef float* v = p.grad if gradient else p.value
    see_whole()
    if p.device and p.size:
        mirrors().fetch(p.device, p.device_grad if gradient else p.device_value, v, p.size)
    return v


cdef bint is_elsewhere(Graph* g, Node* x) noexcept nogil:
    """Whether a computed value is on a device only."""
    cdef uint32_t number = <uint32_t>(x - nodes_of(g))
    return x.batch != NO_BATCH and device_of(g, number) != 0 and not state_of(g)[number] & SENT     # inputs are here


cdef float* value_here(Graph* g, Node* x) except? NULL:
    """The value of a computed node; on a device, small values of one batch are fetched together."""
    cdef uint32_t number = <uint32_t>(x - nodes_of(g))
    cdef Batch* batch
    cdef uint32_t j
    if x.val == NULL:
        see_whole()                                 # the graph may keep the value, elsewhere
        return parameter_here(<Param*>nodes_of(g)[number].object, False)
    if not is_elsewhere(g, x):
        return x.val
    batch = &batches_of(g)[x.batch]
    if batch.count != 1 and batch.bytes <= FETCHED_TOGETHER and batch.form != VIEWS:
        floats_here(g, number, batch.y, batch.bytes // sizeof(float))
        for j in range(batch.count):
            state_of(g)[order_of(g)[batch.first + j]] |= SENT
        for j in range(g.n_nodes if batch.count == 0 else 0):   # nodes have been renumbered: see `compact_nodes`
            if nodes_of(g)[j].batch == x.batch:
                state_of(g)[j] |= SENT
    else:
        floats_here(g, number, x.val, total_of(&x.dim))
        state_of(g)[number] |= SENT
    return x.val


cdef struct Look:                   # a value
    const Dim* dim
    const float* v
    Dim own
    float one
    void* object                    # of a parameter


# ---- as Python numbers and NumPy arrays --------------------------------------

cdef tuple full_shape(const Dim* d):
    """The shape with the batch, if any, as its last axis."""
    shape = shape_of(d)
    return shape + (d.bd,) if d.bd > 1 else shape


cdef object gradient_of(Graph* g, uint32_t index, const uint8_t* states):
    """A new array with the gradient of a node in an arena, given the states of all nodes."""
    cdef const Absorbed* absorbed = <const Absorbed*>g.absorbed.base
    cdef size_t i, n = 0 if g.forward_only else g.absorbed.top // sizeof(Absorbed)
    gradient = arrived_at(g, index, states)
    for i in range(n):
        if is_part(g, &absorbed[i], index):
            gradient += of_term(g, &absorbed[i], states)
            absorbed = <const Absorbed*>g.absorbed.base     # a pass may have moved it
    return gradient


cdef inline bint is_part(const Graph* g, const Absorbed* absorbed, uint32_t index) noexcept:
    """Whether it is a node that was absorbed by a sum before the last backward."""
    return absorbed.part == index and <int>absorbed.sum <= g.backward_from


cdef object of_term(Graph* g, const Absorbed* part, const uint8_t* states):
    """The gradient of a node that a sum has absorbed: that of the sum, for a factor times the other one."""
    cdef uint32_t factor = part.factor
    gradient = arrived_at(g, part.sum, states)
    if factor == NO_NODE:
        return gradient
    if not state_of(g)[factor] & COMPUTED:              # absorbed too
        run_pass(g, &factor, 1)
    return gradient * array_of(value_here(g, &nodes_of(g)[factor]), full_shape(&nodes_of(g)[factor].dim))


cdef object arrived_at(Graph* g, uint32_t index, const uint8_t* states):
    """The gradient that backward computed at the node itself."""
    cdef Node* x = nodes_of(g) + index
    if states[index] & LIVE:
        if is_dropped_view(g, index):
            run_pass(g, &index, 1)
        return doubles_of(floats_here(g, index, gradient_of_node(g, x), total_of(&x.dim)), full_shape(&x.dim))
    return np.zeros(full_shape(&x.dim))     # the node may not even have a value


cdef inline bint is_dropped_view(const Graph* g, uint32_t index) noexcept:
    """Whether it is known only with its value where the gradient of a node is within that of its argument."""
    return is_dropped(g, index) and batches_of(g)[nodes_of(g)[index].batch].form == VIEWS


cdef bint is_gone(const Graph* g, uint32_t index, const uint8_t* states) noexcept:
    """Whether the gradient of a node, or of a sum that has absorbed it, was dropped, given the states of all nodes."""
    cdef const Absorbed* absorbed = <const Absorbed*>g.absorbed.base
    cdef size_t i, n = g.absorbed.top // sizeof(Absorbed)
    if states[index] & LIVE and is_gradient_gone(g, &nodes_of(g)[index]):
        return True
    for i in range(n):
        if (is_part(g, &absorbed[i], index) and states[absorbed[i].sum] & LIVE
                and is_gradient_gone(g, &nodes_of(g)[absorbed[i].sum])):
            return True
    return False


cdef int keep_dropped(Graph* g, uint32_t index) except -1:
    """Compute dropped values again whose gradients a request for that of a node needs.  From then on both are kept."""
    cdef size_t i, n = g.absorbed.top // sizeof(Absorbed)
    cdef Absorbed of
    keep_if_dropped(g, index)
    for i in range(n):
        of = (<const Absorbed*>g.absorbed.base)[i]
        if is_part(g, &of, index):
            keep_if_dropped(g, of.sum)
    return 0


cdef int keep_if_dropped(Graph* g, uint32_t node) except -1:
    if is_dropped(g, node):
        run_pass(g, &node, 1)
    return 0


cdef inline bint is_kept(const Graph* g, uint32_t node) noexcept:
    """Whether a node has a value, which is not dropped later."""
    cdef uint32_t batch = nodes_of(g)[node].batch
    return state_of(g)[node] & COMPUTED and (batch == NO_BATCH or batches_of(g)[batch].level == 0)


cdef object doubles_of(const float* v, tuple shape):
    """A new float64 array with the floats at v: programs expect NumPy's default precision in further arithmetic, and
    some writers of files its default order."""
    return array_of(v, shape).astype(np.float64, order="C")


cdef object value_array(const Look* x):
    """A new array with a value: float64, or int32."""
    if x.dim.type == INTEGERS:
        return np.asarray(array_of(x.v, full_shape(x.dim)).view(np.int32), order="C")
    return doubles_of(x.v, full_shape(x.dim))


cdef object one_of(const Look* x):
    """The value of one element."""
    if x.dim.type == INTEGERS:
        return const_integers(x.v)[0]
    return x.v[0]


cdef list list_of(const Look* x):
    cdef size_t i, end, at = 0, n = total_of(x.dim)
    cdef const float* v = x.v
    cdef const int32_t* whole = const_integers(v)
    found = []
    while at < n:                               # signal handlers run between blocks
        end = min(n, at + (1 << 20))
        if x.dim.type == INTEGERS:
            found += [whole[i] for i in range(at, end)]
        else:
            found += [v[i] for i in range(at, end)]
        if end < n:
            PyErr_CheckSignals()
        at = end
    return found


# ==== looked up ===================================================================================
#
# A rule of DyNet's, for its programs: rows that were looked up have a gradient, if only of zero, in every backward.

cdef void note_looked_up(Graph* g, uint32_t target) noexcept nogil:
    """Note that rows of tables have a gradient, after backward from `target`: those that were looked up before it,
    although it may not depend on them. Momentum moves them then."""
    cdef Node* nodes = nodes_of(g)
    cdef uint32_t i, k, arg
    for i in range(target + 1):
        if nodes[i].nargs == 0 and not state_of(g)[i] & SHARED:
            note_rows(g, i)
        for k in range(nodes[i].nargs):                 # a whole table counts where it is used
            arg = args_of(g, &nodes[i])[k]
            if state_of(g)[arg] & SHARED:
                note_rows(g, arg)


cdef void note_rows(Graph* g, uint32_t leaf) noexcept nogil:
    cdef Node* x = &nodes_of(g)[leaf]
    cdef Param* p = <Param*>x.object
    cdef uint32_t b
    if not state_of(g)[leaf] & TRAINABLE or not p.rows:
        return
    pthread_mutex_lock(&p.lock)
    if state_of(g)[leaf] & SHARED:
        note_gradient(p)
    else:
        p.has_gradient = 1
        for b in range(x.dim.bd):
            touch(p, items_of(g, x)[b])
    pthread_mutex_unlock(&p.lock)


# ==== kept values =================================================================================
#
# A rule of DyNet's, for its programs: a graph goes on with the values of parameters that it has read.
#
# DyNet computes all nodes up to the one asked for, among them parameters and rows of tables, which it copies.  Here a
# graph reads parameters in place.  Before they change, the nodes that DyNet would have computed get what they need to
# stay as they are: parameters entries of the graph's own, whose gradients backward hands on, and rows are computed.

cdef int note_first_use(ComputationGraph graph, const uint32_t* targets, uint32_t n) except -1:
    cdef uint32_t i
    for i in range(n):
        graph.asked = max(graph.asked, targets[i] + 1)
    return 0


cdef int keep_all() except -1:
    """Let all graphs of the CPU keep the values that they have read."""
    cdef uint32_t slot
    cdef ComputationGraph graph
    for slot in range(table.n_slots):
        if table.graphs[slot] == NULL:
            continue
        graph = revived(table.owners[slot])
        if graph is not None and graph.kept_to < graph.asked and not (
                graph.g.version == RUNNING or graph.g.device or graph.g.multi_device):
            keep_values(graph)
    return 0


cdef int keep_values(ComputationGraph graph) except -1:
    cdef Graph* g = &graph.g
    cdef Node* x
    cdef uint32_t i, n = 0, end = graph.asked
    cdef uint32_t* rows = <uint32_t*>malloc((end - graph.kept_to) * sizeof(uint32_t))
    if rows == NULL:
        raise MemoryError(f"values of {end} nodes")
    try:
        for i in range(graph.kept_to, end):
            x = &nodes_of(g)[i]
            if x.nargs == 0 and x.object != NULL and not state_of(g)[i] & SHARED and (
                    not state_of(g)[i] & COMPUTED or is_dropped(g, i)):
                rows[n] = i
                n += 1
        if n:
            run_pass(g, rows, n)
    finally:
        free(rows)
    for i in range(graph.kept_to, end):
        if state_of(g)[i] & SHARED:
            keep_parameter(graph, i)
    graph.kept_to = end
    return 0


cdef int keep_parameter(ComputationGraph graph, uint32_t index) except -1:
    """Let a parameter's node refer to an entry of the graph's own, with the value of now."""
    cdef Node* x = &nodes_of(&graph.g)[index]
    cdef Param* p = <Param*>x.object
    cdef Param* own
    if graph.kept is None:
        graph.kept, graph.kept_of = Storage(), []
    if p.pack.changes == &graph.kept.changes:
        return 0
    storage = next(s for s in graph.keep if p.pack.changes == &(<Storage>s).changes)
    own = graph.kept.add(&x.dim, 0, parameter_storage.parameter_names[p.id])
    memcpy(own.value, p.value, p.size * sizeof(float))
    graph.kept_of.append((storage, p.number))
    x.object = own
    return 0


cdef Param* kept_from(ComputationGraph graph, const Param* own) except NULL:
    """The parameter whose value an entry of the graph keeps."""
    storage, number = graph.kept_of[own.number]
    return (<Storage>storage).entries[<uint32_t>number]


cdef int return_kept(ComputationGraph graph) except -1:
    """The graph is computed anew, from the values of now."""
    cdef Graph* g = &graph.g
    cdef Param* p
    cdef uint32_t i
    graph.asked = graph.kept_to = 0
    for i in range(g.n_nodes if graph.kept is not None else 0):
        p = <Param*>nodes_of(g)[i].object
        if state_of(g)[i] & SHARED and p.pack.changes == &graph.kept.changes:
            nodes_of(g)[i].object = kept_from(graph, p)
    graph.kept = graph.kept_of = None
    return 0


cdef int hand_on_gradients(ComputationGraph graph) except -1:
    """Add the gradients of kept values to those of the parameters, after backward."""
    cdef Param* own
    cdef Param* p
    cdef uint32_t i
    for i in range(graph.kept.n_entries):
        own = graph.kept.entries[i]
        if not own.has_gradient:
            continue
        p = kept_from(graph, own)
        if p.updated:
            pthread_mutex_lock(&p.lock)
            K.axpy(p.size, 1, own.grad, p.grad)
            note_gradient(p)
            pthread_mutex_unlock(&p.lock)
        memset(own.grad, 0, own.size * sizeof(float))
        forget_gradient(own)
    return 0


def keep_values_read():
    """From now on, graphs keep the values of parameters that they have read."""
    readers.keep = keep_all


# ==== further gradients ===========================================================================
#
# Gradients of parameters' expressions, and of expressions that do not depend on a parameter.
#
# Backward adds to the stored gradients of parameters, which also hold those of other passes, and leaves out expressions
# that depend on no parameter. So if such gradients are requested, the pass runs again over all expressions, and writes
# parameters' gradients to separate memory. The other expressions get the same gradients as before. This needs the same
# values as the first pass: a full backward, all of whose gradients may be requested at any time, runs it beforehand.

def further_gradient(ComputationGraph graph not None, uint32_t index) -> npt.NDArray[np.float64]:
    """The gradient of an expression, by its number, from the last backward of its graph.

    Raises:
        RuntimeError: values of parameters have changed since.
    """
    cdef Param* p
    cdef const uint8_t[:] states
    cdef Graph* g = &graph.g
    cdef uint32_t target
    see_whole()
    if is_limited(g):
        keep_dropped(g, index)
    if graph.further_gradients is not None:
        made, states = graph.further_gradients
    if graph.further_gradients is None or is_gone(g, index, &states[0]):
        if graph.kept is None and graph.values_changed():
            raise RuntimeError(
                "gradient: values of parameters have changed since backward, as by an update; ask for gradients of "
                "parameters' expressions, of those that no parameter lies behind, and of nodes to which no expression "
                "referred during backward, before that, or call backward(full=True)")
        target = <uint32_t>g.backward_from
        g.backward_from = -1                    # if this fails, the gradients of the last backward are lost
        graph.further_gradients = run_separately(graph, target, temporary_entries(g, target))
        g.backward_from = <int>target
    made, states = graph.further_gradients
    if index not in made:
        return gradient_of(&graph.g, index, &states[0])
    storage, number = made[index]
    p = (<Storage>storage).entries[<uint32_t>number]
    return doubles_of(parameter_here(p, True), full_shape(&nodes_of(&graph.g)[index].dim))


def keep_further_gradients(
    ComputationGraph graph not None, uint32_t target
) -> tuple[dict[int, tuple[object, int]], object] | None:
    """The gradients of a full backward from that node; None if the pass itself computes all of them."""
    made = temporary_entries(&graph.g, target)
    return run_separately(graph, target, made) if made else None


cdef tuple run_separately(ComputationGraph graph, uint32_t target, dict made):
    """Run backward from a node for all expressions, leaving parameters and states unchanged.

    Args:
        made: the result of `temporary_entries`.

    Returns:
        `made`, whose entries now hold the gradients of parameters' expressions; and the states of all expressions after
        this pass.
    """
    cdef Graph* g = &graph.g
    cdef uint32_t i
    cdef uint8_t marks = <uint8_t>(LIVE | NEEDS_GRAD | TRAINABLE)
    cdef uint8_t* before
    cdef Node* x = nodes_of(g)
    cdef Param* p
    cdef void** objects
    before = <uint8_t*>malloc(g.n_nodes)
    objects = <void**>malloc(g.n_nodes * sizeof(void*))
    try:
        if before == NULL or objects == NULL:
            raise MemoryError(f"gradient: notes of {g.n_nodes} nodes")
        memcpy(before, state_of(g), g.n_nodes)
        for i in range(target + 1):
            objects[i] = x[i].object
            if before[i] & SHARED:
                storage, number = made[i]
                p = (<Storage>storage).entries[<uint32_t>number]
                p.value = (<Param*>x[i].object).value
                p.device_value = (<Param*>x[i].object).device_value
                x[i].object = p
                state_of(g)[i] |= <uint8_t>TRAINABLE
            else:                                   # rows of tables: nothing is added to the table
                state_of(g)[i] &= <uint8_t>~TRAINABLE
        g.aside = 1
        try:
            engine().backward(g, target, True)
            states = (<char*>state_of(g))[:g.n_nodes]
        finally:
            g.aside = 0
            for i in range(target + 1):
                x[i].object = objects[i]
            for i in range(g.n_nodes):
                state_of(g)[i] = (state_of(g)[i] & <uint8_t>~marks) | (before[i] & marks)
    finally:
        free(before)
        free(objects)
    return made, states


cdef dict temporary_entries(Graph* g, uint32_t target):
    """Entries with zero gradients for the expressions of parameters: by expression, a storage and a number in it."""
    cdef Storage storage
    cdef Node* x = nodes_of(g)
    cdef Param* p
    cdef uint32_t i
    storages, made = {}, {}
    for i in range(target + 1):
        if state_of(g)[i] & SHARED:
            p = <Param*>x[i].object
            if p.device not in storages:
                storages[p.device] = Storage(p.device)
            storage = storages[p.device]
            made[i] = storage, storage.add(&x[i].dim, 0, "the gradient of an expression").number
    return made


# ==== expressions =================================================================================
#
# Expressions: the number of a node and the version of its graph, which is checked on each use.

cdef extern from "asked.h":
    # derived: functions of new_dim, asked_before, begin_call
    Dim* new_dim "dy_new_dim"()
    int asked_before "dy_asked_before"()
    void begin_call "dy_begin_call"(int asked)
    # end of functions


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


# Functions of NumPy, and the operators of expressions that replace them for operands of NumPy. An operand of a
# comparison that is not an expression comes second.
cdef dict _operators = {
    np.add: OPERATOR_ADD, np.subtract: OPERATOR_SUB, np.multiply: OPERATOR_MUL, np.true_divide: OPERATOR_DIV,
    np.power: OPERATOR_POW, np.matmul: OPERATOR_MATMUL,
}
cdef dict _comparisons = {
    np.less: (OPERATOR_LESS, OPERATOR_GREATER), np.less_equal: (OPERATOR_LESS_EQUAL, OPERATOR_GREATER_EQUAL),
    np.greater: (OPERATOR_GREATER, OPERATOR_LESS), np.greater_equal: (OPERATOR_GREATER_EQUAL, OPERATOR_LESS_EQUAL),
}


cdef object by_operator(ufunc, a, b):
    """What an operator of expressions gives instead of a function of NumPy; None: it has none."""
    if ufunc in _operators:
        return operate(<int>_operators[ufunc], a, b)
    if ufunc not in _comparisons:
        return None
    as_written, turned = _comparisons[ufunc]
    return operate(<int>as_written, a, b) if isinstance(a, Expression) else operate(<int>turned, b, a)


# How often NumPy has looked for `__array_ufunc__` in this thread since it called what it found. For `array * x` it
# looks twice, as the operator of arrays asks first whether `x` wants to take over; for `np.multiply(array, x)` once.
cdef extern from "frames.h":
    # derived: functions of bint at_operator
    bint at_operator "dy_at_operator"()
    # end of functions


cdef extern from *:
    "static _Thread_local int dy_lookups = 0;"
    int lookups "dy_lookups"


cdef class _UfuncRule:
    """`__array_ufunc__` of expressions: None, which leaves NumPy's operators to them; DyNet's rule in its programs.

    Outside of operators it is a function whose errors say what to write.
    """

    def __get__(self, instance, owner):
        global lookups
        if follows_dynet():
            return _on_objects
        if instance is not None or at_operator():
            return None
        lookups += 1
        return _of_numpy


def _of_numpy(x, ufunc, method, *inputs, **settings):
    """A function of NumPy that is called with expressions: an error that says what to write.

    An operator between an array and an expression that NumPy has been called for, as by `operator.add` or `sum`, comes
    here too: the expression does it.
    """
    global lookups
    cdef bint is_operator = lookups > 1 and method == "__call__" and len(inputs) == 2 and not settings
    lookups = 0
    if is_operator and isinstance(inputs[0], (np.ndarray, np.generic)):
        if ufunc is np.equal or ufunc is np.not_equal:
            return (inputs[1].__eq__(inputs[0]) is True) is (ufunc is np.equal)
        result = by_operator(ufunc, inputs[0], inputs[1])
        if result is not None:
            return result
    if settings.get("out") and inputs[0] is settings["out"][0]:
        raise TypeError(f"np.{ufunc.__name__}: the result is an expression and cannot replace the numbers of an "
                        "array; write `array = array + x` for `array += x`, and so on")
    raise no_such_function(ufunc.__name__)


cdef no_such_function(str name):
    instead = of_numpy(name) or "; write `x.npvalue()` for the numbers of an expression"
    return TypeError(f"np.{name}: there is no such function of expressions{instead}")


def _on_objects(x, ufunc, method, *inputs, **settings):
    """A function of NumPy that takes expressions as objects, as in DyNet: arrays of them element by element.

    Operators with arrays of numbers take an expression as a whole, as in any program.
    """
    if method == "__call__" and not settings and len(inputs) == 2 and any([is_numeric(a) for a in inputs]):
        result = by_operator(ufunc, inputs[0], inputs[1])
        if result is not None:
            return result
    inputs = [as_object(a) if isinstance(a, Expression) else a for a in inputs]
    return getattr(ufunc, method)(*inputs, **settings)


cdef bint is_numeric(x):
    return isinstance(x, (np.ndarray, np.generic)) and x.dtype != object


cdef object reduced(Expression x, str name, axis, keepdims, dict numpy):
    """A reduction, by a method or by NumPy's function of the same name, which passes further arguments."""
    for key, value in numpy.items():
        if key not in ("dtype", "out") or value is not None:
            wrong = of_arguments(functions[name], [key])
            raise TypeError(wrong.lstrip("_") or f"{name}: an expression has no argument {key}={value!r} there")
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

    def dim(self) -> tuple[tuple[int, ...], int]:
        """Shape and batch size: ``((d0, d1, ...), batch_size)``.

        Example:
            >>> dy.zeros((2, 3), batch_size=4).dim()
            ((2, 3), 4)
        """
        cdef const Dim* d = dim_of(self)
        return shape_of(d), d.bd

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one batch element, a tuple.

        Example:
            >>> dy.zeros((2, 3), batch_size=4).shape
            (2, 3)
        """
        return shape_of(dim_of(self))

    @property
    def batch_size(self) -> int:
        """Number of batch elements; 1 if there is no batch.

        Example:
            >>> dy.zeros((2, 3), batch_size=4).batch_size
            4
        """
        return dim_of(self).bd

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements: float32, or int32 for indices and what is computed of them.

        Example:
            >>> dy.zeros(3).dtype, dy.argmax(dy.zeros(3)).dtype
            (dtype('float32'), dtype('int32'))
        """
        if follows_dynet():                         # NumPy's mean of a list of expressions asks for it
            raise AttributeError("an Expression of DyNet has no attribute dtype")
        return np.dtype(np.int32 if dim_of(self).type == INTEGERS else np.float32)

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

    def npvalue(self, recalculate=False) -> npt.NDArray[Any]:
        """The value as a new float64 array, or int32 if it is integers; the batch, if any, is the last axis.

        Args:
            recalculate: as in `forward`; False by default.

        Example:
            >>> dy.inputTensor([[1, 2], [3, 4]]).npvalue()
            array([[1., 2.],
                   [3., 4.]])
        """
        cdef Look x
        _held = look(owned(self), recalculate, &x)
        return value_array(&x)

    def tensor_value(self, recalculate=False) -> Tensor:
        """The value as a Tensor, with argmax, topk and sampling; it stays valid when the graph is renewed.

        Args:
            recalculate: as in `forward`; False by default.

        Example:
            >>> scores = dy.inputVector([1, 5, 3]).tensor_value()
            >>> _ = dy.renew_cg()
            >>> scores.argmax().as_numpy()
            array([1])
        """
        return Tensor(self.npvalue(recalculate), len(self.dim()[0]))

    def value(self, recalculate=False) -> Any:
        """The value.  For a scalar or vector: a float (an int if it is integers) if there is one element, else a flat
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
        if x.dim.nd > 1:
            return value_array(&x)
        return one_of(&x) if total_of(x.dim) == 1 else list_of(&x)

    def vec_value(self, recalculate=False) -> list[Any]:
        """All elements as a flat list, column-major, the batch last.

        Args:
            recalculate: as in `forward`; False by default.

        Example:
            >>> dy.inputTensor([[1, 2], [3, 4]]).vec_value()
            [1.0, 3.0, 2.0, 4.0]
        """
        cdef Look x
        _held = look(owned(self), recalculate, &x)
        return list_of(&x)

    def scalar_value(self, recalculate=False) -> float:
        """The value as a float, or as an int if it is an integer.

        Args:
            recalculate: as in `forward`; False by default.

        Raises:
            ValueError: the expression has more than one element.

        Example:
            >>> dy.squared_norm(dy.inputVector([3, 4])).scalar_value()
            25.0
        """
        return one_value(self, "scalar_value", recalculate)

    def item(self) -> float:
        """The value of an expression of one element as a float: `scalar_value` by NumPy's name.

        Example:
            >>> dy.squared_norm(dy.inputVector([3, 4])).item()
            25.0
        """
        return one_value(self, "item", False)

    # ---- methods that arrays have too; modules of ops fill them in

    @property
    def T(self) -> Expression:
        """The axes in reverse order: the transpose of a matrix; a vector is unchanged.

        Example:
            >>> dy.inputTensor([[1, 2], [3, 4]]).T.npvalue()
            array([[1., 3.],
                   [2., 4.]])
        """
        return functions["T"](self)

    def reshape(self, *shape: int | tuple[int, ...] | list[int], order: Literal["F", "C"] = "F") -> Expression:
        """Change the shape; the elements keep their order, column by column. See `dynet_cy.reshape`.

        Args:
            shape: the sizes of the axes, one by one or as a tuple; one of them may be -1, which is then inferred.
            order: "F" (default) by columns, "C" by rows, as in NumPy and PyTorch.

        Raises:
            DimensionError: the new shape has more or fewer elements.
            ValueError: there is no such order.

        Example:
            >>> dy.zeros((4, 6)).reshape(-1, 3).shape
            (8, 3)
        """
        sizes = shape[0] if len(shape) == 1 else shape
        if order != "F" and follows_dynet():            # NumPy's function passes it, and reshapes an array otherwise
            raise TypeError("reshape: an expression has no argument order there")
        return functions["reshape"](self, sizes) if order == "F" else functions["reshape"](self, sizes, 1, order)

    def sum(self, axis: _Axis = None, keepdims=False, **numpy: None) -> Expression:
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

    def mean(self, axis: _Axis = None, keepdims=False, **numpy: None) -> Expression:
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

    def max(self, axis: _Axis = None, keepdims=False, **numpy: None) -> Expression:
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

    def min(self, axis: _Axis = None, keepdims=False, **numpy: None) -> Expression:
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
                no parameter, so that `gradient` returns them, even after an update (see
                there for limits of memory). This takes twice as long. Default: False.

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

    def gradient(self) -> npt.NDArray[np.float64]:
        """The gradient of the last `backward` with respect to this expression, as an array.

        It is zero if the loss does not depend on the expression.

        For a parameter, it is the gradient with respect to this one expression of it, in
        this graph and from the last backward only; the parameter's `grad_as_array` adds
        up the gradients of all its expressions, graphs and backward passes.

        All constants of one parameter in a graph (`const_parameter(p)`, `p.expr()`) are
        one expression, whose gradient is the sum over all their uses; see `const_parameter` for
        programs with ``import dynet``.

        After ``backward(full=True)``, gradients stay available until the next backward or
        renewal, even if the parameters change.  A plain ``backward()`` leaves out the
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

    def __len__(self) -> int:
        if consider is not None:
            consider("len(x)", self)
        cdef const Dim* d = dim_of(self)
        return d.d[0] if d.nd else 1

    def __repr__(self):
        cdef Looks x
        if describe(self, &x):
            name = op_at(x.op).name.decode()
            return f"<expression {self.index} {name} {describe_dim(&x.dim)}{made_by(x.origin)}>"
        return f"<expression {self.index} of a graph renewed since>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("expressions do not pickle; save parameters or values instead")

    def __iter__(self) -> Iterator[Expression]:
        if consider is not None:
            consider("for x", self)
        for i in range(len(self)):
            yield self[i]

    def __getitem__(self, index: _Index, /) -> Expression:
        if consider is not None:
            consider("x[i]", self)
        return functions["getitem"](self, index)

    def __add__(self, other: _Operand) -> Expression:
        return operate(OPERATOR_ADD, self, other)

    def __radd__(self, other: _Operand) -> Expression:
        return operate(OPERATOR_ADD, other, self)

    def __sub__(self, other: _Operand) -> Expression:
        return operate(OPERATOR_SUB, self, other)

    def __rsub__(self, other: _Operand) -> Expression:
        return operate(OPERATOR_SUB, other, self)

    def __mul__(self, other: _Operand) -> Expression:
        return operate(OPERATOR_MUL, self, other)

    def __rmul__(self, other: _Operand) -> Expression:
        return operate(OPERATOR_MUL, other, self)

    def __truediv__(self, other: _Operand) -> Expression:
        return operate(OPERATOR_DIV, self, other)

    def __rtruediv__(self, other: _Operand) -> Expression:
        return operate(OPERATOR_DIV, other, self)

    # stub: (self, other: _Operand, modulus: None = None, /) -> Expression
    def __pow__(self, other, modulus):
        if modulus is not None:
            return NotImplemented
        return operate(OPERATOR_POW, self, other)

    # stub: (self, other: _Operand, modulus: None = None, /) -> Expression
    def __rpow__(self, other, modulus):
        if modulus is not None:
            return NotImplemented
        return operate(OPERATOR_POW, other, self)

    def __neg__(self) -> Expression:
        return operators[OPERATOR_NEG](self, None)

    def __matmul__(self, other: Expression | npt.NDArray[Any]) -> Expression:
        return operate(OPERATOR_MATMUL, self, other)

    def __rmatmul__(self, other: Expression | npt.NDArray[Any]) -> Expression:
        return operate(OPERATOR_MATMUL, other, self)

    def __lt__(self, other: _Operand, /) -> Expression:  # type: ignore[misc]
        return operate(OPERATOR_LESS, self, other)

    def __le__(self, other: _Operand, /) -> Expression:  # type: ignore[misc]
        return operate(OPERATOR_LESS_EQUAL, self, other)

    def __gt__(self, other: _Operand, /) -> Expression:  # type: ignore[misc]
        return operate(OPERATOR_GREATER, self, other)

    def __ge__(self, other: _Operand, /) -> Expression:  # type: ignore[misc]
        return operate(OPERATOR_GREATER_EQUAL, self, other)

    def __and__(self, other: _Operand) -> Expression:
        return functions["and"](self, other)

    def __rand__(self, other: _Operand) -> Expression:
        return functions["and"](other, self)

    def __or__(self, other: _Operand) -> Expression:
        return functions["or"](self, other)

    def __ror__(self, other: _Operand) -> Expression:
        return functions["or"](other, self)

    def __invert__(self) -> Expression:
        return functions["not"](self)

    def __floordiv__(self, other: _Operand) -> Expression:
        return functions["//"](self, other)

    def __rfloordiv__(self, other: _Operand) -> Expression:
        return functions["//"](other, self)

    def __mod__(self, other: _Operand) -> Expression:
        return functions["%"](self, other)

    def __rmod__(self, other: _Operand) -> Expression:
        return functions["%"](other, self)

    def __abs__(self) -> Expression:
        return functions["abs"](self)

    def __bool__(self) -> bool:
        cdef Looks x
        cdef bint known = describe(self, &x)
        if known and x.valid and op_at(x.op).truth:
            return truth_of(self)
        if consider is not None:
            consider("if x", self)
        if not known or total_of(&x.dim) == 1:          # the truth of several numbers cannot be meant
            say_once("an Expression is always true, whatever its value; write `if e.value():` for the value, and "
                     "`if e is not None:` to ask whether there is one", TESTS)
        return True

    def __eq__(self, other: object, /) -> bool:
        if consider is not None and program_does(COMPARISONS):
            consider("==", self, other)
        if isinstance(other, Real):
            say_once("an Expression never equals a number; write `e.value() == x` to compare its value", COMPARISONS)
        return NotImplemented               # only equal to itself

    def __hash__(self) -> int:
        return <Py_hash_t>(<size_t><void*>self >> 4)

    def __float__(self) -> float:
        """The value, if it is one number."""
        return float(self.scalar_value())

    def __int__(self) -> int:
        """The value, if it is one number, without its fraction."""
        return int(self.scalar_value())

    def __format__(self, spec: str) -> str:
        """With a format, the value, which must be one number: ``f"{loss:.3f}"``; without one, `repr`."""
        return format(self.scalar_value(), spec) if spec else repr(self)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """The value, for numpy; in programs written for DyNet the expression itself, as an object."""
        if taking_numbers() or (follows_dynet() and (dtype is None or dtype == object)):
            return as_object(self)
        if copy is False:
            raise ValueError("the value of an expression can only be copied")
        array = self.npvalue()
        if consider is not None or ARRAY_OF_VALUES not in said:
            note_array(owned(self))
        return array if dtype is None else array.astype(dtype)

    def __dlpack__(
        self, *, stream: None = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None
    ) -> Any:
        """The value for other libraries: `np.from_dlpack(e)` and `torch.from_dlpack(e)` call this.

        float32 or int32, with the batch as the last axis. It is a copy, which the other library then owns: the graph
        reuses its own memory after `renew_cg`.

        Raises:
            BufferError: `copy` is False, or a device other than the CPU is requested.
        """
        if copy is False:
            raise BufferError("the value of an expression can only be copied: its graph reuses the memory")
        cdef Look x
        _held = look(owned(self), False, &x)
        array = array_of(x.v, full_shape(x.dim))
        if x.dim.type == INTEGERS:
            array = array.view(np.int32)
        return capsule_of(array, "the value of an expression", stream, max_version, dl_device)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The CPU, even if the value was computed elsewhere."""
        return (1, 0)

    # NumPy must leave `array * expression` to the expression, not loop over elements.
    __array_ufunc__ = _UfuncRule()  # type: None

    def __array_function__(
        self, function: Any, types: Iterable[type], args: Iterable[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        # NumPy would take the numbers, and their gradients would be lost without a word.
        if not follows_dynet() and of_numpy(function.__name__):
            raise no_such_function(function.__name__)
        if not all([issubclass(kind, (Expression, np.ndarray)) for kind in types]):
            return NotImplemented
        return function._implementation(*args, **kwargs)


# This is a destructor in place of a `__dealloc__`, which would take 4 ns more, as it could raise exceptions.
cdef destructor free_expression = (<PyTypeObject*>Expression).tp_dealloc
(<PyTypeObject*>Expression).tp_dealloc = drop_expression


cdef void drop_expression(PyObject* x) noexcept:
    """Count one expression less of its node, and free it."""
    cdef uint32_t slot = (<Expression>x).slot
    cdef Graph* g
    hold(table, slot)                       # any thread may drop the last reference
    g = graph_at(table, slot)
    # After a revert, or while the graph runs, its version is another one: then the node counts as referred to.
    if g != NULL and (<Expression>x).version == g.version and not g.forward_only:
        let_node_go(g, (<Expression>x).index)
    let_go(table, slot)
    free_expression(x)


cdef class ForwardExpression(Expression):
    """A node of a forward-only graph, which the graph keeps for as long as this object lives.

    There is at most one such object for each node, so that the graph can renumber its nodes.
    """

    def set(self, values: object) -> NoReturn:
        """Inputs of such a graph cannot be changed."""
        raise RuntimeError("set: a graph with forward_only=True does not keep the data for it")

    def set_index(self, index: object) -> NoReturn:
        """Indices of such a graph cannot be changed."""
        raise RuntimeError("set_index: a graph with forward_only=True does not keep the data for it")

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
    else:
        if follows_dynet():
            note_first_use(owner_of(g), &x.index, 1)
        if g.early:
            note_asked(g, x.index)
    return g


cdef int compact_if_due(Graph* g) except -1:
    """Renumber the needed nodes of a forward-only graph, if enough have been dropped."""
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
    cdef bint warns
    raise_in_item(graph, "backward", "let the items return their losses, and call backward once, on the sum")
    if g.forward_only:
        raise RuntimeError("backward: a graph with forward_only=True does not keep the data for it")
    warns = is_kept(g, index) and is_to_warn(graph)     # else the pass warns
    if not is_kept(g, index):                   # backward may drop what other values need before it begins
        run_pass(g, &index, 1)
    x = nodes_of(g) + index
    if size_of(&x.dim) != 1:
        raise ValueError(
            f"backward: the expression has shape {describe_dim(&x.dim)}, not one element"
            f"{made_at(g, index)}; reduce it first, for example with sum_elems")
    g.backward_from = -1
    graph.further_gradients = None
    further = None
    if full:
        further = keep_further_gradients(graph, index)
    if is_limited(g) or g.device or g.multi_device:
        go_backward_within(graph, index, full)
    else:
        engine().backward(g, index, full)
    if graph.kept is not None:
        hand_on_gradients(graph)
    if follows_dynet():
        note_looked_up(g, index)
    g.backward_from = index
    graph.further_gradients = further
    if warns:
        graph.warn_of_update("backward")
    return graph.note_values()


cdef int go_backward_within(ComputationGraph graph, uint32_t index, bint full) except -1:
    """Run backward within the limit of memory: if it is short, compute the values again, and keep fewer."""
    cdef Graph* g = &graph.g
    cdef Assumed before = g.assumed
    while True:
        try:
            return engine().backward(g, index, full)
        except MemoryError as error:
            # Gradients that were changed cannot be computed again, nor values of parameters that have changed.
            if (getattr(error, "partial", False) or not may_save(g) or graph.requests is not None
                    or graph.values_changed() or not save_more(g)):
                g.assumed = before
                raise
            release_values(g)
            trim_arenas(g)
            run_pass(g, &index, 1)


cdef object gradient_from_last(ComputationGraph graph, uint32_t index):
    cdef Graph* g = &graph.g
    if g.backward_from < 0 or index > <uint32_t>g.backward_from:
        raise RuntimeError("gradient: run backward on an expression made after this one first")
    cdef uint8_t state = state_of(g)[index]
    if state & SHARED or not state & NEEDS_GRAD or is_gone(g, index, state_of(g)):
        return further_gradient(graph, index)
    return gradient_of(g, index, state_of(g))


# ---- reading -------------------------------------------------------------------
#
# Without a GIL another thread may be adding nodes meanwhile, and lists of nodes move when they grow.  So what is read
# is copied while the slot is held; what takes longer claims the graph.

cdef struct Looks:                  # a node in words
    Dim dim
    uint16_t op
    uint32_t origin
    bint valid                      # the graph was not renewed, and does not run

cdef enum:
    COPIED
    LARGER                          # the buffer was too small
    STORED                          # it is that of a parameter
    ELSEWHERE                       # it has to be fetched from a device
    MISSING                         # it is not computed, or the graph has changed


cdef inline object look(Expression x, bint recalculate, Look* to):
    """Compute an expression if needed, and find its value, which holds as long as the result."""
    cdef Graph* g
    cdef Node* node
    if noting:
        note_read(x)
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
    cdef size_t capacity = 1
    cdef int found
    compute(x, recalculate)
    to.dim = &to.own
    while True:
        found = copy_value(x, v, capacity, to)
        if found == COPIED:
            to.v = v
            return held
        if found == STORED:
            to.v = parameter_here(<Param*>to.object, False)
            return x
        if found == LARGER:
            capacity = total_of(&to.own)
            held = bytearray(capacity * sizeof(float))
            v = <float*><char*>held
        elif found == ELSEWHERE:
            fetch(x)
        else:
            compute(x, False)


cdef int copy_value(Expression x, float* v, size_t capacity, Look* to) noexcept nogil:
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
        elif n > capacity:
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
    copied = new_dim()
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
    """The line that made an expression, for messages."""
    cdef Looks of
    return made_by(of.origin) if describe(owned(x), &of) else ""


# ---- operators ---------------------------------------------------------------

cdef OperatorHook operators[OPERATOR_COUNT]
cdef dict SYMBOLS = {
    OPERATOR_ADD: "+", OPERATOR_SUB: "-", OPERATOR_MUL: "*", OPERATOR_DIV: "/", OPERATOR_POW: "**",
    OPERATOR_MATMUL: "@", OPERATOR_LESS: "<", OPERATOR_LESS_EQUAL: "<=", OPERATOR_GREATER: ">",
    OPERATOR_GREATER_EQUAL: ">=",
}


cdef int set_operator(int which, OperatorHook hook) except -1:
    operators[which] = hook
    return 0


# Called with the name and operands of what other libraries may read otherwise, before it is done; None: not strict.
cdef object consider = None


def set_consideration(function: Callable[..., None] | None):
    """Have a function called with the name and the operands of each use that programs may mean otherwise, or None."""
    global consider
    consider = function


cdef inline object operate(int which, object a, object b):
    """An operator of a program."""
    if consider is not None:
        consider(SYMBOLS[which], a, b)
    return operators[which](a, b)


cdef object one_value(Expression e, str op, bint recalculate):
    """The value of an expression of one element."""
    cdef Look x
    _held = look(owned(e), recalculate, &x)
    if total_of(x.dim) != 1:
        raise ValueError(f"{op}: the expression has shape {describe_dim(x.dim)}, not one element{made(e)}")
    return one_of(&x)


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

    Such code asks one by one, so the question is whether the program has run on since the last request. The functions
    of NumPy that join arrays ask from Python, in a module of their own.
    """
    cdef Graph* g
    cdef bint joins = sys._getframe().f_globals.get("__name__", "").endswith(("shape_base", "shape_base_impl"))
    cdef int before = asked_before() if runs_handlers() else 0      # only this thread runs pending calls
    if joins or before == 1:
        g = x.graph()
        if is_to_be_trained(g, x.index):
            if consider is not None:
                consider("np.array", x)
            say_once(ARRAY_OF_VALUES, None)
    if runs_handlers():
        begin_call(before + 1)
    return 0


cdef bint is_to_be_trained(Graph* g, uint32_t index) except -1:
    """Whether a value depends on parameters and has not taken part in backward yet."""
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
        f"expression {x.index} is stale: its graph has been renewed (renew_cg) or closed since; make it "
        "again in the new graph, or keep its npvalue() instead")


# ==== values ======================================================================================
#
# Values of several expressions, computed together.

cdef list compute_all(object expressions, str op, bint recalculate):
    """Compute expressions of one graph together, so that they batch with each other."""
    cdef list xs = list(expressions)
    cdef uint32_t i, n = len(xs)
    cdef uint32_t* targets
    cdef ComputationGraph graph
    cdef Graph* g
    for i in range(n):
        if not isinstance(xs[i], Expression):
            raise TypeError(f"{op}: argument {i} must be an Expression, not {type(xs[i]).__name__}")
    if n == 0:
        return xs
    xs = [owned(x) for x in xs]
    targets = <uint32_t*>malloc(n * sizeof(uint32_t))
    if targets == NULL:
        raise MemoryError(f"{op}: {n} expressions")
    try:
        graph = claimed(xs[0])
    except BaseException:
        free(targets)
        raise
    g = &graph.g
    try:
        find(g, xs, targets, op)
        if recalculate:
            forget_values(g)
        while compute_nodes(g, targets, n, xs):
            find(g, xs, targets, op)
            if not any_uncomputed(g, targets, n):
                return xs
        compact_if_due(g)
    finally:
        release(table, g)
        free(targets)
    return xs


cdef int find(Graph* g, list xs, uint32_t* targets, str op) except -1:
    """The numbers that expressions have in their graph now."""
    cdef uint32_t i
    for i in range(<uint32_t>len(xs)):
        if (<Expression>xs[i]).graph() != g:
            raise StaleExpressionError(f"{op}: argument {i} is of another graph than argument 0")
        targets[i] = (<Expression>xs[i]).index
    return 0


def forward(exps: Iterable[Expression], recalculate=False):
    """Compute expressions of one graph together.

    Args:
        exps: a list of expressions.
        recalculate: compute all of the graph again (default: False).

    Example:
        >>> x, y = dy.inputVector([1, 2]), dy.inputVector([3, 4])
        >>> dy.forward([dy.sum_elems(x), dy.sum_elems(y)])
    """
    compute_all(exps, "forward", recalculate)


def npvalues(exps: Iterable[Expression], recalculate=False) -> list[npt.NDArray[Any]]:
    """The values of expressions of one graph, computed together, as arrays: see `npvalue`.

    Args:
        exps: the expressions, of one graph.
        recalculate: compute all nodes again, even those that have values (default: no).

    Raises:
        TypeError: one of them is not an expression.

    Example:
        >>> dy.npvalues([dy.inputVector([1, 2]), dy.inputVector([3])])
        [array([1., 2.]), array([3.])]
    """
    return [x.npvalue() for x in compute_all(exps, "npvalues", recalculate)]


def values(exps: Iterable[Expression], recalculate=False) -> list[Any]:
    """The values of expressions of one graph, computed together: see `value`.

    Args:
        exps: the expressions, of one graph.
        recalculate: compute all nodes again, even those that have values (default: no).

    Raises:
        TypeError: one of them is not an expression.

    Example:
        >>> dy.values([dy.sum_elems(dy.inputVector([1, 2])), dy.scalarInput(3)])
        [3.0, 3.0]
    """
    return [x.value() for x in compute_all(exps, "values", recalculate)]
