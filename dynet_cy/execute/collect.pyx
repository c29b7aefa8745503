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
from dynet_cy.execute.background cimport Addition, is_made
from dynet_cy.execute.contributions cimport add_later, collected_of, multiply_one
from dynet_cy.kernels.kernels cimport K
from dynet_cy.kernels.product cimport weight_gradient
from dynet_cy.memory.arena cimport arena_alloc, arena_offset, segment_of

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
    if f.rows * f.cols < LEAST_SIZE:
        return 0
    if f.n >= ENOUGH_COLUMNS:
        return w.background != NULL and lasts(w, f.left) and lasts(w, f.right) and multiply_later(w, p, f)
    c = products_of(w, p, f)
    if c == NULL or not room_for_factors(w, c):
        return 0
    x = &c.product
    if x.n + f.n > ROOM:
        multiply_one(w, c)
        if not room_for_factors(w, c):
            return 0
    memcpy(<float*>x.left + x.rows * x.n, f.left, f.rows * f.n * sizeof(float))
    memcpy(<float*>x.right + x.cols * x.n, f.right, f.cols * f.n * sizeof(float))
    x.n += f.n
    return 1


cdef Collected* products_of(Walk* w, Param* p, const Factors* f) noexcept nogil:
    """What is collected for a weight matrix; NULL if there is no memory."""
    cdef Collected* c = collected_of(w, p)
    if c == NULL:
        c = <Collected*>arena_alloc(&w.g.grads, sizeof(Collected))
        if c == NULL:
            return NULL
        c.product = f[0]
        c.product.n = 0
        c.product.left = NULL
        c.p = p
        c.sums = NULL
        c.added = NULL
        c.next = w.collected
        w.collected = c
    return c


cdef bint room_for_factors(Walk* w, Collected* c) noexcept nogil:
    """Give a product memory for its factors, if it has none: that of an earlier one that has been added, or new."""
    cdef Factors* x = &c.product
    cdef Addition* a = c.added
    if x.left != NULL:
        return True
    while a != NULL and (a.left == NULL or not is_made(a)):
        a = a.before
    if a != NULL:
        x.left = a.left
        x.right = a.right
        a.left = NULL
        return True
    x.right = <float*>arena_alloc(&w.g.grads, x.cols * ROOM * sizeof(float))
    if x.right != NULL:
        x.left = <float*>arena_alloc(&w.g.grads, x.rows * ROOM * sizeof(float))
    return x.left != NULL


cdef inline bint lasts(const Walk* w, const float* v) noexcept nogil:
    """Whether numbers stay what they are as long as the pass: all do but those in working memory of a batch."""
    return segment_of(&w.g.scratch, v) == NULL or arena_offset(&w.g.scratch, v) < w.lasting


cdef bint multiply_later(Walk* w, Param* p, const Factors* f) noexcept nogil:
    """Let another thread multiply factors where they are; False: this one has to do it."""
    cdef Collected* c = products_of(w, p, f)
    return c != NULL and add_later(w, c, f)


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
        c.added = NULL
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
