"""Sums with their activation, and what GRUs and Tree-LSTMs make of them, for steps of recurrent networks."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Extra
from dynet_cy.ops.registry cimport Op

cdef Op* GATED
cdef Op* GRU_H
cdef Op* TREE_C
cdef Op* TREE_H

# Attributes of GATED: how many blocks of rows there are, how many of the first are logistic, how many then tanh.
cdef void set_gates(Extra* extra, uint32_t blocks, uint32_t first, uint32_t tanh) noexcept
cdef void set_logistic(Extra* extra) noexcept
cdef void set_tanh(Extra* extra) noexcept
# Attributes of TREE_C.
cdef void set_tree(Extra* extra, uint32_t children) noexcept
