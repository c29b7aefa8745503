"""Passes over plans with transient values, and their computation if the program requests them later."""

from libc.stdint cimport uint32_t

from dynet_cy.execute.walk cimport Walk

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
