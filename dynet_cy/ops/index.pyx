"""Ops that only move elements: the rows of `include/dynet_cy/index.def`."""

from libc.stdint cimport uint32_t
from libc.string cimport memset, strcmp

from dynet_cy.core.tensor cimport Call, Dim, size_of
from dynet_cy.kernels.kernels cimport K, dy_kernels
from dynet_cy.ops.loops cimport Split, split_at
from dynet_cy.ops.positions cimport is_position, refuse, refused
from dynet_cy.ops.registry cimport (
    ALL, FIRST, LIST, MAX_OPS, SECOND, UNREAD, UNREAD_ODD, Backward, DimRule, Forward, Op, PartOf, Work, register,
)


cdef extern from "dynet_cy/index.h" nogil:
    const dy_kernels* dy_index_kernels
    int (*dy_index_find)(const Call* c, const Dim* all, uint32_t* items) noexcept nogil
    int READS "DY_INDEX_READS"
    int TURNS "DY_INDEX_TURNS"
    int ADDS "DY_INDEX_ADDS"
    int LAYS "DY_INDEX_LAYS"
    int COUNT "DY_INDEX_COUNT"

    void dy_begin_places(Places* p, const Call* c, bint positions)

    ctypedef struct Row "dy_index_row":
        const char* name
        int way
        int positions
        void (*places)(const Call* c, uint32_t i, Places* p) noexcept nogil
        Forward forward
        Backward backward
        Work work
        PartOf part

    const Row dy_index_rows[]


ctypedef const Row* RowOf

cdef RowOf[MAX_OPS] rows                        # by number of the op


cdef int find(const Call* c, const Dim* all, uint32_t* items) noexcept nogil:
    """Write the positions of argument 1 as items; those of each element as places in one long vector."""
    cdef Split s = split_at(all, c.attrs[0].u)
    cdef bint own = c.attrs[1].u == <uint32_t>OWN_POSITIONS
    cdef size_t n = size_of(&c.x[1].dim), pre = s.pre if own else 1, post = s.post if own else 1, k, line, column
    cdef uint32_t b, length = <uint32_t>s.len
    for b in range(c.y.dim.bd):
        k = 0
        for line in range(post):
            while k < n // post * (line + 1):
                for column in range(pre):
                    if not is_position(&c.x[1], b, k, length, items):
                        refuse(c.attrs[3].u, &c.x[1], b, k, length)
                        return False
                    if own:
                        items[0] = <uint32_t>((line * length + items[0]) * pre + column)
                    items += 1
                    k += 1
    return True


dy_index_kernels = K
dy_index_find = find


cdef Op* index_op(const char* name, const char* args, DimRule dim) except NULL:
    cdef int i = 0
    while strcmp(dy_index_rows[i].name, name):
        i += 1
        if i == COUNT:
            raise RuntimeError(f"index.def has no row {name.decode()}")
    cdef const Row* row = &dy_index_rows[i]
    cdef Op* op = register(name, args, dim, row.forward, row.backward)
    rows[op.id] = row
    op.unread = UNREAD
    if row.way != ADDS:
        op.moves = ALL if row.way == LAYS else FIRST
    if row.way != READS:
        op.assigns = True
    if row.way == READS or row.way == LAYS:
        op.rule[0] = LIST
    if row.way == LAYS:
        op.part = row.part
        op.rule[1] = op.rule[2] = LIST
    if row.way == ADDS or row.positions:
        op.work = row.work
    if row.positions:
        op.unread = UNREAD & ~UNREAD_ODD
        op.integers = SECOND
        op.raised = refused
    return op


cdef void places_of(uint32_t op, const Call* c, uint32_t i, Places* p) noexcept nogil:
    memset(p, 0, sizeof(Places))                    # records of launches are compared byte by byte
    dy_begin_places(p, c, rows[op].positions)
    rows[op].places(c, i, p)
    p.offset = c.before * p.unit


cdef bint has_positions(uint32_t op) noexcept nogil:
    return rows[op].positions
