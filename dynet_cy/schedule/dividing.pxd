"""Divides a plan into independent parts, for less memory."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Batch, Graph

# A plan as it was made, to be divided.
cdef struct Undivided:
    uint32_t n_batches
    uint32_t n_nodes
    uint32_t* order
    Batch* batches
    uint32_t first, end             # the batches that are divided; those before and after them are not

# Copy the plan of the next n batches into the scratch arena, to divide all of it.  False: there is no memory.
cdef bint keep_undivided(Graph* g, uint32_t n_batches, Undivided* kept) noexcept nogil
# Divide it into at most so many parts, in place of the plan of the next batches; returns the number of batches, which
# is that of the undivided plan if it has no parts, or there is no memory.
cdef uint32_t divide(Graph* g, const Undivided* kept, uint32_t parts) noexcept nogil
# Have large batches run in slices, each right before the first batch that reads it, in place of the plan of the next
# batches; returns the number of batches.  A slice is read while other batches compute about `least` bytes, and never
# has fewer nodes than products need to be quick.  If no batch has several slices, or there is no memory, the plan
# stays.
cdef uint32_t slice_large(Graph* g, uint32_t n_batches, size_t least) noexcept nogil
