"""Fleeting values of a plan: which batches have values that no backward reads and the program cannot ask for."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Graph

# Whether values are fleeting, and copies are given back, however little memory they take: for tests.
cdef bint small_too
# The least bytes of a batch whose memory backward uses for gradients.
cdef size_t least_spent

# Find the fleeting batches among the next n, which run on the CPU and whose targets are kept, and give them memory:
# True if there are any.  If there is no memory for that, none is fleeting.  A batch with more than `most_along`
# elements may have a call for each node.
cdef bint plan_fleeting(Graph* g, uint32_t n_batches, const uint32_t* targets, uint32_t n,
                        size_t most_along) noexcept nogil
