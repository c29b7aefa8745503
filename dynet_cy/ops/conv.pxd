"""Convolution and pooling.  Images are rows x columns x channels."""

from libc.stdint cimport int32_t, uint32_t

from dynet_cy.core.tensor cimport Attr, Dim, axis_of
from dynet_cy.graph.structs cimport Extra
from dynet_cy.kernels.kernels cimport dy_window, dy_window_init


# ==== windows =====================================================================================
#
# The windows of convolution and pooling: what CPU and GPU share.

cdef extern from "dynet_cy/pooling.h" nogil:
    ctypedef struct Pooling "dy_pooling":
        uint32_t[2] inputs "in"
        uint32_t[2] out
        uint32_t[2] size
        uint32_t[2] stride
        uint32_t[2] pad
        uint32_t channels
        uint32_t adaptive
    void pooled "dy_pooled"(const Pooling* p, int d, uint32_t o, uint32_t* low, uint32_t* high)
    void pooling_of "dy_pooling_of"(const Pooling* p, int d, uint32_t i, uint32_t* low, uint32_t* high)


cdef inline dy_window window_of(const Dim* x, size_t channels, size_t rows, size_t cols, const size_t* stride,
                                const size_t* dilation, bint valid) noexcept nogil:
    """Windows of rows x cols elements over the rows and columns of x, `stride` apart."""
    cdef dy_window w
    cdef size_t[2] image, size
    image[0], image[1] = axis_of(x, 0), axis_of(x, 1)
    size[0], size[1] = rows, cols
    dy_window_init(&w, image, channels, size, stride, dilation, valid)
    return w


cdef inline dy_window plain_window(const Dim* x, size_t rows, size_t cols, size_t row_stride, size_t col_stride,
                                   bint valid) noexcept nogil:
    """The same without dilation, over all channels of x."""
    cdef size_t[2] stride, dilation
    stride[0], stride[1] = row_stride, col_stride
    dilation[0] = dilation[1] = 1
    return window_of(x, axis_of(x, 2), rows, cols, stride, dilation, valid)


# ---- convolution: attributes ------------------------------------------------------------
# The strides and, in their upper halves, the dilations; valid; the number of groups.

cdef enum:
    VALID = 2
    GROUPS = 3

cdef inline void strides_of(const Attr* attrs, size_t* stride, size_t* dilation) noexcept nogil:
    cdef int k
    for k in range(2):
        stride[k] = attrs[k].u & 0xFFFF
        dilation[k] = attrs[k].u >> 16


cdef inline dy_window conv_window(const Dim* x, const Dim* f, const Attr* attrs) noexcept nogil:
    """The windows of filters f over an image x, whose channels are those of one group."""
    cdef size_t[2] stride, dilation
    strides_of(attrs, stride, dilation)
    return window_of(x, axis_of(f, 2), axis_of(f, 0), axis_of(f, 1), stride, dilation, attrs[VALID].i)


# ---- pooling ------------------------------------------------------------------------------

cdef inline dy_window pool_window(const Dim* x, const Attr* attrs) noexcept nogil:
    """Attributes: size, stride; valid is the sign of the first size."""
    cdef int32_t rows = attrs[0].i
    return plain_window(x, <uint32_t>(rows if rows > 0 else -rows), attrs[1].u, attrs[2].u, attrs[3].u, rows > 0)


cdef inline Pooling sized(const Dim* x, const Attr* attrs) noexcept nogil:
    """Windows of a size; attributes as of `pool_window`."""
    cdef dy_window w = pool_window(x, attrs)
    cdef Pooling p
    cdef int k
    p.adaptive = 0
    p.channels = <uint32_t>w.channels
    for k in range(2):
        p.inputs[k] = <uint32_t>w.inputs[k]
        p.out[k] = <uint32_t>w.out[k]
        p.size[k] = <uint32_t>w.size[k]
        p.stride[k] = <uint32_t>w.stride[k]
        p.pad[k] = <uint32_t>w.pad[k]
    return p


cdef inline Pooling adaptive(const Dim* x, const Attr* attrs) noexcept nogil:
    """As many windows as the first two attributes say."""
    cdef Pooling p
    cdef int k
    p.adaptive = 1
    p.channels = axis_of(x, 2)
    for k in range(2):
        p.inputs[k] = axis_of(x, k)
        p.out[k] = attrs[k].u
        p.size[k] = p.stride[k] = p.pad[k] = 0
    return p
