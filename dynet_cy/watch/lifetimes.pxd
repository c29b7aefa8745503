"""Plans as they ran, with the lifetime of each value and gradient: recorded for those who read them."""

from libc.stdint cimport uint32_t

from dynet_cy.core.threads cimport Setting
from dynet_cy.graph.structs cimport Graph

# Whether a plan is to be recorded. Profiles must be on then: they look at batches one by one.
cdef Setting recording

# A call of `count` nodes, from order[first] on, has run.  `back`: backward.
cdef void note_lifetimes(const Graph* g, uint32_t first, uint32_t count, bint back) noexcept nogil
# A forward pass has run the batches from number `first` on.
cdef int note_forward_pass(const Graph* g, uint32_t first) except -1
# A backward pass from a node has ended: if its plan is the one to record, keep it.
cdef int note_backward_pass(const Graph* g, uint32_t target) except -1
