"""Forward and backward on a device."""

from libc.stdint cimport uint32_t

from dynet_cy.execute.accumulation cimport Journal
from dynet_cy.gpu.graphs cimport DeviceGraph
from dynet_cy.graph.structs cimport Graph


# ==== gradients ===================================================================================
#
# Backward on a device.

cdef int backward(Graph* g, uint32_t target, bint full) except -1

# While checks are on, a pass that fails must leave the gradients of parameters unchanged.  Copy them before the pass;
# after it, record that the pass has added to them, or restore them; False if that is not possible.
cdef int keep_gradients(const Graph* g, uint32_t target, Journal* journal) except -1
cdef void note_after(Journal* journal) noexcept nogil
cdef bint put_gradients_back(Journal* journal) except *


# ==== executor ====================================================================================
#
# Forward on a device.

# Where a graph was before a pass.
cdef struct PassStart:
    uint32_t n_batches
    size_t values
    size_t scratch
    size_t tables

cdef PassStart pass_start(const Graph* g) noexcept nogil
# After a pass that has failed: undo its batches, and what it has computed again; mark inputs as not sent.
cdef void undo(Graph* g, const PassStart* before) noexcept nogil
# Raise an error if a value of the batches from number `first` on is not finite.
cdef int check_values(Graph* g, const DeviceGraph* d, uint32_t first) except -1
# Release values that are no longer needed, now that the batches from number `before` on have run.
cdef void release(Graph* g, uint32_t before) noexcept nogil
# Whether batches may run without a launch of their own: numbers are not checked, and calls not timed.
cdef bint may_join(const Graph* g) noexcept nogil
