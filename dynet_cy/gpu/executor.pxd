"""Forward and backward on a device."""

from libc.stdint cimport uint32_t

from dynet_cy.execute.accumulation cimport Journal
from dynet_cy.gpu.commands cimport Pass
from dynet_cy.gpu.graphs cimport DeviceGraph
from dynet_cy.graph.structs cimport Graph


# ==== gradients ===================================================================================
#
# Backward on a device.

cdef int backward(Graph* g, uint32_t target, bint full) except -1

# List the commands of backward over batches, the last one first.
cdef int walk_batches_back(Pass* s, uint32_t first, uint32_t last) noexcept nogil

# While checks are on, a pass that fails must leave the gradients of parameters unchanged.  Copy them before the pass;
# after it, record that the pass has added to them, or restore them.
cdef int keep_gradients(const Graph* g, uint32_t target, Journal* journal) except -1
cdef void note_after(Journal* journal) noexcept nogil
cdef int put_gradients_back(Journal* journal) except -1


# ==== executor ====================================================================================
#
# Forward on a device.

# Run the next planned batches in one pass.  `targets`: those of the plan, if these are all of its batches; then values
# may be dropped.  NULL: they are kept.  `seeks`: find the cells among them first.
cdef int run_planned(Graph* g, DeviceGraph* d, uint32_t n_batches, const uint32_t* targets, uint32_t n,
                     bint seeks) except -1
