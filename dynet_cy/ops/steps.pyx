"""Steps of recurrent networks, node by node, for builders to make without Python in between."""

from dynet_cy.graph.making cimport add_node
from dynet_cy.graph.structs cimport Extra
from dynet_cy.kernels.kernels cimport DY_BINARY_mul
from dynet_cy.ops.arithmetic cimport BINARY
from dynet_cy.ops.cells cimport CELL, OUTPUT, PROJECTED
from dynet_cy.ops.gated cimport GATED, GRU_H, set_logistic, set_tanh
from dynet_cy.ops.linalg cimport AFFINE
from dynet_cy.ops.registry cimport Op


cdef Extra logistic_gate, tanh_gate
set_logistic(&logistic_gate)
set_tanh(&tanh_gate)


cdef uint32_t sum_node(Graph* g, const Op* op, uint32_t b, uint32_t W, uint32_t x, Extra* extra) except? 0xFFFFFFFF:
    cdef uint32_t[3] args
    args[0], args[1], args[2] = b, W, x
    return add_node(g, op, args, 3, extra)


cdef int lstm_step(Graph* g, const uint32_t* weights, uint32_t x, uint32_t* h, uint32_t* c) except -1:
    """The nodes of an LSTM for one input.  Weights: Wx, Wh, b."""
    cdef uint32_t[2] args
    # The products with the inputs need no step before: batched, they are one product for all steps.
    cdef uint32_t projected = sum_node(g, AFFINE, weights[2], weights[0], x, NULL)
    args[0] = c[0]
    args[1] = sum_node(g, PROJECTED, projected, weights[1], h[0], NULL)
    c[0] = args[0] = add_node(g, CELL, args, 2, NULL)
    h[0] = add_node(g, OUTPUT, args, 2, NULL)
    return 0


cdef int simple_step(Graph* g, const uint32_t* weights, uint32_t x, uint32_t* h, uint32_t* c) except -1:
    """The nodes of Elman's network for one input.  Weights: Wx, Wh, b."""
    cdef uint32_t projected = sum_node(g, AFFINE, weights[2], weights[0], x, NULL)
    h[0] = sum_node(g, GATED, projected, weights[1], h[0], &tanh_gate)
    return 0


cdef int gru_step(Graph* g, const uint32_t* weights, uint32_t x, uint32_t* h, uint32_t* c) except -1:
    """The nodes of a GRU for one input.  Weights: Wx, Wh, b of z, then of r, then of g."""
    cdef uint32_t[3] args
    cdef uint32_t z = sum_node(g, AFFINE, weights[2], weights[0], x, NULL)
    cdef uint32_t r = sum_node(g, AFFINE, weights[5], weights[3], x, NULL)
    cdef uint32_t new = sum_node(g, AFFINE, weights[8], weights[6], x, NULL)
    args[0] = h[0]
    args[1] = sum_node(g, GATED, r, weights[4], h[0], &logistic_gate)
    r = add_node(g, BINARY[<int>DY_BINARY_mul], args, 2, NULL)
    args[1] = sum_node(g, GATED, z, weights[1], h[0], &logistic_gate)
    args[2] = sum_node(g, GATED, new, weights[7], r, &tanh_gate)
    h[0] = add_node(g, GRU_H, args, 3, NULL)
    return 0
