"""Ops that only move elements: the rows of `include/dynet_cy/index.def`."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.core.tensor cimport Call, Dim
from dynet_cy.ops.registry cimport DimRule, Op


cdef extern from "dynet_cy/places.h" nogil:
    # derived: structs of Places
    ctypedef struct Places "dy_places":
        uint32_t kind
        uint32_t n
        uint32_t axis
        uint32_t words
        uint64_t batch
        uint64_t offset
        uint64_t pre
        uint64_t len
        uint64_t post
        uint64_t count
        uint64_t size[8]
        uint64_t extent[8]
        uint64_t stride[8]
    # end of structs

    # derived: constants of LISTED, SHARED_POSITIONS, ONE_POSITION, OWN_POSITIONS
    int LISTED "DY_LISTED"
    int SHARED_POSITIONS "DY_SHARED_POSITIONS"
    int ONE_POSITION "DY_ONE_POSITION"
    int OWN_POSITIONS "DY_OWN_POSITIONS"
    # end of constants
    # derived: functions of places_total
    size_t places_total "dy_places_total"(const Places* p)
    # end of functions


# The op of a row; `args` and `dim` as in `register`.
cdef Op* index_op(const char* name, const char* args, DimRule dim) except NULL
# Where the elements of argument i of a call of such an op lie, or those of its result; and whether argument 1 says it.
cdef void places_of(uint32_t op, const Call* c, uint32_t i, Places* p) noexcept nogil
cdef bint has_positions(uint32_t op) noexcept nogil
