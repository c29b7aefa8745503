"""Indices out of range, found by kernels: see refused.pyx."""

from dynet_cy.gpu.driver cimport Gpu


# Where kernels note an index that they refuse; NULL after an error.
cdef void* refused_of(Gpu* gpu) noexcept nogil
# Raise an IndexError if an index was refused.  To be called after each wait for the device.
cdef int check_refused(Gpu* gpu) except -1
