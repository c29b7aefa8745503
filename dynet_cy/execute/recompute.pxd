"""Passes over plans with stretches: values are dropped after a stretch, and computed again in backward."""

from libc.stdint cimport uint32_t

from dynet_cy.execute.walk cimport Walk
from dynet_cy.graph.structs cimport Batch, Graph
from dynet_cy.schedule.budget cimport is_limited


cdef inline bint may_drop(const Graph* g) noexcept nogil:
    """Whether passes over a graph need the functions below, instead of those of `walk` and `gradients`."""
    return g.regions.top or g.stretches.top or is_limited(g)


# Compute the next n planned batches, as `run_planned_at_once` does; values outside stretches may be transient, unless
# `most_along` is 0.
cdef int run_planned_in_stretches(Walk* w, uint32_t n_batches, const uint32_t* targets, uint32_t n,
                                  size_t most_along) noexcept nogil
# Note how often the storages of parameters have changed that the next n batches read, as far as these may run again.
cdef int note_transient_reads(Walk* w, uint32_t n_batches) noexcept nogil
# After forward over batches from the first on: drop what is transient, whose memory is above `top`.
cdef void end_transient(Graph* g, uint32_t first, size_t top) noexcept nogil
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
