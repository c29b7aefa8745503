"""Gradients of arguments without a batch, to which every batch element adds a term: see terms.h."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, element, size_of


cdef extern from "dynet_cy/terms.h" nogil:
    ctypedef struct Terms "dy_terms":
        float* dx
    size_t dy_terms_work(size_t n, size_t terms)
    void dy_terms_begin(Terms* t, size_t n, size_t terms, float* work, float* dx, int acc)
    float* dy_terms_next(Terms* t, int* add)
    void end_terms "dy_terms_end"(Terms* t)


cdef inline size_t terms_work(const Call* c, int i) noexcept nogil:
    """Floats of working memory that the gradient of argument i needs."""
    return dy_terms_work(size_of(&c.x[i].dim), c.y.dim.bd) if c.x[i].dim.bd == 1 else 0


cdef inline void begin_terms(Terms* t, const Call* c, float* work) noexcept nogil:
    cdef bint shared = c.dx.dim.bd == 1 and c.dx.list == NULL
    dy_terms_begin(t, size_of(&c.dx.dim), c.y.dim.bd if shared else 0, work, c.dx.v if shared else NULL, c.accumulate)


cdef inline float* next_term(Terms* t, const Call* c, uint32_t b, int* add) noexcept nogil:
    """The address of the gradient of batch element b, and whether to add to its contents."""
    if t.dx != NULL:
        return dy_terms_next(t, add)
    add[0] = c.accumulate
    return element(&c.dx, b)
