"""Launchers of kernels that read indices from the graph, for other families."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, Tensor
from dynet_cy.gpu.driver cimport Gpu


cdef int CU_POSITIONS                   # the module of kernels

cdef enum:
    NO_ROW = 0xFFFFFFFF                 # NO_ROW of the kernels of tables

# items = the indices of an argument, which must be from 0 to length - 1, for each batch element of the call; `none` in
# place of others.
cdef int find_positions(Gpu* gpu, const Call* c, const Tensor* indices, size_t length, uint32_t none,
                        uint32_t* items) noexcept nogil
