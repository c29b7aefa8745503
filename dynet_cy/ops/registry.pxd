"""The table of ops, which owns every Op and is never freed."""

from libc.stddef cimport ptrdiff_t
from libc.stdint cimport uint8_t, uint32_t

from dynet_cy.core.tensor cimport Attr, Call, Dim


cdef extern from "dynet_cy/op.h" nogil:
    # derived: constants of STACK, LIST, SHARE, BATCH, FLAT, ALONE, ADDS, MULTIPLIES, PRODUCT, TRANSFERS, UNREAD_FIRST,
    #     UNREAD_ODD, UNREAD_EVEN, UNREAD_ARGUMENTS, UNREAD_RESULT, UNREAD, FIRST, SECOND, THIRD, ALL
    int STACK "DY_STACK"
    int LIST "DY_LIST"
    int SHARE "DY_SHARE"
    int BATCH "DY_BATCH"
    int FLAT "DY_FLAT"
    int ALONE "DY_ALONE"
    int ADDS "DY_ADDS"
    int MULTIPLIES "DY_MULTIPLIES"
    int PRODUCT "DY_PRODUCT"
    int TRANSFERS "DY_TRANSFERS"
    int UNREAD_FIRST "DY_UNREAD_FIRST"
    int UNREAD_ODD "DY_UNREAD_ODD"
    int UNREAD_EVEN "DY_UNREAD_EVEN"
    int UNREAD_ARGUMENTS "DY_UNREAD_ARGUMENTS"
    int UNREAD_RESULT "DY_UNREAD_RESULT"
    int UNREAD "DY_UNREAD"
    int FIRST "DY_FIRST"
    int SECOND "DY_SECOND"
    int THIRD "DY_THIRD"
    int ALL "DY_ALL"
    # end of constants

    # derived: structs of Shapes
    ctypedef struct Shapes "dy_shapes":
        uint32_t n
        const Dim* const* x
        Attr* attrs
        const uint32_t* items
        uint32_t n_items
        uint32_t bd
        void* object
    # end of structs


cdef extern from "dynet_cy/op.h":
    # The one function of an op that needs the GIL: it may raise.
    ctypedef int (*DimRule "dy_dim_rule")(const Shapes* s, Dim* y) except -1


cdef extern from "dynet_cy/op.h" nogil:
    # derived: types of Forward, Backward, Saved, Work, PartOf = dy_part, Prepare, Raised, BackwardAll, ViewOf
    ctypedef void (*Forward "dy_forward")(const Call* c) noexcept nogil
    ctypedef void (*Backward "dy_backward")(const Call* c, uint32_t i) noexcept nogil
    ctypedef size_t (*Saved "dy_saved")(const Call* c) noexcept nogil
    ctypedef size_t (*Work "dy_work")(const Call* c, int i) noexcept nogil
    ctypedef size_t (*PartOf "dy_part")(const Call* c, uint32_t i) noexcept nogil
    ctypedef void (*Prepare "dy_prepare")(const Call* c) noexcept nogil
    ctypedef void* (*Raised "dy_raised")() noexcept nogil
    ctypedef void (*BackwardAll "dy_backward_all")(
        const Call* c, float* const* dx, const uint8_t* adds) noexcept nogil
    ctypedef ptrdiff_t (*ViewOf "dy_view_of")(
        const Dim* x, const Dim* y, const Attr* attrs, const uint32_t* items) noexcept nogil
    # end of types
    # derived: structs of Factors
    ctypedef struct Factors "dy_factors":
        const float* left
        const float* right
        size_t rows
        size_t cols
        size_t n
    # end of structs
    # derived: types of FactorsOf, Spread, Same, bint IsLaid
    ctypedef void (*FactorsOf "dy_factors_of")(const Call* c, uint32_t i, Factors* f) noexcept nogil
    ctypedef float (*Spread "dy_spread")(const Call* c) noexcept nogil
    ctypedef float* (*Same "dy_same")(const Call* c, uint32_t i) noexcept nogil
    ctypedef bint (*IsLaid "dy_is_laid")(const Dim* y, const Attr* attrs) noexcept nogil
    # end of types
    # derived: structs of Needs
    ctypedef struct Needs "dy_needs":
        Saved saved
        Work work
        FactorsOf factors
        Spread spread
        Same same
        IsLaid laid
        uint8_t assigns
        uint8_t lists
    # end of structs
    # derived: constants of CPU, GPU
    int CPU "DY_CPU"
    int GPU "DY_GPU"
    # end of constants
    # derived: structs of Op = dy_op with saved work factors assigns of needs[DY_CPU]
    ctypedef struct Op "dy_op":
        const char* name
        const char* args
        uint32_t id
        DimRule dim
        Forward forward
        Backward backward
        Needs needs[2]
        PartOf part
        Prepare prepare
        Saved prepared
        uint8_t prepares_over
        uint8_t anywhere
        BackwardAll backward_all
        ViewOf view
        Raised raised
        uint8_t batching
        uint8_t role
        uint8_t activation
        uint8_t rule[3]
        uint8_t columns
        uint8_t one_column[3]
        uint8_t ragged
        uint8_t in_place
        uint8_t joins
        uint8_t unread
        uint8_t over
        uint8_t any_batch
        uint8_t random
        uint8_t infinite
        uint8_t truth
        uint8_t integers
        uint8_t moves
        uint8_t result
        const Op* of_integers
        const char* alone_because
        const char* no_gradient_because
        Saved saved "needs[DY_CPU].saved"
        Work work "needs[DY_CPU].work"
        FactorsOf factors "needs[DY_CPU].factors"
        uint8_t assigns "needs[DY_CPU].assigns"
    # end of structs
    # derived: functions of rule_index, rule_of = dy_rule, bint reads, bint goes_over, bint reads_result
    int rule_index "dy_rule_index"(uint32_t i)
    int rule_of "dy_rule"(const Op* op, uint32_t i)
    bint reads "dy_reads"(const Op* op, uint32_t i)
    bint goes_over "dy_goes_over"(const Op* op, uint32_t i)
    bint reads_result "dy_reads_result"(const Op* op)
    # end of functions


# `in_place` of ops that pass their gradient on as it is.
cdef enum:
    UNCHANGED = 2

# The size of tables that are indexed by the number of an op.
cdef enum:
    MAX_OPS = 1024

# Further traits of an op, besides the bits of `unread`: the fields of these names.
cdef enum:
    ASSIGNS = 1 << 4
    RAGGED = 1 << 5
    RANDOM = 1 << 6
    BY_ELEMENT = 1 << 7             # `batching` is FLAT

cdef Op* register(const char* name, const char* args, DimRule dim, Forward forward, Backward backward, int traits=*,
                  Work work=*, Saved saved=*) except NULL
# The same, but the name need not be unique.
cdef Op* register_nameless(const char* name, const char* args, DimRule dim, Forward forward,
                           Backward backward) except NULL
cdef Op* op_at(uint32_t id) noexcept nogil
cdef int need_d(const Shapes* s) except -1
cdef int need_axis(const Shapes* s) except -1
cdef int same_dim(const Shapes* s, Dim* y) except -1
cdef int equal_dim(const Shapes* s, Dim* y) except -1
cdef int broadcast_dim(const Shapes* s, Dim* y) except -1
cdef size_t as_many_as_y(const Call* c) noexcept nogil
cdef size_t twice_as_many(const Call* c) noexcept nogil
