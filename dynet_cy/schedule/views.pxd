"""Views: results that are parts of an argument, and need no memory nor copies of their own.

The results of `pick_range` along the last axis, say, are where its argument is.  Where nothing but such picks uses the
argument, their gradients are also parts of its gradient, and nothing is to be done for them, neither forward nor
backward.
"""

from libc.stddef cimport ptrdiff_t
from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Attr, Dim
from dynet_cy.graph.structs cimport Graph, Node

# A form of batches beside those of graph.h: views, if the executor of the device has them; else they are stacked.
cdef enum:
    VIEWS = 4

# Results of so many floats are long: elementwise ops may be called for pieces of a batch, wherever these lie, since a
# call costs as much as copying about so many numbers to and fro.
cdef enum:
    LONG = 32

# Where the result of an op of one argument begins in it, in floats; -1: it does not lie there in one piece.
ctypedef ptrdiff_t (*ViewOf)(const Dim* x, const Dim* y, const Attr* attrs, const uint32_t* items) noexcept nogil

# Let the results of an op be views; before its first use.
cdef void set_view(uint32_t op, ViewOf view) noexcept nogil
cdef ptrdiff_t view_at(const Graph* g, const Node* x) noexcept nogil
# Let planned batches be views where they can.
cdef int mark_views(Graph* g, uint32_t lowest, uint32_t highest) noexcept nogil
