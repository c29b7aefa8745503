"""Forgetting nodes and values of a graph, and renumbering the remaining nodes."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.graph.structs cimport Graph

cdef enum:
    # A forward-only graph renumbers its nodes when at least half of them are not needed, and there are this many.
    LEAST_TO_COMPACT = 4096

# Sets the new number of a node in its holder, an expression.
ctypedef void (*Renumber)(void* holder, uint32_t index, uint64_t version) noexcept

# Drop all computed values, so that inputs may change.
cdef int forget(Graph* g) except -1
cdef void forget_since(Graph* g, uint32_t n_batches, uint32_t n_order, size_t values_top,
                       size_t scratch_top, size_t tables_top) noexcept
cdef uint32_t* compact_nodes(Graph* g, Renumber renumber) noexcept
cdef void take_back(Graph* g, size_t nodes_top, size_t args_top, size_t items_top) noexcept
cdef uint64_t more_epochs(const Graph* g) noexcept
cdef void next_epoch(Graph* g) noexcept
