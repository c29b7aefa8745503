"""Distances and losses between two expressions."""

# derived: launches
from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, size_of, total_of
from dynet_cy.gpu.driver cimport Gpu, GpuOp, launch_each, launch_rows
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at

cdef int CU = module_at(b"losses")
cdef int PAIR_FORWARD_SQUARED_DIFFERENCE = kernel_at(CU, b"pair_forward_squared_difference")
cdef int PAIR_BACKWARD_0_SQUARED_DIFFERENCE = kernel_at(CU, b"pair_backward_0_squared_difference")
cdef int PAIR_BACKWARD_1_SQUARED_DIFFERENCE = kernel_at(CU, b"pair_backward_1_squared_difference")
cdef int PAIR_FORWARD_ABS_DIFFERENCE = kernel_at(CU, b"pair_forward_abs_difference")
cdef int PAIR_BACKWARD_0_ABS_DIFFERENCE = kernel_at(CU, b"pair_backward_0_abs_difference")
cdef int PAIR_BACKWARD_1_ABS_DIFFERENCE = kernel_at(CU, b"pair_backward_1_abs_difference")
cdef int PAIR_FORWARD_BINARY_LOG_LOSS = kernel_at(CU, b"pair_forward_binary_log_loss")
cdef int PAIR_BACKWARD_0_BINARY_LOG_LOSS = kernel_at(CU, b"pair_backward_0_binary_log_loss")
cdef int PAIR_BACKWARD_1_BINARY_LOG_LOSS = kernel_at(CU, b"pair_backward_1_binary_log_loss")
cdef int PAIR_FORWARD_HUBER = kernel_at(CU, b"pair_forward_huber")
cdef int PAIR_BACKWARD_0_HUBER = kernel_at(CU, b"pair_backward_0_huber")
cdef int PAIR_BACKWARD_1_HUBER = kernel_at(CU, b"pair_backward_1_huber")
cdef int PAIRWISE_FORWARD = kernel_at(CU, b"pairwise_forward")
cdef int PAIRWISE_BACKWARD = kernel_at(CU, b"pairwise_backward")
cdef int POISSON_FORWARD = kernel_at(CU, b"poisson_forward")
cdef int POISSON_BACKWARD = kernel_at(CU, b"poisson_backward")
cdef GpuOp* op


cdef int squared_distance_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.x[0].dim)
    cdef float p = <float>c.attrs[0].f
    return launch_rows(gpu, PAIR_FORWARD_SQUARED_DIFFERENCE, batch, n, batch, n, p, c.x[0].v, c.x[0].bstride, c.x[1].v,
                       c.x[1].bstride, c.y.v)


cdef int squared_distance_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.x[0].dim)
    cdef float p = <float>c.attrs[0].f
    if i == 0:
        return launch_each(gpu, PAIR_BACKWARD_0_SQUARED_DIFFERENCE, elements * n, batch, n, p, c.x[0].v, c.x[0].bstride,
                           c.x[1].v, c.x[1].bstride, c.dy.v, c.dx.v, elements, c.accumulate)
    return launch_each(gpu, PAIR_BACKWARD_1_SQUARED_DIFFERENCE, elements * n, batch, n, p, c.x[0].v, c.x[0].bstride,
                       c.x[1].v, c.x[1].bstride, c.dy.v, c.dx.v, elements, c.accumulate)


op = gpu_op(b"squared_distance", CU, squared_distance_forward, squared_distance_backward)
op.assigns = True


cdef int l1_distance_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.x[0].dim)
    cdef float p = <float>c.attrs[0].f
    return launch_rows(gpu, PAIR_FORWARD_ABS_DIFFERENCE, batch, n, batch, n, p, c.x[0].v, c.x[0].bstride, c.x[1].v,
                       c.x[1].bstride, c.y.v)


cdef int l1_distance_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.x[0].dim)
    cdef float p = <float>c.attrs[0].f
    if i == 0:
        return launch_each(gpu, PAIR_BACKWARD_0_ABS_DIFFERENCE, elements * n, batch, n, p, c.x[0].v, c.x[0].bstride,
                           c.x[1].v, c.x[1].bstride, c.dy.v, c.dx.v, elements, c.accumulate)
    return launch_each(gpu, PAIR_BACKWARD_1_ABS_DIFFERENCE, elements * n, batch, n, p, c.x[0].v, c.x[0].bstride,
                       c.x[1].v, c.x[1].bstride, c.dy.v, c.dx.v, elements, c.accumulate)


op = gpu_op(b"l1_distance", CU, l1_distance_forward, l1_distance_backward)
op.assigns = True


cdef int binary_log_loss_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.x[0].dim)
    cdef float p = <float>c.attrs[0].f
    return launch_rows(gpu, PAIR_FORWARD_BINARY_LOG_LOSS, batch, n, batch, n, p, c.x[0].v, c.x[0].bstride, c.x[1].v,
                       c.x[1].bstride, c.y.v)


cdef int binary_log_loss_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.x[0].dim)
    cdef float p = <float>c.attrs[0].f
    if i == 0:
        return launch_each(gpu, PAIR_BACKWARD_0_BINARY_LOG_LOSS, elements * n, batch, n, p, c.x[0].v, c.x[0].bstride,
                           c.x[1].v, c.x[1].bstride, c.dy.v, c.dx.v, elements, c.accumulate)
    return launch_each(gpu, PAIR_BACKWARD_1_BINARY_LOG_LOSS, elements * n, batch, n, p, c.x[0].v, c.x[0].bstride,
                       c.x[1].v, c.x[1].bstride, c.dy.v, c.dx.v, elements, c.accumulate)


op = gpu_op(b"binary_log_loss", CU, binary_log_loss_forward, binary_log_loss_backward)
op.assigns = True


cdef int huber_distance_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.x[0].dim)
    cdef float p = <float>c.attrs[0].f
    return launch_rows(gpu, PAIR_FORWARD_HUBER, batch, n, batch, n, p, c.x[0].v, c.x[0].bstride, c.x[1].v,
                       c.x[1].bstride, c.y.v)


cdef int huber_distance_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.x[0].dim)
    cdef float p = <float>c.attrs[0].f
    if i == 0:
        return launch_each(gpu, PAIR_BACKWARD_0_HUBER, elements * n, batch, n, p, c.x[0].v, c.x[0].bstride, c.x[1].v,
                           c.x[1].bstride, c.dy.v, c.dx.v, elements, c.accumulate)
    return launch_each(gpu, PAIR_BACKWARD_1_HUBER, elements * n, batch, n, p, c.x[0].v, c.x[0].bstride, c.x[1].v,
                       c.x[1].bstride, c.dy.v, c.dx.v, elements, c.accumulate)


op = gpu_op(b"huber_distance", CU, huber_distance_forward, huber_distance_backward)
op.assigns = True


cdef int pairwise_rank_loss_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t total = total_of(&c.y.dim)
    cdef float m = <float>c.attrs[0].f
    cdef size_t na = total_of(&c.x[0].dim), nb = total_of(&c.x[1].dim)
    return launch_each(gpu, PAIRWISE_FORWARD, total, total, m, c.x[0].v, na, c.x[1].v, nb, c.y.v)


cdef int pairwise_rank_loss_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t total = total_of(&c.y.dim), n = total_of(&c.dx.dim)
    cdef float sign = <float>(1 if i else -1)
    return launch_each(gpu, PAIRWISE_BACKWARD, n, total, n, sign, c.y.v, c.dy.v, c.dx.v, c.accumulate)


op = gpu_op(b"pairwise_rank_loss", CU, pairwise_rank_loss_forward, pairwise_rank_loss_backward)
op.assigns = True


cdef int poisson_loss_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    return launch_each(gpu, POISSON_FORWARD, batch, batch, c.x[0].v, c.x[0].bstride, c.items, c.y.v)


cdef int poisson_loss_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd
    return launch_each(gpu, POISSON_BACKWARD, elements, batch, c.x[0].v, c.x[0].bstride, c.items, c.dy.v, c.dx.v,
                       c.accumulate)


op = gpu_op(b"poisson_loss", CU, poisson_loss_forward, poisson_loss_backward)
op.assigns = True
# end of launches
