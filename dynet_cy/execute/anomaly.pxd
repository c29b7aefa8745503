"""Numbers that are not finite: found beside the executors, batch by batch, and explained.

Executors look after each batch: `bad_values` after forward, `bad_gradients` after backward, and `bad_collected` where
gradients of weights are multiplied in the end.  What they find they keep as a Finding; when the pass has stopped,
`raise_anomaly` says what it means.  They read numbers here: an executor of a device fetches them first.
"""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Batch, Graph
from dynet_cy.memory.storage cimport Param

# How many have switched the checks on; 0: nothing is looked at.
cdef int checking

# What numbers are, as far as errors tell.
cdef struct Contents:
    size_t n
    size_t nan
    size_t up                       # +inf
    size_t down                     # -inf
    size_t zero
    size_t first                    # the first one that is not finite
    float low                       # of the finite ones
    float high

cdef enum:
    NOTHING
    VALUE                           # of the node
    GRADIENT                        # of an argument of the node
    COLLECTED                       # of a parameter, which is an argument of the node
    BEFORE                          # of a parameter, which is the node, before backward began

cdef struct Finding:
    int kind
    uint32_t node
    uint32_t argument
    uint32_t together               # how many nodes ran in its batch
    Contents contents

# Whether there is something to report.  `strict`: also infinities that came in with an input.
cdef bint bad_values(const Graph* g, const Batch* batch, bint strict, Finding* f) noexcept nogil
cdef bint bad_gradients(const Graph* g, const Batch* batch, Finding* f) noexcept nogil
cdef bint bad_collected(const Graph* g, Param* p, Finding* f) noexcept nogil

# Raise where a gradient of a parameter is not finite before backward from target begins.
cdef int check_before(const Graph* g, uint32_t target) except -1

# The numbers of the arguments, and after backward all that backward left, must be here still.
cdef int raise_anomaly(const Graph* g, const Finding* f) except -1
