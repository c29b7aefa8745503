"""CUDA graphs of passes that repeat: a single launch for a whole pass."""

from dynet_cy.gpu.driver cimport Gpu

# Between these two calls, launches, products and fills are listed; `run_listed` issues them.  If `begin_listing`
# returns False, they are issued at once.  `kept` points to the captured CUDA graphs of a computation graph, NULL at
# first.
cdef bint begin_listing(Gpu* gpu) noexcept nogil
cdef int run_listed(Gpu* gpu, void** kept) noexcept nogil

cdef void drop_replays(Gpu* gpu, void** kept) noexcept nogil
