"""Parameters and their collections.

A root collection owns its Storage; parameters and sub-collections hold it too,
so memory never goes while something points into it.
"""

from dynet_cy.core.tensor cimport Dim
from dynet_cy.graph.graph cimport Expression
from dynet_cy.memory.storage cimport Param, Storage


cdef void settle(Param* p) noexcept nogil


cdef class _Stored(Expression):
    cdef readonly Storage storage
    cdef Param* p
    cdef str full_name
    cdef object keeps               # the root, where this came out of a pickle that may lack it

    cdef int check_open(self) except -1
    cdef object array(self, const float* v)
    cdef int fill(self, object array, float* v) except -1
    cdef int leaf_in_current(self, bint update) except -1


cdef class Parameters(_Stored):
    pass


cdef class LookupParameters(_Stored):
    cdef size_t start_of(self, object row, str op) except? 0xFFFFFFFF
