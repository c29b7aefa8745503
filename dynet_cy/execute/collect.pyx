# Used from Cython only.
"""Gradients of parameters on the CPU, collected over a pass: matrix products are joined, other gradients summed.

The gradient of a weight matrix is a sum of products L R', one for each call of
the ops that use it.  A product with few columns is limited by memory traffic on
the matrix rather than by arithmetic, so the columns of many calls are laid side
by side and multiplied at once.

Each contribution to the gradient of a small parameter is small, compared to the
cost of locking the parameter and recording the change.  So the contributions of
one pass are summed separately, where no other thread sees them, and added once.
"""

from libc.string cimport memcpy

from dynet_cy.execute.anomaly cimport checking
from dynet_cy.execute.contributions cimport collected_of, multiply_one
from dynet_cy.kernels.kernels cimport K
from dynet_cy.kernels.product cimport weight_gradient
from dynet_cy.memory.arena cimport arena_alloc

# A product with this many columns gains nothing from more; smaller matrices
# stay in the first-level cache.
cdef enum:
    ENOUGH_COLUMNS = 128
    ROOM = 256
    LEAST_SIZE = 1024


cdef int collect(Walk* w, Param* p, const Factors* f) noexcept nogil:
    """Copy the factors, side by side; 0 if that gains nothing or there is no memory."""
    cdef Collected* c
    cdef Factors* x
    if f.n >= ENOUGH_COLUMNS or f.rows * f.cols < LEAST_SIZE:
        return 0
    c = collected_of(w, p)
    if c == NULL:
        c = <Collected*>arena_alloc(&w.g.grads, sizeof(Collected))
        if c == NULL:
            return 0
        c.product = f[0]
        c.product.n = 0
        c.product.left = <float*>arena_alloc(&w.g.grads, f.rows * ROOM * sizeof(float))
        c.product.right = <float*>arena_alloc(&w.g.grads, f.cols * ROOM * sizeof(float))
        if c.product.left == NULL or c.product.right == NULL:
            return 0
        c.p = p
        c.sums = NULL
        c.next = w.collected
        w.collected = c
    x = &c.product
    if x.n + f.n > ROOM:
        multiply_one(w, c)
    memcpy(<float*>x.left + x.rows * x.n, f.left, f.rows * f.n * sizeof(float))
    memcpy(<float*>x.right + x.cols * x.n, f.right, f.cols * f.n * sizeof(float))
    x.n += f.n
    return 1


cdef Collected* sums_of(Walk* w, Param* p) noexcept nogil:
    """The sums for the gradient of a small parameter; NULL for a large parameter, and if there is no memory."""
    cdef Collected* c = w.summed
    if c != NULL and c.p == p:                  # the common case: the same parameter as last time
        return c
    if p.size >= LEAST_SIZE or checking:        # checks must see each contribution at the node that made it
        return NULL
    c = collected_of(w, p)
    if c == NULL:
        c = <Collected*>arena_alloc(&w.g.grads, sizeof(Collected))
        if c == NULL:
            return NULL
        c.sums = <float*>arena_alloc(&w.g.grads, p.size * sizeof(float))
        if c.sums == NULL:
            return NULL
        c.product.n = 0
        c.p = p
        c.next = w.collected
        w.collected = c
    w.summed = c
    return c


cdef int multiply(Walk* w, Collected* c) noexcept nogil:
    cdef const Factors* x = &c.product
    if c.sums != NULL:
        K.add(c.p.size, c.sums, c.p.grad)
    else:
        weight_gradient(x.rows, x.cols, x.n, x.left, x.right, 1, c.p.grad)
    return 0
