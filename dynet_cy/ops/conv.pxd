"""Convolution and pooling.  Images are rows x columns x channels."""

from libc.stdint cimport int32_t, uint32_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport Attr, Dim, axis_of
from dynet_cy.graph.structs cimport Extra
from dynet_cy.kernels.kernels cimport dy_window, dy_window_init


# ==== windows =====================================================================================
#
# The windows of convolution and pooling: what CPU and GPU share.

cdef extern from "dynet_cy/pooling.h" nogil:
    # derived: structs of Pooling
    ctypedef struct Pooling "dy_pooling":
        uint32_t inputs "in"[2]
        uint32_t out[2]
        uint32_t size[2]
        uint32_t stride[2]
        uint32_t pad[2]
        uint32_t channels
        uint32_t adaptive
    # end of structs
    # derived: functions of pooled, pooling_of
    void pooled "dy_pooled"(const Pooling* p, int d, uint32_t o, uint32_t* low, uint32_t* high)
    void pooling_of "dy_pooling_of"(const Pooling* p, int d, uint32_t i, uint32_t* low, uint32_t* high)
    # end of functions


cdef inline dy_window window_of(const Dim* x, size_t channels, size_t rows, size_t cols, const size_t* stride,
                                const size_t* dilation, const size_t* pad) noexcept nogil:
    """Windows of rows x cols elements over the rows and columns of x, `stride` apart; `pad`: see dy_window_init."""
    cdef dy_window w
    cdef size_t[2] image, size
    image[0], image[1] = axis_of(x, 0), axis_of(x, 1)
    size[0], size[1] = rows, cols
    dy_window_init(&w, image, channels, size, stride, dilation, pad)
    return w


cdef inline dy_window plain_window(const Dim* x, size_t rows, size_t cols, const size_t* stride,
                                   const size_t* pad) noexcept nogil:
    """A window without dilation, over all channels of x."""
    cdef size_t[2] dilation
    dilation[0] = dilation[1] = 1
    return window_of(x, axis_of(x, 2), rows, cols, stride, dilation, pad)


cdef inline void halves_of(const Attr* attrs, size_t* lower, size_t* upper) noexcept nogil:
    """The halves of two attributes: for rows and for columns."""
    cdef int k
    for k in range(2):
        lower[k] = attrs[k].u & 0xFFFF
        upper[k] = attrs[k].u >> 16


# ---- convolution: attributes ------------------------------------------------------------
# The strides and, in their upper halves, the dilations; the padding; the number of groups.

cdef enum:
    PADDING = 2                     # 0 for SAME; else 1 + the padding of rows + 2^15 times that of columns
    GROUPS = 3
    MOST_PADDING = 0x7FFF


cdef inline dy_window conv_window(const Dim* x, const Dim* f, const Attr* attrs) noexcept nogil:
    """The windows of filters f over an image x, whose channels are those of one group."""
    cdef size_t[2] stride, dilation, pad
    cdef uint32_t around = attrs[PADDING].u
    halves_of(attrs, stride, dilation)
    pad[0] = (around - 1) & MOST_PADDING
    pad[1] = (around - 1) >> 15
    return window_of(x, axis_of(f, 2), axis_of(f, 0), axis_of(f, 1), stride, dilation, pad if around else NULL)


# ---- pooling ------------------------------------------------------------------------------

cdef inline dy_window pool_window(const Dim* x, const Attr* attrs) noexcept nogil:
    """Attributes: size, below 0 for SAME padding; stride and, in the upper halves, the padding."""
    cdef int32_t rows = attrs[0].i
    cdef size_t[2] stride, pad
    halves_of(attrs + 2, stride, pad)
    return plain_window(x, <uint32_t>(rows if rows > 0 else -rows), attrs[1].u, stride, pad if rows > 0 else NULL)


cdef inline Pooling pooling_by(const Dim* x, const Attr* attrs) noexcept nogil:
    """Windows as `pool_window` says or, if there is no stride, as many as the first two attributes say."""
    cdef Pooling p
    cdef dy_window w
    cdef int k
    memset(&p, 0, sizeof(p))
    p.channels = axis_of(x, 2)
    p.adaptive = attrs[2].u == 0
    if not p.adaptive:
        w = pool_window(x, attrs)
    for k in range(2):
        p.inputs[k] = axis_of(x, k)
        if p.adaptive:
            p.out[k] = attrs[k].u
        else:
            p.out[k] = <uint32_t>w.out[k]
            p.size[k] = <uint32_t>w.size[k]
            p.stride[k] = <uint32_t>w.stride[k]
            p.pad[k] = <uint32_t>w.pad[k]
    return p
