"""Prefetches nodes and their arguments.  In a large graph they are not in the cache, and each access would stall."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Graph, Node, args_of, nodes_of


cdef extern from *:
    """
    static inline void dy_prefetch_node(const dy_node *x) {
        __asm__ volatile("" : : "r"(x));        /* gcc drops a function that does nothing but prefetch */
        __builtin_prefetch(x);
        __builtin_prefetch((const char *)(x + 1) - 1);
    }
    """
    void prefetch "dy_prefetch_node"(const Node* x) nogil


cdef inline void fetch(const Graph* g, const uint32_t* ids, uint32_t n) noexcept nogil:
    cdef const Node* nodes = nodes_of(g)
    cdef const uint32_t* args
    cdef uint32_t i, j
    for j in range(n):
        prefetch(&nodes[ids[j]])
    for j in range(n):
        args = args_of(g, &nodes[ids[j]])
        for i in range(nodes[ids[j]].nargs):
            prefetch(&nodes[args[i]])
