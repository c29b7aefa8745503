"""Forgetting nodes and values of a graph, and renumbering the remaining nodes."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport malloc

from dynet_cy.core.tensor cimport total_of
from dynet_cy.graph.hooks cimport sibling_hooks
from dynet_cy.graph.structs cimport (
    COMPUTED, DROPPED, NO_BATCH, REVERT_BITS, SENT, Absorbed, Batch, Graph, Node, Use, batches_of, drop_unneeded,
    holder_in, nodes_of, origin_of, state_of, uses_of,
)
from dynet_cy.graph.table cimport lock_graph, unlock_graph
from dynet_cy.memory.arena cimport arena_offset, arena_rewind, array_rewind


cdef int forget(Graph* g) except -1:
    """Drop all computed values, so that inputs may change."""
    cdef uint32_t i
    cdef uint8_t* state = state_of(g)
    cdef Node* nodes = nodes_of(g)
    cdef size_t end, inputs_end = 0
    if g.forward_only:
        raise RuntimeError("recalculate: the graph was renewed with forward_only=True, which drops what that needs")
    lock_graph(g)
    if g.siblings != NULL:
        sibling_hooks().cut(g, 0, False)
    for i in range(g.n_nodes):
        if nodes[i].batch != NO_BATCH:
            state[i] &= <uint8_t>~(COMPUTED | SENT)
            nodes[i].batch = NO_BATCH
            nodes[i].val = NULL
        elif nodes[i].val != NULL:
            state[i] &= <uint8_t>~SENT                  # its value may change
            end = arena_offset(&g.values, nodes[i].val)
            inputs_end = max(inputs_end, end + total_of(&nodes[i].dim) * sizeof(float))
    # The memory of values computed after the last input is free again, so that a graph can be run with new inputs
    # any number of times.
    arena_rewind(&g.values, inputs_end)
    arena_rewind(&g.scratch, 0)
    arena_rewind(&g.tables, 0)
    g.n_batches = 0
    g.n_order = 0
    g.n_passes = 0
    array_rewind(&g.batches, 0)
    array_rewind(&g.order, 0)
    g.backward_from = -1
    g.n_forgets += 1
    unlock_graph(g)
    return 0


cdef void forget_since(Graph* g, uint32_t n_batches, uint32_t n_order, size_t values_top,
                       size_t scratch_top, size_t tables_top) noexcept:
    """Drop the values that were computed after this many batches."""
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


cdef void take_back(Graph* g, size_t nodes_top, size_t args_top, size_t items_top) noexcept:
    """Free the memory of nodes beyond the last one."""
    g.nodes.top = nodes_top
    g.args.top = args_top
    g.items.top = items_top
    g.state.top = g.n_nodes
    g.uses.top = g.n_nodes * sizeof(Use) if g.forward_only else 0
    g.devices.top = g.n_nodes if g.multi_device else 0
    g.origins.top = min(g.origins.top, g.n_nodes * sizeof(uint32_t))
    if not g.forward_only:
        forget_absorbed(g)


cdef void forget_absorbed(Graph* g) noexcept:
    """Forget the records of absorbed nodes that involve nodes beyond the last one."""
    cdef const Absorbed* all = <const Absorbed*>g.absorbed.base
    cdef Absorbed* to = <Absorbed*>g.absorbed.base
    cdef size_t i, n = g.absorbed.top // sizeof(Absorbed)
    for i in range(n):
        if all[i].part < g.n_nodes and all[i].sum < g.n_nodes:
            to[0] = all[i]
            to += 1
    g.absorbed.top = <char*>to - g.absorbed.base


cdef uint32_t* compact_nodes(Graph* g, Renumber renumber) noexcept:
    """Renumber the needed nodes of a forward-only graph without gaps, so that it can run forever.

    Returns the new number of each node, or 0xFFFFFFFF for a dropped one, in memory that the caller frees; NULL if
    nothing was done.
    """
    cdef Node* nodes = nodes_of(g)
    cdef Batch* batches = batches_of(g)
    cdef Use* uses = uses_of(g)
    cdef uint8_t* state = state_of(g)
    cdef uint32_t* args = <uint32_t*>g.args.base
    cdef uint32_t* items = <uint32_t*>g.items.base
    cdef uint32_t* numbers
    cdef uint32_t i, k, b, n_live = 0, n_args = 0, n_items = 0, n, own
    cdef Node* x
    for k in range(g.n_nodes):
        i = g.n_nodes - 1 - k               # what needs a node has a greater number
        drop_unneeded(g, i)                 # its expression was deleted while the graph ran
        n_live += not state[i] & DROPPED
    k = 0
    g.compact_at = max(LEAST_TO_COMPACT, 2 * n_live)
    if g.n_nodes < g.compact_at or more_epochs(g) == 0:
        return NULL
    numbers = <uint32_t*>malloc(g.n_nodes * sizeof(uint32_t))
    if numbers == NULL:
        return NULL                         # it may succeed next time
    next_epoch(g)
    for b in range(g.n_batches):
        batches[b].first = k                # reused for the batch's new number: `first` is not needed again
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
        if state[i] & COMPUTED:             # its arguments may have been dropped
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
        if holder_in(&uses[k]) != NULL:
            renumber(holder_in(&uses[k]), k, g.version)
        numbers[i] = k
        k += 1
    if g.siblings != NULL:
        sibling_hooks().renumber(g, numbers)
    g.n_nodes = k
    take_back(g, k * sizeof(Node), n_args * sizeof(uint32_t), n_items * sizeof(uint32_t))
    return numbers


cdef uint64_t more_epochs(const Graph* g) noexcept:
    """How many more times expressions can be made stale before the graph must be renewed."""
    return ~g.version & ((<uint64_t>1 << REVERT_BITS) - 1)


cdef void next_epoch(Graph* g) noexcept:
    """Force a check of each expression of the graph at its next use."""
    g.version += 1
    g.renewal = g.version
