"""Passes for requested values, and values as floats, arrays and lists."""

from libc.stdint cimport uint8_t, uint32_t

from dynet_cy.core.tensor cimport Dim
from dynet_cy.graph.structs cimport Graph, Node
from dynet_cy.memory.storage cimport Param

# Compute a node; True if `wanted`, its expression, waited for other items of a batched map and may now be stale.
cdef bint compute_node(Graph* g, uint32_t index, object wanted) except -1
# The same for several nodes, some of which may be computed already; `wanted` is the list of expressions.
cdef bint compute_nodes(Graph* g, const uint32_t* targets, uint32_t n, object wanted) except -1
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
