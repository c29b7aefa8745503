"""Backward over the batches of several forward passes, with similar batches joined: see schedule/joining."""

from libc.stdint cimport uint32_t

from dynet_cy.execute.walk cimport Walk


# Run all batches up to number `last` backward, joined as planned by schedule/joining.
cdef int run_backward_joined(Walk* w, uint32_t last) noexcept nogil
