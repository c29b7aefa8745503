"""Deferred updates of rows of lookup tables on a device; see kernels/lazy_rows.pxd.

The device records the updates, since only the device knows which of them are made, and at which learning rate. The host
counts the updates that it has requested.  Weight decay is noted with them, so the factor of a table on a device is
always 1. The functions are called with the device entered, and return the error.
"""

from libc.stdint cimport uint32_t

from dynet_cy.gpu.driver cimport Gpu
from dynet_cy.memory.storage cimport Param

# Start recording the updates of a table without deferred updates, with the rule of its record.  states: base of each
# plane.
cdef int begin_lazy(Gpu* gpu, const Param* p, float** states) noexcept nogil
# Apply all noted updates to rows: those of a list on the device, or, without one, as many from `first` on.  With
# `notes`, the rows are marked as having the update that is recorded next; `clip` says whether that update is left out.
cdef int catch_up_rows(Gpu* gpu, const Param* p, size_t rows, const void* items, size_t first, bint notes,
                       const void* clip) noexcept nogil
# Defer an update of the rows that have not been marked; h, chosen and clip are those of the kernels of rules.
cdef int defer_update(Gpu* gpu, const Param* p, const void* h, const void* chosen, const void* clip) noexcept nogil
# The current numbers of rows.
cdef int read_rows(Gpu* gpu, const Param* p, size_t rows, const uint32_t* items, size_t first, float* y) noexcept nogil
