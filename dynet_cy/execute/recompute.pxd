"""Passes over plans with stretches: values are dropped after a stretch, and computed again in backward."""

from libc.stdint cimport uint32_t

from dynet_cy.execute.walk cimport Walk
from dynet_cy.graph.structs cimport Batch, Graph
from dynet_cy.schedule.budget cimport is_limited


cdef inline bint may_drop(const Graph* g) noexcept nogil:
    """Whether passes over a graph need the functions below, instead of those of `walk` and `gradients`."""
    return g.regions.top or g.stretches.top or is_limited(g)


# Before stretches are planned: how large the rooms must be for those of earlier passes, by depth (MOST_DEPTH).
cdef void note_rooms(Graph* g, size_t* needed) noexcept nogil
# Make room for the stretches of the next n batches, from the first one of depth 1 on, which may be NO_STRETCH.
cdef int open_stretches(Walk* w, uint32_t first, uint32_t n_batches) noexcept nogil
# Run planned batches up to the end of some; `number` is the first stretch among them.  `stays`: the last stretch is not
# dropped.
cdef int run_to(Walk* w, uint32_t end, uint32_t number, bint stays) noexcept nogil
# A pass has ended, as `run_to` says; `needed` is what `note_rooms` has noted.
cdef void close_stretches(Graph* g, int ended, const size_t* needed) noexcept nogil
# Before backward over the batches up to the last one, whose stretches need rooms, and the parameters that they read.
cdef int prepare_backward(Walk* w, uint32_t last) noexcept nogil
# Compute the gradients of the arguments of batches, the last one first, as `run_backward` does.
cdef int run_backward_in_stretches(Walk* w, uint32_t last) noexcept nogil

# Note how often the storages of parameters that a batch reads have changed, and fail if one has changed since then.
cdef int note_reads_of(Walk* w, const Batch* batch) noexcept nogil
cdef int check_batch(Walk* w, const Batch* batch) noexcept nogil
# Count nodes that were computed again.
cdef void count_again(uint32_t nodes) noexcept nogil
# Drop the values of a stretch at which backward has failed.
cdef void drop_failed(Graph* g) noexcept nogil
