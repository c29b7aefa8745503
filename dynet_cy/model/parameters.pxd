"""Parameters and lookup tables: entries of a storage that are expressions in whichever graph is current."""

from cpython.long cimport PyLong_AsLongAndOverflow
from libc.stdint cimport uint32_t

from dynet_cy.graph.expressions cimport Expression
from dynet_cy.memory.storage cimport Param, Plane, Storage


# ==== leaves ======================================================================================
#
# Leaves of graphs that belong to parameters: values of parameters, and rows of lookup tables.

# `row_number` for anything but a small int in range.
cdef uint32_t odd_row_number(const Param* p, str name, row, str op) except? 0xFFFFFFFF


cdef inline uint32_t row_number(const Param* p, str name, row, str op) except? 0xFFFFFFFF:
    """The row as a number that is in range, or a clear error."""
    cdef int overflows = 0
    cdef long quick
    if isinstance(row, int):
        quick = PyLong_AsLongAndOverflow(row, &overflows)
        if not overflows and 0 <= quick < p.rows:
            return <uint32_t>quick
    return odd_row_number(p, name, row, op)


# Make the stored numbers of a table its values: apply all updates to all rows, and multiply the factor in.
cdef int settle(Param* p) except -1
# The same for a table of the CPU.
cdef void settle_here(Param* p) noexcept nogil


# ==== parameters ==================================================================================
#
# They hold a reference to the storage, so memory is never freed while something points into it.

cdef class _Stored(Expression):
    cdef readonly Storage storage
    cdef Param* p
    cdef str full_name
    cdef object members             # the _Members of the root collection; only objects that users have refer to it
    cdef object user                # in an entry of _Members: a weak reference to the object that users have
    cdef object __weakref__

    cdef int check_made(self) except -1
    cdef object part(self, Plane plane, size_t start, tuple shape)
    cdef object gradient_part(self, size_t start, size_t n, tuple shape)
    # Whether a graph has added to the gradient since the last update.
    cdef bint has_gradient(self) noexcept
    cdef int put(self, Plane plane, size_t start, object array, size_t n) except -1
    cdef object array(self, Plane plane)
    cdef int fill(self, object array, Plane plane) except -1
    cdef int multiply(self, Plane plane, float s) except -1
    cdef uint32_t leaf_in_current(self, bint update) except? 0xFFFFFFFF
    cdef Expression expression_in_current(self, bint update)


cdef class Parameters(_Stored):
    pass


cdef class LookupParameters(_Stored):
    cdef size_t start_of(self, object row, str op) except? 0xFFFFFFFF


cdef _Stored new_stored(cls, Storage storage, Param* p, str name)
# Shape in the order of model files: for a table, rows are the last axis.
cdef tuple file_dim(_Stored x)
# Values of exactly this shape as column-major floats, or a clear error.
cdef object floats_like(object values, str op, tuple shape)
cdef int zero_gradient(_Stored x) except -1
