"""A cache of plans: a structure that was scheduled before is not scheduled again."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.graph.structs cimport Graph


# Everything that the schedule of a graph depends on, as words in the scratch arena.
cdef struct Structure:
    uint32_t* words                 # NULL: there was no memory, and nothing is cached
    size_t n_words
    uint64_t hash
    uint32_t lowest
    uint32_t count                  # nodes that are wanted

cdef void describe_structure(Graph* g, uint32_t lowest, uint32_t highest, uint32_t count,
                             int strategy, Structure* s) noexcept nogil
cdef bint plan_from_cache(Graph* g, const Structure* s) noexcept nogil
cdef void cache_plan(Graph* g, const Structure* s) noexcept nogil
cdef void drop_plan_cache(Graph* g) noexcept nogil
