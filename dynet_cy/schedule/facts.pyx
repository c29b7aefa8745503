"""Facts about planned nodes that passes share: the batch, position and readers of each.

Passes that move nodes or batches open the facts anew, or change `batch` as they move.
"""

from libc.stdint cimport uint32_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport total_of
from dynet_cy.graph.structs cimport (
    COLUMNS, FLATTENED, STACKED, VIEWS, Batch, Graph, Node, args_of, batches_of, nodes_of, order_of,
)
from dynet_cy.memory.arena cimport ALIGN, arena_alloc
from dynet_cy.ops.registry cimport LIST, SHARE, Op, rule_of


cdef bint open_facts(PlanFacts* f, Graph* g, uint32_t begin, uint32_t n) noexcept nogil:
    cdef const Batch* batches = batches_of(g) + begin
    return open_facts_of(f, g, begin, batches, n, order_of(g) + batches[0].first)


cdef bint open_facts_of(PlanFacts* f, Graph* g, uint32_t begin, const Batch* batches, uint32_t n,
                        const uint32_t* order) noexcept nogil:
    cdef const uint32_t* ids
    cdef uint32_t b, i, highest = order[0]
    cdef bint as_made = True
    f.g = g
    f.batches = batches
    f.order = order
    f.begin = begin
    f.n_batches = n
    f.first = batches[0].first
    f.n_nodes = 0
    f.lowest = order[0]
    f.batch = NULL
    for b in range(n):
        ids = nodes_in(f, &batches[b])
        as_made = as_made and batches[b].count == 1 and ids[0] == order[0] + b
        for i in range(batches[b].count):
            f.lowest = min(f.lowest, ids[i])
            highest = max(highest, ids[i])
        f.n_nodes += batches[b].count
    f.span = highest - f.lowest + 1
    return as_made or list_batches(f)               # as in a chain of single nodes


cdef bint list_batches(PlanFacts* f) noexcept nogil:
    cdef const uint32_t* ids
    cdef uint32_t b, i
    f.batch = of_nodes(f, 0xFF)
    for b in range(f.n_batches if f.batch != NULL else 0):
        ids = nodes_in(f, &f.batches[b])
        for i in range(f.batches[b].count):
            f.batch[ids[i] - f.lowest] = f.begin + b
    return f.batch != NULL


cdef uint32_t* of_nodes(const PlanFacts* f, int byte) noexcept nogil:
    """A list by node, filled with a byte; NULL: there is no memory."""
    cdef size_t bytes = f.span * sizeof(uint32_t)
    cdef uint32_t* list = <uint32_t*>arena_alloc(&f.g.scratch, bytes)
    if list != NULL:
        memset(list, byte, bytes)
    return list


cdef uint32_t* count_readers(const PlanFacts* f) noexcept nogil:
    cdef uint32_t* readers = of_nodes(f, 0)
    cdef const uint32_t* ids
    cdef const Node* x
    cdef uint32_t b, i, k, at
    for b in range(f.n_batches if readers != NULL else 0):
        ids = nodes_in(f, &f.batches[b])
        for i in range(f.batches[b].count):
            x = &nodes_of(f.g)[ids[i]]
            for k in range(x.nargs):
                at = args_of(f.g, x)[k] - f.lowest  # unsigned: a lower number is beyond the span
                if at < f.span:
                    readers[at] += 1
    return readers


cdef uint32_t* list_positions(const PlanFacts* f) noexcept nogil:
    cdef uint32_t* position = of_nodes(f, 0xFF)
    cdef const Batch* batch
    cdef uint32_t b, i
    for b in range(f.n_batches if position != NULL else 0):
        batch = &f.batches[b]
        for i in range(batch.count):
            position[nodes_in(f, batch)[i] - f.lowest] = batch.first + i
    return position


cdef bint is_copied(const PlanFacts* facts, const Batch* batch, const Op* op, uint32_t i,
                    size_t most_along) noexcept nogil:
    cdef const Graph* g = facts.g
    cdef const uint32_t* order = order_of(g)
    cdef const Batch* of
    cdef uint32_t j, arg, number, last = 0, at = 0, end = 0
    cdef bint apart = False
    cdef size_t elements = 0
    if (batch.form != STACKED and batch.form != COLUMNS and batch.form != FLATTENED or rule_of(op, i) == SHARE
            or rule_of(op, i) == LIST and batch.form != COLUMNS):
        return False
    for j in range(batch.count):
        elements += total_of(&nodes_of(g)[order[batch.first + j]].dim)
        arg = argument(g, batch, j, i)
        number = batch_of(facts, arg)
        if number == NONE:
            return False
        of = &batches_of(g)[number]
        if of.form == VIEWS:
            return False
        if apart:
            continue
        if j and at < end and order[at] == arg:
            at += 1                                 # directly after the one before it
            continue
        apart = j and (at < end or order[of.first] != arg or not may_touch(g, last, number))
        last = number
        at = of.first
        end = of.first + of.count
        while order[at] != arg:
            at += 1
        at += 1
    return apart and elements <= most_along


cdef bint may_touch(const Graph* g, uint32_t last, uint32_t number) noexcept nogil:
    """Whether the first value of a batch may lie directly after the last one of another batch."""
    cdef const Batch* batch = &batches_of(g)[last]
    cdef size_t elements = 0
    cdef uint32_t j
    if g.has_empty:                                 # batches in between may take no memory
        return True
    for j in range(batch.count):
        elements += total_of(&nodes_of(g)[order_of(g)[batch.first + j]].dim)
    return number == last + 1 and elements * sizeof(float) % ALIGN == 0
