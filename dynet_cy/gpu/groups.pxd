"""Joins the launches of several calls while they are recorded.

A section is a sequence of calls whose members do not depend on each other (include/dynet_cy/launch_sections.h).  When
it ends, launches of the same kernel become one launch of its group kernel, and small products one launch.
"""

from libc.stdint cimport uint16_t

from dynet_cy.gpu.driver cimport Gpu

cdef int GROUPS                 # the module of group kernels

# Find the kernels that have a group kernel, before group kernels are loaded: by then all kernels are registered.
cdef int note_kernels() except -1
cdef void begin_section(Gpu* gpu) noexcept nogil
cdef void begin_member(Gpu* gpu) noexcept nogil
cdef void end_section(Gpu* gpu) noexcept nogil
# Whether the last record makes copies that run next, together with products of a section.
cdef bint join_moves(Gpu* gpu, const void* moves, size_t count) noexcept nogil
# Note that moves have been recorded just now; NULL: that a pass begins.
cdef void note_moves(Gpu* gpu, const void* moves, size_t count) noexcept nogil
