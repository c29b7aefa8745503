"""Normalization of layers and weights."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, size_of
from dynet_cy.gpu.driver cimport THREADS, Gpu, GpuOp, launch_rows
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at
from dynet_cy.ops.axes cimport Split
from dynet_cy.ops.norms cimport DROPPED, EPSILON, columns_of, lines_of

cdef int CU = module_at(b"norm")


# ---- layer_norm: y = g z + b, z = (x - mean x) / (deviation of x + 1e-8) ------------

cdef int LAYER_FORWARD = kernel_at(CU, b"layer_norm_forward")
cdef int LAYER_BACKWARD_X = kernel_at(CU, b"layer_norm_backward_x")
cdef int LAYER_BACKWARD_WEIGHTS = kernel_at(CU, b"layer_norm_backward_weights")


cdef int layer_norm_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim), batch = c.y.dim.bd
    cdef Split s = lines_of(&c.y.dim, &c.x[1].dim, c.attrs)
    if n == 0:
        return 0
    return launch_rows(gpu, LAYER_FORWARD, batch * s.pre * s.post, s.len, batch, n, s.pre, s.len, 1e-8,
                       c.attrs[EPSILON].f, c.x[0].v, c.x[0].bstride, c.x[1].v, size_of(&c.x[1].dim), c.x[1].bstride,
                       c.x[2].v, size_of(&c.x[2].dim), c.x[2].bstride, c.saved, c.y.v)


cdef int layer_norm_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim), batch = c.y.dim.bd, m = size_of(&c.dx.dim), own = c.dx.dim.bd
    cdef Split s = lines_of(&c.y.dim, &c.x[1].dim, c.attrs)
    if n == 0:
        return 0
    if i == 0:
        return launch_rows(gpu, LAYER_BACKWARD_X, own * s.pre * s.post, s.len, batch, n, s.pre, s.len, c.x[0].v,
                           c.x[0].bstride, c.x[1].v, size_of(&c.x[1].dim), c.x[1].bstride, NULL, NULL, <float>1,
                           <float>1, c.saved, c.dy.v, own, c.dx.v, c.accumulate)
    return launch_rows(gpu, LAYER_BACKWARD_WEIGHTS, own * ((m + 31) // 32), <size_t>THREADS, batch, n, s.pre, s.len, m,
                       c.x[0].v if i == 1 else NULL, c.x[0].bstride, c.saved, c.dy.v, own, c.dx.v, c.accumulate)


cdef GpuOp* op = gpu_op(b"layer_norm", CU)
op.forward = layer_norm_forward
op.backward = layer_norm_backward
op.assigns = True


# ---- residual_layer_norm: y = layer_norm(x + mask r) of each column ----------------------

cdef int RESIDUAL_FORWARD = kernel_at(CU, b"residual_layer_norm_forward")


cdef inline float* sums_of(const Call* c) noexcept nogil:
    """Where the sums x + mask r are saved: after three numbers for each column."""
    return c.saved + 3 * columns_of(&c.y.dim).post * c.y.dim.bd


cdef int residual_layer_norm_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim), batch = c.y.dim.bd
    cdef Split s = columns_of(&c.y.dim)
    cdef float keep = 1 - c.attrs[DROPPED].f
    if n == 0:
        return 0
    return launch_rows(gpu, RESIDUAL_FORWARD, batch * s.post, s.len, batch, n, s.len, 1e-8, c.attrs[EPSILON].f,
                       <const void*>c.seed, c.items if keep < 1 else NULL, keep,
                       <float>(1 / keep if keep > 0 else 0), c.x[0].v, c.x[0].bstride, c.x[2].v, c.x[2].bstride,
                       c.x[1].v, c.x[1].bstride, c.x[3].v, c.x[3].bstride, c.saved, sums_of(c), c.y.v)


cdef int residual_layer_norm_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim), batch = c.y.dim.bd, m = size_of(&c.dx.dim), own = c.dx.dim.bd
    cdef Split s = columns_of(&c.y.dim)
    cdef float keep = 1 - c.attrs[DROPPED].f
    if n == 0:
        return 0
    if i & 1:
        return launch_rows(gpu, LAYER_BACKWARD_WEIGHTS, own * ((m + 31) // 32), <size_t>THREADS, batch, n, s.pre, s.len,
                           m, sums_of(c) if i == 1 else NULL, n, c.saved, c.dy.v, own, c.dx.v, c.accumulate)
    return launch_rows(gpu, LAYER_BACKWARD_X, own * s.post, s.len, batch, n, s.pre, s.len, sums_of(c), n, c.x[1].v,
                       s.len, c.x[1].bstride, <const void*>c.seed, c.items if keep < 1 and i == 2 else NULL, keep,
                       <float>(1 / keep if keep > 0 else 0), c.saved, c.dy.v, own, c.dx.v, c.accumulate)


cdef GpuOp* new_residual_layer_norm(bytes name) except NULL:
    cdef GpuOp* op = gpu_op(name, CU)
    op.forward = residual_layer_norm_forward
    op.backward = residual_layer_norm_backward
    op.assigns = True
    return op


new_residual_layer_norm(b"residual_layer_norm")
cdef GpuOp* DROPPING = new_residual_layer_norm(b"residual_layer_norm_dropout")
DROPPING.draws = True


# ---- weight_norm: y = g w / |w| -------------------------------------------------------

cdef int WEIGHT_FORWARD = kernel_at(CU, b"weight_norm_forward")
cdef int WEIGHT_BACKWARD = kernel_at(CU, b"weight_norm_backward")


cdef int weight_norm_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim), batch = c.y.dim.bd
    return launch_rows(gpu, WEIGHT_FORWARD, batch, n, batch, n, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride,
                       c.y.v)


cdef int weight_norm_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim), batch = c.y.dim.bd, own = c.dx.dim.bd
    return launch_rows(gpu, WEIGHT_BACKWARD, own, n, batch, n, <int>i, c.x[0].v, c.x[0].bstride, c.x[1].v,
                       c.x[1].bstride, c.dy.v, own, c.dx.v, c.accumulate)


op = gpu_op(b"weight_norm", CU)
op.forward = weight_norm_forward
op.backward = weight_norm_backward
op.assigns = True
