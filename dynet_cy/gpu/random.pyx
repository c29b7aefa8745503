"""Dropout, noise and random leaves.  The kernels draw the same numbers as on the CPU."""

# derived: launches of random
from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, size_of
from dynet_cy.gpu.driver cimport Gpu, GpuOp, launch_each, launch_rows
from dynet_cy.gpu.refused cimport refused_of
from dynet_cy.gpu.registry cimport BASE, gpu_op, kernel_at, module_at, needs_module, pass_scaled
from dynet_cy.ops.loops cimport Split, split_at

cdef GpuOp* op

cdef int CU_RANDOM = module_at(b"random")
cdef int RANDOM_NORMAL = kernel_at(CU_RANDOM, b"random_normal")
cdef int RANDOM_UNIFORM = kernel_at(CU_RANDOM, b"random_uniform")
cdef int RANDOM_BERNOULLI = kernel_at(CU_RANDOM, b"random_bernoulli")
cdef int RANDOM_GUMBEL = kernel_at(CU_RANDOM, b"random_gumbel")
cdef int NOISE_FORWARD = kernel_at(CU_RANDOM, b"noise_forward")
cdef int DROPOUT_FORWARD = kernel_at(CU_RANDOM, b"dropout_forward")
cdef int DROPOUT_BACKWARD = kernel_at(CU_RANDOM, b"dropout_backward")
cdef int SAMPLE_FORWARD = kernel_at(CU_RANDOM, b"sample_forward")


cdef int random_normal_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim)
    cdef float p0 = <float>c.attrs[0].f, p1 = <float>c.attrs[1].f
    return launch_each(gpu, RANDOM_NORMAL, batch * n, batch, n, <const void*>c.seed, c.items, p0, p1, c.y.v)


op = gpu_op(b"random_normal", CU_RANDOM, random_normal_forward, NULL)
op.draws = True


cdef int random_uniform_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim)
    cdef float p0 = <float>c.attrs[0].f, p1 = <float>c.attrs[1].f
    return launch_each(gpu, RANDOM_UNIFORM, batch * n, batch, n, <const void*>c.seed, c.items, p0, p1, c.y.v)


op = gpu_op(b"random_uniform", CU_RANDOM, random_uniform_forward, NULL)
op.draws = True


cdef int random_bernoulli_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim)
    cdef float p0 = <float>c.attrs[0].f, p1 = <float>c.attrs[1].f
    return launch_each(gpu, RANDOM_BERNOULLI, batch * n, batch, n, <const void*>c.seed, c.items, p0, p1, c.y.v)


op = gpu_op(b"random_bernoulli", CU_RANDOM, random_bernoulli_forward, NULL)
op.draws = True


cdef int random_gumbel_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim)
    cdef float p0 = <float>c.attrs[0].f, p1 = <float>c.attrs[1].f
    return launch_each(gpu, RANDOM_GUMBEL, batch * n, batch, n, <const void*>c.seed, c.items, p0, p1, c.y.v)


op = gpu_op(b"random_gumbel", CU_RANDOM, random_gumbel_forward, NULL)
op.draws = True


cdef int noise_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim)
    cdef float deviation = <float>c.attrs[0].f
    return launch_each(gpu, NOISE_FORWARD, batch * n, batch, n, <const void*>c.seed, c.items, deviation, c.x[0].v,
                       c.x[0].bstride, c.y.v)


cdef int noise_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return pass_scaled(gpu, &c.dy, 1, &c.dx, c.accumulate)


op = gpu_op(b"noise", CU_RANDOM, noise_forward, noise_backward)
needs_module(op, BASE)
op.draws = True
op.assigns = True


cdef int dropout_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim)
    cdef float keep = <float>(1 - c.attrs[0].f), value = <float>(1 / keep if keep > 0 else 0)
    cdef size_t inner = size_of(&c.y.dim), length = 1
    return launch_each(gpu, DROPOUT_FORWARD, batch * n, batch, n, inner, length, <const void*>c.seed, c.items, keep,
                       value, c.x[0].v, c.x[0].bstride, c.y.v)


cdef int dropout_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.y.dim)
    cdef float keep = <float>(1 - c.attrs[0].f), value = <float>(1 / keep if keep > 0 else 0)
    cdef size_t inner = size_of(&c.y.dim), length = 1
    return launch_each(gpu, DROPOUT_BACKWARD, elements * n, batch, n, inner, length, <const void*>c.seed, c.items, keep,
                       value, c.dy.v, elements, c.dx.v, c.accumulate)


op = gpu_op(b"dropout", CU_RANDOM, dropout_forward, dropout_backward)
op.draws = True
op.assigns = True


cdef int dropout_dim_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.y.dim, c.attrs[1].u)
    cdef size_t n = size_of(&c.y.dim)
    cdef float keep = <float>(1 - c.attrs[0].f), value = <float>(1 / keep if keep > 0 else 0)
    cdef size_t inner = s.pre, length = s.len
    return launch_each(gpu, DROPOUT_FORWARD, batch * n, batch, n, inner, length, <const void*>c.seed, c.items, keep,
                       value, c.x[0].v, c.x[0].bstride, c.y.v)


cdef int dropout_dim_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd
    cdef Split s = split_at(&c.y.dim, c.attrs[1].u)
    cdef size_t n = size_of(&c.y.dim)
    cdef float keep = <float>(1 - c.attrs[0].f), value = <float>(1 / keep if keep > 0 else 0)
    cdef size_t inner = s.pre, length = s.len
    return launch_each(gpu, DROPOUT_BACKWARD, elements * n, batch, n, inner, length, <const void*>c.seed, c.items, keep,
                       value, c.dy.v, elements, c.dx.v, c.accumulate)


op = gpu_op(b"dropout_dim", CU_RANDOM, dropout_dim_forward, dropout_dim_backward)
op.draws = True
op.assigns = True


cdef int dropout_batch_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim)
    cdef float keep = <float>(1 - c.attrs[0].f), value = <float>(1 / keep if keep > 0 else 0)
    cdef size_t inner = 1, length = size_of(&c.y.dim)
    return launch_each(gpu, DROPOUT_FORWARD, batch * n, batch, n, inner, length, <const void*>c.seed, c.items, keep,
                       value, c.x[0].v, c.x[0].bstride, c.y.v)


cdef int dropout_batch_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.y.dim)
    cdef float keep = <float>(1 - c.attrs[0].f), value = <float>(1 / keep if keep > 0 else 0)
    cdef size_t inner = 1, length = size_of(&c.y.dim)
    return launch_each(gpu, DROPOUT_BACKWARD, elements * n, batch, n, inner, length, <const void*>c.seed, c.items, keep,
                       value, c.dy.v, elements, c.dx.v, c.accumulate)


op = gpu_op(b"dropout_batch", CU_RANDOM, dropout_batch_forward, dropout_batch_backward)
op.draws = True
op.assigns = True

op = gpu_op(b"block_dropout", CU_RANDOM, dropout_batch_forward, dropout_batch_backward)
op.draws = True
op.assigns = True


cdef int sample_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post
    cdef uint32_t function = c.attrs[3].u
    return launch_rows(gpu, SAMPLE_FORWARD, inner * outer * batch, length, batch, inner, length, outer,
                       <const void*>c.seed, c.items, function, refused_of(gpu), c.x[0].v, c.x[0].bstride, c.y.v)


op = gpu_op(b"sample", CU_RANDOM, sample_forward, NULL)
op.draws = True
# end of launches
