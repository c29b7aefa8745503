"""Launchers that many ops need: copies and sums over axes."""

from dynet_cy.core.tensor cimport axis_of, total_of
from dynet_cy.gpu.driver cimport launch_each, launch_rows, value_at
from dynet_cy.gpu.registry cimport kernel_at, module_at

BASE = module_at(b"base")
cdef int SCALE = kernel_at(BASE, b"scale_floats")
cdef int SUM = kernel_at(BASE, b"sum_pointers")
cdef int EXPAND = kernel_at(BASE, b"expand")
cdef int EXPAND_LIST = kernel_at(BASE, b"expand_list")
cdef int CONTRACT_LIST = kernel_at(BASE, b"contract_list")
cdef int BY_THREADS = kernel_at(BASE, b"contract_by_threads")
cdef int BY_BLOCKS = kernel_at(BASE, b"contract_by_blocks")


cdef int scaled(Gpu* gpu, size_t n, float a, const float* x, float* y, int acc) noexcept nogil:
    return launch_each(gpu, SCALE, n, n, a, x, y, acc)


cdef int sum_pointers(Gpu* gpu, size_t n, const Pointers* xs, uint32_t count, float a, float* y,
                      int acc) noexcept nogil:
    return launch_each(gpu, SUM, n, n, value_at(xs), count, a, y, acc) if count else 0


cdef int expand(Gpu* gpu, const Axes* axes, float a, const float* x, float* y, int acc) noexcept nogil:
    cdef size_t n = axes_total(axes)
    return launch_each(gpu, EXPAND, n, n, value_at(axes), a, x, y, acc)


cdef int contract(Gpu* gpu, const Axes* kept, const Axes* reduced, float a, const float* x, float* y,
                  int acc) noexcept nogil:
    cdef size_t n = axes_total(kept), terms = axes_total(reduced)
    if terms <= FEW_TERMS:
        return launch_each(gpu, BY_THREADS, n, n, terms, value_at(kept), value_at(reduced), a, x, y, acc)
    return launch_rows(gpu, BY_BLOCKS, n, terms, n, terms, value_at(kept), value_at(reduced), a, x, y, acc)


cdef int expand_list(Gpu* gpu, size_t batch, const Axes* axes, float a, const void* places, float* y,
                     int acc) noexcept nogil:
    cdef size_t n = axes_total(axes)
    return launch_each(gpu, EXPAND_LIST, batch * n, batch, n, value_at(axes), a, places, y, acc)


cdef int contract_list(Gpu* gpu, size_t batch, size_t stride, const Axes* kept, const Axes* reduced, float a,
                       const float* x, const void* places, int acc) noexcept nogil:
    cdef size_t n = axes_total(kept)
    if n == 0:
        return 0
    return launch_rows(gpu, CONTRACT_LIST, batch, n, batch, n, axes_total(reduced), stride, value_at(kept),
                       value_at(reduced), a, x, places, acc)


cdef int pass_scaled(Gpu* gpu, const Tensor* dy, float a, const Tensor* dx, int acc) noexcept nogil:
    cdef Axes kept, reduced
    if dx.dim.bd == dy.dim.bd:
        return scaled(gpu, total_of(&dy.dim), a, dy.v, dx.v, acc)
    split_axes(dy, dx, &kept, &reduced)
    return contract(gpu, &kept, &reduced, a, dy.v, dx.v, acc)


cdef void split_axes(const Tensor* y, const Tensor* x, Axes* kept, Axes* reduced) noexcept nogil:
    cdef uint32_t k
    cdef size_t size, stride = 1
    no_axes(kept)
    no_axes(reduced)
    for k in range(y.dim.nd + 1):
        size = y.dim.d[k] if k < y.dim.nd else y.dim.bd
        if (axis_of(&x.dim, k) if k < y.dim.nd else x.dim.bd) == 1:
            add_axis(reduced, size, stride, 0, 0)
        else:
            add_axis(kept, size, stride, 0, 0)
        stride *= size


cdef void axes_in(const Tensor* y, const Tensor* x, Axes* axes) noexcept nogil:
    cdef uint32_t k
    cdef size_t size, own, stride = 1
    no_axes(axes)
    for k in range(y.dim.nd + 1):
        size = y.dim.d[k] if k < y.dim.nd else y.dim.bd
        own = axis_of(&x.dim, k) if k < y.dim.nd else x.dim.bd
        add_axis(axes, size, 0 if own == 1 else stride, 0, 0)
        stride *= own
