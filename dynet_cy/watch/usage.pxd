"""Memory usage of graphs: arenas, and values by operation and line of the program."""

from dynet_cy.graph.structs cimport Graph

# Raise an error of missing memory again, with the largest values of a graph.
cdef int raise_with_largest(const Graph* g, object error) except -1
# Raise the error of this thread's last refused allocation, with the largest values of a graph.
cdef int raise_no_memory(const Graph* g, str what) except -1
# Note what a graph holds after a batch; and, if that was the most since `watch_peak`, its values at the end of the
# pass.
cdef void note_level(const Graph* g) noexcept nogil
cdef int note_peak(const Graph* g) except -1
