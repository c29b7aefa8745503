"""Passes over plans with dropped values, which are computed again for backward, and if the program requests them."""

from libc.stdint cimport uint32_t

from dynet_cy.execute.walk cimport Walk
from dynet_cy.graph.structs cimport Graph
from dynet_cy.schedule.budget cimport is_limited


cdef inline bint may_drop(const Graph* g) noexcept nogil:
    """Whether values may be dropped that backward reads."""
    return g.regions.top or g.stretches.top or is_limited(g)


# Whether a pass over a plan drops values: then it runs as a whole.
cdef bint drops_values(const Walk* w) noexcept nogil
# Compute the next n planned batches, and drop what is dropped: -1 after a failure, 1 if time was up.
cdef int run_plan(Walk* w, uint32_t n_batches, const uint32_t* targets, uint32_t n) noexcept nogil
# Before nodes are planned, in a graph for which `may_drop`: compute values again that were dropped and are needed.
cdef int bring_back(Walk* w, const uint32_t* targets, uint32_t n) noexcept nogil
# Compute values again that were dropped and are among the targets, or that nodes need which the targets need.
cdef int rematerialize_needed(Walk* w, const uint32_t* targets, uint32_t n) noexcept nogil
# Before a backward pass: compute donated values again on which the target depends; choose whether it donates values.
cdef int open_donation(Walk* w, uint32_t target, bint full) noexcept nogil
# Before backward over the batches up to the last one: fail if parameters have changed that stretches will read again.
cdef int prepare_backward(Walk* w, uint32_t last) noexcept nogil
# Compute the gradients of the arguments of batches, the last one first, as `run_backward` does.
cdef int run_backward_in_stretches(Walk* w, uint32_t last) noexcept nogil
