"""What executors of other devices share with that of the CPU."""

from libc.stdint cimport uint8_t, uint32_t

from dynet_cy.core.tensor cimport Call, Tensor
from dynet_cy.graph.graph cimport SHARED, Batch, Graph
from dynet_cy.ops.registry cimport SHARE, Op, rule_of

# Calls with more arguments than this keep their tensors in the scratch arena.
cdef enum:
    FEW = 8

# What went wrong in a nogil function, for the error raised after it.
cdef struct Failure:
    size_t needed
    bint in_gradients
    uint32_t not_finite             # number of the node + 1


cdef inline bint is_shared(const uint8_t* state, const Op* op, uint32_t i, uint32_t arg) noexcept nogil:
    return state[arg] & SHARED or rule_of(op, i) == SHARE


cdef void* take(Graph* g, size_t n, Failure* failure) noexcept nogil
cdef int set_call(Graph* g, Batch* batch, Tensor* few, Call* c, Failure* failure) noexcept nogil
cdef void set_one(Graph* g, const Batch* batch, uint32_t j, Batch* one) noexcept nogil
cdef void mark_gradients(Graph* g, uint32_t target, bint full) noexcept nogil
cdef uint32_t first_not_finite(const Batch* batch, const uint32_t* ids, Graph* g) noexcept nogil
cdef int raise_not_finite(Graph* g, uint32_t number) except -1
