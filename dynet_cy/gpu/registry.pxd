"""Tables of GPU ops, kernels and their modules; launchers for many ops."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.core.tensor cimport Call, Dim, Tensor
from dynet_cy.gpu.driver cimport Gpu, GpuBackward, GpuForward, GpuOp


# ==== registry ====================================================================================
#
# The tables of GPU ops, of kernels and of the modules that contain them.

# The GPU op for the op of that name.  Module number `module`, from `module_at`, contains its kernels.  `traits`:
# ASSIGNS or 0.  The caller sets its other fields.
cdef GpuOp* gpu_op(bytes name, int module, GpuForward forward, GpuBackward backward, int traits=*) except NULL
cdef GpuOp* gpu_op_named(bytes name) except NULL            # one that exists already
cdef void needs_module(GpuOp* op, int module) noexcept      # a further module of kernels
# The number of the op, which indexes tables and is passed in gpu.op.
cdef unsigned number_of(const GpuOp* op) noexcept nogil
cdef GpuOp* gpu_op_at(unsigned op) noexcept nogil
cdef int module_at(bytes name) except -1
cdef int kernel_at(int module, bytes name) except -1
cdef int load(Gpu* gpu, uint64_t modules) except -1
# Load code with kernels that belong to no module: (number, name) of each; `what` describes it in errors.
cdef int load_code(Gpu* gpu, bytes code, list own, str what) except -1
cdef enum:
    NO_MODULE = -1
cdef uint64_t* loaded(Gpu* gpu) noexcept nogil


# ==== base ========================================================================================
#
# Launchers that many ops need: copies and sums over axes.

cdef extern from "dynet_cy/gpu_axes.h" nogil:
    # derived: structs of Axes, Pointers, Some
    ctypedef struct Axes "dy_axes":
        uint32_t n
        uint64_t size[8]
        uint64_t stride[3][8]

    ctypedef struct Pointers "dy_pointers":
        const float* p[256]

    ctypedef struct Some "dy_some":
        const float* p[32]
        uint32_t first
        uint32_t count
        uint32_t once
        uint32_t unused
    # end of structs

    # derived: constants of POINTERS, SOME
    int POINTERS "DY_POINTERS"
    int SOME "DY_SOME"
    # end of constants
    # Begin with `no_axes`, and add axes in the order of their strides, the fastest first.
    # derived: functions of no_axes, add_axis, axes_total
    void no_axes "dy_no_axes"(Axes* x)
    void add_axis "dy_add_axis"(Axes* x, uint64_t size, uint64_t s0, uint64_t s1, uint64_t s2)
    uint64_t axes_total "dy_axes_total"(const Axes* x)
    # end of functions


cdef inline Axes strided(size_t n, size_t step, size_t m=1, size_t next=0, size_t k=1, size_t last=0) noexcept nogil:
    """Axes of n, m and k elements with their strides in array 0."""
    cdef Axes axes
    no_axes(&axes)
    add_axis(&axes, n, step, 0, 0)
    add_axis(&axes, m, next, 0, 0)
    add_axis(&axes, k, last, 0, 0)
    return axes


# Sums of at most this many terms are computed by one thread, longer ones by a block.
cdef enum:
    FEW_TERMS = 32
    FEW_SUMS = 4096

# Whether each of n sums is computed by one thread.  The calls of a section take the same kernel, whatever the number of
# terms, so that they can be one launch.
cdef inline bint by_threads(const Gpu* gpu, size_t n, size_t terms) noexcept nogil:
    return terms <= FEW_TERMS and not (gpu.apart and terms > 1 and n <= FEW_SUMS)

cdef int BASE

# y = a x (+ y if acc), n numbers.
cdef int scaled(Gpu* gpu, size_t n, float a, const float* x, float* y, int acc) noexcept nogil
# The same with the sum of several arrays, at most POINTERS, instead of x.
cdef int sum_pointers(Gpu* gpu, size_t n, const Pointers* xs, uint32_t count, float a, float* y,
                      int acc) noexcept nogil
# The same with x, array 0 of the axes, broadcast to y: x has only some of the axes of y.
cdef int expand(Gpu* gpu, const Axes* axes, float a, const float* x, float* y, int acc) noexcept nogil
# y = a times the sum of x over the reduced axes, for each element of the kept axes (+ y if acc).  x is array 0 of both.
cdef int contract(Gpu* gpu, const Axes* kept, const Axes* reduced, float a, const float* x, float* y,
                  int acc) noexcept nogil
# The same for each of `batch` elements, with a pointer for each in `places`, as in a LIST argument of a call.  Axes are
# those of one element.  `expand_list` reads x_b at places[b].  `contract_list` writes its result for x_b, which begins
# at x + b * stride, to places[b]; if a pointer is listed more than once, the contributions are added in the order of
# the list.
cdef int expand_list(Gpu* gpu, size_t batch, const Axes* axes, float a, const void* places, float* y,
                     int acc) noexcept nogil
cdef int contract_list(Gpu* gpu, size_t batch, size_t stride, const Axes* kept, const Axes* reduced, float a,
                       const float* x, const void* places, int acc) noexcept nogil
# The gradient of x in y = a x: dx = a dy (+ dx if acc), summed over the batch if x has batch size 1.
cdef int pass_scaled(Gpu* gpu, const Tensor* dy, float a, const Tensor* dx, int acc) noexcept nogil
# Some of the arguments of a call after the first `before` ones: from number `first` of these on.
cdef Some some_of(const Call* c, uint32_t before, uint32_t first) noexcept nogil
# The axes of y with the strides of a, b and y in arrays 0 to 2; a and b may have one element along an axis.
cdef Axes axes_of(const Dim* y, const Dim* a, const Dim* b) noexcept nogil
# The same: `reduced` are those along which x has one element, `kept` the others.
cdef void split_axes(const Dim* y, const Dim* a, const Dim* b, const Dim* x, Axes* kept, Axes* reduced) noexcept nogil
