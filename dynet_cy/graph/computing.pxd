"""Passes for requested values, and values as floats, arrays and lists."""

from libc.stdint cimport uint8_t, uint32_t

from dynet_cy.core.tensor cimport Dim
from dynet_cy.graph.graph cimport Requests
from dynet_cy.graph.structs cimport Graph, Node
from dynet_cy.memory.storage cimport Param


# Requests of items that share a graph: `fibers` implements it.
cdef class SharedRequests(Requests):
    # Let the items that were woken read their values, before the running item drops all values of the graph.
    cdef int let_read(self) except -1
    # Raise if items may have read a node that is about to change.
    cdef int check_set(self, uint32_t node, str what) except -1


# Drop all computed values, once other items of a batched map have read theirs.  Lists of nodes may move meanwhile.
cdef int forget_values(Graph* g) except -1
# The same before a node is changed; an error if items of a batched map share it.
cdef int forget_to_set(Graph* g, uint32_t index, str what) except -1
# Compute a node; True if `wanted`, its expression, waited for other items of a batched map: it may now be stale, or an
# item that was ended may have dropped its value since.
cdef bint compute_node(Graph* g, uint32_t index, object wanted) except -1
# The same for several nodes, some of which may be computed already; `wanted` is the list of expressions.
cdef bint compute_nodes(Graph* g, const uint32_t* targets, uint32_t n, object wanted) except -1
cdef bint any_uncomputed(Graph* g, const uint32_t* nodes, uint32_t n) noexcept
# Note that a computed value was requested; needed if g.early is not 0.
cdef void note_asked(Graph* g, uint32_t index) noexcept
cdef int run_pass(Graph* g, const uint32_t* targets, uint32_t n) except -1
# Whether a computed value is only on a device.
cdef bint is_elsewhere(Graph* g, Node* x) noexcept nogil
# The value of a computed node in host memory, fetched first if the node is on a device.
cdef float* value_here(Graph* g, Node* x) except? NULL
cdef float* parameter_here(Param* p, bint gradient) except? NULL
cdef tuple full_shape(const Dim* d)
cdef object doubles_of(const float* v, tuple shape)
cdef list list_of(const float* v, size_t n)
cdef object gradient_of(Graph* g, uint32_t index, const uint8_t* states)
