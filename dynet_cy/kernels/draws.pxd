"""Random numbers for the host: initial values.  The module owns the seed of all streams."""

from libc.stdint cimport uint64_t

cdef uint64_t random_seed() noexcept nogil
