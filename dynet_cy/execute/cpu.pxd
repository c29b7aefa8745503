"""The CPU executor: functions with which other executors run a part of a graph on the CPU."""

from dynet_cy.execute.walk cimport Collected, Walk
from dynet_cy.graph.structs cimport Graph

cdef void begin_cpu_walk(Walk* w, Graph* g) noexcept nogil

# Multiply the collected factors, and check the results if checks are on.
cdef int finish_collected(Walk* w) noexcept nogil
