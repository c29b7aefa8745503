"""Rows of lookup tables on a device that have not had all updates yet; see kernels/late_rows.pxd.

The updates are noted on the device, since it alone knows which of them it makes, and at which learning rate.  The host
counts those that it has asked for.  Weight decay is noted with them, so the factor of a table on a device is always 1.
The functions are called with the device entered, and return the error.
"""

from libc.stdint cimport uint32_t

from dynet_cy.gpu.driver cimport Gpu
from dynet_cy.memory.storage cimport Param

# Begin to note updates of a table, which has no late rows, with the rule of its record.  states: base of each plane.
cdef int begin_late(Gpu* gpu, const Param* p, float** states) noexcept nogil
# Apply all noted updates to rows: those of a list on the device, or, without one, as many from `first` on.  With
# `notes`, they are marked as having the update that is noted next; `clip` says whether that one is left out.
cdef int catch_up_rows(Gpu* gpu, const Param* p, size_t rows, const void* items, size_t first, bint notes,
                       const void* clip) noexcept nogil
# Note an update for the rows that have not been marked; h, chosen and clip are those of the kernels of rules.
cdef int note_late(Gpu* gpu, const Param* p, const void* h, const void* chosen, const void* clip) noexcept nogil
# The current numbers of rows.
cdef int read_rows(Gpu* gpu, const Param* p, size_t rows, const uint32_t* items, size_t first, float* y) noexcept nogil
