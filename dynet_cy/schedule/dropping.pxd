"""Chooses stretches of a plan, whose values are dropped after they ran, and the values to keep."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Graph

# In Batch.last, of a batch in a stretch: nothing that runs again reads its values, so they are not computed
# for backward.
cdef enum:
    UNREAD_AGAIN = 0xFFFFFFFEu

# Plan the stretches of the next n batches, whose targets are kept; returns the first of depth 1, or NO_STRETCH.  If
# there is no memory for the plan, nothing is dropped.  Where memory needs it, the plan is divided: then `n_batches` is
# set to the new number of batches.  Values outside stretches may be transient, unless `most_along` is 0
# (schedule/transient); `transient` is set to whether some are.
cdef uint32_t plan_stretches(Graph* g, uint32_t* n_batches, const uint32_t* targets, uint32_t n, size_t most_along,
                             bint* transient) noexcept nogil

# Whether there is memory for the next n batches and their backward if their values take so many bytes that stay, and so
# many at a time that do not.
cdef bint fits(Graph* g, uint32_t n_batches, const uint32_t* targets, uint32_t n, size_t bytes,
               size_t at_a_time) noexcept nogil
