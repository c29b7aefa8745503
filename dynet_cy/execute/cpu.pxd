"""The CPU executor: what others need that run a part of a graph on the CPU."""

from libc.stdint cimport uint64_t

from dynet_cy.execute.walk cimport Collected, Walk
from dynet_cy.graph.structs cimport Graph

# Let passes of this thread end at that time, as `now` of execute/profile has it, when a batch has run: what is left is
# not computed.  0 for whole passes.  A pass on a device is always whole.
cdef void end_passes_at(uint64_t nanoseconds) noexcept

cdef void begin_cpu_walk(Walk* w, Graph* g) noexcept nogil

# Multiply what was collected, and look at it while checks are on.
cdef int finish_collected(Walk* w) noexcept nogil
