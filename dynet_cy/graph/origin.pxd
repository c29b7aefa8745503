"""Origins of nodes: lines of the program and scopes; descriptions of nodes for messages."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.core.tensor cimport Dim
from dynet_cy.core.threads cimport Setting
from dynet_cy.graph.structs cimport Graph
from dynet_cy.ops.registry cimport Op


# ==== origin ======================================================================================
#
# The origin of a node: the line of the program that made it, and the scopes around that line.
#
# A node has a number (`origin_of` of graph/structs), half of it for the line and half for the scope.  This module keeps
# the lines and scopes that these numbers stand for.

# The number of reasons to give nodes numbers: recording of lines, open scopes, a timeline. 0: nodes get none.
cdef Setting noting

# The number of the innermost line of Python outside dynet_cy that runs in this thread; 0 if there is none.
cdef uint32_t current_line() noexcept

# The number for a node that is made now in this thread.
cdef uint32_t current_origin() noexcept

# The Origin of the line in a number, None where there is none.
cdef object origin_at(uint32_t number)

# The names of the scopes in a number, the outer ones first, with "/" between them; "" outside of all.
cdef str scope_at(uint32_t number)

# The ending of a message that tells where a node was made; "" if that is unknown.
cdef str place_at(uint32_t number)

# The scope of this thread: for code that switches stacks.
cdef uint32_t current_scope() noexcept
cdef void set_scope(uint32_t scope) noexcept

# The value of an expression is read now: called while `noting` is set.
cdef int note_read(object x) except -1

# Begin a scope; returns the one before, for `set_scope`.
cdef uint32_t enter_scope(str name) except? 0xFFFFFFFF

# When the first node since the last call was made in this thread, in nanoseconds; 0: none was, or there is no timeline.
cdef uint64_t making_since() noexcept
cdef int time_making(bint on) except -1

# Drop references to the program's code, unless lines are recorded.
cdef void release_code() noexcept


# ==== messages ====================================================================================
#
# Descriptions of nodes and shapes, for messages.

# A shape as "{2,3} x 4": two axes and a batch of 4.
cdef str describe_dim(const Dim* d)
# The names of an op's arguments; and the source of a node: its op, or the name of the parameter.
cdef list argument_names(const Op* op, uint32_t n)
cdef str source_of_node(const Graph* g, uint32_t index)
# ", made at train.py:17 in loss" if that was recorded, else ""; also "" for parameters.
cdef str made_at(const Graph* g, uint32_t index)
# The same in two steps: the number of the place, which needs no Python, and its words.
cdef uint32_t made_in(const Graph* g, uint32_t index) noexcept nogil
cdef str made_by(uint32_t origin)
cdef explain(const Op* op, str reason, const uint32_t* args, uint32_t n, Graph* g)
