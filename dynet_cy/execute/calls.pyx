# Used from Cython only.
"""Calls: the struct that an op gets for a batch, and running the op forward."""

from dynet_cy.core.tensor cimport cols_of, rows_of, total_of
from dynet_cy.graph.structs cimport COLUMNS, FLATTENED


cdef inline void set_flat(Tensor* t, size_t n, float* v) noexcept nogil:
    t.dim.nd = 1
    t.dim.d[0] = <uint32_t>n
    t.dim.bd = 1
    t.v = v
    t.bstride = 0
    t.list = NULL
    t.pack = NULL


cdef inline void set_columns(Tensor* t, size_t rows, size_t n, float* v) noexcept nogil:
    set_flat(t, rows, v)
    t.dim.nd = 2
    t.dim.d[1] = <uint32_t>n


cdef int set_call(Walk* w, const Batch* batch, Tensor* few, Call* c) noexcept nogil:
    """Set the call of a batch: its arguments and result, in the form of the batch."""
    cdef Graph* g = w.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef Node* node = &nodes[ids[0]]
    cdef Node* a
    cdef uint32_t* args = args_of(g, node)
    cdef Tensor* x
    cdef uint32_t i
    cdef size_t total
    if batch.count == 1:
        if set_call_of_one(w, batch, node, few, c):
            return -1
        return 0 if w.at_once else w.device.translate(w, batch, c)
    if begin_call(w, batch, node, few, c):
        return -1
    x = <Tensor*>c.x
    if batch.form == FLATTENED:
        total = 0
        for i in range(batch.count):
            total += total_of(&nodes[ids[i]].dim)
        for i in range(node.nargs):
            set_flat(&x[i], total, batch.x[i].v)
        set_flat(&c.y, total, batch.y)
    elif batch.form == COLUMNS:
        total = 0
        for i in range(batch.count):
            total += cols_of(&nodes[ids[i]].dim) * nodes[ids[i]].dim.bd
        for i in range(node.nargs):
            a = &nodes[args[i]]
            if batch.x[i].v == NULL:
                set_shared(&x[i], a)
            else:
                set_columns(&x[i], rows_of(&a.dim), total, batch.x[i].v)
        set_columns(&c.y, rows_of(&node.dim), total, batch.y)
    else:
        for i in range(node.nargs):
            a = &nodes[args[i]]
            if batch.x[i].v == NULL and batch.x[i].list == NULL:
                set_shared(&x[i], a)
            else:
                set_tensor(&x[i], &a.dim, batch.bd, batch.x[i].v)
                x[i].list = batch.x[i].list
        set_tensor(&c.y, &node.dim, batch.bd, batch.y)
        c.items = batch.items
    return 0 if w.at_once else w.device.translate(w, batch, c)


cdef int prepare(Walk* w, const Op* op, Call* c) noexcept nogil:
    """Run `op.prepare`, which computes the gradients of all arguments at once."""
    c.work = <float*>take(w, op.prepared(c) * sizeof(float))
    if c.work == NULL:
        return -1
    op.prepare(c)
    return -1 if op_raised(op, &w.failure) else 0
