"""C structs of `include/dynet_cy/tensor.h`, their inline helpers, and the limit of sizes."""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t


# ==== tensor ======================================================================================
#
# C structs of `include/dynet_cy/tensor.h` and inline helpers.  Tensors own no memory.

cdef extern from "dynet_cy/tensor.h" nogil:
    # derived: constants of DY_MAX_ND, DY_ATTRS, FLOATS, INTEGERS
    int DY_MAX_ND
    int DY_ATTRS
    int FLOATS "DY_FLOATS"
    int INTEGERS "DY_INTEGERS"
    # end of constants
    # derived: structs of Dim, Tensor, Attr, Call
    ctypedef struct Dim "dy_dim":
        uint32_t d[7]
        uint8_t nd
        uint8_t type
        uint32_t bd

    ctypedef struct Tensor "dy_tensor":
        Dim dim
        float* v
        size_t bstride
        float* const* list
        Packed* pack

    ctypedef union Attr "dy_attr":
        float f
        int32_t i
        uint32_t u

    ctypedef struct Call "dy_call":
        uint32_t n
        const Tensor* x
        Tensor y
        Tensor dy
        Tensor dx
        int accumulate
        int first
        size_t before
        const Attr* attrs
        const uint32_t* items
        uint32_t item_count
        void* object
        void* on
        uint64_t seed
        uint64_t stream
        float* saved
        float* work
    # end of structs

    ctypedef struct Packed "struct dy_pack":
        pass

    # derived: constants of DRAW_WORDS
    int DRAW_WORDS "DY_DRAW_WORDS"
    # end of constants
    int32_t* integers "dy_integers"(float* v)
    const int32_t* const_integers "dy_const_integers"(const float* v)
    # derived: functions of draw_key, draw_number, size_of = dy_size, total_of = dy_total, axis_of = dy_axis,
    #     rows_of = dy_rows, cols_of = dy_cols, bint same_shape, element, number_at, dim_with_rows
    uint64_t draw_key "dy_draw_key"(const Call* c, uint32_t b)
    uint64_t draw_number "dy_draw_number"(const Call* c, uint32_t b)
    size_t size_of "dy_size"(const Dim* x)
    size_t total_of "dy_total"(const Dim* x)
    uint32_t axis_of "dy_axis"(const Dim* x, uint32_t i)
    uint32_t rows_of "dy_rows"(const Dim* x)
    size_t cols_of "dy_cols"(const Dim* x)
    bint same_shape "dy_same_shape"(const Dim* a, const Dim* b)
    float* element "dy_element"(const Tensor* x, uint32_t b)
    double number_at "dy_number_at"(const Tensor* x, uint32_t b, size_t k)
    Dim dim_with_rows "dy_dim_with_rows"(const Dim* row, uint32_t rows)
    # end of functions


# ==== limits ======================================================================================
#
# The limit of every index and size.

# Elements along an axis, and batch elements: what an `int` holds, which is what BLAS and kernels on devices take.
# Shape rules may compute larger ones; no node is made with them.
cdef enum:
    MOST_ALONG = 0x7FFFFFFF
