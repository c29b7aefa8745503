"""Arenas of graphs on a device; see mirrored.pyx."""

from libc.stdint cimport uint32_t

from dynet_cy.gpu.driver cimport Address, DeviceArena, Gpu
from dynet_cy.memory.arena cimport Arena, Segment, segment_of


# Memory of the device that is cut into blocks of one size.
cdef struct Slab:
    Slab* next
    DeviceArena memory
    uint32_t size
    uint32_t n_used
    unsigned long long[8] used          # a bit for each block


# Addresses in which the parts for some segments lie side by side.
cdef struct Run:
    Address base
    size_t size
    size_t used                         # by parts
    size_t needed                       # by passes
    Slab* slab                          # where it is a block,
    DeviceArena* own                    # or else its memory

# What stands for a segment of an arena of the host.
cdef struct Part:
    const char* host_ptr                  # the segment
    size_t n                            # its bytes
    Address device_ptr
    uint32_t run

cdef struct Mirror:
    Gpu* gpu
    Part* parts                         # by number of the segment
    uint32_t n
    Run* runs
    uint32_t n_runs
    int error                           # of the driver, where there was no room for a part; 0: there was


cdef void open_mirror(Gpu* gpu, Mirror* m) noexcept nogil
cdef void close_mirror(Mirror* m) noexcept nogil
# A part for a segment that has none; NULL: there was no room, which is noted.  The device is not entered.
cdef Part* new_part(const Arena* host, Mirror* m, uint32_t i) noexcept nogil
# The other way round; NULL: it is nowhere in the arena.
cdef void* place_of(const Arena* host, const Mirror* m, Address p) noexcept nogil
# A pass begins, that notes what it uses: the segment in use up to the bump pointer, or all segments.
cdef void begin_use(const Arena* host, Mirror* m) noexcept nogil
cdef void note_use(const Arena* host, Mirror* m) noexcept nogil
cdef void note_uses(const Arena* host, Mirror* m) noexcept nogil
# Whether what passes use of the next segment follows on this one.
cdef bint goes_on(const Arena* host, const Mirror* m, const Segment* s) noexcept nogil
# Have memory for what was noted.  The device is entered already.  0, or the error of the driver.
cdef int extend_mirror(Mirror* m) noexcept nogil


cdef inline bint stands_for(const Part* part, const Segment* s) noexcept nogil:
    return part.host_ptr == s.p and part.n == s.bytes


cdef inline Part* part_of(const Arena* host, Mirror* m, const Segment* s) noexcept nogil:
    """The part that stands for a segment, made if it is not there; see `new_part`."""
    cdef uint32_t i = <uint32_t>(s - host.segments)
    if i < m.n and stands_for(&m.parts[i], s):
        return &m.parts[i]
    return new_part(host, m, i)


cdef inline Address address_in(const Arena* host, Mirror* m, const void* p) noexcept nogil:
    """Where something lies on the device that lies in a segment of the arena; 0: it does not, or see `new_part`."""
    cdef const Segment* s = segment_of(host, p)
    cdef Part* part
    if s == NULL:
        return 0
    part = part_of(host, m, s)
    return part.device_ptr + <size_t>(<const char*>p - s.p) if part != NULL else 0
