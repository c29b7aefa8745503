"""Memory of passes under a limit: how much they may take, and estimates of how much they will take."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport total_of
from dynet_cy.graph.structs cimport Batch, Graph, nodes_of, order_of
from dynet_cy.memory.arena cimport ALIGN


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
# The bytes that a plan may use: those less what it leaves for the factors of weights' gradients, of as many columns as
# there is memory for.
cdef enum:
    MOST_COLUMNS = 256

cdef double memory_to_plan(Graph* g) noexcept nogil
# The bytes of values that the next pass may keep if `left` bytes are left, so that backward fits too, whose gradients
# take so many bytes at a time; 0: all of `bytes`, those of its plan.
cdef size_t most_values(const Graph* g, double left, size_t bytes, size_t gradients) noexcept nogil
# How many bytes more the graph would have to take to keep values of `bytes`, not of the `most` that it may keep.
cdef size_t bytes_missing(const Graph* g, size_t bytes, size_t most) noexcept nogil

# In `assumed.kept`: what the last plan keeps.
cdef enum:
    ENOUGH                          # as much as fits, as far as is assumed
    LEAST_UNDIVIDED                 # as little as it can without dividing it, which is more than is assumed to fit
    LEAST                           # as little as it can

# At a renewal: assume the same of all graphs.
cdef void assume_at_first(Graph* g) noexcept nogil
# After a shortage, forward or backward: let the next plans keep less; False if that is not possible.
cdef bint save_more(Graph* g, bint backward) noexcept nogil
