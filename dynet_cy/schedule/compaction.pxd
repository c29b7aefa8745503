"""Compaction of forward-only graphs: where memory is short, each node gets its own memory, and values move down."""

from dynet_cy.graph.structs cimport Graph

# Part the batches of a graph that does not run, and move values if there are many holes.  Returns whether anything was
# done.
cdef bint part_batches(Graph* g) except -1
