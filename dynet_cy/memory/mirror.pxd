"""Memory of devices that mirrors memory of the host.

What lies at an offset from the base of a range of the host lies at the same offset
on the device.  The functions are filled by the backend of the device when it is loaded,
so that storage and graphs need no backend.
"""


cdef struct Mirrors:
    # An empty range of device addresses; extend() maps n bytes from its base on.
    void* (*open)(int device) except NULL
    int (*extend)(void* arena, size_t n, str what) except -1
    float* (*base)(void* arena) noexcept
    void (*close)(void* arena) noexcept
    # Copies of n floats, complete when the function returns; and zeros.
    int (*fetch)(int device, const float* device_ptr, float* host_ptr, size_t n) except -1
    int (*send)(int device, const float* host_ptr, float* device_ptr, size_t n) except -1
    int (*clear)(int device, float* device_ptr, size_t n) except -1

cdef Mirrors* mirrors() noexcept
# The device of new graphs and collections.  0: the CPU; 1 + n: GPU number n.
cdef int default_device() noexcept nogil
