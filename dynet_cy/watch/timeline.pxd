"""Timelines: spans of time, recorded while one is being measured.

Any layer above may note a span::

    cdef uint64_t begun = begin_span()
    ...
    end_span(UPDATE, begun)
"""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.core.threads cimport Flag
from dynet_cy.graph.structs cimport Graph

cdef enum Kind:
    BATCH                       # one batch of nodes forward
    BATCH_BACKWARD              # its gradients
    BATCH_AGAIN                 # its values, which were dropped, for backward
    WEIGHTS                     # products of factors that were collected
    MAKING                      # the program made nodes
    SCHEDULING
    FORWARD_PASS                # all batches that a value needs
    BACKWARD_PASS               # the gradients of all batches
    UPDATE                      # update of parameters
    EXCHANGE                    # communication between processes
    NAMED                       # a block that Python code has named

# Whether spans are recorded.
cdef Flag tracing

# Now, in nanoseconds; 0 if nothing is recorded, and `end_span` then does nothing.
cdef uint64_t begin_span() noexcept nogil
cdef void end_span(Kind kind, uint64_t begun) noexcept nogil

# A pass begins: the nodes made since the last one become a span.
cdef uint64_t begin_pass_span(const Graph* g) noexcept

# A call of the nodes order[first], order[first + 1]..., and the number of nodes that ran.
cdef void span_of_call(const Graph* g, uint32_t first, uint32_t count, Kind kind, uint32_t nodes,
                       uint64_t begun, uint64_t ended) noexcept nogil
