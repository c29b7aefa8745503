"""Leaves: rows of tables.  Inputs and parameters have nothing to compute."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, size_of
from dynet_cy.gpu.driver cimport Gpu, GpuOp, launch_each, launch_rows, launch_slices
from dynet_cy.gpu.late cimport read_rows
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at
from dynet_cy.memory.storage cimport Param, touch

CU = module_at(b"lookup")
cdef int FORWARD = kernel_at(CU, b"lookup_forward")
cdef int BACKWARD = kernel_at(CU, b"lookup_backward")
cdef int UNORDERED = kernel_at(CU, b"lookup_backward_unordered")

# With more rows than this, searching for equal row numbers costs more than the addition.
cdef enum:
    MOST_ORDERED = 8192
    PART = 256                  # MOST of the kernel


cdef int take_rows(Gpu* gpu, size_t rows, size_t n, float factor, const float* table, const uint32_t* items,
                   float* y) noexcept nogil:
    return launch_each(gpu, FORWARD, rows * n, rows, n, factor, table, items, y) if rows * n else 0


cdef int add_rows(Gpu* gpu, size_t rows, size_t n, const uint32_t* items, const float* dy, float* table) noexcept nogil:
    if rows * n == 0:
        return 0
    if rows > MOST_ORDERED:
        return launch_slices(gpu, UNORDERED, (rows + PART - 1) // PART, PART * n, rows, n, items, dy, table)
    return launch_rows(gpu, BACKWARD, rows, n, rows, n, items, dy, table)


cdef int lookup_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Param* p = <Param*>c.object
    if p.late != NULL and p.late.n:
        return read_rows(gpu, p, c.y.dim.bd, c.items, 0, c.y.v)
    return take_rows(gpu, c.y.dim.bd, size_of(&p.dim), 1, p.device_value, c.items, c.y.v)


cdef void lookup_note(const Call* c, const uint32_t* items) noexcept nogil:
    """Note which rows get a gradient."""
    cdef Param* p = <Param*>c.object
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        touch(p, items[b])


cdef int lookup_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Param* p = <Param*>c.object
    return add_rows(gpu, c.y.dim.bd, size_of(&p.dim), c.items, c.dy.v, p.device_grad)


cdef GpuOp* op = gpu_op(b"lookup", CU, lookup_forward, lookup_backward)
op.note = lookup_note
