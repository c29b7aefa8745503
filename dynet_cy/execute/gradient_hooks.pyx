"""Hooks of backward: called when a gradient is complete, to send it while the rest of backward runs.

Backward runs the batches in reverse order.  So the gradient of a parameter is complete when backward has run the batch
that was the first to use the parameter in forward.  Lookup tables are left out: which of their rows get a gradient is
only known at the end.
"""

from libc.stdint cimport uint8_t, uint32_t

from dynet_cy.graph.structs cimport COMPUTED, NEEDS_GRAD, TRAINABLE, Graph, Node, args_of, nodes_of, state_of
from dynet_cy.memory.arena cimport arena_alloc
from dynet_cy.memory.storage cimport Param


cdef GradientHooks hooks
hooks.begin = NULL
hooks.complete = NULL
hooks.progress = NULL


cdef GradientHooks* gradient_hooks() noexcept nogil:
    return &hooks


cdef int list_uses(Graph* g, uint32_t target, Use** uses, uint32_t* n) noexcept nogil:
    """The parameters that backward from target adds to, in the order in which their gradients are complete.

    The list is in the scratch arena. -1 if there is no memory for it.
    """
    cdef Node* nodes = nodes_of(g)
    cdef uint8_t* state = state_of(g)
    cdef uint32_t last = nodes[target].batch
    cdef uint32_t i, j, k, arg, found = 0
    cdef Use use
    cdef Use* list = NULL
    cdef Param* p
    for i in range(target + 1):                 # at most as many as there are parameter leaves
        found += nodes[i].nargs == 0 and nodes[i].val == NULL
    uses[0] = list = <Use*>arena_alloc(&g.scratch, (found + 1) * sizeof(Use))
    n[0] = 0
    if list == NULL:
        return -1
    for i in range(target + 1):
        if not state[i] & NEEDS_GRAD or not state[i] & COMPUTED or nodes[i].nargs == 0 or nodes[i].batch > last:
            continue
        for k in range(nodes[i].nargs):
            arg = args_of(g, &nodes[i])[k]
            p = <Param*>nodes[arg].object
            if nodes[arg].val != NULL or not state[arg] & TRAINABLE or p.rows:
                continue
            for j in range(n[0]):
                if list[j].p == p:
                    list[j].batch = min(list[j].batch, nodes[i].batch)
                    break
            else:
                list[n[0]].p = p
                list[n[0]].batch = nodes[i].batch
                n[0] += 1
    for i in range(1, n[0]):
        use = list[i]
        j = i
        while j > 0 and list[j - 1].batch < use.batch:
            list[j] = list[j - 1]
            j -= 1
        list[j] = use
    return 0
