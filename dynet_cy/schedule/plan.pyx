"""Plans: the nodes that values need, put into batches."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from dynet_cy.core.interrupts cimport Interrupts
from dynet_cy.graph.structs cimport WANTED, Batch, Graph, state_of
from dynet_cy.graph.timeline cimport SCHEDULING, begin_span, end_span
from dynet_cy.memory.arena cimport array_rewind
from dynet_cy.schedule.batched cimport plan_batched
from dynet_cy.schedule.gates cimport take_in_gates
from dynet_cy.schedule.plain cimport plan_plain
from dynet_cy.schedule.sums cimport take_in_products
from dynet_cy.schedule.wanted cimport mark_wanted


cdef int plan(Graph* g, const uint32_t* targets, uint32_t n, int strategy, bint as_made,
              uint32_t* n_batches, Interrupts* s) noexcept nogil:
    """Plan the values of the targets, by a strategy: 0 plain, 1 by agenda, 2 by depth."""
    cdef uint32_t lowest, highest, taken, count = 0
    cdef uint64_t span = begin_span()
    cdef int failed = mark_wanted(g, targets, n, &lowest, &highest, &count)
    if not failed and count and not as_made and not g.check_validity:
        taken = (take_in_products(g, targets, n, strategy, lowest, highest)
                 + take_in_gates(g, targets, n, strategy, lowest, highest))
        array_rewind(&g.order, g.order.top - taken * sizeof(uint32_t))
        count -= taken
    if not failed and count:
        if strategy == 0 or count == 1:
            failed = plan_plain(g, lowest, highest, count)
        else:
            failed = plan_batched(g, lowest, highest, count, strategy, s)
    if failed:
        drop_plan(g)
        return -1
    n_batches[0] = <uint32_t>(g.batches.top // sizeof(Batch)) - g.n_batches
    end_span(SCHEDULING, span)
    return 0


cdef void drop_plan(Graph* g) noexcept nogil:
    """Drop the part of the plan that has not run."""
    cdef uint8_t* state = state_of(g)
    cdef uint32_t i
    for i in range(g.n_nodes):
        state[i] &= <uint8_t>~WANTED
    array_rewind(&g.order, g.n_order * sizeof(uint32_t))
    array_rewind(&g.batches, g.n_batches * sizeof(Batch))
