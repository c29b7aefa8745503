"""What values need: their ancestors that are not computed."""

from libc.stdint cimport uint8_t, uint32_t

from dynet_cy.graph.graph cimport (
    COMPUTED, WANTED, Graph, Node, args_of, nodes_of, order_of, state_of,
)
from dynet_cy.memory.arena cimport arena_push


cdef inline int mark_wanted(Graph* g, const uint32_t* targets, uint32_t n, uint32_t* lowest,
                            uint32_t* highest, uint32_t* count) noexcept nogil:
    """Mark the targets and all uncomputed nodes behind them, and list them in `order`.

    Costs time in proportion to their number, not to the size of the graph.
    """
    cdef uint8_t* state = state_of(g)
    cdef Node* nodes = nodes_of(g)
    cdef uint32_t first = g.n_order
    cdef uint32_t head = first
    cdef uint32_t tail = first
    cdef uint32_t a, i
    cdef const uint32_t* args
    lowest[0] = 0xFFFFFFFFu
    highest[0] = 0
    for i in range(n):
        a = targets[i]
        if not state[a] & (COMPUTED | WANTED):
            if arena_push(&g.order, sizeof(uint32_t)) == NULL:
                return -1
            state[a] |= WANTED
            order_of(g)[tail] = a
            tail += 1
            lowest[0] = min(lowest[0], a)
            highest[0] = max(highest[0], a)
    while head < tail:
        node = &nodes[order_of(g)[head]]
        head += 1
        args = args_of(g, node)
        for i in range(node.nargs):
            a = args[i]
            if not state[a] & (COMPUTED | WANTED):
                if arena_push(&g.order, sizeof(uint32_t)) == NULL:
                    return -1
                state[a] |= WANTED
                order_of(g)[tail] = a
                tail += 1
                lowest[0] = min(lowest[0], a)
    count[0] = tail - first
    return 0
