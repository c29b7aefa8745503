"""Who is told when a gradient is complete: what sends gradients while the rest of backward runs."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.graph cimport Batch, Graph
from dynet_cy.memory.storage cimport Param


# Called in the thread that runs backward, without the GIL; NULL where nobody listens.
cdef struct Watcher:
    # A backward begins that adds to the gradients of these parameters.
    void (*begins)(Param* const* coming, uint32_t n) noexcept nogil
    # It adds nothing more to this one.
    void (*complete)(Param* p) noexcept nogil
    # One batch more is through: time to look after what is under way.
    void (*goes_on)() noexcept nogil

cdef Watcher* watcher() noexcept nogil

# A parameter that a backward adds to, and the last batch that does so.
cdef struct Use:
    Param* p
    uint32_t batch

cdef int list_uses(Graph* g, uint32_t target, Use** uses, uint32_t* n) noexcept nogil
