"""Random numbers for the host: initial values.  The module owns the seed of all streams."""

from libc.stdint cimport uint64_t


# The item of a batched map that runs in this thread, if any: each item has its own random draws.
cdef extern from "dynet_cy/draws.h":
    ctypedef struct DrawingItem "dy_drawing_item":
        uint64_t key
        uint64_t draws
        bint inside

cdef DrawingItem* drawing_item() noexcept

cdef uint64_t random_seed() noexcept nogil
