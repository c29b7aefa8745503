"""The CPU executor: functions with which other executors run a part of a graph on the CPU."""

from libc.stdint cimport uint64_t

from dynet_cy.execute.walk cimport Collected, Walk
from dynet_cy.graph.structs cimport Graph

# Passes of this thread end after the first batch that finishes at that time or later, on the clock of `now` in
# watch/instruments.  The rest is not computed.  0 for whole passes.  A pass on a GPU is always whole.
cdef void end_passes_at(uint64_t nanoseconds) noexcept

cdef void begin_cpu_walk(Walk* w, Graph* g) noexcept nogil

# Multiply the collected factors, and check the results if checks are on.
cdef int finish_collected(Walk* w) noexcept nogil
