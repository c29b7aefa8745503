"""Indices from the graph, and ops that only move elements."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.core.tensor cimport Call, Dim, Tensor, number_at
from dynet_cy.ops.registry cimport DimRule, Op, Shapes


# ==== positions ===================================================================================
#
# Indices from the graph: integers, or whole numbers in floats, checked when they are read.
#
# A float holds every whole number up to 2^24, so an op that reads an index from floats refuses longer axes when its
# node is made. An op that reads an index calls `is_position`, and `refuse` if it is none: the pass ends with an
# IndexError. An op that chooses an index calls `refuse` where no element can be chosen, since an index cannot be NaN: a
# ValueError.

cdef enum:
    MOST_POSITIONS = 1 << 24
    BARRED = -0x80000000            # an integer, and a float


cdef inline bint is_position(const Tensor* x, uint32_t b, size_t k, uint32_t n, uint32_t* position) noexcept nogil:
    """Whether element k of batch element b is a whole number from 0 to n - 1, which is stored.  NaN is none."""
    cdef double v = number_at(x, b, k)
    if not (0 <= v < n):
        return False
    position[0] = <uint32_t>v
    return position[0] == v


# Note an index that is none: the first of a call counts.
# `function`: the number of a public function's name, from `function_number`; x: the indices; `b` and `k`: the batch
# element of the call and the position in it; n: how many there are to choose from.
cdef void refuse(uint32_t function, const Tensor* x, uint32_t b, size_t k, uint32_t n) noexcept nogil
cdef void refuse_number(uint32_t function, double v, uint32_t b, size_t k, uint32_t n) noexcept nogil
# `Op.raised` of ops that read indices: the IndexError for what was refused, or NULL.
cdef void* refused() noexcept nogil
# For executors: the batch element of the last call with a refused index, and the node and its own batch element that it
# stands for; then, once, that node, or NO_NODE, and the error with this batch element.
cdef uint32_t refused_element() noexcept nogil
cdef void locate(uint32_t node, uint32_t b) noexcept nogil
cdef uint32_t located() noexcept nogil
cdef object located_refusal()
# The same error, for executors of other devices.
cdef object refusal(uint32_t function, uint32_t b, size_t k, double v, uint32_t n)
# The number of a public function's name, for an attribute of a node; `barred`: what is wrong with the index BARRED,
# which stands for one that is in range but not allowed.
cdef uint32_t function_number(str name, str barred=*) except 0
# The same of a function that chooses an element.  It refuses one that is NaN, and the last argument of `refuse` is then
# the number of the op's argument, whose name is in `arguments`; or -inf, the best score, for the error `never`.
cdef uint32_t chooser_number(str name, str never=*, tuple arguments=*) except 0
# For shape rules: an axis that is indexed by these must not have more than 2^24 elements if they are floats.
cdef int need_positions(const Dim* indices, size_t n) except -1
# For ops that choose elements: their results are indices; why they have no gradient.
cdef void chooses(Op* op, const char* because) noexcept
# The shape rule of ops that choose one of the elements along axis d, which is attribute 0.
cdef int choice_dim(const Shapes* s, Dim* y) except -1
# For shape rules: argument i must be one number for each batch element.
cdef int need_one(const Shapes* s, uint32_t i) except -1


# ==== index =======================================================================================
#
# Ops that only move elements: the rows of `include/dynet_cy/index.def`.

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
