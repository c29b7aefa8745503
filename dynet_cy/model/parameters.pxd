"""Parameters and their collections.

Collections and parameters hold the storage of their root collection, so memory
never goes while something points into it.
"""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Dim
from dynet_cy.graph.graph cimport Expression
from dynet_cy.memory.storage cimport Param, Plane, Storage


cdef void fold_scale(Param* p) noexcept nogil
cdef int zero_gradient(_Stored x) except -1


cdef class _Members:
    cdef Storage storage
    cdef list entries
    cdef object allowance           # what may be added now; None for anything

    cdef _Stored add(self, int device, cls, const Dim* d, uint32_t rows, str name)
    cdef _Stored shown(self, _Stored entry)
    cdef list below(self, str name)


cdef class _Stored(Expression):
    cdef readonly Storage storage
    cdef Param* p
    cdef str full_name
    cdef _Members members           # what users have holds them; an entry of theirs does not
    cdef object user                # an entry's weak reference to what users have for it
    cdef object __weakref__

    cdef int check_made(self) except -1
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
