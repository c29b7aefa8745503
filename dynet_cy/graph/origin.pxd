"""Which line of the program made a node.

A node has a number (`origin_of` of graph.graph); what file, line and function it stands for is kept here, once for all
nodes that a line makes.
"""

from libc.stdint cimport uint32_t

# How many have switched recording on; 0: nothing is recorded.
cdef int recording

# The number of the innermost line of Python outside dynet_cy that runs in this thread; 0 if there is none.
cdef uint32_t current_line() noexcept

# The Origin of a number, None for 0.
cdef object origin_at(uint32_t number)

# Let no code of the program be kept alive by what was found, unless lines are recorded.
cdef void release_code() noexcept
