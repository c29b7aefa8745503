"""Memory of a device: arenas that grow in place, and copies."""

from libc.stdint cimport uint64_t

from dynet_cy.gpu.driver cimport DeviceArena, Gpu

cdef enum:
    OUT_OF_MEMORY = 2

# An arena without memory, as large as the device has memory; and one for n bytes, with the device entered: 0, or the
# error of the driver.
cdef int open_arena(Gpu* gpu, DeviceArena* a) except -1
cdef int reserve_arena(Gpu* gpu, DeviceArena* a, size_t n) noexcept nogil
# Room for n bytes from the base on: 0, or the error of the driver; the arena is as it was then.
cdef int extend_arena(DeviceArena* a, size_t n) noexcept nogil
# `enters` unless the device is entered already.
cdef void close_arena(DeviceArena* a, bint enters=*) noexcept nogil
cdef int out_of_device_memory(Gpu* gpu, int error, size_t n, str what) except -1


# One copy of many ranges to the device, through memory that the device reads by itself.
cdef struct Range:
    uint64_t device_ptr
    const void* host_ptr
    size_t n

# Takes the ranges at once, in one or more copies: those that lie side by side there are one.
cdef int send_ranges(Gpu* gpu, const Range* ranges, size_t count) noexcept nogil
