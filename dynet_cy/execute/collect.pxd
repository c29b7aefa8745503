"""Gradients of parameters that are products, collected and multiplied together on the CPU."""

from dynet_cy.execute.walk cimport Collected, Walk
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport Factors

cdef int collect(Walk* w, Param* p, const Factors* f) noexcept nogil
cdef int multiply(Walk* w, Collected* x) noexcept nogil
