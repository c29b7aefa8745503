"""Convolution, as products with matrices of patches (im2col) of several images at a time, and pooling."""

from libc.stdint cimport uint32_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport Call, Dim, Tensor, axis_of, element, size_of
from dynet_cy.gpu.driver cimport THREADS, Gpu, GpuOp, across, gemm, gemm_strided, launch, planes, value_at
from dynet_cy.gpu.registry cimport Axes, contract, expand, kernel_at, module_at, strided
from dynet_cy.kernels.kernels cimport dy_window
from dynet_cy.ops.conv cimport GROUPS, conv_window, plain_window

cdef GpuOp* op


cdef extern from "dynet_cy/gpu_window.h" nogil:
    # derived: structs of Window = dy_gpu_window
    ctypedef struct Window "dy_gpu_window":
        uint32_t inputs "in"[2]
        uint32_t out[2]
        uint32_t size[2]
        uint32_t stride[2]
        uint32_t pad[2]
        uint32_t channels
        uint32_t dilation[2]
    # end of structs

cdef int CU_CONV = module_at(b"conv")


cdef Window on_device(const dy_window* w) noexcept nogil:
    cdef Window there
    cdef int k
    memset(&there, 0, sizeof(there))
    there.channels = <uint32_t>w.channels
    for k in range(2):
        there.inputs[k] = <uint32_t>w.inputs[k]
        there.size[k] = <uint32_t>w.size[k]
        there.stride[k] = <uint32_t>w.stride[k]
        there.out[k] = <uint32_t>w.out[k]
        there.pad[k] = <uint32_t>w.pad[k]
        there.dilation[k] = <uint32_t>w.dilation[k]
    return there


# ---- products with patches ------------------------------------------------------------
# conv2d: y[o] = sum_c x[c] * f[c, o] (+ b[o]).  filter1d_narrow is the same for images of
# one channel, with the outputs as rows of y.

cdef int PATCHES = kernel_at(CU_CONV, b"patches")
cdef int ADD_PATCHES = kernel_at(CU_CONV, b"add_patches")

# Take as many images at a time as fit this working memory, in floats: more images per call mean fewer calls.
cdef enum:
    ENOUGH_WORK = 1 << 21


cdef struct Product:
    Window w                        # over the channels of one group
    size_t groups
    size_t rows                     # patches of an image
    size_t inner                    # elements of a patch
    size_t outputs                  # of one group
    size_t batch
    size_t images                   # how many at a time
    bint transposed                     # the result is outputs x rows instead of rows x outputs


cdef Product product_of(const Call* c, const dy_window* w, size_t groups, size_t outputs,
                        bint transposed) noexcept nogil:
    cdef Product p
    cdef size_t image
    p.w = on_device(w)
    p.groups = groups
    p.rows = <size_t>p.w.out[0] * p.w.out[1]
    p.inner = <size_t>p.w.size[0] * p.w.size[1] * p.w.channels
    p.outputs = outputs
    p.batch = c.y.dim.bd
    p.transposed = transposed
    image = max(p.rows * (p.inner + outputs), <size_t>1)
    p.images = max(min(p.batch, <size_t>ENOUGH_WORK // image), <size_t>1)
    return p


cdef size_t product_work(const Product* p, int i) noexcept nogil:
    return p.images * p.rows * (p.inner + (p.outputs if i == 1 and not p.transposed else 0))


# One product: `images` images, one group of channels.  Turn // groups is the number of the set of images, turn % groups
# that of the group.
cdef struct Turn:
    size_t first
    size_t images
    size_t all_rows                 # patches of all these images
    size_t image                    # offset of the group in an image, in the filters and in a result
    size_t filters
    size_t result


cdef size_t turns(const Product* p) noexcept nogil:
    return (p.batch + p.images - 1) // p.images * p.groups


cdef Turn turn_at(const Product* p, size_t turn) noexcept nogil:
    cdef Turn t
    cdef size_t group = turn % p.groups
    t.first = turn // p.groups * p.images
    t.images = min(p.images, p.batch - t.first)
    t.all_rows = t.images * p.rows
    t.image = group * p.w.inputs[0] * p.w.inputs[1] * p.w.channels
    t.filters = group * p.inner * p.outputs
    t.result = group * p.rows * p.outputs
    return t


cdef int make_patches(Gpu* gpu, const Product* p, const Turn* t, const Tensor* x, float* work) noexcept nogil:
    if t.all_rows * p.inner == 0:
        return 0
    return launch(gpu, PATCHES, across(gpu, t.all_rows), planes(p.inner), THREADS, 0, t.images, value_at(&p.w),
                  element(x, <uint32_t>t.first) + t.image, x.bstride, work)


cdef int set_result(Gpu* gpu, const Product* p, const Tensor* x, const Tensor* f, float* work, const Tensor* result,
                    float beta) noexcept nogil:
    """result = beta result + the convolution of images x with filters f; summed over the batch, one image at a time, if
    the result has batch size 1."""
    cdef bint shared = result.dim.bd == 1
    cdef Product one = p[0]
    cdef size_t turn, m = p.rows, k = p.inner, o = p.outputs
    cdef Turn t
    cdef const float* filters
    cdef float* y
    cdef float more
    if shared:
        one.images = 1
    for turn in range(turns(&one)):
        t = turn_at(&one, turn)
        filters = element(f, <uint32_t>t.first) + t.filters
        y = element(result, <uint32_t>t.first) + t.result
        more = 1 if shared and t.first else beta
        make_patches(gpu, p, &t, x, work)
        if p.transposed:
            gemm_strided(gpu, 1, 1, o, m, k, 1, filters, k, f.bstride, work, t.all_rows, m, more, y, o, result.bstride,
                         t.images)
        else:
            gemm_strided(gpu, 0, 0, m, o, k, 1, work, t.all_rows, m, filters, k, f.bstride, more, y, m, result.bstride,
                         t.images)
    return gpu.error


cdef int set_image(Gpu* gpu, const Product* p, const Tensor* f, const Tensor* result, float* work, const Tensor* dx,
                   bint accumulate) noexcept nogil:
    """The images of a transposed convolution, or the gradient of the images of a convolution."""
    cdef size_t turn, m = p.rows, k = p.inner, o = p.outputs
    cdef size_t own, pixels = <size_t>p.w.inputs[0] * p.w.inputs[1]
    cdef bint shared = dx.dim.bd == 1
    cdef Turn t
    if size_of(&dx.dim) == 0:
        return 0
    for turn in range(turns(p)):
        t = turn_at(p, turn)
        gemm_strided(gpu, p.transposed, 1, m, k, o, 1, element(result, <uint32_t>t.first) + t.result,
                     o if p.transposed else m, result.bstride, element(f, <uint32_t>t.first) + t.filters, k, f.bstride,
                     0, work, t.all_rows, m, t.images)
        own = 1 if shared else t.images
        launch(gpu, ADD_PATCHES, across(gpu, pixels), planes(own * p.w.channels), THREADS, 0, t.images, value_at(&p.w),
               work, own, element(dx, <uint32_t>t.first) + t.image, size_of(&dx.dim),
               <int>(accumulate or (shared and t.first > 0)))
    return gpu.error


cdef int set_filters(Gpu* gpu, const Product* p, const Tensor* x, const Tensor* dy, float* work, const Tensor* df,
                     bint accumulate) noexcept nogil:
    """The gradient of the filters, from the images and the gradient of the results."""
    cdef size_t turn, m = p.rows, k = p.inner, o = p.outputs
    cdef Turn t
    cdef Axes axes
    cdef float* g
    cdef float* to
    cdef float* transposed
    for turn in range(turns(p)):
        t = turn_at(p, turn)
        g = element(dy, <uint32_t>t.first) + t.result
        to = element(df, <uint32_t>t.first) + t.filters
        make_patches(gpu, p, &t, x, work)
        if df.dim.bd > 1:
            gemm_strided(gpu, 1, p.transposed, k, o, m, 1, work, t.all_rows, m, g, o if p.transposed else m, dy.bstride,
                         accumulate, to, k, df.bstride, t.images)
            continue
        transposed = g
        if not p.transposed and t.images > 1:       # stack the rows of all images, in the order of the patches
            transposed = work + t.all_rows * k
            axes = strided(m, 1, t.images, dy.bstride, o, m)
            expand(gpu, &axes, 1, g, transposed, 0)
        gemm(gpu, 1, p.transposed, k, o, t.all_rows, 1, work, t.all_rows, transposed, o if p.transposed else t.all_rows,
             accumulate or t.first > 0, to, k)
    return gpu.error


# ---- conv2d, conv2d_bias, conv_transpose2d: attributes: see ops/conv.pxd --------------------

cdef Product conv_product(const Call* c, const Dim* image) noexcept nogil:
    cdef const Dim* f = &c.x[1].dim
    cdef dy_window w = conv_window(image, f, c.attrs)
    cdef size_t groups = c.attrs[GROUPS].u
    return product_of(c, &w, groups, axis_of(f, 3) // groups, False)


cdef int convolve(Gpu* gpu, const Call* c, const Product* p) noexcept nogil:
    cdef Axes axes
    if c.n == 3:
        axes = strided(p.rows, 0, p.outputs * p.groups, 1, p.batch, c.x[2].bstride)
        expand(gpu, &axes, 1, c.x[2].v, c.y.v, 0)
    return set_result(gpu, p, &c.x[0], &c.x[1], c.work, &c.y, c.n == 3)


cdef int sum_to_bias(Gpu* gpu, const Call* c, const Product* p, bint accumulate) noexcept nogil:
    cdef size_t outputs = p.outputs * p.groups, image = p.rows * outputs, own = c.dx.dim.bd
    cdef Axes kept = strided(outputs, p.rows, own, image), reduced = strided(p.rows, 1, p.batch // own, image)
    return contract(gpu, &kept, &reduced, 1, c.dy.v, c.dx.v, accumulate)


# ---- filter1d_narrow: y[o, t] = sum_ij f[i, j, o] x[i, t + j] ------------------------------

cdef Product filter_product(const Call* c) noexcept nogil:
    cdef const Dim* f = &c.x[1].dim
    cdef size_t[2] one, none
    cdef dy_window w
    one[0] = one[1] = 1
    none[0] = none[1] = 0
    w = plain_window(&c.x[0].dim, axis_of(f, 0), axis_of(f, 1), one, none)
    return product_of(c, &w, 1, axis_of(f, 2), True)

# derived: launches of conv, pooling
from dynet_cy.core.tensor cimport total_of
from dynet_cy.gpu.driver cimport launch_each
from dynet_cy.gpu.registry cimport BASE, gpu_op, needs_module
from dynet_cy.ops.conv cimport Pooling, pooling_by

cdef int NGRAM_FORWARD = kernel_at(CU_CONV, b"ngram_forward")
cdef int NGRAM_BACKWARD = kernel_at(CU_CONV, b"ngram_backward")


cdef int conv2d_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Product p = conv_product(c, &c.x[0].dim)
    return convolve(gpu, c, &p)


cdef int conv2d_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Product p = conv_product(c, &c.x[0].dim)
    if i == 0:
        return set_image(gpu, &p, &c.x[1], &c.dy, c.work, &c.dx, c.accumulate)
    if i == 1:
        return set_filters(gpu, &p, &c.x[0], &c.dy, c.work, &c.dx, c.accumulate)
    return sum_to_bias(gpu, c, &p, c.accumulate)


cdef size_t conv2d_work(const Call* c, int i) noexcept nogil:
    cdef Product p = conv_product(c, &c.x[0].dim)
    return product_work(&p, i) if i < 2 else 0


op = gpu_op(b"conv2d", BASE, conv2d_forward, conv2d_backward)
needs_module(op, CU_CONV)
op.work = conv2d_work
op.assigns = True

op = gpu_op(b"conv2d_bias", BASE, conv2d_forward, conv2d_backward)
needs_module(op, CU_CONV)
op.work = conv2d_work
op.assigns = True


cdef int conv_transpose2d_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Product p = conv_product(c, &c.y.dim)
    return set_image(gpu, &p, &c.x[1], &c.x[0], c.work, &c.y, False)


cdef int conv_transpose2d_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Product p = conv_product(c, &c.y.dim)
    if i == 1:
        return set_filters(gpu, &p, &c.dy, &c.x[0], c.work, &c.dx, c.accumulate)
    return set_result(gpu, &p, &c.dy, &c.x[1], c.work, &c.dx, c.accumulate)


cdef size_t conv_transpose2d_work(const Call* c, int i) noexcept nogil:
    cdef Product p = conv_product(c, &c.y.dim)
    return product_work(&p, i)


op = gpu_op(b"conv_transpose2d", BASE, conv_transpose2d_forward, conv_transpose2d_backward)
needs_module(op, CU_CONV)
op.work = conv_transpose2d_work
op.assigns = True


cdef int filter1d_narrow_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Product p = filter_product(c)
    return set_result(gpu, &p, &c.x[0], &c.x[1], c.work, &c.y, 0)


cdef int filter1d_narrow_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Product p = filter_product(c)
    if i == 0:
        return set_image(gpu, &p, &c.x[1], &c.dy, c.work, &c.dx, c.accumulate)
    return set_filters(gpu, &p, &c.x[0], &c.dy, c.work, &c.dx, c.accumulate)


cdef size_t filter1d_narrow_work(const Call* c, int i) noexcept nogil:
    cdef Product p = filter_product(c)
    return product_work(&p, i)


op = gpu_op(b"filter1d_narrow", BASE, filter1d_narrow_forward, filter1d_narrow_backward)
needs_module(op, CU_CONV)
op.work = filter1d_narrow_work
op.assigns = True


cdef int kmh_ngram_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, rows = c.y.dim.d[0], columns = c.y.dim.d[1], terms = c.attrs[0].u
    return launch_each(gpu, NGRAM_FORWARD, total_of(&c.y.dim), batch, rows, columns, terms, c.x[0].v, c.x[0].bstride,
                       c.y.v)


cdef int kmh_ngram_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, rows = c.y.dim.d[0], columns = c.y.dim.d[1]
    cdef size_t terms = c.attrs[0].u
    return launch_each(gpu, NGRAM_BACKWARD, total_of(&c.dx.dim), batch, rows, columns, terms, c.dy.v, elements, c.dx.v,
                       c.accumulate)


op = gpu_op(b"kmh_ngram", CU_CONV, kmh_ngram_forward, kmh_ngram_backward)
op.assigns = True

cdef int CU_POOLING = module_at(b"pooling")
cdef int AVERAGE_FORWARD = kernel_at(CU_POOLING, b"average_forward")
cdef int AVERAGE_BACKWARD = kernel_at(CU_POOLING, b"average_backward")
cdef int GREATEST_FORWARD = kernel_at(CU_POOLING, b"greatest_forward")
cdef int GREATEST_BACKWARD = kernel_at(CU_POOLING, b"greatest_backward")


cdef int avgpooling2d_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Pooling w = pooling_by(&c.x[0].dim, c.attrs)
    if total_of(&c.y.dim) == 0:
        return 0
    return launch(gpu, AVERAGE_FORWARD, across(gpu, <size_t>w.out[0] * w.out[1]), planes(batch * w.channels), THREADS,
                  0, batch, value_at(&w), c.x[0].v, c.x[0].bstride, c.y.v)


cdef int avgpooling2d_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd
    cdef Pooling w = pooling_by(&c.x[0].dim, c.attrs)
    if total_of(&c.dx.dim) == 0:
        return 0
    return launch(gpu, AVERAGE_BACKWARD, across(gpu, <size_t>w.inputs[0] * w.inputs[1]), planes(elements * w.channels),
                  THREADS, 0, batch, value_at(&w), c.dy.v, elements, c.dx.v, c.accumulate)


op = gpu_op(b"avgpooling2d", CU_POOLING, avgpooling2d_forward, avgpooling2d_backward)
op.assigns = True

op = gpu_op(b"adaptive_avgpooling2d", CU_POOLING, avgpooling2d_forward, avgpooling2d_backward)
op.assigns = True


cdef int maxpooling2d_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Pooling w = pooling_by(&c.x[0].dim, c.attrs)
    if total_of(&c.y.dim) == 0:
        return 0
    return launch(gpu, GREATEST_FORWARD, across(gpu, <size_t>w.out[0] * w.out[1]), planes(batch * w.channels), THREADS,
                  0, batch, value_at(&w), c.x[0].v, c.x[0].bstride, c.saved, c.y.v)


cdef int maxpooling2d_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd
    cdef Pooling w = pooling_by(&c.x[0].dim, c.attrs)
    if total_of(&c.dx.dim) == 0:
        return 0
    return launch(gpu, GREATEST_BACKWARD, across(gpu, <size_t>w.inputs[0] * w.inputs[1]), planes(elements * w.channels),
                  THREADS, 0, batch, value_at(&w), c.saved, c.dy.v, elements, c.dx.v, c.accumulate)


cdef size_t maxpooling2d_saved(const Call* c) noexcept nogil:
    return total_of(&c.y.dim)


op = gpu_op(b"maxpooling2d", CU_POOLING, maxpooling2d_forward, maxpooling2d_backward)
op.saved = maxpooling2d_saved
op.assigns = True

op = gpu_op(b"adaptive_maxpooling2d", CU_POOLING, maxpooling2d_forward, maxpooling2d_backward)
op.saved = maxpooling2d_saved
op.assigns = True
# end of launches
