# Used from Cython only.
"""Weight gradients that another thread computes while the backward pass goes on.

The gradients of values form a chain: each is needed for the one before.  The gradient of a weight is needed at the end
of the pass only.  So a thread of the pool computes these products, in the order in which the pass comes upon them.
That is the order without that thread too, so the results are the same to the last bit.  What is left at the end, all
threads compute together.
"""

from libc.string cimport memset

from dynet_cy.kernels.pool cimport (
    background_paused, claim_background, offer_background, pause_background, release_background, resume_background,
)
from dynet_cy.kernels.product cimport LEAST_ASLEEP, Product, cut_weight_gradient, in_parts, part_of_weight_gradient
from dynet_cy.memory.storage cimport pthread_mutex_t


cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_lock(pthread_mutex_t* m)
    int pthread_mutex_unlock(pthread_mutex_t* m)

cdef extern from *:
    Addition* load_addition "__atomic_load_n"(Addition* const* p, int order) nogil
    void store_addition "__atomic_store_n"(Addition** p, Addition* a, int order) nogil
    void store_done "__atomic_store_n"(uint8_t* p, uint8_t x, int order) nogil
    int RELEASE "__ATOMIC_RELEASE"


cdef bint begin_background(Background* b) noexcept nogil:
    memset(b, 0, sizeof(Background))
    b.made = b.last = &b.first
    b.first.done = True
    return claim_background(run, b)


cdef void add_in_background(Background* b, Addition* a, Param* p, const Factors* f, Addition* before) noexcept nogil:
    memset(a, 0, sizeof(Addition))
    a.p = p
    a.before = before
    cut_weight_gradient(f.rows, f.cols, f.n, f.left, f.right, p.grad, &a.product)
    store_addition(&b.last.next, a, RELEASE)
    b.last = a
    b.waking += f.rows * f.cols * f.n
    offer_background(b.waking >= LEAST_ASLEEP)
    if b.waking >= LEAST_ASLEEP:
        b.waking = 0


cdef void run(void* work) noexcept nogil:
    """Make additions, in another thread, until none is left or this is paused."""
    cdef Background* b = <Background*>work
    cdef Addition* a = load_addition(&b.made.next, ACQUIRE)
    while a != NULL and not background_paused():
        pthread_mutex_lock(&a.p.lock)
        while a.at < a.product.cut.parts and not background_paused():
            part_of_weight_gradient(&a.product, a.at)
            a.at += 1
        pthread_mutex_unlock(&a.p.lock)
        if a.at < a.product.cut.parts:
            return
        made(b, a)
        a = load_addition(&a.next, ACQUIRE)


cdef inline void made(Background* b, Addition* a) noexcept nogil:
    b.made = a
    store_done(&a.done, True, RELEASE)


cdef void run_left(void* job, size_t i) noexcept nogil:
    """Compute a part of an addition, the i-th of those that are left."""
    cdef const Addition* a = <const Addition*>job
    part_of_weight_gradient(&a.product, a.at + i)


cdef void finish_background(Background* b) noexcept nogil:
    cdef Addition* a
    cdef const Product* whole
    cdef size_t i, parts
    pause_background()
    a = b.made.next
    while a != NULL:
        parts = a.product.cut.parts - a.at
        whole = &a.product.product
        pthread_mutex_lock(&a.p.lock)
        if not in_parts(parts, whole.m * whole.n * whole.k // a.product.cut.parts * parts, run_left, a):
            for i in range(parts):
                run_left(a, i)
        pthread_mutex_unlock(&a.p.lock)
        made(b, a)
        a = a.next
    resume_background()


cdef void end_background(Background* b) noexcept nogil:
    finish_background(b)
    pause_background()
    release_background()
