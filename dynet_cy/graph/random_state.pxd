"""Random streams of graphs: one for each graph and renewal."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Graph

# Give a new graph its stream.
cdef int take_stream(Graph* g) except -1
