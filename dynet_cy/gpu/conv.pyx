"""Convolution, as a product with a matrix of patches for so many images at a time, and pooling."""

from libc.stdint cimport int32_t, uint32_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport Call, Dim, Tensor, axis_of, element, size_of, total_of
from dynet_cy.gpu.base cimport BASE, Axes, add_axis, contract, expand, no_axes
from dynet_cy.gpu.driver cimport (
    THREADS, Gpu, GpuOp, blocks, gemm, gemm_strided, launch, launch_each, launch_rows, value_at,
)
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at
from dynet_cy.kernels.kernels cimport dy_window, dy_window_init
from dynet_cy.ops.axes cimport Split, split_at


cdef extern from "dynet_cy/gpu_window.h" nogil:
    ctypedef struct Window "dy_gpu_window":
        uint32_t[2] inputs "in"
        uint32_t[2] out
        uint32_t[2] size
        uint32_t[2] stride
        uint32_t[2] pad
        uint32_t channels

cdef int CU = module_at(b"conv")


cdef Window window_of(const Dim* x, uint32_t channels, uint32_t rows, uint32_t cols, uint32_t row_stride,
                      uint32_t col_stride, bint valid) noexcept nogil:
    cdef dy_window all
    cdef Window w
    cdef size_t[2] image, size, stride
    cdef int k
    image[0], image[1] = axis_of(x, 0), axis_of(x, 1)
    size[0], size[1] = rows, cols
    stride[0], stride[1] = row_stride, col_stride
    memset(&w, 0, sizeof(w))
    dy_window_init(&all, image, channels, size, stride, valid)
    w.channels = channels
    for k in range(2):
        w.inputs[k] = <uint32_t>image[k]
        w.size[k] = <uint32_t>size[k]
        w.stride[k] = <uint32_t>stride[k]
        w.out[k] = <uint32_t>all.out[k]
        w.pad[k] = <uint32_t>all.pad[k]
    return w


cdef unsigned across(const Gpu* gpu, size_t n) noexcept nogil:
    """Blocks side by side for n things."""
    return blocks(gpu, (n + THREADS - 1) // THREADS)


cdef unsigned planes(size_t n) noexcept nogil:
    """Rows of blocks for n things."""
    return <unsigned>min(n, <size_t>65535)


# ---- products with patches ------------------------------------------------------------
# conv2d: y[o] = sum_c x[c] * f[c, o] (+ b[o]).  filter1d_narrow is the same for images of
# one channel, with the outputs as rows of y.

cdef int PATCHES = kernel_at(CU, b"patches")
cdef int ADD_PATCHES = kernel_at(CU, b"add_patches")

# Floats of working memory that are worth fewer calls.
cdef enum:
    ENOUGH_WORK = 1 << 24


cdef struct Product:
    Window w
    size_t rows                     # patches of an image
    size_t inner                    # elements of a patch
    size_t outputs
    size_t images                   # how many at a time
    bint turned                     # y is outputs x rows, and else rows x outputs


cdef Product product_of(const Call* c, Window w, size_t outputs, bint turned) noexcept nogil:
    cdef Product p
    cdef size_t image
    p.w = w
    p.rows = <size_t>w.out[0] * w.out[1]
    p.inner = <size_t>w.size[0] * w.size[1] * w.channels
    p.outputs = outputs
    p.turned = turned
    image = max(p.rows * (p.inner + outputs), <size_t>1)
    p.images = max(min(<size_t>c.y.dim.bd, <size_t>ENOUGH_WORK // image), <size_t>1)
    return p


cdef size_t product_work(const Product* p, int i) noexcept nogil:
    return p.images * p.rows * (p.inner + (p.outputs if i == 1 and not p.turned else 0))


cdef size_t turns(const Call* c, const Product* p) noexcept nogil:
    """How often so many images come."""
    return (c.y.dim.bd + p.images - 1) // p.images


cdef int make_patches(Gpu* gpu, const Product* p, size_t images, const float* x, size_t bstride,
                      float* work) noexcept nogil:
    if images * p.rows * p.inner == 0:
        return 0
    return launch(gpu, PATCHES, across(gpu, images * p.rows), planes(p.inner), THREADS, 0, images, value_at(&p.w), x,
                  bstride, work)


cdef int product_forward(Gpu* gpu, const Call* c, const Product* p, float beta) noexcept nogil:
    cdef const Tensor* f = &c.x[1]
    cdef size_t turn, first, n, all_rows, batch = c.y.dim.bd, m = p.rows, k = p.inner, o = p.outputs
    cdef float* y
    for turn in range(turns(c, p)):
        first = turn * p.images
        n = min(p.images, batch - first)
        all_rows = n * m
        y = element(&c.y, <uint32_t>first)
        make_patches(gpu, p, n, c.x[0].v + first * c.x[0].bstride, c.x[0].bstride, c.work)
        if p.turned:
            gemm_strided(gpu, 1, 1, o, m, k, 1, f.v + first * f.bstride, k, f.bstride, c.work, all_rows, m, beta, y, o,
                         o * m, n)
        else:
            gemm_strided(gpu, 0, 0, m, o, k, 1, c.work, all_rows, m, f.v + first * f.bstride, k, f.bstride, beta, y, m,
                         o * m, n)
    return gpu.error


cdef int product_backward_x(Gpu* gpu, const Call* c, const Product* p) noexcept nogil:
    cdef const Tensor* f = &c.x[1]
    cdef size_t turn, first, n, all_rows, batch = c.y.dim.bd, m = p.rows, k = p.inner, o = p.outputs
    cdef size_t own, pixels = <size_t>p.w.inputs[0] * p.w.inputs[1]
    cdef bint acc = c.accumulate
    cdef float* dy
    if size_of(&c.dx.dim) == 0:
        return 0
    for turn in range(turns(c, p)):
        first = turn * p.images
        n = min(p.images, batch - first)
        all_rows = n * m
        dy = element(&c.dy, <uint32_t>first)
        gemm_strided(gpu, p.turned, 1, m, k, o, 1, dy, o if p.turned else m, o * m, f.v + first * f.bstride, k,
                     f.bstride, 0, c.work, all_rows, m, n)
        own = 1 if c.dx.dim.bd == 1 else n
        launch(gpu, ADD_PATCHES, across(gpu, pixels), planes(own * p.w.channels), THREADS, 0, n, value_at(&p.w),
               c.work, own, element(&c.dx, <uint32_t>first), acc)
        acc = c.accumulate or c.dx.dim.bd == 1
    return gpu.error


cdef int product_backward_f(Gpu* gpu, const Call* c, const Product* p) noexcept nogil:
    cdef size_t turn, first, n, all_rows, batch = c.y.dim.bd, m = p.rows, k = p.inner, o = p.outputs
    cdef Axes axes
    cdef float* dy
    cdef float* df
    cdef float* turned
    for turn in range(turns(c, p)):
        first = turn * p.images
        n = min(p.images, batch - first)
        all_rows = n * m
        dy = element(&c.dy, <uint32_t>first)
        df = element(&c.dx, <uint32_t>first)
        make_patches(gpu, p, n, c.x[0].v + first * c.x[0].bstride, c.x[0].bstride, c.work)
        if c.dx.dim.bd > 1:
            gemm_strided(gpu, 1, p.turned, k, o, m, 1, c.work, all_rows, m, dy, o if p.turned else m, o * m,
                         c.accumulate, df, k, k * o, n)
            continue
        turned = dy
        if not p.turned and n > 1:              # the rows of all images below each other, as those of the patches
            turned = c.work + n * m * k
            no_axes(&axes)
            add_axis(&axes, m, 1, 0, 0)
            add_axis(&axes, n, o * m, 0, 0)
            add_axis(&axes, o, m, 0, 0)
            expand(gpu, &axes, 1, dy, turned, 0)
        gemm(gpu, 1, p.turned, k, o, all_rows, 1, c.work, all_rows, turned, o if p.turned else all_rows,
             c.accumulate or first > 0, df, k)
    return gpu.error


# ---- conv2d, conv2d_bias: attributes: strides, valid ------------------------------------

cdef Product conv_product(const Call* c) noexcept nogil:
    cdef const Dim* x = &c.x[0].dim
    cdef const Dim* f = &c.x[1].dim
    return product_of(c, window_of(x, axis_of(x, 2), axis_of(f, 0), axis_of(f, 1), c.attrs[0].u, c.attrs[1].u,
                                   c.attrs[2].i), axis_of(f, 3), False)


cdef int conv_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Product p = conv_product(c)
    cdef Axes axes
    if c.n == 3:
        no_axes(&axes)
        add_axis(&axes, p.rows, 0, 0, 0)
        add_axis(&axes, p.outputs, 1, 0, 0)
        add_axis(&axes, c.y.dim.bd, c.x[2].bstride, 0, 0)
        expand(gpu, &axes, 1, c.x[2].v, c.y.v, 0)
    return product_forward(gpu, c, &p, c.n == 3)


cdef int conv_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Product p = conv_product(c)
    cdef Axes kept, reduced
    if i == 0:
        return product_backward_x(gpu, c, &p)
    if i == 1:
        return product_backward_f(gpu, c, &p)
    no_axes(&kept)
    no_axes(&reduced)
    add_axis(&kept, p.outputs, p.rows, 0, 0)
    add_axis(&reduced, p.rows, 1, 0, 0)
    add_axis(&reduced if c.dx.dim.bd == 1 else &kept, c.y.dim.bd, p.rows * p.outputs, 0, 0)
    return contract(gpu, &kept, &reduced, 1, c.dy.v, c.dx.v, c.accumulate)


cdef size_t conv_work(const Call* c, int i) noexcept nogil:
    cdef Product p = conv_product(c)
    return product_work(&p, i) if i < 2 else 0


cdef GpuOp* op
cdef bytes name
for name in (b"conv2d", b"conv2d_bias"):
    op = gpu_op(name, CU)
    gpu_op(name, BASE)
    op.forward = conv_forward
    op.backward = conv_backward
    op.work = conv_work
    op.assigns = True


# ---- filter1d_narrow: y[o, t] = sum_ij f[i, j, o] x[i, t + j] ------------------------------

cdef Product filter_product(const Call* c) noexcept nogil:
    cdef const Dim* f = &c.x[1].dim
    return product_of(c, window_of(&c.x[0].dim, 1, axis_of(f, 0), axis_of(f, 1), 1, 1, True), axis_of(f, 2), True)


cdef int filter1d_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Product p = filter_product(c)
    return product_forward(gpu, c, &p, 0)


cdef int filter1d_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Product p = filter_product(c)
    return product_backward_f(gpu, c, &p) if i else product_backward_x(gpu, c, &p)


cdef size_t filter1d_work(const Call* c, int i) noexcept nogil:
    cdef Product p = filter_product(c)
    return product_work(&p, i)


op = gpu_op(b"filter1d_narrow", CU)
op.forward = filter1d_forward
op.backward = filter1d_backward
op.work = filter1d_work
op.assigns = True


# ---- maxpooling2d: where the greatest are is saved --------------------------------------------
# Attributes: size, stride; valid is the sign of the first size.

cdef int MAXPOOL_FORWARD = kernel_at(CU, b"maxpool_forward")
cdef int MAXPOOL_BACKWARD = kernel_at(CU, b"maxpool_backward")


cdef Window pool_window(const Call* c) noexcept nogil:
    cdef int32_t rows = c.attrs[0].i
    cdef const Dim* x = &c.x[0].dim
    return window_of(x, axis_of(x, 2), <uint32_t>(rows if rows > 0 else -rows), c.attrs[1].u, c.attrs[2].u,
                     c.attrs[3].u, rows > 0)


cdef int maxpool_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Window w = pool_window(c)
    cdef size_t batch = c.y.dim.bd
    if total_of(&c.y.dim) == 0:
        return 0
    return launch(gpu, MAXPOOL_FORWARD, across(gpu, <size_t>w.out[0] * w.out[1]), planes(batch * w.channels), THREADS,
                  0, batch, value_at(&w), c.x[0].v, c.x[0].bstride, c.saved, c.y.v)


cdef int maxpool_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Window w = pool_window(c)
    cdef size_t batch = c.y.dim.bd, own = c.dx.dim.bd
    if total_of(&c.dx.dim) == 0:
        return 0
    return launch(gpu, MAXPOOL_BACKWARD, across(gpu, <size_t>w.inputs[0] * w.inputs[1]), planes(own * w.channels),
                  THREADS, 0, batch, value_at(&w), c.saved, c.dy.v, own, c.dx.v, c.accumulate)


cdef size_t as_many_as_y(const Call* c) noexcept nogil:
    return total_of(&c.y.dim)


op = gpu_op(b"maxpooling2d", CU)
op.forward = maxpool_forward
op.backward = maxpool_backward
op.saved = as_many_as_y
op.assigns = True


# ---- kmax_pooling: attributes: k, axis ---------------------------------------------------------

cdef int KMAX_FORWARD = kernel_at(CU, b"kmax_forward")
cdef int KMAX_BACKWARD = kernel_at(CU, b"kmax_backward")


cdef int kmax_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[1].u)
    cdef size_t lines = s.pre * s.post * c.y.dim.bd
    return launch_rows(gpu, KMAX_FORWARD, lines, s.len, lines, s.pre, s.len, s.post, c.attrs[0].u, c.x[0].v,
                       c.x[0].bstride, c.saved, c.y.v) if lines else 0


cdef int kmax_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[1].u)
    cdef size_t lines = s.pre * s.post * c.dx.dim.bd
    return launch_each(gpu, KMAX_BACKWARD, lines, lines, s.pre, s.len, c.attrs[0].u, c.y.dim.bd // c.dx.dim.bd, c.saved,
                       c.dy.v, c.dx.v) if lines else 0


op = gpu_op(b"kmax_pooling", CU)
op.forward = kmax_forward
op.backward = kmax_backward


# ---- kmh_ngram: attributes: columns of a sum -----------------------------------------------------

cdef int NGRAM_FORWARD = kernel_at(CU, b"ngram_forward")
cdef int NGRAM_BACKWARD = kernel_at(CU, b"ngram_backward")


cdef int ngram_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = total_of(&c.y.dim), batch = c.y.dim.bd
    if n == 0:
        return 0
    return launch_each(gpu, NGRAM_FORWARD, n, batch, c.y.dim.d[0], c.y.dim.d[1], c.attrs[0].u, c.x[0].v,
                       c.x[0].bstride, c.y.v)


cdef int ngram_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = total_of(&c.dx.dim), batch = c.y.dim.bd, own = c.dx.dim.bd
    if n == 0:
        return 0
    return launch_each(gpu, NGRAM_BACKWARD, n, batch, c.y.dim.d[0], c.y.dim.d[1], c.attrs[0].u, c.dy.v, own, c.dx.v,
                       c.accumulate)


op = gpu_op(b"kmh_ngram", CU)
op.forward = ngram_forward
op.backward = ngram_backward
op.assigns = True
