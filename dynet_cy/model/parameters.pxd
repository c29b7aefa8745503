"""Parameters and their collections.

A root collection owns its Storage; parameters and sub-collections hold it too,
so memory never goes while something points into it.
"""

from dynet_cy.core.tensor cimport Dim
from dynet_cy.graph.graph cimport Expression
from dynet_cy.memory.storage cimport Param, Plane, Storage


cdef void settle(Param* p) noexcept nogil


cdef class _Stored(Expression):
    cdef readonly Storage storage
    cdef Param* p
    cdef str full_name
    cdef object keeps               # the root, where this came out of a pickle that may lack it

    cdef int check_open(self) except -1
    cdef object part(self, Plane plane, size_t start, tuple shape)
    cdef int put(self, Plane plane, size_t start, object array, size_t n) except -1
    cdef object array(self, Plane plane)
    cdef int fill(self, object array, Plane plane) except -1
    cdef int multiply(self, Plane plane, float s) except -1
    cdef int leaf_in_current(self, bint update) except -1


cdef class Parameters(_Stored):
    pass


cdef class LookupParameters(_Stored):
    cdef size_t start_of(self, object row, str op) except? 0xFFFFFFFF
