"""Memory with a bump pointer: arenas, which never move, and arrays, which move when they grow.

An arena or array belongs to the graph (or storage) that opened it and is closed by it; single allocations are never
freed.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t

cdef extern from "dynet_cy/arena.h" nogil:
    # derived: constants of ALIGN
    int ALIGN "DY_ALIGN"
    # end of constants
    # derived: structs of Segment, Arena, Array, Memory
    ctypedef struct Segment "dy_segment":
        char* p
        size_t bytes
        size_t begin "from"
        size_t charged
        size_t huge
        ptrdiff_t gradient

    ctypedef struct Arena "dy_arena":
        uintptr_t origin
        size_t top
        size_t end
        size_t begin "from"
        size_t first
        Segment* segments
        uint32_t n
        uint32_t now
        uint32_t capacity
        uint8_t poison
        uint8_t zeroed
        uint8_t quiet
        uint8_t mirrored
        uint8_t foreign
        Memory* memory

    ctypedef struct Array "dy_array":
        char* base
        size_t top
        size_t capacity
        Memory* memory
        uint8_t poison

    ctypedef struct Memory "dy_memory":
        size_t limit
        size_t used
        void* (*grow)(Arena* a, size_t bytes) noexcept nogil
        void* (*extend)(Arena* a, void* p, size_t had, size_t more) noexcept nogil
        int (*widen)(Array* a, size_t top) noexcept nogil
        void (*rewind)(Arena* a, size_t top) noexcept nogil
        Memory* around
    # end of structs

    # derived: functions of arena_alloc, arena_push, arena_extend, arena_rewind, arena_at, arena_offset, segment_of,
    #     segment_at, array_push, array_rewind
    void* arena_alloc "dy_arena_alloc"(Arena* a, size_t bytes)
    void* arena_push "dy_arena_push"(Arena* a, size_t bytes)
    void* arena_extend "dy_arena_extend"(Arena* a, void* p, size_t had, size_t more)
    void arena_rewind "dy_arena_rewind"(Arena* a, size_t top)
    void* arena_at "dy_arena_at"(const Arena* a, size_t offset)
    size_t arena_offset "dy_arena_offset"(const Arena* a, const void* p)
    const Segment* segment_of "dy_segment_of"(const Arena* a, const void* p)
    const Segment* segment_at "dy_segment_at"(const Arena* a, size_t offset)
    void* array_push "dy_array_push"(Array* a, size_t bytes)
    void array_rewind "dy_array_rewind"(Array* a, size_t top)
    # end of functions


# The accounting of the process, and the beginning of one within it, which has no limit yet.
cdef Memory* process_memory() noexcept nogil
cdef void memory_open(Memory* of) noexcept nogil
# Set the limit of one, in bytes; 0: none.
cdef void limit_memory(Memory* of, size_t limit_bytes) noexcept nogil
# Whether so many bytes can be allocated within a limit.
cdef bint has_room(const Memory* of, size_t n) noexcept nogil
cdef bint exceeds_limit(const Memory* of) noexcept nogil
# Memory is allocated only when it is needed, and counts for `of`.
cdef void arena_open(Arena* a, bint poison, Memory* of) noexcept nogil
cdef void array_open(Array* a, bint poison, Memory* of) noexcept nogil
cdef void arena_close(Arena* a) noexcept nogil
cdef void array_close(Array* a) noexcept nogil
# Let an empty arena use memory of the caller. All of that memory counts as in use, and none of it against the limit.
cdef int arena_lend(Arena* a, void* p, size_t n) except -1
# Free the segments of an empty arena if it has several; its next segment has room for what all of them held.
cdef void arena_unite(Arena* a) noexcept nogil
# Free the memory above the bump pointer, or about `most` bytes of it.  No memory moves.
cdef void arena_trim(Arena* a, size_t most) noexcept nogil
cdef void array_trim(Array* a) noexcept nogil
# Frees memory that is not in use when an allocation fails, with `own` only of what `asking` is part of; acquires the
# GIL.
ctypedef void (*Reclaim)(const void* asking, bint own, size_t enough) noexcept nogil
cdef void set_reclaim(Reclaim f) noexcept
# Raise the error of this thread's last refused allocation.
cdef int out_of_memory(str what) except -1
# The number of refused allocations; a graph that last saw another number frees the memory that it keeps for reuse.
cdef uint64_t shortages() noexcept nogil
# Raise unless n bytes fit into the limit, and `touched` bytes, which are written soon, into the machine's memory.
cdef int check_memory(str what, size_t n, size_t touched) except -1
