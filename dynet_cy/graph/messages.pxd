"""Descriptions of nodes and shapes, for messages."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Dim
from dynet_cy.graph.structs cimport Graph
from dynet_cy.ops.registry cimport Op

# A shape as "{2,3} x 4": two axes and a batch of 4.
cdef str describe_dim(const Dim* d)
# The names of an op's arguments; and the source of a node: its op, or the name of the parameter.
cdef list argument_names(const Op* op, uint32_t n)
cdef str source_of_node(const Graph* g, uint32_t index)
# ", made at train.py:17 in loss" if that was recorded, else ""; also "" for parameters.
cdef str made_at(const Graph* g, uint32_t index)
# The same in two steps: the number of the place, which needs no Python, and its words.
cdef uint32_t made_in(const Graph* g, uint32_t index) noexcept nogil
cdef str made_by(uint32_t origin)
cdef explain(const Op* op, str reason, const uint32_t* args, uint32_t n, Graph* g)
