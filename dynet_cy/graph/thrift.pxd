"""How much memory passes may take while there is a limit on memory, and how much they have been found to take."""

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
# The bytes that a plan may use: those less what it leaves for the factors of weights' gradients.
cdef double memory_to_plan(const Graph* g) noexcept nogil
# How many columns the factors of a weight matrix's gradient have that are collected before they are multiplied: as
# many as there is memory for by the last plan of this thread.
cdef enum:
    MOST_COLUMNS = 256

cdef uint32_t columns_collected() noexcept nogil
# The bytes of values that the next pass may keep if `left` bytes are left, so that backward fits too, whose gradients
# take so many bytes at a time; 0: all of `bytes`, those of its plan.
cdef size_t most_values(double left, size_t bytes, size_t gradients) noexcept nogil
# How many bytes more the graph would have to take to keep values of `bytes`, not of the `most` that it may keep.
cdef size_t bytes_missing(size_t bytes, size_t most) noexcept nogil
# After backward: note how much the graph has taken.
cdef void note_taken(const Graph* g) noexcept nogil
# What the last plan of this thread keeps.
cdef enum:
    ENOUGH                          # as much as fits, as far as is known
    LEAST_UNDIVIDED                 # as little as it can without dividing it, which is more than is assumed to fit
    LEAST                           # as little as it can

cdef void note_kept(int kept) noexcept nogil
# Whether plans that are assumed not to fit are divided: since a pass has run out of memory without.
cdef bint divides() noexcept nogil

# What is assumed of passes: `assume_again` forgets what has been found since then.
cdef struct Assumed:
    double values                   # bytes that a pass takes for each byte of its values
    double gradients                # and for each byte of the gradients that there are at a time
    bint divides

cdef Assumed assumed_now() noexcept nogil
cdef void assume_again(Assumed before) noexcept nogil
# After a shortage, forward or backward: let the next plans keep less; False if that is not possible.
cdef bint save_more(bint backward) noexcept nogil
