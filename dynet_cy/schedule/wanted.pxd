"""What requested values need: their ancestors that have not been computed."""

from libc.stdint cimport uint8_t, uint32_t

from dynet_cy.graph.structs cimport COMPUTED, NO_NODE, WANTED, Graph, Node, args_of, nodes_of, state_of
from dynet_cy.memory.arena cimport array_push
from dynet_cy.schedule.gates cimport FOUND, MAYBE, is_gate, mul_op


cdef inline int mark_wanted(Graph* g, const uint32_t* targets, uint32_t n, uint32_t* lowest,
                            uint32_t* highest, uint32_t* count) noexcept nogil:
    """Mark the targets and their uncomputed ancestors, and make room for them in `order`.

    Arguments have smaller numbers than the nodes that use them, so one pass from
    the highest number down finds all of them.  It also looks for products of activations, if there may be some and none
    is known: here a node takes a comparison of its op, and where it is made, looking at its factors.
    """
    cdef uint8_t* state = state_of(g)
    cdef Node* node
    cdef uint32_t a, i
    cdef uint32_t ahead = 0                     # marked, and not visited yet
    cdef const uint32_t* args
    cdef uint32_t product = mul_op if g.multiplies_activations == MAYBE else NO_NODE
    highest[0] = 0
    count[0] = 0
    for i in range(n):
        a = targets[i]
        if not state[a] & (COMPUTED | WANTED):
            state[a] |= WANTED
            ahead += 1
            highest[0] = max(highest[0], a)
    a = highest[0] + 1
    while ahead:
        a -= 1
        if not state[a] & WANTED:
            continue
        ahead -= 1
        count[0] += 1
        node = nodes_of(g) + a
        args = args_of(g, node)
        for i in range(node.nargs):
            if not state[args[i]] & (COMPUTED | WANTED):
                state[args[i]] |= WANTED
                ahead += 1
        if node.op == product and is_gate(g, node):
            g.multiplies_activations |= FOUND
            product = NO_NODE
    lowest[0] = a
    return -1 if array_push(&g.order, count[0] * sizeof(uint32_t)) == NULL else 0
