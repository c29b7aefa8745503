"""What many ops need: copies and sums over axes, for launchers to apply."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.core.tensor cimport Tensor
from dynet_cy.gpu.driver cimport Gpu


cdef extern from "dynet_cy/gpu_axes.h" nogil:
    ctypedef struct Axes "dy_axes":
        uint32_t n
        uint64_t[8] size
        uint64_t[3][8] stride

    ctypedef struct Pointers "dy_pointers":
        const float** p
    int POINTERS "DY_POINTERS"

    # Axes are added from the fastest on, to none at first.
    void no_axes "dy_no_axes"(Axes* axes)
    void add_axis "dy_add_axis"(Axes* axes, uint64_t size, uint64_t s0, uint64_t s1, uint64_t s2)
    uint64_t axes_total "dy_axes_total"(const Axes* axes)

# How many terms a sum may have for one thread; more are added up by a block.
cdef enum:
    FEW_TERMS = 32

# As many pointers, where a word has a flag for each of them.
cdef enum:
    FLAGS = 32

cdef int BASE

# y = a x (+ y if acc), n numbers.
cdef int scaled(Gpu* gpu, size_t n, float a, const float* x, float* y, int acc) noexcept nogil
# The same with the sum of some arrays in the place of x; there are at most POINTERS.
cdef int sum_pointers(Gpu* gpu, size_t n, const Pointers* xs, uint32_t count, float a, float* y,
                      int acc) noexcept nogil
# The same where x, array 0 of the axes, has some of the axes of y only.
cdef int expand(Gpu* gpu, const Axes* axes, float a, const float* x, float* y, int acc) noexcept nogil
# y = a times the sum over the reduced axes of x, array 0 of both, at each place of the kept axes (+ y if acc).
cdef int contract(Gpu* gpu, const Axes* kept, const Axes* reduced, float a, const float* x, float* y,
                  int acc) noexcept nogil
# The same with each of `batch` arguments listed (a list of the call): axes are those of one batch element of y; these
# are `stride` floats apart.  The way back adds places that are listed twice in their order.
cdef int expand_list(Gpu* gpu, size_t batch, const Axes* axes, float a, const void* places, float* y,
                     int acc) noexcept nogil
cdef int contract_list(Gpu* gpu, size_t batch, size_t stride, const Axes* kept, const Axes* reduced, float a,
                       const float* x, const void* places, int acc) noexcept nogil
# The gradient of an argument that y has a times, as it is or once for all of the batch.
cdef int pass_scaled(Gpu* gpu, const Tensor* dy, float a, const Tensor* dx, int acc) noexcept nogil
# Axes of y, those along which x has one element apart: `kept` and `reduced`, with the strides of y in array 0.
cdef void split_axes(const Tensor* y, const Tensor* x, Axes* kept, Axes* reduced) noexcept nogil
# Axes of y with the strides of x in array 0.
cdef void axes_in(const Tensor* y, const Tensor* x, Axes* axes) noexcept nogil
