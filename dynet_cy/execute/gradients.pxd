"""Backward over the batches that have run, for all devices; with the structs of `walk`."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.core.tensor cimport Call, Tensor, size_of, total_of
from dynet_cy.execute.accumulation cimport Addition
from dynet_cy.execute.walk cimport Collected, Walk
from dynet_cy.graph.structs cimport Batch, Node
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport Factors, Op

# Mark the nodes up to target that need a gradient, allocate the gradients, and set that of the target to one.
cdef int open_backward(Walk* w, uint32_t target, bint full) noexcept nogil
cdef int begin_at(Walk* w, uint32_t target) noexcept nogil
# Run batches backward, the last one first; or all batches up to the last one, joined as schedule/joining plans.
cdef int run_backward(Walk* w, uint32_t first, uint32_t last) noexcept nogil
cdef int run_backward_joined(Walk* w, uint32_t last) noexcept nogil

# The functions of forms, backward: one call, or a call for each node; and those that only the CPU has.
cdef int backward_call(Walk* w, Batch* batch, uint32_t n) noexcept nogil
cdef int backward_each(Walk* w, Batch* batch, uint32_t n) noexcept nogil
cdef int backward_pieces(Walk* w, Batch* batch, uint32_t n) noexcept nogil
cdef int backward_views(Walk* w, Batch* batch, uint32_t n) noexcept nogil

# Add n numbers, times scale, to the gradient of a node, if it needs one.
cdef int contribute(Walk* w, uint32_t node, const float* source, size_t n, float scale) noexcept nogil
# The collected contributions to a parameter; NULL: none so far.
cdef Collected* collected_of(Walk* w, const Param* p) noexcept nogil
# Note in this memory that contributions to a parameter are collected, of which there are none so far; NULL: no memory.
cdef Collected* add_collected(Walk* w, Param* p, void* memory) noexcept nogil
# Add the collected contributions to the gradient of a parameter, or of all parameters.
cdef int multiply_one(Walk* w, Collected* x) noexcept nogil
cdef int multiply_collected(Walk* w) noexcept nogil

# The functions of the CPU's Device for contributions to parameters.
cdef int collect(Walk* w, Param* p, const Factors* f) noexcept nogil
cdef Collected* sums_of(Walk* w, Param* p) noexcept nogil
cdef int multiply(Walk* w, Collected* c) noexcept nogil
