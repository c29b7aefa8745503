"""Cells of recurrent networks: gates, the parts of a cell, and steps that builders add to a graph."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call
from dynet_cy.graph.structs cimport Extra, Graph
from dynet_cy.ops.registry cimport Op


# ==== cells =======================================================================================
#
# The ops of an LSTM step.

cdef Op* PROJECTED
cdef Op* CELL
cdef Op* OUTPUT

# Gates on any device: add the products of the inputs to the sums; the gradient of an argument from that of the sums.
cdef void add_inputs(const Call* c) noexcept nogil
cdef void gates_backward(const Call* c, uint32_t i) noexcept nogil


# ==== gated =======================================================================================
#
# Affine maps with their activation, and the cells of GRUs and Tree-LSTMs, for recurrent networks.

cdef Op* GATED
cdef Op* GRU_H
cdef Op* TREE_C
cdef Op* TREE_H

# Attributes of GATED: the number of blocks of rows; how many of the first are logistic, and how many after those tanh.
cdef void set_gates(Extra* extra, uint32_t blocks, uint32_t first, uint32_t tanh) noexcept
cdef void set_logistic(Extra* extra) noexcept
# Attributes of TREE_C.
cdef void set_tree(Extra* extra, uint32_t children) noexcept


# ==== steps =======================================================================================
#
# Steps of recurrent networks, which builders add to a graph without calling Python.

cdef extern from "<stdint.h>":
    # Stands for a node that is missing: a zero state, or no mask.
    const uint32_t NOTHING "UINT32_MAX"

# Adds the nodes of one layer for one input, and replaces h and c by their new values.  Weights and masks are nodes; the
# masks drop parts of x, h and c, and NULL means no dropout.
ctypedef int (*Step)(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h,
                     uint32_t* c) except -1

cdef int simple_step(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h,
                     uint32_t* c) except -1
cdef int gru_step(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h,
                  uint32_t* c) except -1
cdef int gru_reset_after_step(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h,
                              uint32_t* c) except -1
cdef int lstm_step(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h,
                   uint32_t* c) except -1
cdef int coupled_step(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h,
                      uint32_t* c) except -1
cdef int fast_step(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h,
                   uint32_t* c) except -1
