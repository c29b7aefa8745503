"""Gradients of parameters on the CPU, collected over a pass: matrix products are joined, other gradients summed."""

from dynet_cy.execute.walk cimport Collected, Walk
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport Factors

cdef int collect(Walk* w, Param* p, const Factors* f) noexcept nogil
cdef Collected* sums_of(Walk* w, Param* p) noexcept nogil
cdef int multiply(Walk* w, Collected* x) noexcept nogil
