# Used from Cython only.
"""Joins the launches of several calls; see groups.pxd."""

from libc.string cimport memset

from dynet_cy.gpu.driver cimport MAX_KERNELS, MOST_GPUS, kernel_names
from dynet_cy.gpu.registry cimport kernel_at, module_at


cdef extern from "dynet_cy/launch_sections.h" nogil:
    """
    static const char *const dy_grouped[] = {
    #define GROUPED(name) #name,
    #include "dynet_cy/grouped.def"
        NULL
    };
    """
    const char** dy_grouped
    ctypedef struct Section "dy_section":
        const uint16_t* grouped
        int multiply
    bint dy_join_moves(Gpu* gpu, const Section* s, const void* moves, size_t count)
    void dy_note_moves(const Gpu* gpu, Section* s, const void* moves, size_t count)
    # derived: functions of dy_begin_section, dy_begin_member, dy_end_section
    void dy_begin_section(Gpu* gpu, Section* s)
    void dy_begin_member(Gpu* gpu, Section* s)
    void dy_end_section(Gpu* gpu, Section* s)
    # end of functions


GROUPS = module_at(b"groups")
cdef uint16_t[2048] grouped                    # by number of a kernel: that of its group kernel, or 0
memset(grouped, 0, sizeof(grouped))
cdef Section[MOST_GPUS] sections                # of each device, the one that is recorded, and its memory
memset(sections, 0, sizeof(sections))


cdef int MULTIPLY = kernel_at(GROUPS, b"multiply_group")
_group_kernels = {}                             # numbers of group kernels, by the names of the kernels
cdef int i = 0
while dy_grouped[i] != NULL:
    _group_kernels[<bytes>dy_grouped[i]] = kernel_at(GROUPS, b"grouped_" + <bytes>dy_grouped[i])
    i += 1
for i in range(MOST_GPUS):
    sections[i].grouped = grouped
    sections[i].multiply = MULTIPLY


cdef int note_kernels() except -1:
    cdef int k
    for k in range(MAX_KERNELS):
        if kernel_names[k] != NULL:
            grouped[k] = _group_kernels.get(<bytes>kernel_names[k], 0)
    return 0


cdef void begin_section(Gpu* gpu) noexcept nogil:
    dy_begin_section(gpu, &sections[gpu.number])


cdef void begin_member(Gpu* gpu) noexcept nogil:
    dy_begin_member(gpu, &sections[gpu.number])


cdef void end_section(Gpu* gpu) noexcept nogil:
    dy_end_section(gpu, &sections[gpu.number])


cdef bint join_moves(Gpu* gpu, const void* moves, size_t count) noexcept nogil:
    return dy_join_moves(gpu, &sections[gpu.number], moves, count)


cdef void note_moves(Gpu* gpu, const void* moves, size_t count) noexcept nogil:
    dy_note_moves(gpu, &sections[gpu.number], moves, count)
