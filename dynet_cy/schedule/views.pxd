"""Views: results that are parts of an argument, so that they need neither memory nor copies of their own.

For example, the result of `pick_range` along the last axis is a part of its argument in memory.  If only such picks use
the argument, their gradients are parts of its gradient too, and nothing has to be computed, forward or backward.
"""

from libc.stddef cimport ptrdiff_t
from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Attr, Dim
from dynet_cy.graph.structs cimport Graph, Node

# A form of batches in addition to those of graph.h: views if the device's executor supports them, otherwise stacked.
cdef enum:
    VIEWS = 4

# Results with at least this many floats are long: elementwise ops may be called for the adjacent pieces of a batch
# instead of gathering them, since a call costs about as much as copying this many floats in and out.
cdef enum:
    LONG = 32

# Where the result of an op of one argument begins in the argument, in floats; -1: it is not one piece of it.
ctypedef ptrdiff_t (*ViewOf)(const Dim* x, const Dim* y, const Attr* attrs, const uint32_t* items) noexcept nogil

# Make the results of an op views.  Call it before the first use of the op.
cdef void set_view(uint32_t op, ViewOf view) noexcept nogil
cdef ptrdiff_t view_at(const Graph* g, const Node* x) noexcept nogil
# Mark planned batches as views where possible.
cdef int mark_views(Graph* g, uint32_t lowest, uint32_t highest) noexcept nogil
