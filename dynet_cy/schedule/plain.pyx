"""The plain schedule: every node alone, in the order in which the nodes were made."""

from libc.stdint cimport uint8_t, uint32_t

from dynet_cy.graph.structs cimport STACKED, WANTED, Batch, Graph, order_of, state_of
from dynet_cy.memory.arena cimport array_push


cdef int plan_plain(Graph* g, uint32_t lowest, uint32_t target,
                    uint32_t count) noexcept nogil:
    cdef Batch* batch = <Batch*>array_push(&g.batches, count * sizeof(Batch))
    cdef uint8_t* state = state_of(g)
    cdef uint32_t* order = order_of(g)
    cdef uint32_t at = g.n_order
    cdef uint32_t i
    if batch == NULL:
        return -1
    for i in range(lowest, target + 1):
        if state[i] & WANTED:
            order[at] = i
            batch.first = at
            batch.count = 1
            batch.form = STACKED
            batch += 1
            at += 1
    return 0
