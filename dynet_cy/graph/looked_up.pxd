"""A rule of DyNet's, for its programs: rows that were looked up have a gradient, if only of zero, in every backward."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Graph


# Note that rows of tables have a gradient, after backward from `target`: those that were looked up before it, although
# it may not depend on them. Momentum moves them then.
cdef void note_looked_up(Graph* g, uint32_t target) noexcept nogil
