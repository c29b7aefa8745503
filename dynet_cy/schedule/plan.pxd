"""Plans: the nodes that values need, put into batches.

A plan is written after the batches that have run: node numbers into
`graph.order`, and a Batch for each call into `graph.batches`, with `first`,
`count` and `form` set.  Nothing runs here.  All functions return 0, or -1 if
an arena is full or a signal handler has raised.
"""

from libc.stdint cimport uint32_t

from dynet_cy.core.interrupts cimport Interrupts
from dynet_cy.graph.structs cimport Graph

cdef int plan(Graph* g, const uint32_t* targets, uint32_t n, int strategy,
              uint32_t* n_batches, Interrupts* s) noexcept nogil
cdef void drop_plan(Graph* g) noexcept nogil
