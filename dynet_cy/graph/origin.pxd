"""Which line of the program made a node, and within which scopes.

A node has a number (`origin_of` of graph/structs), a half of it for the line and a half for the scope; what these stand
for is kept here, once for all nodes that a line makes.
"""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.core.atomic cimport Setting

# Why nodes have to get numbers: lines that are recorded, scopes that are open, a timeline. 0: they get none.
cdef Setting noting

# The number of the innermost line of Python outside dynet_cy that runs in this thread; 0 if there is none.
cdef uint32_t current_line() noexcept

# The number for a node that is made now in this thread.
cdef uint32_t current_origin() noexcept

# The Origin of the line in a number, None where there is none.
cdef object origin_at(uint32_t number)

# The names of the scopes in a number, the outer ones first, with "/" between them; "" outside of all.
cdef str scope_at(uint32_t number)

# Where it was made, in words, as messages end with; "" where nothing is known.
cdef str place_at(uint32_t number)

# The scope of this thread: for code that switches stacks.
cdef uint32_t current_scope() noexcept
cdef void set_scope(uint32_t scope) noexcept

# Begin a scope; returns the one before, for `set_scope`.
cdef uint32_t enter_scope(str name) except? 0xFFFFFFFF

# The time of the first node made in this thread since the last call, in nanoseconds; 0: none, or there is no timeline.
cdef uint64_t making_since() noexcept
cdef int time_making(bint on) except -1

# Drop references to the program's code, unless lines are recorded.
cdef void release_code() noexcept
