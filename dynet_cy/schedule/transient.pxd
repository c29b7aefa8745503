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

# Find the transient batches among the next n, whose targets are kept: True if there are any.  `block` is set to the
# bytes that they take at a time.  A batch with more than `most_along` elements may have a call for each node.
cdef bint plan_transient(Graph* g, uint32_t n_batches, const uint32_t* targets, uint32_t n, size_t most_along,
                         size_t* block) noexcept nogil
# Give them memory.  False: there is none, and no batch is transient.
cdef bint open_transient(Graph* g, uint32_t n_batches, size_t block) noexcept nogil

# Whether backward reads argument i of a batch as a copy, in which concatenations come from their own arguments.
cdef bint reads_parts(const PlanFacts* facts, const Batch* batch, const Op* op, uint32_t i,
                      size_t most_along) noexcept nogil
# Whether a value is its arguments, one after the other.
cdef bint is_of_parts(const Graph* g, uint32_t node) noexcept nogil

# `plan_transient` in two steps, between which fewer batches may become transient: first find them, as bytes by batch,
# that are 0.  False: there are none, and `kept` is as it was.
cdef bint find_kept(Graph* g, uint32_t n_batches, const uint32_t* targets, uint32_t n, size_t most_along,
                    uint8_t* kept) noexcept nogil
cdef bint lay_out_transient(Graph* g, uint32_t n_batches, const uint8_t* kept, size_t* block) noexcept nogil
