"""Pairs of counts that passes in several threads add to: for tests and measurements."""

from libc.stdint cimport uint64_t

from dynet_cy.core.atomic cimport Number, add_to


cdef struct Counts:
    Number first, second            # such as calls, and the nodes in them


cdef inline void add_counts(Counts* c, uint64_t first, uint64_t second) noexcept nogil:
    if first:
        add_to(&c.first, first)
    if second:
        add_to(&c.second, second)


cdef inline tuple counted(const Counts* c):
    return c.first, c.second


cdef inline void clear(Counts* c) noexcept:
    c.first = 0
    c.second = 0
