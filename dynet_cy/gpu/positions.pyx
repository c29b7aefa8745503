"""Launchers of kernels that read indices from the graph; and `one_hot_at`."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, Tensor, size_of
from dynet_cy.gpu.driver cimport Gpu, launch_each
from dynet_cy.gpu.refused cimport refused_of
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at
from dynet_cy.ops.loops cimport Split

cdef int CU_POSITIONS
CU_POSITIONS = module_at(b"positions")
cdef int FIND = kernel_at(CU_POSITIONS, b"find_positions")


cdef int find(Gpu* gpu, const Call* c, const Tensor* indices, size_t pre, size_t length, size_t post, uint32_t none,
              uint32_t* items) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, count = size_of(&indices.dim)
    return launch_each(gpu, FIND, batch * count, batch, count, pre, length, post, indices.v, indices.bstride,
                       indices.dim.type, none, c.attrs[3].u, refused_of(gpu), items)


cdef int find_positions(Gpu* gpu, const Call* c, const Tensor* indices, size_t length, uint32_t none,
                        uint32_t* items) noexcept nogil:
    return find(gpu, c, indices, 0, length, 1, none, items)


cdef int find_places(Gpu* gpu, const Call* c, const Tensor* indices, const Split* s, uint32_t* items) noexcept nogil:
    return find(gpu, c, indices, s.pre, s.len, s.post, 0, items)

# derived: launches of positions
from dynet_cy.gpu.driver cimport GpuOp

cdef GpuOp* op

cdef int ONE_HOT_FORWARD = kernel_at(CU_POSITIONS, b"one_hot_forward")


cdef int one_hot_at_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, count = size_of(&c.x[0].dim), n = c.y.dim.d[0]
    cdef int integers = c.x[0].dim.type
    cdef uint32_t function = c.attrs[3].u
    return launch_each(gpu, ONE_HOT_FORWARD, batch * count * n, batch, count, n, c.x[0].v, c.x[0].bstride, integers,
                       function, refused_of(gpu), c.y.v)


op = gpu_op(b"one_hot_at", CU_POSITIONS, one_hot_at_forward, NULL)
# end of launches
