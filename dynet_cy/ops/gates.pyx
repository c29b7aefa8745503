"""Sums of products of activations, y = c + f(a) g(b) + ...: the op that such sums become in a plan (schedule/rewrite).

Its arguments are c, unless their number is even, and then a and b of each product, which has an attribute for f and g.
All have the same shape.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport Call, total_of
from dynet_cy.kernels.kernels cimport (
    DY_BINARY_add, DY_BINARY_mul, DY_UNARY_gelu, DY_UNARY_logistic, DY_UNARY_rectify, DY_UNARY_silu, DY_UNARY_tanh, K,
)
from dynet_cy.ops.registry cimport FLAT, Op, register, same_dim
from dynet_cy.ops.unary cimport UNARY
from dynet_cy.schedule.rewrite cimport MOST_PRODUCTS, add_rewrite, sums_of_activations

cdef enum:
    BLOCK = 256                                 # floats


cdef inline const float* activated(uint32_t f, size_t n, const float* x, float* room) noexcept nogil:
    if f == 0:
        return x
    K.unary_fwd[f - 1](n, x, 0, 0, room)
    return room


cdef inline uint32_t function_of(const Call* c, uint32_t i) noexcept nogil:
    """The activation of argument i: 0, or a number of unary.def plus one."""
    cdef uint32_t k = i - (c.n & 1)
    return c.attrs[k >> 1].u >> 8 * (k & 1) & 0xFF


cdef void gates_forward(const Call* c) noexcept nogil:
    cdef float[BLOCK] of_a
    cdef float[BLOCK] of_b
    cdef size_t total = total_of(&c.y.dim), at = 0, n
    cdef const float* a
    cdef const float* b
    cdef const float* sum
    cdef float* y
    cdef uint32_t i
    while at < total:
        n = min(<size_t>BLOCK, total - at)
        y = c.y.v + at
        sum = c.x[0].v + at if c.n & 1 else NULL
        for i in range(c.n & 1, c.n, 2):
            a = activated(function_of(c, i), n, c.x[i].v + at, of_a)
            b = activated(function_of(c, i + 1), n, c.x[i + 1].v + at, of_b)
            if sum == NULL:
                K.binary_fwd[<int>DY_BINARY_mul](n, a, 1, b, 1, y)
            else:
                K.binary_fwd[<int>DY_BINARY_mul](n, a, 1, b, 1, of_a)
                K.binary_fwd[<int>DY_BINARY_add](n, sum, 1, of_a, 1, y)
            sum = y
        at += n


cdef inline void through(uint32_t f, size_t n, const float* x, const float* fx, const float* dy, const float* other,
                         float* dx, bint add) noexcept nogil:
    """The gradient of x in f(x) * other."""
    cdef float[BLOCK] product
    if f == 0:
        K.binary_bwd_a[<int>DY_BINARY_mul](n, x, 1, other, 1, other, dy, dx, add)    # `mul` does not use its result
    else:
        K.binary_fwd[<int>DY_BINARY_mul](n, dy, 1, other, 1, product)
        K.unary_bwd[f - 1](n, x, fx, product, 0, 0, dx, add)


cdef void gates_backward_all(const Call* c, float* const* dx, const uint8_t* adds) noexcept nogil:
    cdef float[BLOCK] of_a
    cdef float[BLOCK] of_b
    cdef size_t total = total_of(&c.y.dim), at = 0, n
    cdef const float* a
    cdef const float* b
    cdef const float* dy
    cdef uint32_t i, f, g
    while at < total:
        n = min(<size_t>BLOCK, total - at)
        dy = c.dy.v + at
        if c.n & 1 and dx[0] != NULL:
            if adds[0]:
                K.add(n, dy, dx[0] + at)
            else:
                memcpy(dx[0] + at, dy, n * sizeof(float))
        for i in range(c.n & 1, c.n, 2):
            if dx[i] == NULL and dx[i + 1] == NULL:
                continue
            f, g = function_of(c, i), function_of(c, i + 1)
            a = activated(f, n, c.x[i].v + at, of_a)
            b = activated(g, n, c.x[i + 1].v + at, of_b)
            if dx[i] != NULL:
                through(f, n, c.x[i].v + at, a, dy, b, dx[i] + at, adds[i])
            if dx[i + 1] != NULL:
                through(g, n, c.x[i + 1].v + at, b, dy, a, dx[i + 1] + at, adds[i + 1])
        at += n


cdef size_t gates_prepared(const Call* c) noexcept nogil:
    return c.n * total_of(&c.y.dim)


cdef void gates_prepare(const Call* c) noexcept nogil:
    """The gradients of all arguments, one after the other in c.work."""
    cdef (float*)[2 * MOST_PRODUCTS + 1] dx
    cdef uint8_t[2 * MOST_PRODUCTS + 1] adds
    cdef uint32_t i
    memset(adds, 0, sizeof(adds))
    for i in range(c.n):
        dx[i] = c.work + i * total_of(&c.y.dim)
    gates_backward_all(c, dx, adds)


cdef void gates_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = total_of(&c.y.dim)
    if c.accumulate:
        K.add(n, c.work + i * n, c.dx.v)
    else:
        memcpy(c.dx.v, c.work + i * n, n * sizeof(float))


cdef Op* GATES = register(b"gates", b"xs...", same_dim, gates_forward, gates_backward)
GATES.batching = FLAT
GATES.assigns = True
GATES.prepare = gates_prepare
GATES.prepared = gates_prepared
GATES.backward_all = gates_backward_all
add_rewrite("gates", sums_of_activations, GATES)

# Activations that are quick to compute again.
cdef int which
for which in (DY_UNARY_gelu, DY_UNARY_logistic, DY_UNARY_rectify, DY_UNARY_silu, DY_UNARY_tanh):
    UNARY[which].activation = <uint8_t>(which + 1)
