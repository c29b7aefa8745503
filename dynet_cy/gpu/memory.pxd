"""Memory of a device: arenas that grow in place, and copies."""

from libc.stdint cimport uint64_t

from dynet_cy.gpu.driver cimport DeviceArena, Gpu

cdef enum:
    OUT_OF_MEMORY = 2

# Reserve addresses for an arena, without memory: as many as the device has memory, or n bytes.  `reserve_arena` is
# called with the device entered, and returns 0 or the error of the driver.
cdef int open_arena(Gpu* gpu, DeviceArena* a) except -1
cdef int reserve_arena(Gpu* gpu, DeviceArena* a, size_t n) noexcept nogil
# Map memory for n bytes from the base on.  Returns 0 or the error of the driver, after which the arena is unchanged.
cdef int extend_arena(DeviceArena* a, size_t n) noexcept nogil
# `enters`: enter the device; False if it is entered already.
cdef void close_arena(DeviceArena* a, bint enters=*) noexcept nogil
cdef int out_of_device_memory(Gpu* gpu, int error, size_t n, str what) except -1


# A range of memory to be copied to the device, through page-locked buffers.
cdef struct Range:
    uint64_t device_ptr
    const void* host_ptr
    size_t n

# Send all ranges.  Ranges that are adjacent on the device become one copy.  The host memory may be changed on return.
cdef int send_ranges(Gpu* gpu, const Range* ranges, size_t count) noexcept nogil
