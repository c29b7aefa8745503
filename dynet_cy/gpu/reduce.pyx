"""Reductions: sums, means, norms, and ops along one axis; normalization of layers, weights and channels."""

from libc.math cimport INFINITY, NAN, isinf
from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, Dim, size_of, total_of
from dynet_cy.gpu.driver cimport Gpu, GpuOp
from dynet_cy.gpu.registry cimport FEW_TERMS, Axes, add_axis, axes_of, axes_total, expand, split_axes


cdef GpuOp* op


# With this many results, one thread for each result keeps the device busy.
cdef enum:
    MANY_RESULTS = 4096


# ---- sum, mean: attributes: the axes, one bit each, and the batch; the divisor ------------------------

cdef void reduction_axes(const Call* c, Axes* kept, Axes* reduced, Axes* back) noexcept nogil:
    """The axes of x that are kept and those that are reduced, with the strides of x; and all with the strides of y.

    If the nodes of a batch share x, each has its own sum: an axis of y that x does not have.
    """
    cdef const Dim* x = &c.x[0].dim
    cdef Dim y = x[0]                               # with one element along the axes that are reduced
    cdef uint32_t k
    for k in range(y.nd):
        if c.attrs[0].u >> k & 1:
            y.d[k] = 1
    y.bd = min(x.bd, c.y.dim.bd)
    split_axes(x, x, x, &y, kept, reduced)
    back[0] = axes_of(x, &y, &y)
    if x.bd == 1:
        add_axis(kept, c.y.dim.bd, 0, 0, 0)


cdef float share(const Call* c) noexcept nogil:
    """1 / the number of elements of x for each element of y."""
    cdef size_t n = size_of(&c.y.dim) if c.x[0].dim.bd == 1 else total_of(&c.y.dim)
    cdef size_t m = total_of(&c.x[0].dim)
    if m == 0 and n:
        return INFINITY
    return n / <float>m if n else 1


cdef float mean_scale(const Call* c) noexcept nogil:
    return <float>(1.0 / c.attrs[1].i) if c.attrs[1].i > 0 else share(c)


cdef int spread_mean(Gpu* gpu, const Call* c, const Axes* back) noexcept nogil:
    cdef uint32_t k
    for k in range(<uint32_t>sharing(c) if total_of(&c.x[0].dim) else 0):
        expand(gpu, back, mean_scale(c), c.dy.v + k * c.dy.bstride, c.dx.v, c.accumulate or k > 0)
    return gpu.error


# ---- functions that the comments on kernels call ---------------------------------------------------

cdef bint by_blocks(size_t results, size_t terms, bint neighbours) noexcept nogil:
    """Whether each result is computed by a block; `neighbours`: the terms of a result are adjacent."""
    return terms > FEW_TERMS and (neighbours or results < MANY_RESULTS)


cdef bint by_blocks_over(const Axes* kept, const Axes* reduced) noexcept nogil:
    return by_blocks(axes_total(kept), axes_total(reduced), reduced.n and reduced.stride[0][0] == 1)


cdef float norm_weight(const Call* c) noexcept nogil:
    return share(c) if c.attrs[2].u else 1


cdef size_t sharing(const Call* c) noexcept nogil:
    """How many batch elements of y share one batch element of x."""
    return c.y.dim.bd if c.x[0].dim.bd == 1 else 1

# derived: launches of along, vector_norm, norm, batch_norm
from dynet_cy.gpu.driver cimport THREADS, fill, launch_each, launch_rows, refused_of, value_at
from dynet_cy.gpu.registry cimport BASE, contract, gpu_op, kernel_at, module_at, pass_scaled
from dynet_cy.ops.loops cimport DROPPED, EPSILON, Split, columns_of, lines_of, split_at

cdef int CU_ALONG = module_at(b"along")
cdef int EXTREME_FORWARD = kernel_at(CU_ALONG, b"extreme_forward")
cdef int EXTREME_BACKWARD = kernel_at(CU_ALONG, b"extreme_backward")
cdef int INDEX_FORWARD = kernel_at(CU_ALONG, b"index_forward")
cdef int ARGMAX_FORWARD = kernel_at(CU_ALONG, b"argmax_forward")
cdef int SCAN_LINES = kernel_at(CU_ALONG, b"scan_lines")


cdef int sum_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Axes kept, reduced, back
    reduction_axes(c, &kept, &reduced, &back)
    if total_of(&c.x[0].dim) == 0:
        return fill(gpu, total_of(&c.y.dim), <float>NAN if isinf(mean_scale(c)) else 0, c.y.v)
    return contract(gpu, &kept, &reduced, mean_scale(c), c.x[0].v, c.y.v, 0)


cdef int sum_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Axes kept, reduced, back
    reduction_axes(c, &kept, &reduced, &back)
    return spread_mean(gpu, c, &back)


op = gpu_op(b"sum", BASE, sum_forward, sum_backward)
op.assigns = True

op = gpu_op(b"mean", BASE, sum_forward, sum_backward)
op.assigns = True


cdef int max_dim_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post
    cdef float sign = <float>1
    cdef int ignores = c.attrs[1].u
    cdef size_t lines = inner * outer * batch
    if by_blocks(lines, length, inner == 1):
        return launch_rows(gpu, EXTREME_FORWARD, lines, length, lines, inner, length, outer, sign, ignores, c.x[0].v,
                           c.x[0].bstride, c.saved, c.y.v, 1)
    return launch_each(gpu, EXTREME_FORWARD, lines, lines, inner, length, outer, sign, ignores, c.x[0].v,
                       c.x[0].bstride, c.saved, c.y.v, 0)


cdef int max_dim_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t elements = c.dx.dim.bd, uses = c.y.dim.bd // c.dx.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post, lines = inner * outer * elements
    return launch_each(gpu, EXTREME_BACKWARD, lines, lines, inner, length, outer, uses, c.saved, c.dy.v, c.dx.v)


op = gpu_op(b"max_dim", CU_ALONG, max_dim_forward, max_dim_backward)


cdef int min_dim_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post
    cdef float sign = <float>(-1)
    cdef int ignores = c.attrs[1].u
    cdef size_t lines = inner * outer * batch
    if by_blocks(lines, length, inner == 1):
        return launch_rows(gpu, EXTREME_FORWARD, lines, length, lines, inner, length, outer, sign, ignores, c.x[0].v,
                           c.x[0].bstride, c.saved, c.y.v, 1)
    return launch_each(gpu, EXTREME_FORWARD, lines, lines, inner, length, outer, sign, ignores, c.x[0].v,
                       c.x[0].bstride, c.saved, c.y.v, 0)


op = gpu_op(b"min_dim", CU_ALONG, min_dim_forward, max_dim_backward)


cdef int index_of_max_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post
    cdef uint32_t function = c.attrs[2].u
    cdef float sign = <float>1
    cdef size_t lines = inner * outer * batch
    if by_blocks(lines, length, inner == 1):
        return launch_rows(gpu, INDEX_FORWARD, lines, length, lines, inner, length, outer, sign, function,
                           refused_of(gpu), c.x[0].v, c.x[0].bstride, c.y.v, 1)
    return launch_each(gpu, INDEX_FORWARD, lines, lines, inner, length, outer, sign, function, refused_of(gpu),
                       c.x[0].v, c.x[0].bstride, c.y.v, 0)


op = gpu_op(b"index_of_max", CU_ALONG, index_of_max_forward, NULL)


cdef int index_of_min_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post
    cdef uint32_t function = c.attrs[2].u
    cdef float sign = <float>(-1)
    cdef size_t lines = inner * outer * batch
    if by_blocks(lines, length, inner == 1):
        return launch_rows(gpu, INDEX_FORWARD, lines, length, lines, inner, length, outer, sign, function,
                           refused_of(gpu), c.x[0].v, c.x[0].bstride, c.y.v, 1)
    return launch_each(gpu, INDEX_FORWARD, lines, lines, inner, length, outer, sign, function, refused_of(gpu),
                       c.x[0].v, c.x[0].bstride, c.y.v, 0)


op = gpu_op(b"index_of_min", CU_ALONG, index_of_min_forward, NULL)


cdef int argmax_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim)
    return launch_rows(gpu, ARGMAX_FORWARD, batch, n, batch, n, c.x[0].v, c.x[0].bstride, c.y.v)


op = gpu_op(b"argmax", CU_ALONG, argmax_forward, NULL)


cdef int argmax_straight_through_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return pass_scaled(gpu, &c.dy, 1, &c.dx, c.accumulate)


op = gpu_op(b"argmax_straight_through", CU_ALONG, argmax_forward, argmax_straight_through_backward)
op.assigns = True


cdef int cumsum_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post, use_stride = size_of(&c.y.dim)
    if length == 0:
        return 0
    cdef size_t lines = inner * outer * batch
    if by_blocks(lines, length, inner == 1):
        return launch_rows(gpu, SCAN_LINES, lines, length, lines, inner, length, outer, 1, use_stride, 0, c.x[0].v,
                           c.x[0].bstride, c.y.v, 0, 1)
    return launch_each(gpu, SCAN_LINES, lines, lines, inner, length, outer, 1, use_stride, 0, c.x[0].v, c.x[0].bstride,
                       c.y.v, 0, 0)


cdef int cumsum_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t elements = c.dx.dim.bd, uses = c.y.dim.bd // c.dx.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post, use_stride = size_of(&c.y.dim)
    if length == 0:
        return 0
    cdef size_t lines = inner * outer * elements, stride_x = use_stride
    if by_blocks(lines, length, inner == 1):
        return launch_rows(gpu, SCAN_LINES, lines, length, lines, inner, length, outer, uses, use_stride, 1, c.dy.v,
                           stride_x, c.dx.v, c.accumulate, 1)
    return launch_each(gpu, SCAN_LINES, lines, lines, inner, length, outer, uses, use_stride, 1, c.dy.v, stride_x,
                       c.dx.v, c.accumulate, 0)


op = gpu_op(b"cumsum", CU_ALONG, cumsum_forward, cumsum_backward)
op.assigns = True

cdef int CU_VECTOR_NORM = module_at(b"vector_norm")
cdef int SQUARED_NORM_FORWARD = kernel_at(CU_VECTOR_NORM, b"squared_norm_forward")
cdef int SQUARED_NORM_BACKWARD = kernel_at(CU_VECTOR_NORM, b"squared_norm_backward")
cdef int P_NORM_FORWARD = kernel_at(CU_VECTOR_NORM, b"p_norm_forward")
cdef int P_NORM_BACKWARD = kernel_at(CU_VECTOR_NORM, b"p_norm_backward")


cdef int squared_norm_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.x[0].dim)
    return launch_rows(gpu, SQUARED_NORM_FORWARD, batch, n, batch, n, c.x[0].v, c.x[0].bstride, c.y.v)


cdef int squared_norm_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.x[0].dim)
    return launch_each(gpu, SQUARED_NORM_BACKWARD, elements * n, batch, n, c.x[0].v, c.x[0].bstride, c.dy.v, elements,
                       c.dx.v, c.accumulate)


op = gpu_op(b"squared_norm", CU_VECTOR_NORM, squared_norm_forward, squared_norm_backward)
op.assigns = True


cdef int norm_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Axes kept, reduced, back
    reduction_axes(c, &kept, &reduced, &back)
    cdef float p = <float>c.attrs[1].f, weight = <float>norm_weight(c)
    cdef size_t n = axes_total(&kept), terms = axes_total(&reduced)
    if total_of(&c.x[0].dim) == 0:
        return fill(gpu, total_of(&c.y.dim), <float>NAN if isinf(weight) else 0, c.y.v)
    if by_blocks_over(&kept, &reduced):
        return launch_rows(gpu, P_NORM_FORWARD, n, terms, n, terms, value_at(&kept), value_at(&reduced), p, weight,
                           c.x[0].v, c.saved, c.y.v, 1)
    return launch_each(gpu, P_NORM_FORWARD, n, n, terms, value_at(&kept), value_at(&reduced), p, weight, c.x[0].v,
                       c.saved, c.y.v, 0)


cdef int norm_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Axes kept, reduced, back
    reduction_axes(c, &kept, &reduced, &back)
    cdef float p = <float>c.attrs[1].f, weight = <float>norm_weight(c)
    cdef size_t n = total_of(&c.x[0].dim), uses = sharing(c), y_size = size_of(&c.y.dim)
    return launch_each(gpu, P_NORM_BACKWARD, n, n, value_at(&back), uses, y_size, p, weight, c.x[0].v, c.saved, c.y.v,
                       c.dy.v, c.dx.v, c.accumulate)


op = gpu_op(b"norm", CU_VECTOR_NORM, norm_forward, norm_backward)
op.assigns = True

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
