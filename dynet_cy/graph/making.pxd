"""Making nodes of the current graph."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Dim
from dynet_cy.graph.expressions cimport Expression
from dynet_cy.graph.structs cimport Extra, Graph
from dynet_cy.ops.registry cimport Op

cdef uint32_t add_node(Graph* g, const Op* op, const uint32_t* args, uint32_t n,
                       Extra* extra) except? 0xFFFFFFFF
cdef Expression wrap(Graph* g, uint32_t index)
cdef Expression apply1(const Op* op, object x)
cdef Expression apply2(const Op* op, object a, object b)
# The same, and the graph that the node is in.
cdef Expression apply2_in(Graph** g, const Op* op, object a, object b)
cdef Expression apply1x(const Op* op, object x, Extra* extra)
cdef Expression apply2x(const Op* op, object a, object b, Extra* extra)
cdef Expression apply(const Op* op, object xs, Extra* extra)
cdef Expression expression(object x, str function, str name)
cdef list sequence(object xs, const char* function)
cdef Expression leaf(const Op* op, const Dim* dim, Extra* extra)
cdef uint32_t leaf_index(const Op* op, const Dim* dim, Extra* extra) except? 0xFFFFFFFF
cdef float* place(size_t n) except NULL
