"""Sums with their activation, and the output of a GRU, for steps of recurrent networks."""

from dynet_cy.graph.structs cimport Extra
from dynet_cy.ops.registry cimport Op

cdef Op* GATED
cdef Op* GRU_H

cdef void set_logistic(Extra* extra) noexcept
cdef void set_tanh(Extra* extra) noexcept
