"""Passes for requested values, and values as floats, arrays and lists."""

import numpy as np

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from dynet_cy.core.interrupts cimport raised_here
from dynet_cy.core.tensor cimport Dim, total_of
from dynet_cy.graph.forgetting cimport forget
from dynet_cy.graph.graph cimport Requests, owner_of
from dynet_cy.graph.hooks cimport ENGINE_GPU, Siblings, PassHooks, sibling_hooks, engine, engine_of, pass_hooks
from dynet_cy.graph.structs cimport (
    COMPUTED, LIVE, NO_BATCH, NO_NODE, SENT, Absorbed, Batch, Graph, Node, batches_of, device_of, gradient_at, nodes_of,
    order_of, state_of,
)
from dynet_cy.graph.table cimport Table, graph_table, hold, let_go
from dynet_cy.memory.bridge cimport array_of, shape_of
from dynet_cy.memory.changes cimport see_whole
from dynet_cy.memory.mirror cimport mirrors
from dynet_cy.memory.storage cimport Param

cdef enum:
    FETCHED_TOGETHER = 1 << 16      # bytes; copying this many from a device takes about as long as requesting them

cdef Siblings* siblings = sibling_hooks()
cdef PassHooks* passes = pass_hooks()
cdef Table* table = graph_table()


cdef class SharedRequests(Requests):
    """Requests of items that share a graph."""

    cdef int let_read(self) except -1:
        raise NotImplementedError

    cdef int check_set(self, uint32_t node, str what) except -1:
        raise NotImplementedError


# ---- passes ------------------------------------------------------------------

cdef int forget_values(Graph* g) except -1:
    cdef SharedRequests requests = owner_of(g).requests
    if requests is not None:
        requests.let_read()
    return forget(g)


cdef int forget_to_set(Graph* g, uint32_t index, str what) except -1:
    cdef SharedRequests requests = owner_of(g).requests
    if requests is not None:
        requests.check_set(index, what)
    return forget_values(g)


cdef bint compute_node(Graph* g, uint32_t index, object wanted) except -1:
    """Compute a node; True if `wanted`, its expression, waited for other items of a batched map: see computing.pxd."""
    if requested(g, wanted):
        return True
    compute_siblings(g, index)
    return False


cdef bint compute_nodes(Graph* g, const uint32_t* targets, uint32_t n, object wanted) except -1:
    """The same for several nodes, some of which may be computed already; `wanted` is the list of expressions."""
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
    hold(table, g.slot)
    siblings.asked(g, index)
    let_go(table, g.slot)


cdef int compute_siblings(Graph* g, uint32_t index) except -1:
    """Compute a requested value, and similar ones that are likely to be requested next."""
    cdef const uint32_t* targets = &index
    cdef uint64_t raised
    cdef uint32_t n = 1
    if g.strategy and not g.immediate and siblings.ask != NULL:
        hold(table, g.slot)
        n = siblings.ask(g, &index, &targets)
        let_go(table, g.slot)
    if n == 1:
        return run_pass(g, targets, n)
    raised = raised_here()
    try:
        return run_pass(g, targets, n)
    except (MemoryError, ValueError):       # perhaps caused by a value that was not requested
        hold(table, g.slot)
        siblings.failed(g)
        let_go(table, g.slot)
        if raised_here() != raised:         # raised by a signal handler
            raise
    return run_pass(g, &index, 1)


cdef int run_pass(Graph* g, const uint32_t* targets, uint32_t n) except -1:
    cdef uint64_t begun
    cdef uint32_t ran = g.n_order
    if not passes.on:
        return engine_of(g).forward(g, targets, n, g.strategy)
    begun = passes.begin()
    engine_of(g).forward(g, targets, n, g.strategy)
    passes.end(g, n, g.n_order - ran, owner_of(g).requests is not None, begun)
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
        engine(ENGINE_GPU).fetch(g, device, v, n)
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
        return parameter_here(<Param*>x.object, False)
    if not is_elsewhere(g, x):
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
        if absorbed[i].part == index:
            gradient += of_term(g, &absorbed[i], states)
            absorbed = <const Absorbed*>g.absorbed.base     # a pass may have moved it
    return gradient


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
        return doubles_of(floats_here(g, index, gradient_at(g, x.val), total_of(&x.dim)), full_shape(&x.dim))
    return np.zeros(full_shape(&x.dim), order="F")    # the node may not even have a value


cdef object doubles_of(const float* v, tuple shape):
    """A new float64 array with the floats at v: programs expect NumPy's default precision in further arithmetic."""
    return array_of(v, shape).astype(np.float64)


cdef list list_of(const float* v, size_t n):
    cdef size_t i, end, at = 0
    found = []
    while at < n:                               # signal handlers run between blocks
        end = min(n, at + (1 << 20))
        found += [v[i] for i in range(at, end)]
        if end < n:
            PyErr_CheckSignals()
        at = end
    return found
