"""The plain schedule."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Graph

cdef int plan_plain(Graph* g, uint32_t lowest, uint32_t target,
                    uint32_t count) noexcept nogil
