"""Making nodes of the current graph: shapes are inferred, arguments checked, and a node appended."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Attr, Dim
from dynet_cy.core.threads cimport HAS_GIL
from dynet_cy.graph.expressions cimport Expression
from dynet_cy.graph.structs cimport Extra, Graph, Node
from dynet_cy.graph.table cimport claim, current_graph, graph_table, release
from dynet_cy.ops.registry cimport TRANSFERS, Op, op_at


# ==== making ======================================================================================
#
# Making nodes of the current graph.
#
# A function that looks up the numbers of nodes, adds nodes and wraps them claims the graph for all of these steps, so
# that no other thread renews the graph in between:
#
#     cdef Graph* g = claim_current()
#     try:
#         ...
#     finally:
#         release_current(g)
#
# With a GIL, this does nothing, as no other thread runs in between.

cdef inline Graph* claim_current() except NULL:
    cdef Graph* g = current_graph()
    if not HAS_GIL:
        claim(graph_table(), g)
    return g


cdef inline void release_current(Graph* g) noexcept:
    if not HAS_GIL:
        release(graph_table(), g)


cdef Expression apply1(const Op* op, object x)
cdef Expression apply2(const Op* op, object a, object b)
cdef Expression apply1x(const Op* op, object x, Extra* extra)
cdef Expression apply2x(const Op* op, object a, object b, Extra* extra)
# The same for a public function whose op is shared with others: errors name the function and, unless that is NULL, its
# arguments.
cdef Expression apply1_for(str name, const Op* op, object x, Extra* extra)
cdef Expression apply2_for(str name, const char* arguments, const Op* op, object a, object b, Extra* extra)
cdef Expression apply(const Op* op, object xs, Extra* extra)
cdef Expression expression(object x, str function, str name)
cdef list sequence(object xs, const char* function)
cdef Expression leaf(const Op* op, const Dim* dim, Extra* extra)

# Parts of these, for a current graph that the caller has claimed.
cdef uint32_t add_node(Graph* g, const Op* op, const uint32_t* args, uint32_t n,
                       Extra* extra) except? 0xFFFFFFFF
# The same, without attributes, for arguments with the shapes of those of the node `like`, which is of the same op.
cdef uint32_t add_node_like(Graph* g, const Op* op, const uint32_t* args, uint32_t n,
                            uint32_t like) except? 0xFFFFFFFF
# The op that makes floats of integers, for arguments of ops that take floats only.
cdef void convert_by(const Op* op) noexcept
cdef uint32_t leaf_index(Graph* g, const Op* op, const Dim* dim, Extra* extra) except? 0xFFFFFFFF
cdef float* place(Graph* g, size_t n) except NULL
cdef Expression wrap(Graph* g, uint32_t index)
# Let a new expression be a node of a graph that keeps everything for backward.
cdef void refer(Expression x, Graph* g, uint32_t index) noexcept


# ==== transfer ====================================================================================
#
# Copies of values from one device to another.

# Its nodes have no forward and backward: executors of graphs on several devices copy, both ways.
cdef Op* TO_DEVICE


cdef inline bint is_transfer(const Node* x) noexcept nogil:
    return op_at(x.op).role == TRANSFERS


cdef inline int source_of(const Node* x) noexcept nogil:
    """The device of the argument; the device of the node is the destination."""
    return x.attrs[0].i
