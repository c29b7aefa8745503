"""The batched schedules."""

from libc.stdint cimport uint32_t

from dynet_cy.core.interrupts cimport Interrupts
from dynet_cy.graph.structs cimport Graph

cdef int plan_batched(Graph* g, uint32_t lowest, uint32_t target, uint32_t count,
                      int strategy, Interrupts* s) noexcept nogil
