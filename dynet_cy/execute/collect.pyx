# Used from Cython only.
"""Gradients of parameters that are products, collected and multiplied together.

The gradient of a weight matrix is a sum of products L R', one for each call of
the ops that use it.  A product with few columns costs its traffic on the matrix
rather than its arithmetic, so the columns of many calls are laid side by side
and multiplied at once.
"""

from libc.string cimport memcpy

from dynet_cy.execute.journal cimport Journal, Waiting, note_before
from dynet_cy.graph.structs cimport Graph
from dynet_cy.kernels.product cimport gemm
from dynet_cy.memory.arena cimport arena_alloc
from dynet_cy.memory.storage cimport Param, note_gradient, pthread_mutex_t
from dynet_cy.ops.registry cimport Factors


cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_lock(pthread_mutex_t* m)
    int pthread_mutex_unlock(pthread_mutex_t* m)

# A product with this many columns gains nothing from more; smaller matrices
# stay in the first-level cache.
cdef enum:
    ENOUGH_COLUMNS = 128
    ROOM = 256
    LEAST_SIZE = 1024


cdef bint collect(Graph* g, Journal* journal, Param* p, const Factors* f) noexcept nogil:
    """Keep the factors for later; False where that is no gain or there is no room."""
    cdef Waiting* w = journal.waiting
    cdef Factors* x
    if f.n == 0 or f.n >= ENOUGH_COLUMNS or f.rows * f.cols < LEAST_SIZE:
        return False
    while w != NULL and w.p != p:
        w = w.next
    if w == NULL:
        w = <Waiting*>arena_alloc(&g.grads, sizeof(Waiting))
        if w == NULL:
            return False
        w.product = f[0]
        w.product.n = 0
        w.product.left = <float*>arena_alloc(&g.grads, f.rows * ROOM * sizeof(float))
        w.product.right = <float*>arena_alloc(&g.grads, f.cols * ROOM * sizeof(float))
        if w.product.left == NULL or w.product.right == NULL:
            return False
        w.p = p
        w.next = journal.waiting
        journal.waiting = w
    x = &w.product
    if x.n + f.n > ROOM:
        add_collected(w, journal)
    memcpy(<float*>x.left + x.rows * x.n, f.left, f.rows * f.n * sizeof(float))
    memcpy(<float*>x.right + x.cols * x.n, f.right, f.cols * f.n * sizeof(float))
    x.n += f.n
    return True


cdef void add_collected_of(Journal* journal, Param* p) noexcept nogil:
    """Add what waits for one parameter."""
    cdef Waiting* w = journal.waiting
    while w != NULL:
        if w.p == p:
            add_collected(w, journal)
        w = w.next


cdef void add_collected(Waiting* w, Journal* journal) noexcept nogil:
    """Add what waits to the gradient."""
    cdef Factors* x = &w.product
    if x.n:
        pthread_mutex_lock(&w.p.lock)
        note_before(journal, w.p)
        gemm(0, 1, x.rows, x.cols, x.n, 1, x.left, x.rows, x.right, x.cols, 1, w.p.grad, x.rows)
        note_gradient(w.p)
        pthread_mutex_unlock(&w.p.lock)
    x.n = 0
