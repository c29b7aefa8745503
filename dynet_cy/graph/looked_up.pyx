"""A rule of DyNet's, for its programs: rows that were looked up have a gradient, if only of zero, in every backward."""

from libc.stdint cimport uint32_t

from dynet_cy.core.mutex cimport pthread_mutex_lock, pthread_mutex_unlock
from dynet_cy.graph.structs cimport SHARED, TRAINABLE, Graph, Node, args_of, items_of, nodes_of, state_of
from dynet_cy.memory.storage cimport Param, note_gradient, touch


cdef void note_looked_up(Graph* g, uint32_t target) noexcept nogil:
    cdef Node* nodes = nodes_of(g)
    cdef uint32_t i, k, arg
    for i in range(target + 1):
        if nodes[i].nargs == 0 and not state_of(g)[i] & SHARED:
            note_rows(g, i)
        for k in range(nodes[i].nargs):                 # a whole table counts where it is used
            arg = args_of(g, &nodes[i])[k]
            if state_of(g)[arg] & SHARED:
                note_rows(g, arg)


cdef void note_rows(Graph* g, uint32_t leaf) noexcept nogil:
    cdef Node* x = &nodes_of(g)[leaf]
    cdef Param* p = <Param*>x.object
    cdef uint32_t b
    if not state_of(g)[leaf] & TRAINABLE or not p.rows:
        return
    pthread_mutex_lock(&p.lock)
    if state_of(g)[leaf] & SHARED:
        note_gradient(p)
    else:
        p.has_gradient = 1
        for b in range(x.dim.bd):
            touch(p, items_of(g, x)[b])
    pthread_mutex_unlock(&p.lock)
