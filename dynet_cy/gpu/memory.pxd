"""Device memory: arenas that grow in place, copies, arenas of graphs, and results of clipping."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.gpu.driver cimport Address, DeviceArena, Gpu
from dynet_cy.memory.arena cimport Arena, Segment, segment_of


# ==== clips =======================================================================================
#
# The results of clipping on devices; see memory.pyx.

cdef extern from "dynet_cy/gpu_update.h" nogil:
    # derived: structs of Clip
    ctypedef struct Clip "dy_clip":
        double norm
        uint32_t done
        uint32_t dropped
        uint32_t clips
        uint32_t skipped
        uint32_t drops
        uint32_t unused
    # end of structs

    # derived: functions of done_dropped = dy_clip_done_dropped
    uint64_t done_dropped "dy_clip_done_dropped"(const Clip* c)
    # end of functions


# A trainer that drops updates with gradients that are not finite waits if it has more updates than this under way.
cdef enum:
    MOST_COMING = 64


cdef class Clipping:
    cdef Gpu* gpu
    cdef Address device_ptr             # the record, on the device
    cdef Clip* host_ptr                 # a copy of the record as of the last finished update
    cdef uint32_t asked                 # number of updates that were requested
    cdef uint32_t counted               # clips in the record that have been reported
    cdef uint32_t known                 # dropped updates in the record that have been reported
    # Counts from before the record was last reset that have not been reported yet.
    cdef uint32_t n_clips
    cdef uint32_t n_dropped
    cdef uint32_t n_left_out
    cdef bint under_way                 # whether updates have been requested since `wait`
    cdef list stored                    # parameters and tables of the last update

    cdef int report(self) except -1
    cdef list note_gradients(self)


# Raise an error if an update was left out because its gradients are not finite, or an index was refused.  To be called
# after each wait for the device.
cdef int check_updates(Gpu* gpu) except -1


# ==== memory ======================================================================================
#
# Memory of a device: arenas that grow in place, and copies.

cdef enum:
    OUT_OF_MEMORY = 2

# Reserve n bytes of addresses for an arena, without memory; the device is entered.  Returns 0 or the driver's error.
cdef int reserve_arena(Gpu* gpu, DeviceArena* a, size_t n) noexcept nogil
# Map memory for n bytes from the base on.  Returns 0 or the error of the driver, after which the arena is unchanged.
cdef int extend_arena(DeviceArena* a, size_t n) noexcept nogil
# `enters`: enter the device; False if it is entered already.
cdef void close_arena(DeviceArena* a, bint enters=*) noexcept nogil
# Memory for n bytes that are used at once: the next ones may be the same, since work on a device runs in order.
cdef Address working_memory(Gpu* gpu, size_t n, str what) except 0
# A device has had no memory for a pass.  From then on arenas take less in advance.
cdef void note_shortage(Gpu* gpu) noexcept nogil
cdef bint was_short(const Gpu* gpu) noexcept nogil
cdef int out_of_device_memory(Gpu* gpu, int error, size_t n, str what) except -1


# A range of memory to be copied to the device, through page-locked buffers.
cdef struct Range:
    uint64_t device_ptr
    const void* host_ptr
    size_t n

# Send all ranges.  Ranges that are adjacent on the device become one copy.  The host memory may be changed on return.
cdef int send_ranges(Gpu* gpu, const Range* ranges, size_t count) noexcept nogil


# ==== mirrored ====================================================================================
#
# Arenas of graphs on a device; see memory.pyx.

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
cdef struct MirrorPart:
    const char* host_ptr                # start of the segment
    size_t n                            # size of the segment in bytes
    Address device_ptr
    uint32_t run

cdef struct Mirror:
    Gpu* gpu
    MirrorPart* parts                   # by number of the segment
    uint32_t n
    Run* runs
    uint32_t n_runs
    int error                           # of the driver, if a part could not be allocated; 0: none
    size_t most                         # the most bytes that a pass has used


cdef void open_mirror(Gpu* gpu, Mirror* m) noexcept nogil
cdef void close_mirror(Mirror* m) noexcept nogil
# Make the part for a segment that has none; NULL if there is no memory, which is stored in `error`.  Must be called
# without the device entered.
cdef MirrorPart* new_part(const Arena* host, Mirror* m, uint32_t i) noexcept nogil
# A pass begins.  The pass then notes the memory that it uses: all segments up to the bump pointer.
cdef void begin_use(const Arena* host, Mirror* m) noexcept nogil
cdef void note_uses(const Arena* host, Mirror* m) noexcept nogil
# Whether the next segment is in use and directly follows this one on the device.
cdef bint continues_part(const Arena* host, const Mirror* m, const Segment* s) noexcept nogil
# Map memory for what was noted, with the device entered.  Returns 0 or the error of the driver.
cdef int extend_mirror(Mirror* m) noexcept nogil
# Fill what it holds behind an offset with ones, which are NaN, with the device entered.  Returns 0 or the error.
cdef int poison_mirror(const Arena* host, Mirror* m, size_t top) noexcept nogil
# The bytes of the device that it holds.
cdef size_t mirror_bytes(const Mirror* m) noexcept nogil


cdef inline bint is_copy_of(const MirrorPart* part, const Segment* s) noexcept nogil:
    return part.host_ptr == s.p and part.n == s.bytes


cdef inline MirrorPart* part_of(const Arena* host, Mirror* m, const Segment* s) noexcept nogil:
    """The part for a segment, made if there is none; see `new_part`."""
    cdef uint32_t i = <uint32_t>(s - host.segments)
    if i < m.n and is_copy_of(&m.parts[i], s):
        return &m.parts[i]
    return new_part(host, m, i)


cdef inline Address address_in(const Arena* host, Mirror* m, const void* p) noexcept nogil:
    """The device address for a pointer into the arena; 0 if it is not in the arena, or if `new_part` fails."""
    cdef const Segment* s = segment_of(host, p)
    cdef MirrorPart* part
    if s == NULL:
        return 0
    part = part_of(host, m, s)
    return part.device_ptr + <size_t>(<const char*>p - s.p) if part != NULL else 0
