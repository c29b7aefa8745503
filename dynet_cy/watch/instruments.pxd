"""Instruments of passes: counts and times of calls, and checks for numbers that are not finite."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.core.threads cimport Setting
from dynet_cy.graph.structs cimport Batch, Graph
from dynet_cy.memory.storage cimport Param
from dynet_cy.watch.timeline cimport Kind


# ==== anomaly =====================================================================================
#
# Checks for numbers that are not finite, and the errors that explain them.
#
# Executors check after each batch: `bad_values` after forward, `bad_gradients` after backward, and `bad_collected` when
# the collected gradients of weights have been multiplied at the end. These functions store what they find in a Finding;
# when the pass has stopped, `raise_anomaly` turns it into an error. The checks read numbers on the host, so the
# executor of a GPU copies the numbers to the host first.

# The number of callers that have switched the checks on; 0: no checks.
cdef Setting checking

# A summary of numbers, for error messages.
cdef struct Contents:
    size_t n
    size_t nan
    size_t up                       # +inf
    size_t down                     # -inf
    size_t zero
    size_t first                    # index of the first one that is not finite
    float low                       # smallest and largest of the finite ones
    float high

cdef enum:
    NOTHING
    VALUE                           # the value of the node
    GRADIENT                        # the gradient of an argument of the node
    COLLECTED                       # the collected gradient of a parameter that is an argument of the node
    BEFORE                          # the gradient of a parameter, the node, before backward began

cdef struct Finding:
    int kind
    uint32_t node
    uint32_t argument
    uint32_t together               # the number of nodes in its batch
    Contents contents

# Whether a number that is not finite was found.  `strict`: also infinities that come from an input.
cdef bint bad_values(const Graph* g, const Batch* batch, bint strict, Finding* f) noexcept nogil
cdef bint bad_gradients(const Graph* g, const Batch* batch, Finding* f) noexcept nogil
cdef bint bad_collected(const Graph* g, Param* p, Finding* f) noexcept nogil

# Raise where a gradient of a parameter is not finite before backward from target begins.
cdef int check_before(const Graph* g, uint32_t target) except -1

# The values of the arguments, and after backward all gradients, must still be in host memory.
cdef int raise_anomaly(const Graph* g, const Finding* f) except -1


# ==== profile =====================================================================================
#
# Counts of nodes and calls, and the time they took, by operation.

cdef enum:
    WEIGHT_GRADIENTS = 0xFFFFFFFF   # instead of an op: the products of execute/gradients

# In which direction a call ran; AGAIN is forward for backward, of values that were dropped.
cdef enum:
    FORWARDS
    BACKWARDS
    AGAIN
    WAYS

# The level; 0: nothing is measured.
cdef Setting profiling

cdef void note(uint32_t op, int way, uint32_t nodes, uint64_t since) noexcept nogil
# The same for a call of `count` nodes of a graph, from order[first] on, of which `nodes` ran; counted by line too.
cdef void note_call(const Graph* g, uint32_t first, uint32_t count, int way, uint32_t nodes,
                    uint64_t since) noexcept nogil

# Write the batches that have run, from number `first` on, to stderr, one per line.
# End the span of a pass, and note what the graph holds.
cdef int end_pass(const Graph* g, Kind kind, uint64_t span) except -1
cdef int list_batches(Graph* g, uint32_t first) except -1
