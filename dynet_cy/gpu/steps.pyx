"""Products and LSTM cells as one launch; see steps.pxd.

Without them, an update of the tagger has 282 products besides its launches instead of 52, sequence to sequence 505
instead of 326, and the kernels take 5 and 14 % longer on an H100.
"""

from libc.stdint cimport uint64_t

from dynet_cy.core.engine cimport add_tunable
from dynet_cy.core.threads cimport Number
from dynet_cy.gpu.driver cimport beginning_of, launch, launch_each, value_at
from dynet_cy.gpu.registry cimport kernel_at, module_at


cdef extern from "dynet_cy/cell_steps.h" nogil:
    ctypedef struct Products "dy_cell_products":
        pass
    # derived: structs of Table = dy_cell_table
    ctypedef struct Table "dy_cell_table":
        const void* lines
        size_t n
        size_t h
        int back
    # end of structs
    # derived: functions of bint product_of_cells, drop_record, blocks_of_cells
    bint product_of_cells "dy_product_of_cells"(const Gpu* gpu, const Table* t, double most, Products* found)
    void drop_record "dy_drop_record"(Gpu* gpu)
    unsigned blocks_of_cells "dy_blocks_of_cells"(const Gpu* gpu, const Table* t, const Products* p)
    # end of functions


cdef int STEPS = module_at(b"steps")
cdef int[2] STEP = [kernel_at(STEPS, b"lstm_step_forward"), kernel_at(STEPS, b"lstm_step_backward")]
cdef int[2] FEW = [kernel_at(STEPS, b"few_lstm_steps_forward"), kernel_at(STEPS, b"few_lstm_steps_backward")]

# Larger products fill a device alone, and cuBLAS computes them faster; this many multiplications.
cdef Number most_multiplied = 1 << 25
add_tunable("gpu.steps.most_multiplied", &most_multiplied)


cdef void note_steps(Pass* s, Command* c, const void* table, bint back) noexcept nogil:
    c.table = table
    c.back = back
    s.modules |= <uint64_t>1 << STEPS


cdef int launch_cells(Gpu* gpu, const Command* c) noexcept nogil:
    cdef Table table
    cdef Products products
    if c.table == NULL or gpu.records == NULL or gpu.error:
        return alone(gpu, c)
    table.lines = c.table
    table.n = c.rows
    table.h = c.n
    table.back = c.back
    if not product_of_cells(gpu, &table, most_multiplied, &products):
        return alone(gpu, c)
    drop_record(gpu)
    cdef unsigned n = blocks_of_cells(gpu, &table, &products)
    if c.cols:
        return launch(gpu, FEW[c.back], n, 1, 256, 0, value_at(&products), c.rows, c.n, beginning_of(c.p, c.cols))
    return launch(gpu, STEP[c.back], n, 1, 256, 0, value_at(&products), c.rows, c.n, c.p)


cdef int alone(Gpu* gpu, const Command* c) noexcept nogil:
    """The elementwise steps only."""
    if c.cols:
        return launch_each(gpu, <int>c.i, c.rows * c.n, c.rows * c.n, c.n, beginning_of(c.p, c.cols))
    return launch_each(gpu, <int>c.i, c.rows * c.n, c.rows * c.n, c.n, c.p)
