"""Normalization of layers, weights and channels."""

# derived: launches of norm, batch_norm
from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, size_of, total_of
from dynet_cy.gpu.driver cimport THREADS, Gpu, GpuOp, launch_each, launch_rows
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at
from dynet_cy.ops.loops cimport DROPPED, EPSILON, Split, columns_of, lines_of, split_at

cdef GpuOp* op

cdef int CU_NORM = module_at(b"norm")
cdef int LAYER_NORM_FORWARD = kernel_at(CU_NORM, b"layer_norm_forward")
cdef int LAYER_NORM_BACKWARD_X = kernel_at(CU_NORM, b"layer_norm_backward_x")
cdef int LAYER_NORM_BACKWARD_WEIGHTS = kernel_at(CU_NORM, b"layer_norm_backward_weights")
cdef int RESIDUAL_LAYER_NORM_FORWARD = kernel_at(CU_NORM, b"residual_layer_norm_forward")
cdef int WEIGHT_NORM_FORWARD = kernel_at(CU_NORM, b"weight_norm_forward")
cdef int WEIGHT_NORM_BACKWARD = kernel_at(CU_NORM, b"weight_norm_backward")


cdef int layer_norm_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim)
    cdef Split s = lines_of(&c.y.dim, &c.x[1].dim, c.attrs)
    cdef size_t pre = s.pre, len = s.len, lines = pre * s.post, ng = size_of(&c.x[1].dim)
    if n == 0:
        return 0
    cdef float tiny = <float>(1e-8), eps = <float>c.attrs[EPSILON].f
    cdef size_t nb = size_of(&c.x[2].dim)
    return launch_rows(gpu, LAYER_NORM_FORWARD, batch * lines, len, batch, n, pre, len, tiny, eps, c.x[0].v,
                       c.x[0].bstride, c.x[1].v, ng, c.x[1].bstride, c.x[2].v, nb, c.x[2].bstride, c.saved, c.y.v)


cdef int layer_norm_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.y.dim)
    cdef Split s = lines_of(&c.y.dim, &c.x[1].dim, c.attrs)
    cdef size_t pre = s.pre, len = s.len, lines = pre * s.post, ng = size_of(&c.x[1].dim)
    if n == 0:
        return 0
    cdef size_t m = size_of(&c.dx.dim)
    if i == 0:
        return launch_rows(gpu, LAYER_NORM_BACKWARD_X, elements * lines, len, batch, n, pre, len, c.x[0].v,
                           c.x[0].bstride, c.x[1].v, ng, c.x[1].bstride, NULL, NULL, <float>1, <float>1, c.saved,
                           c.dy.v, elements, c.dx.v, c.accumulate)
    return launch_rows(gpu, LAYER_NORM_BACKWARD_WEIGHTS, elements * ((m + 31) // 32), THREADS, batch, n, pre, len, m,
                       c.x[0].v if i == 1 else NULL, c.x[0].bstride, c.saved, c.dy.v, elements, c.dx.v, c.accumulate)


op = gpu_op(b"layer_norm", CU_NORM, layer_norm_forward, layer_norm_backward)
op.assigns = True


cdef int residual_layer_norm_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim)
    cdef Split s = columns_of(&c.y.dim)
    cdef size_t len = s.len
    cdef float keep = <float>(1 - c.attrs[DROPPED].f), value = <float>(1 / keep if keep > 0 else 0)
    if n == 0:
        return 0
    cdef float tiny = <float>(1e-8), eps = <float>c.attrs[EPSILON].f
    return launch_rows(gpu, RESIDUAL_LAYER_NORM_FORWARD, batch * s.post, len, batch, n, len, tiny, eps,
                       <const void*>c.seed, c.items if keep < 1 else NULL, keep, value, c.x[0].v, c.x[0].bstride,
                       c.x[2].v, c.x[2].bstride, c.x[1].v, c.x[1].bstride, c.x[3].v, c.x[3].bstride, c.saved,
                       c.saved + 3 * s.post * batch, c.y.v)


cdef int residual_layer_norm_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.y.dim)
    cdef Split s = columns_of(&c.y.dim)
    cdef size_t pre = s.pre, len = s.len
    cdef float keep = <float>(1 - c.attrs[DROPPED].f), value = <float>(1 / keep if keep > 0 else 0)
    if n == 0:
        return 0
    cdef size_t m = size_of(&c.dx.dim), stride_x = n
    if i & 1:
        return launch_rows(gpu, LAYER_NORM_BACKWARD_WEIGHTS, elements * ((m + 31) // 32), THREADS, batch, n, pre, len,
                           m, c.saved + 3 * s.post * batch if i == 1 else NULL, stride_x, c.saved, c.dy.v, elements,
                           c.dx.v, c.accumulate)
    cdef size_t ng = len
    return launch_rows(gpu, LAYER_NORM_BACKWARD_X, elements * s.post, len, batch, n, pre, len,
                       c.saved + 3 * s.post * batch, stride_x, c.x[1].v, ng, c.x[1].bstride, <const void*>c.seed,
                       c.items if keep < 1 and i == 2 else NULL, keep, value, c.saved, c.dy.v, elements, c.dx.v,
                       c.accumulate)


op = gpu_op(b"residual_layer_norm", CU_NORM, residual_layer_norm_forward, residual_layer_norm_backward)
op.assigns = True

op = gpu_op(b"residual_layer_norm_dropout", CU_NORM, residual_layer_norm_forward, residual_layer_norm_backward)
op.draws = True
op.assigns = True


cdef int weight_norm_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim)
    return launch_rows(gpu, WEIGHT_NORM_FORWARD, batch, n, batch, n, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride,
                       c.y.v)


cdef int weight_norm_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.y.dim)
    return launch_rows(gpu, WEIGHT_NORM_BACKWARD, elements, n, batch, n, i, c.x[0].v, c.x[0].bstride, c.x[1].v,
                       c.x[1].bstride, c.dy.v, elements, c.dx.v, c.accumulate)


op = gpu_op(b"weight_norm", CU_NORM, weight_norm_forward, weight_norm_backward)
op.assigns = True

cdef int CU_BATCH_NORM = module_at(b"batch_norm")
cdef int MOMENTS_FORWARD = kernel_at(CU_BATCH_NORM, b"moments_forward")
cdef int MOMENTS_BACKWARD = kernel_at(CU_BATCH_NORM, b"moments_backward")
cdef int CHANNEL_FORWARD = kernel_at(CU_BATCH_NORM, b"channel_forward")
cdef int CHANNEL_BACKWARD_X = kernel_at(CU_BATCH_NORM, b"channel_backward_x")
cdef int CHANNEL_BACKWARD = kernel_at(CU_BATCH_NORM, b"channel_backward")


cdef int batch_moments_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t pre = s.pre, channels = s.len, post = s.post, elements = batch, uses = c.x[0].dim.bd // batch
    return launch_rows(gpu, MOMENTS_FORWARD, elements * channels, uses * pre * post, elements, uses, pre, channels,
                       post, c.x[0].v, c.y.v)


cdef int batch_moments_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t pre = s.pre, channels = s.len, post = s.post, elements = batch, uses = c.x[0].dim.bd // batch
    return launch_each(gpu, MOMENTS_BACKWARD, total_of(&c.x[0].dim), elements, uses, pre, channels, post, c.x[0].v,
                       c.y.v, c.dy.v, c.dx.v, c.accumulate)


op = gpu_op(b"batch_moments", CU_BATCH_NORM, batch_moments_forward, batch_moments_backward)
op.assigns = True


cdef int channel_norm_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t pre = s.pre, channels = s.len, post = s.post
    cdef float eps = <float>c.attrs[1].f
    return launch_each(gpu, CHANNEL_FORWARD, total_of(&c.y.dim), batch, pre, channels, post, eps, c.x[0].v,
                       c.x[0].bstride, c.x[1].v, c.x[1].bstride, c.x[2].v, c.x[2].bstride, c.x[3].v, c.x[3].bstride,
                       c.x[4].v, c.x[4].bstride, c.y.v)


cdef int channel_norm_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t pre = s.pre, channels = s.len, post = s.post
    cdef float eps = <float>c.attrs[1].f
    cdef size_t n = total_of(&c.dx.dim)
    if i == 0:
        return launch_each(gpu, CHANNEL_BACKWARD_X, n, batch, pre, channels, post, eps, c.x[2].v, c.x[2].bstride,
                           c.x[3].v, c.x[3].bstride, c.dy.v, elements, c.dx.v, c.accumulate)
    return launch_rows(gpu, CHANNEL_BACKWARD, n, batch // elements * pre * post, batch, pre, channels, post, eps, i,
                       c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride, c.x[2].v, c.x[2].bstride, c.x[3].v,
                       c.x[3].bstride, c.dy.v, elements, c.dx.v, c.accumulate)


op = gpu_op(b"channel_norm", CU_BATCH_NORM, channel_norm_forward, channel_norm_backward)
op.assigns = True
# end of launches
