"""Dropout, noise and random leaves.  They draw the same numbers as on the CPU."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, size_of
from dynet_cy.gpu.base cimport BASE, pass_scaled
from dynet_cy.gpu.driver cimport Gpu, GpuOp, launch_each
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at, number_of
from dynet_cy.ops.axes cimport Split, split_at
from dynet_cy.ops.registry cimport MAX_OPS


cdef int CU = module_at(b"random")
cdef int DROPOUT_FORWARD = kernel_at(CU, b"dropout_forward")
cdef int DROPOUT_BACKWARD = kernel_at(CU, b"dropout_backward")
cdef int NOISE_FORWARD = kernel_at(CU, b"noise_forward")


# ---- dropout: elements along one axis share a mask value ------------------------------
# Attributes: p, axis.

cdef Split whole(const Call* c) noexcept nogil:
    """Every element has its own mask value: an axis of length 1."""
    cdef Split s
    s.pre = size_of(&c.y.dim)
    s.len = s.post = 1
    return s


cdef Split along(const Call* c) noexcept nogil:
    return split_at(&c.y.dim, c.attrs[1].u)


cdef Split together(const Call* c) noexcept nogil:
    """All elements share one mask value."""
    cdef Split s
    s.pre = s.post = 1
    s.len = size_of(&c.y.dim)
    return s


cdef int forward(Gpu* gpu, const Call* c, Split s) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim), batch = c.y.dim.bd
    cdef float keep = 1 - c.attrs[0].f
    if n == 0:
        return 0
    return launch_each(gpu, DROPOUT_FORWARD, batch * n, batch, n, s.pre, s.len, <const void*>c.seed, c.items, keep,
                       <float>(1 / keep if keep > 0 else 0), c.x[0].v, c.x[0].bstride, c.y.v)


cdef int backward(Gpu* gpu, const Call* c, Split s) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim), batch = c.y.dim.bd, own = c.dx.dim.bd
    cdef float keep = 1 - c.attrs[0].f
    if n == 0:
        return 0
    return launch_each(gpu, DROPOUT_BACKWARD, own * n, batch, n, s.pre, s.len, <const void*>c.seed, c.items, keep,
                       <float>(1 / keep if keep > 0 else 0), c.dy.v, own, c.dx.v, c.accumulate)


cdef int dropout_forward(Gpu* gpu, const Call* c) noexcept nogil:
    return forward(gpu, c, whole(c))


cdef int dropout_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return backward(gpu, c, whole(c))


cdef int dropout_dim_forward(Gpu* gpu, const Call* c) noexcept nogil:
    return forward(gpu, c, along(c))


cdef int dropout_dim_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return backward(gpu, c, along(c))


cdef int dropout_batch_forward(Gpu* gpu, const Call* c) noexcept nogil:
    return forward(gpu, c, together(c))


cdef int dropout_batch_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return backward(gpu, c, together(c))


cdef GpuOp* op = gpu_op(b"dropout", CU)
op.forward = dropout_forward
op.draws = True
op.backward = dropout_backward
op.assigns = True

op = gpu_op(b"dropout_dim", CU)
op.forward = dropout_dim_forward
op.draws = True
op.backward = dropout_dim_backward
op.assigns = True

cdef bytes name
for name in (b"dropout_batch", b"block_dropout"):
    op = gpu_op(name, CU)
    op.forward = dropout_batch_forward
    op.draws = True
    op.backward = dropout_batch_backward
    op.assigns = True


# ---- noise ---------------------------------------------------------------------------

cdef int noise_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim), batch = c.y.dim.bd
    if n == 0:
        return 0
    return launch_each(gpu, NOISE_FORWARD, batch * n, batch, n, <const void*>c.seed, c.items, c.attrs[0].f, c.x[0].v,
                       c.x[0].bstride, c.y.v)


cdef int noise_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return pass_scaled(gpu, &c.dy, 1, &c.dx, c.accumulate)


op = gpu_op(b"noise", CU)
gpu_op(b"noise", BASE)
op.forward = noise_forward
op.draws = True
op.backward = noise_backward
op.assigns = True


# ---- leaves ----------------------------------------------------------------------------
# Attributes: the two parameters of the distribution.

cdef int[MAX_OPS] DRAW                      # by number of the op


cdef int leaf_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim), batch = c.y.dim.bd
    if n == 0:
        return 0
    return launch_each(gpu, DRAW[gpu.op], batch * n, batch, n, <const void*>c.seed, c.items, c.attrs[0].f, c.attrs[1].f,
                       c.y.v)


for name in (b"random_normal", b"random_uniform", b"random_bernoulli", b"random_gumbel"):
    op = gpu_op(name, CU)
    op.forward = leaf_forward
    op.draws = True
    DRAW[number_of(op)] = kernel_at(CU, name)
