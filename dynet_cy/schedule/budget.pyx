"""Memory of passes under a limit: how much they may take, and estimates of how much they will take.

The plan of a pass says how many bytes its values have, and how many their gradients will take at a time, but not how
many saved values and gathered arguments will take. Values are assumed to take a multiple of their bytes with these, and
gradients another multiple of theirs, since some stay longer as factors of weights' gradients. If a pass runs out of
memory all the same, that of values grows, in backward that of gradients, and the pass is planned and run again, with
fewer values that are kept (schedule/dropping). Each graph begins with the same multiples: what a graph adds up, and in
which order, does not depend on what the process has done before.
"""

from libc.math cimport INFINITY
from libc.stdint cimport uint32_t

from dynet_cy.core.engine cimport add_tunable
from dynet_cy.core.threads cimport RELAXED, Number, atomic_load
from dynet_cy.graph.structs cimport GRAPH_ARENAS, SHARED, Assumed, end_of_room, nodes_of, state_of
from dynet_cy.memory.arena cimport Arena, Memory
from dynet_cy.memory.storage cimport Param

# The multiples at first.
cdef Number percent_of_values = 150
cdef double of_gradients = 1.25
add_tunable("schedule.budget.percent_of_values", &percent_of_values)

cdef double GROWTH = 1.25
cdef double MOST = 40
cdef double SPARE = 0.97            # the share of the memory that plans count on
# Packed parameters give way where memory is short, and then sums round differently.  So memory is left for them, unless
# they would take more than this share of it.
cdef double SHARE_PACKED = 0.5

cdef enum:
    LEAST_PACKED = 8192             # elements of matrices that products pack
    LEAST_COLLECTED = 1024          # elements of matrices whose factors are collected
    LEAST_COLUMNS = 32              # of factors: fewer gain little
    SHARE_COLLECTED = 2             # of what is left: factors of all matrices take no more


cdef size_t unused_bytes(const Arena* a, size_t top) noexcept nogil:
    """Bytes of an arena that count against the limit, above the offset `top`."""
    cdef size_t n = 0
    cdef uint32_t i
    for i in range(a.n):
        n += a.segments[i].charged
        if i <= a.now and top > a.segments[i].begin:
            n -= min(a.segments[i].charged, top - a.segments[i].begin)
    return n


cdef double left_of(const Memory* of) noexcept nogil:
    """Bytes that may still be allocated within one limit; infinite if there is none."""
    cdef size_t limit = atomic_load(&of.limit, RELAXED)
    return <double>limit - atomic_load(&of.used, RELAXED) if limit else INFINITY


cdef bint is_crowded(const Graph* g) noexcept nogil:
    return min(left_of(&g.memory), left_of(g.memory.around)) < g.values.top


cdef double memory_left(const Graph* g) noexcept nogil:
    cdef double unused = 0, of_process, of_graph
    cdef size_t packed
    cdef int i
    if not is_limited(g) or g.forward_only or g.immediate:
        return INFINITY
    for i in range(GRAPH_ARENAS):
        if &g.arenas[i] != &g.grads:
            unused += unused_bytes(&g.arenas[i], g.arenas[i].top)
    unused += unused_bytes(&g.grads, end_of_room(g) if g.room.bytes else 0)     # the next pass begins there
    of_process = SPARE * (left_of(g.memory.around) + unused)
    packed = 0 if g.device else bytes_to_pack(g)
    if packed <= SHARE_PACKED * of_process:
        of_process -= packed
    of_graph = SPARE * (left_of(&g.memory) + unused)
    return max(min(of_graph, of_process), 0)        # packed ones do not count for the graph's limit


cdef double memory_to_plan(Graph* g) noexcept nogil:
    cdef double left = memory_left(g) + g.room.bytes    # what stays of earlier passes goes if memory is short
    cdef size_t of_column
    cdef uint32_t columns = MOST_COLUMNS
    if left != INFINITY and not g.device:
        of_column = bytes_of_column(g)
        while columns > LEAST_COLUMNS and columns * of_column * SHARE_COLLECTED > left:
            columns //= 2
    g.assumed.columns = columns
    return left


cdef size_t bytes_of_column(const Graph* g) noexcept nogil:
    """The bytes of one column of the factors of all weights' gradients."""
    cdef const Param* p
    cdef size_t n = 0
    cdef uint32_t i
    for i in range(g.n_nodes):
        if state_of(g)[i] & SHARED:
            p = <const Param*>nodes_of(g)[i].object
            if p.size >= LEAST_COLLECTED and p.dim.nd == 2 and p.updated:
                n += (p.dim.d[0] + p.dim.d[1]) * sizeof(float)
    return n


cdef size_t most_values(const Graph* g, double left, size_t bytes, size_t gradients) noexcept nogil:
    cdef double most = (left - gradients * g.assumed.gradients) / g.assumed.values
    if most >= bytes:
        return 0
    return <size_t>most if most > 1 else 1


cdef size_t bytes_missing(const Graph* g, size_t bytes, size_t most) noexcept nogil:
    return <size_t>((bytes - most) * g.assumed.values)


cdef size_t bytes_to_pack(const Graph* g) noexcept nogil:
    """The most bytes that products of a graph may take for packed parameters.

    Of parameters that products have read before, those are packed that need it.  Others are not expected to be.
    """
    cdef const Param* p
    cdef size_t n = 0
    cdef uint32_t i
    for i in range(g.n_nodes):
        if state_of(g)[i] & SHARED:
            p = <const Param*>nodes_of(g)[i].object
            if p.size >= LEAST_PACKED and not p.device and not p.pack.of[0].asked and not p.pack.of[1].asked:
                n += 2 * p.size * sizeof(float)
    return n


cdef void assume_at_first(Graph* g) noexcept nogil:
    g.assumed = Assumed(percent_of_values / 100.0, of_gradients, MOST_COLUMNS, ENOUGH, False)


cdef bint save_more(Graph* g, bint backward) noexcept nogil:
    """Keep less by the next plans, then as little as they can, then divide them, then into more and more parts."""
    cdef int kept = g.assumed.kept
    cdef double* multiple = &g.assumed.gradients if backward else &g.assumed.values
    g.assumed.kept = ENOUGH                     # the next pass may fail before it is planned
    if kept == LEAST_UNDIVIDED and not g.assumed.divides:
        g.assumed.divides = True
        return True
    if kept == LEAST or multiple[0] > MOST:
        return False
    multiple[0] *= GROWTH
    return True
