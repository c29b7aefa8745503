"""Backward over batches of several passes as over those of one: see schedule/joining."""

from libc.stdint cimport uint32_t

from dynet_cy.execute.walk cimport Walk


# Gradients of the arguments of all batches up to the last, joined where that is planned.
cdef int run_backward_joined(Walk* w, uint32_t last) noexcept nogil
