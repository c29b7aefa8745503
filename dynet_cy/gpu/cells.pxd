"""The output of an LSTM cell, o tanh(c), where o is block number `block` of the gates."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call
from dynet_cy.gpu.driver cimport Gpu

cdef int CELLS               # the module of its kernels

cdef int output_of(Gpu* gpu, const Call* c, size_t block) noexcept nogil
cdef int output_of_backward(Gpu* gpu, const Call* c, uint32_t i, size_t block) noexcept nogil
