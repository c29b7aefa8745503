"""Affine maps with their activation, and the cells of GRUs and Tree-LSTMs, for recurrent networks."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Extra
from dynet_cy.ops.registry cimport Op

cdef Op* GATED
cdef Op* GRU_H
cdef Op* TREE_C
cdef Op* TREE_H

# Attributes of GATED: the number of blocks of rows; how many of the first are logistic, and how many after those tanh.
cdef void set_gates(Extra* extra, uint32_t blocks, uint32_t first, uint32_t tanh) noexcept
cdef void set_logistic(Extra* extra) noexcept
cdef void set_tanh(Extra* extra) noexcept
# Attributes of TREE_C.
cdef void set_tree(Extra* extra, uint32_t children) noexcept
