"""Finds transient values of a plan: no backward reads them, and the program cannot request them."""

from libc.stdint cimport uint8_t, uint32_t

from dynet_cy.core.threads cimport Number
from dynet_cy.graph.structs cimport Batch, Graph
from dynet_cy.ops.registry cimport Op
from dynet_cy.schedule.facts cimport PlanFacts

# Whether values are transient, and copies are given back, however little memory they take: for tests.
cdef Number small_too
# The least bytes of a batch whose memory backward uses for gradients.
cdef Number least_donated

# Where dropped values of a plan lie (include/dynet_cy/dropping.h).
cdef struct Places:
    size_t block                    # bytes of the block
    size_t stays                    # bytes of the part of it for what stays after the pass
    size_t least                    # the least that is to follow where that begins
    size_t at                       # and where that is

# Find the transient batches among the next n, whose targets are kept: True if there are any.  A batch with more than
# `most_along` elements may have a call for each node.
cdef bint plan_transient(Graph* g, uint32_t n_batches, const uint32_t* targets, uint32_t n, size_t most_along,
                         Places* places) noexcept nogil
# Give the dropped batches among the next n memory: 0, or the bytes that could not be allocated.
cdef size_t open_places(Graph* g, uint32_t n_batches, const Places* places) noexcept nogil
# Undo the plan of what the next n batches drop.
cdef void keep_all(Graph* g, uint32_t n_batches) noexcept nogil

# Whether backward reads argument i of a batch as a copy, in which concatenations come from their own arguments.
cdef bint reads_parts(const PlanFacts* facts, const Batch* batch, const Op* op, uint32_t i,
                      size_t most_along) noexcept nogil
# Whether a value is its arguments, one after the other.
cdef bint is_of_parts(const Graph* g, uint32_t node) noexcept nogil

# `plan_transient` in two steps, between which fewer batches may become transient: first find them, as bytes by batch,
# that are 0.  False: there are none, and `kept` is as it was.
cdef bint find_kept(Graph* g, uint32_t n_batches, const uint32_t* targets, uint32_t n, size_t most_along,
                    uint8_t* kept) noexcept nogil
# Then find a place for each: those that have no level yet are transient.  False: there is no memory.
cdef bint lay_out_dropped(Graph* g, uint32_t n_batches, const uint8_t* kept, Places* places) noexcept nogil
