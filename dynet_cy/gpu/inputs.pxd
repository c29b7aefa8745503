"""Launchers for rows of tables, which other families use too."""

from libc.stdint cimport uint32_t

from dynet_cy.gpu.driver cimport Gpu

cdef int CU                                     # the module of kernels

# y_b = factor table[items_b], rows of n numbers.
cdef int take_rows(Gpu* gpu, size_t rows, size_t n, float factor, const float* table, const uint32_t* items,
                   float* y) noexcept nogil
# table[items_b] += dy_b.
cdef int add_rows(Gpu* gpu, size_t rows, size_t n, const uint32_t* items, const float* dy, float* table) noexcept nogil
