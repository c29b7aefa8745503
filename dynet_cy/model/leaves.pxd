"""Leaves of graphs that belong to parameters: values of parameters, and rows of lookup tables."""

from cpython.long cimport PyLong_AsLongAndOverflow
from libc.stdint cimport uint32_t

from dynet_cy.graph.expressions cimport Expression
from dynet_cy.memory.storage cimport Param, Storage

# The node of a parameter in the current graph; its value is in the storage.
cdef uint32_t parameter_leaf(Param* p, Storage storage, bint update) except? 0xFFFFFFFF
cdef uint32_t constant_leaf(Param* p, Storage storage) except? 0xFFFFFFFF
cdef Expression lookup_rows(Param* p, Storage storage, const uint32_t* rows, uint32_t n, bint update)
# `row_number` for anything but a small int in range.
cdef uint32_t odd_row_number(const Param* p, str name, row, str op) except? 0xFFFFFFFF


cdef inline uint32_t row_number(const Param* p, str name, row, str op) except? 0xFFFFFFFF:
    """The row as a number that is in range, or a clear error."""
    cdef int overflows = 0
    cdef long quick
    if type(row) is int:
        quick = PyLong_AsLongAndOverflow(row, &overflows)
        if not overflows and 0 <= quick < p.rows:
            return <uint32_t>quick
    return odd_row_number(p, name, row, op)


# Make the stored numbers of a table its values: apply all updates to all rows, and multiply the factor in.
cdef int settle(Param* p) except -1
# The same for a table of the CPU.
cdef void settle_here(Param* p) noexcept nogil
