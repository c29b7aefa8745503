"""Arenas of graphs on a device; see mirrored.pyx."""

from libc.stdint cimport uint32_t

from dynet_cy.gpu.driver cimport Address, DeviceArena, Gpu
from dynet_cy.memory.arena cimport Arena, Segment, segment_of


# Device memory that is divided into blocks of one size.
cdef struct Slab:
    Slab* next
    DeviceArena memory
    uint32_t size
    uint32_t n_used
    unsigned long long[8] used          # a bit for each block


# A range of device addresses that contains the parts of several consecutive segments.
cdef struct Run:
    Address base
    size_t size
    size_t used                         # bytes that parts take
    size_t needed                       # bytes that the current pass uses
    Slab* slab                          # the slab that it is a block of,
    DeviceArena* own                    # or its own memory if it is not a block

# The counterpart of a segment of a host arena.
cdef struct Part:
    const char* host_ptr                # start of the segment
    size_t n                            # size of the segment in bytes
    Address device_ptr
    uint32_t run

cdef struct Mirror:
    Gpu* gpu
    Part* parts                         # by number of the segment
    uint32_t n
    Run* runs
    uint32_t n_runs
    int error                           # of the driver, if a part could not be allocated; 0: none


cdef void open_mirror(Gpu* gpu, Mirror* m) noexcept nogil
cdef void close_mirror(Mirror* m) noexcept nogil
# Make the part for a segment that has none; NULL if there is no memory, which is stored in `error`.  Must be called
# without the device entered.
cdef Part* new_part(const Arena* host, Mirror* m, uint32_t i) noexcept nogil
# A pass begins.  It then notes what it uses: the current segment up to the bump pointer, or all segments.
cdef void begin_use(const Arena* host, Mirror* m) noexcept nogil
cdef void note_use(const Arena* host, Mirror* m) noexcept nogil
cdef void note_uses(const Arena* host, Mirror* m) noexcept nogil
# Whether the next segment is in use and directly follows this one on the device.
cdef bint continues_part(const Arena* host, const Mirror* m, const Segment* s) noexcept nogil
# Map memory for what was noted, with the device entered.  Returns 0 or the error of the driver.
cdef int extend_mirror(Mirror* m) noexcept nogil


cdef inline bint is_copy_of(const Part* part, const Segment* s) noexcept nogil:
    return part.host_ptr == s.p and part.n == s.bytes


cdef inline Part* part_of(const Arena* host, Mirror* m, const Segment* s) noexcept nogil:
    """The part for a segment, made if there is none; see `new_part`."""
    cdef uint32_t i = <uint32_t>(s - host.segments)
    if i < m.n and is_copy_of(&m.parts[i], s):
        return &m.parts[i]
    return new_part(host, m, i)


cdef inline Address address_in(const Arena* host, Mirror* m, const void* p) noexcept nogil:
    """The device address for a pointer into the arena; 0 if it is not in the arena, or if `new_part` fails."""
    cdef const Segment* s = segment_of(host, p)
    cdef Part* part
    if s == NULL:
        return 0
    part = part_of(host, m, s)
    return part.device_ptr + <size_t>(<const char*>p - s.p) if part != NULL else 0
