"""Chooses stretches of a plan, whose values are dropped after they ran, and the values to keep."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Graph
from dynet_cy.schedule.transient cimport Places

# Plan the stretches of the next n batches, whose targets are kept, and places for what they drop.  False: nothing is
# dropped, or there is no memory for the plan.  Where memory needs it, the plan is divided: then `n_batches` is set to
# the new number of batches.  Values outside stretches may be transient, unless `most_along` is 0 (schedule/transient).
cdef bint plan_stretches(Graph* g, uint32_t* n_batches, const uint32_t* targets, uint32_t n, size_t most_along,
                         Places* places) noexcept nogil
# Find the stretches around a batch by their depth (MOST_DEPTH + 1); for one batch after the other.  Returns the
# innermost one, or NONE; `next_stretch` is the first that has not been found.
cdef uint32_t enter_stretches(const Graph* g, uint32_t b, uint32_t* next_stretch, uint32_t* around) noexcept nogil

# Whether there is memory for the next n batches and their backward, if those that have a level are dropped.
cdef bint fits(Graph* g, uint32_t n_batches, const uint32_t* targets, uint32_t n) noexcept nogil
