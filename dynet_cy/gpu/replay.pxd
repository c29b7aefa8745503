"""CUDA graphs of passes that repeat: one launch for all that a pass consists of."""

from dynet_cy.gpu.driver cimport Gpu

# Between the two, launches, products and fills are listed; the second one makes them.  False: they are made at once.
# `kept` is where a graph keeps what it may replay, NULL at first.
cdef bint begin_listing(Gpu* gpu) noexcept nogil
cdef int run_listed(Gpu* gpu, void** kept) noexcept nogil

cdef void drop_replays(Gpu* gpu, void** kept) noexcept nogil
