"""Gates, which are sums of products with an activation, and the steps of GRUs and Tree-LSTMs that use them."""

from libc.stdint cimport uint32_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport Call, rows_of, total_of
from dynet_cy.gpu.base cimport BASE
from dynet_cy.gpu.driver cimport Gpu, GpuOp, launch_each, value_at
from dynet_cy.gpu.linalg cimport affine_backward, affine_forward
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at, needs_module
from dynet_cy.ops.linalg cimport affine_transform_factors
from dynet_cy.ops.registry cimport Factors


cdef extern from "dynet_cy/gpu_cells.h" nogil:
    ctypedef struct Cells "dy_gpu_cells":
        const float** v
        size_t* bstride
    uint32_t MOST_CELLS "DY_CELLS"

cdef int CU = module_at(b"gated")


# ---- gated_affine: y = f(b + W1 x1 + W2 x2 + ...) -------------------------------
# Attributes: the number of blocks of rows of y; how many of these, from the first on, are
# logistic; how many after these are tanh.  The gradient of the sum, which all arguments
# need, is stored in place of the saved values.

cdef int GATES_FORWARD = kernel_at(CU, b"gates_forward")
cdef int GATES_BACKWARD = kernel_at(CU, b"gates_backward")


cdef int gated_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = total_of(&c.y.dim), rows = rows_of(&c.y.dim), h = rows // c.attrs[0].u
    if n == 0:
        return 0
    affine_forward(gpu, c)
    return launch_each(gpu, GATES_FORWARD, n, n, rows, h * c.attrs[1].u, h * c.attrs[2].u, c.y.v)


cdef int gated_begin(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = total_of(&c.y.dim), rows = rows_of(&c.y.dim), h = rows // c.attrs[0].u
    return launch_each(gpu, GATES_BACKWARD, n, n, rows, h * c.attrs[1].u, h * c.attrs[2].u, c.y.v, c.dy.v, c.saved)


cdef Call of_sums(const Call* c) noexcept nogil:
    """The call of the sum without the activation."""
    cdef Call sums = c[0]
    sums.dy.v = c.saved
    return sums


cdef int gated_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Call sums = of_sums(c)
    return affine_backward(gpu, &sums, i)


cdef void gated_factors(const Call* c, uint32_t i, Factors* f) noexcept nogil:
    cdef Call sums = of_sums(c)
    affine_transform_factors(&sums, i, f)


cdef GpuOp* op = gpu_op(b"gated_affine", CU, gated_forward, gated_backward)
needs_module(op, BASE)
op.begin = gated_begin
op.factors = gated_factors
op.assigns = True
op.lists = True


# ---- tree_lstm_c: y = i u + f1 c1 + f2 c2 + ...; at most MOST_CELLS cells per launch ---

cdef int TREE_FORWARD = kernel_at(CU, b"tree_c_forward")
cdef int TREE_BACKWARD_CELL = kernel_at(CU, b"tree_c_backward_cell")
cdef int TREE_BACKWARD_GATES = kernel_at(CU, b"tree_c_backward_gates")


cdef uint32_t some_cells(const Call* c, uint32_t start, Cells* cells) noexcept nogil:
    """List the next cells, from number `start` on; returns how many they are."""
    cdef uint32_t k, n = min(c.n - 1 - start, MOST_CELLS)
    memset(cells, 0, sizeof(Cells))
    for k in range(n):
        cells.v[k] = c.x[1 + start + k].v
        cells.bstride[k] = c.x[1 + start + k].bstride
    return n


cdef int tree_c_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = rows_of(&c.y.dim), batch = c.y.dim.bd
    cdef uint32_t start = 0, count
    cdef Cells cells
    if n == 0:
        return 0
    while start == 0 or start < c.n - 1:
        count = some_cells(c, start, &cells)
        launch_each(gpu, TREE_FORWARD, batch * n, batch, n, c.x[0].v, c.x[0].bstride, value_at(&cells), start, count,
                    c.y.v)
        start += max(count, <uint32_t>1)
    return gpu.error


cdef int tree_c_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = rows_of(&c.y.dim), batch = c.y.dim.bd, own = c.dx.dim.bd, rows = rows_of(&c.x[0].dim)
    cdef uint32_t start = 0, count
    cdef bint acc
    cdef Cells cells
    if n == 0:
        return 0
    if i:
        return launch_each(gpu, TREE_BACKWARD_CELL, own * n, batch, n, c.x[0].v + (2 + i) * n, c.x[0].bstride, c.dy.v,
                           own, c.dx.v, c.accumulate)
    while start == 0 or start < c.n - 1:
        count = some_cells(c, start, &cells)
        acc = c.accumulate or start > 0         # the first launch assigns all gates, or adds to them
        launch_each(gpu, TREE_BACKWARD_GATES, own * rows, batch, n, rows, c.x[0].v, c.x[0].bstride, value_at(&cells),
                    start, count, c.dy.v, own, c.dx.v, acc)
        start += max(count, <uint32_t>1)
    return gpu.error


op = gpu_op(b"tree_lstm_c", CU, tree_c_forward, tree_c_backward)
op.assigns = True


# derived: launches
from dynet_cy.core.tensor cimport size_of

cdef int GRU_H_FORWARD = kernel_at(CU, b"gru_h_forward")
cdef int GRU_H_BACKWARD = kernel_at(CU, b"gru_h_backward")


cdef int gru_h_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim)
    return launch_each(gpu, GRU_H_FORWARD, batch * n, batch, n, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride,
                       c.x[2].v, c.x[2].bstride, c.y.v)


cdef int gru_h_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.y.dim)
    return launch_each(gpu, GRU_H_BACKWARD, elements * n, batch, n, i, c.x[0].v, c.x[0].bstride, c.x[1].v,
                       c.x[1].bstride, c.x[2].v, c.x[2].bstride, c.dy.v, elements, c.dx.v, c.accumulate)


op = gpu_op(b"gru_h", CU, gru_h_forward, gru_h_backward)
op.assigns = True
# end of launches
