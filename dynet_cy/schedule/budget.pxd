"""Memory of passes under a limit: how much they may take, and how much their calls will take."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport total_of
from dynet_cy.graph.structs cimport Batch, Graph, nodes_of, order_of
from dynet_cy.memory.arena cimport ALIGN
from dynet_cy.schedule.facts cimport PlanFacts


cdef inline bint is_limited(const Graph* g) noexcept nogil:
    """Whether there is a limit for a graph, or for the process."""
    return g.memory.limit or g.memory.around.limit


cdef inline size_t bytes_of(const Graph* g, const Batch* batch) noexcept nogil:
    """The bytes of memory that the values of a batch take."""
    cdef size_t n = 0
    cdef uint32_t j
    for j in range(batch.count):
        n += total_of(&nodes_of(g)[order_of(g)[batch.first + j]].dim)
    return (n * sizeof(float) + ALIGN - 1) // ALIGN * ALIGN


# The bytes that a graph may still take; infinite if there is no limit, or if it drops nothing.  Arenas are mirrored on
# devices, so their bytes are those of the memory there too.
cdef double memory_left(const Graph* g) noexcept nogil
# Whether the values of a graph take more than what may still be allocated.
cdef bint is_crowded(const Graph* g) noexcept nogil
# The same before a plan; factors of weights' gradients have as many columns as gains time.
cdef enum:
    MOST_COLUMNS = 256

cdef double memory_to_plan(Graph* g) noexcept nogil
# What a plan may take of the bytes that are left, with a margin for what is not known of it; SIZE_MAX: there is no
# limit.
cdef size_t bytes_to_use(const Graph* g, double left) noexcept nogil
# By how many bytes the limit is too low for a plan that takes more than it may.
cdef size_t bytes_missing(const Graph* g, size_t bytes, size_t most) noexcept nogil

# Bytes of the copies of a call that backward makes again; fewer stay until the graph is renewed.
cdef enum:
    LEAST_AGAIN = 1 << 15

# About the bytes of working memory that the call of a planned batch keeps for its backward: what it saves, lists of
# arguments, and copies of them, if they are small. `copies` is set to the bytes that the other copies take while it
# runs.
cdef size_t bytes_of_call(const PlanFacts* facts, const Batch* batch, size_t* copies) noexcept nogil

# The factors of a weight's gradient are collected if it has LEAST_COLLECTED elements, since a smaller matrix stays in
# the first-level cache, and from products of fewer columns than ENOUGH_COLUMNS, since more gain nothing.
cdef enum:
    LEAST_COLLECTED = 1024
    ENOUGH_COLUMNS = 128

# The bytes that a pass over planned batches takes besides theirs: those of the factors of all products; on devices of
# tables.
cdef size_t bytes_of_pass(const PlanFacts* facts) noexcept nogil
# Where values will be dropped from a plan that may take `most` bytes: let factors that take some bytes have fewer
# columns, and so take a small share; returns what they take then.
cdef size_t limit_factors(Graph* g, size_t bytes, size_t most) noexcept nogil

# At a renewal: assume the same of all graphs.
cdef void assume_at_first(Graph* g) noexcept nogil
# After a shortage: let the next plans keep less; False if that is not possible.
cdef bint save_more(Graph* g) noexcept nogil
# Whether there was a shortage since the renewal.
cdef bint ran_short(const Graph* g) noexcept nogil
