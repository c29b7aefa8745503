"""Passes over plans with fleeting values, and the computation of such values that are asked for later."""

from libc.stdint cimport uint32_t

from dynet_cy.execute.walk cimport Walk

# Compute the next n planned batches, as `run_planned_at_once` does; values that are fleeting are dropped in the end.
cdef int run_planned_with_fleeting(Walk* w, uint32_t n_batches, const uint32_t* targets, uint32_t n) noexcept nogil
# Compute values again that were dropped and are among the targets, or that nodes need which the targets need.
cdef int revive_needed(Walk* w, const uint32_t* targets, uint32_t n) noexcept nogil
