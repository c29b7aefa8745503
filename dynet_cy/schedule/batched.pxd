"""The batched schedules."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.graph cimport Graph

cdef int plan_by_agenda(Graph* g, uint32_t lowest, uint32_t target,
                        uint32_t count) noexcept nogil
cdef int plan_by_depth(Graph* g, uint32_t lowest, uint32_t target,
                       uint32_t count) noexcept nogil
