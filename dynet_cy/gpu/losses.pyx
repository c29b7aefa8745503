"""Distances and losses between two expressions."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, size_of, total_of
from dynet_cy.gpu.driver cimport Gpu, GpuOp, launch_each, launch_rows
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at, number_of
from dynet_cy.ops.registry cimport MAX_OPS

cdef int CU = module_at(b"losses")


# ---- squared_distance, l1_distance, binary_log_loss, huber_distance: y = sum_j f(x_j, y_j) ----
# Attributes: c of huber_distance.  Kernels by number of the op; backward: one for each argument.

cdef int[MAX_OPS] FORWARD
cdef int[MAX_OPS][2] BACKWARD


cdef int summed_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.x[0].dim), batch = c.y.dim.bd
    return launch_rows(gpu, FORWARD[gpu.op], batch, n, batch, n, c.attrs[0].f, c.x[0].v, c.x[0].bstride, c.x[1].v,
                       c.x[1].bstride, c.y.v)


cdef int summed_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = size_of(&c.x[0].dim), batch = c.y.dim.bd, own = c.dx.dim.bd
    if n == 0:
        return 0
    return launch_each(gpu, BACKWARD[gpu.op][i], own * n, batch, n, c.attrs[0].f, c.x[0].v, c.x[0].bstride, c.x[1].v,
                       c.x[1].bstride, c.dy.v, c.dx.v, own, c.accumulate)


cdef GpuOp* op
cdef bytes name, kind
for name, kind in ((b"squared_distance", b"squared_difference"), (b"l1_distance", b"abs_difference"),
                   (b"binary_log_loss", b"binary_log_loss"), (b"huber_distance", b"huber")):
    op = gpu_op(name, CU)
    op.forward = summed_forward
    op.backward = summed_backward
    op.assigns = True
    FORWARD[number_of(op)] = kernel_at(CU, b"pair_forward_" + kind)
    BACKWARD[number_of(op)][0] = kernel_at(CU, b"pair_backward_0_" + kind)
    BACKWARD[number_of(op)][1] = kernel_at(CU, b"pair_backward_1_" + kind)


# ---- pairwise_rank_loss: element by element.  Attributes: the margin --------------------------

cdef int PAIRWISE_FORWARD = kernel_at(CU, b"pairwise_forward")
cdef int PAIRWISE_BACKWARD = kernel_at(CU, b"pairwise_backward")


cdef int pairwise_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = total_of(&c.y.dim)
    if n == 0:
        return 0
    return launch_each(gpu, PAIRWISE_FORWARD, n, n, c.attrs[0].f, c.x[0].v, total_of(&c.x[0].dim), c.x[1].v,
                       total_of(&c.x[1].dim), c.y.v)


cdef int pairwise_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t total = total_of(&c.y.dim), n = total_of(&c.dx.dim)
    if n == 0:
        return 0
    return launch_each(gpu, PAIRWISE_BACKWARD, n, total, n, <float>(1 if i else -1), c.y.v, c.dy.v, c.dx.v,
                       c.accumulate)


op = gpu_op(b"pairwise_rank_loss", CU)
op.forward = pairwise_forward
op.backward = pairwise_backward
op.assigns = True


# ---- poisson_loss: items: the counts ------------------------------------------------------------

cdef int POISSON_FORWARD = kernel_at(CU, b"poisson_forward")
cdef int POISSON_BACKWARD = kernel_at(CU, b"poisson_backward")


cdef int poisson_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    return launch_each(gpu, POISSON_FORWARD, batch, batch, c.x[0].v, c.x[0].bstride, c.items, c.y.v)


cdef int poisson_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    return launch_each(gpu, POISSON_BACKWARD, c.dx.dim.bd, batch, c.x[0].v, c.x[0].bstride, c.items, c.dy.v, c.dx.v,
                       c.accumulate)


op = gpu_op(b"poisson_loss", CU)
op.forward = poisson_forward
op.backward = poisson_backward
op.assigns = True
