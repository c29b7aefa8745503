"""Passes for values that are asked for, and values as floats, arrays and lists."""

from libc.stdint cimport uint8_t, uint32_t

from dynet_cy.core.tensor cimport Dim
from dynet_cy.graph.structs cimport Graph, Node
from dynet_cy.memory.storage cimport Param

# Compute a node that is not computed; True if `wanted`, its expression, waited for others and may be stale now.
cdef bint compute_node(Graph* g, uint32_t index, object wanted) except -1
# The same for several, of which some may be computed; `wanted` is the list of expressions.
cdef bint compute_nodes(Graph* g, const uint32_t* targets, uint32_t n, object wanted) except -1
# A value that is computed was asked for, where g.early is not 0.
cdef void note_asked(Graph* g, uint32_t index) noexcept
cdef int run_pass(Graph* g, const uint32_t* targets, uint32_t n) except -1
# Whether a computed value is on a device only.
cdef bint is_elsewhere(Graph* g, Node* x) noexcept nogil
# The value of a computed node, after it was fetched where it is on a device.
cdef float* value_here(Graph* g, Node* x) except? NULL
cdef float* parameter_here(Param* p, bint gradient) except? NULL
cdef tuple full_shape(const Dim* d)
cdef object doubles_of(const float* v, tuple shape)
cdef list list_of(const float* v, size_t n)
cdef object gradient_of(Graph* g, uint32_t index, const uint8_t* states)
