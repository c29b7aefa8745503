"""Steps of recurrent networks, which builders add to a graph without calling Python."""

from dynet_cy.graph.making cimport add_node
from dynet_cy.graph.structs cimport Extra
from dynet_cy.kernels.kernels cimport DY_BINARY_add, DY_BINARY_mul, DY_BINARY_sub, DY_UNARY_tanh
from dynet_cy.ops.arithmetic cimport BINARY
from dynet_cy.ops.cells cimport CELL, OUTPUT, PROJECTED
from dynet_cy.ops.gated cimport GATED, GRU_H, set_logistic, set_tanh
from dynet_cy.ops.linalg cimport AFFINE
from dynet_cy.ops.registry cimport Op
from dynet_cy.ops.unary cimport UNARY

# Indices of the masks.
cdef enum:
    OF_X
    OF_H
    OF_C


cdef Extra logistic_gate, tanh_gate
set_logistic(&logistic_gate)
set_tanh(&tanh_gate)


cdef inline uint32_t combined(Graph* g, int which, uint32_t a, uint32_t b) except? 0xFFFFFFFF:
    """An elementwise function of two nodes."""
    cdef uint32_t[2] args
    args[0], args[1] = a, b
    return add_node(g, BINARY[which], args, 2, NULL)


cdef inline uint32_t masked(Graph* g, uint32_t x, const uint32_t* masks, int which) except? 0xFFFFFFFF:
    """x times its mask, if both are there."""
    if x == NOTHING or masks == NULL or masks[which] == NOTHING:
        return x
    return combined(g, <int>DY_BINARY_mul, x, masks[which])


cdef inline uint32_t projected(Graph* g, uint32_t b, uint32_t W, uint32_t x) except? 0xFFFFFFFF:
    """W x + b for an input x.

    This does not depend on earlier steps: batched, it is one product for all steps.
    """
    cdef uint32_t[3] args
    args[0], args[1], args[2] = b, W, x
    return add_node(g, AFFINE, args, 3, NULL)


cdef inline uint32_t peeping_gate(Graph* g, const Op* op, Extra* activation, uint32_t b, uint32_t W, uint32_t h,
                                  uint32_t V, uint32_t c) except? 0xFFFFFFFF:
    """The activation of b + W h + V c; h or c may be missing."""
    cdef uint32_t[5] args
    cdef uint32_t n = 1
    args[0] = b
    if h != NOTHING:
        args[n], args[n + 1] = W, h
        n += 2
    if c != NOTHING:
        args[n], args[n + 1] = V, c
        n += 2
    return add_node(g, op, args, n, activation)


cdef inline uint32_t gate(Graph* g, const Op* op, Extra* activation, uint32_t b, uint32_t W,
                          uint32_t h) except? 0xFFFFFFFF:
    return peeping_gate(g, op, activation, b, W, h, NOTHING, NOTHING)


cdef int simple_step(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h,
                     uint32_t* c) except -1:
    """The nodes of Elman's network for one input.  Weights: Wx, Wh, b."""
    cdef uint32_t sums = projected(g, weights[2], weights[0], masked(g, x, masks, OF_X))
    h[0] = gate(g, GATED, &tanh_gate, sums, weights[1], masked(g, h[0], masks, OF_H))
    return 0


cdef int gru_step(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h,
                  uint32_t* c) except -1:
    """The nodes of a GRU for one input.  Weights: Wx, Wh, b of z, then of r, then of g."""
    cdef uint32_t[3] args
    cdef uint32_t z = projected(g, weights[2], weights[0], x)
    cdef uint32_t new = projected(g, weights[8], weights[6], x)
    cdef uint32_t r, left = NOTHING
    if h[0] != NOTHING:
        r = gate(g, GATED, &logistic_gate, projected(g, weights[5], weights[3], x), weights[4], h[0])
        left = combined(g, <int>DY_BINARY_mul, r, h[0])
    args[0] = h[0]
    args[1] = gate(g, GATED, &logistic_gate, z, weights[1], h[0])
    args[2] = gate(g, GATED, &tanh_gate, new, weights[7], left)
    if h[0] == NOTHING:
        h[0] = combined(g, <int>DY_BINARY_mul, args[1], args[2])
    else:
        h[0] = add_node(g, GRU_H, args, 3, NULL)
    return 0


cdef int lstm_step(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h,
                   uint32_t* c) except -1:
    """The nodes of an LSTM for one input.  Weights: Wx, Wh, b."""
    cdef uint32_t[2] args
    cdef uint32_t sums = projected(g, weights[2], weights[0], masked(g, x, masks, OF_X))
    args[0] = c[0]
    args[1] = gate(g, PROJECTED, NULL, sums, weights[1], masked(g, h[0], masks, OF_H))
    c[0] = args[0] = add_node(g, CELL, args, 2, NULL)
    h[0] = add_node(g, OUTPUT, args, 2, NULL)
    return 0


cdef int coupled_step(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h,
                      uint32_t* c) except -1:
    """The nodes of an LSTM with peepholes and coupled gates.  Weights: Wx, Wh, Wc, b of i and of o; Wx, Wh, b of g."""
    return coupled(g, weights, masks, x, h, c, True)


cdef int fast_step(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h,
                   uint32_t* c) except -1:
    """The same without peepholes, whose weights are not used."""
    return coupled(g, weights, masks, x, h, c, False)


cdef int coupled(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h, uint32_t* c,
                 bint peepholes) except -1:
    cdef uint32_t i, new, o, before = masked(g, h[0], masks, OF_H)
    x = masked(g, x, masks, OF_X)
    i = peeping_gate(g, GATED, &logistic_gate, projected(g, weights[3], weights[0], x), weights[1], before,
                     weights[2], masked(g, c[0], masks, OF_C) if peepholes else NOTHING)
    new = gate(g, GATED, &tanh_gate, projected(g, weights[10], weights[8], x), weights[9], before)
    if c[0] == NOTHING:
        c[0] = combined(g, <int>DY_BINARY_mul, i, new)
    else:
        new = combined(g, <int>DY_BINARY_sub, new, c[0])
        c[0] = combined(g, <int>DY_BINARY_add, c[0], combined(g, <int>DY_BINARY_mul, i, new))
    o = peeping_gate(g, GATED, &logistic_gate, projected(g, weights[7], weights[4], x), weights[5], before,
                     weights[6], masked(g, c[0], masks, OF_C) if peepholes else NOTHING)
    h[0] = combined(g, <int>DY_BINARY_mul, o, add_node(g, UNARY[<int>DY_UNARY_tanh], c, 1, NULL))
    return 0
