"""Pairs of counts that passes in several threads add to: for tests and measurements."""

from libc.stdint cimport uint64_t


cdef extern from *:
    """
    /* Such as calls, and the nodes in them. */
    typedef struct {
        uint64_t first, second;
    } dy_counts;

    static inline void dy_add_counts(dy_counts *c, uint64_t first, uint64_t second) {
        if (first)
            __atomic_add_fetch(&c->first, first, __ATOMIC_RELAXED);
        if (second)
            __atomic_add_fetch(&c->second, second, __ATOMIC_RELAXED);
    }
    """
    ctypedef struct Counts "dy_counts":
        uint64_t first
        uint64_t second

    void add_counts "dy_add_counts"(Counts* c, uint64_t first, uint64_t second) nogil


cdef inline tuple counted(const Counts* c):
    return c.first, c.second


cdef inline void clear(Counts* c) noexcept:
    c.first = c.second = 0
