"""Memory with a bump pointer: arenas, which never move, and arrays, which move when they grow."""

import os

from libc.stdint cimport SIZE_MAX, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset
from posix.mman cimport MAP_ANON, MAP_FAILED, MAP_PRIVATE, PROT_READ, PROT_WRITE, mmap, munmap
from posix.stdlib cimport posix_memalign
from posix.unistd cimport _SC_PAGESIZE, sysconf

from dynet_cy.core.engine cimport add_tunable
from dynet_cy.core.threads cimport RELAXED, Number, atomic_add, atomic_load, atomic_store, atomic_sub

from dynet_cy.core.amounts import size_text

cdef extern from "pages.h" nogil:
    int MAP_NORESERVE
    # derived: constants of LIMIT, PART, MACHINE, SYSTEM
    int LIMIT "DY_LIMIT"
    int PART "DY_PART"
    int MACHINE "DY_MACHINE"
    int SYSTEM "DY_SYSTEM"
    # end of constants
    # derived: structs of Refusal = dy_memory_refusal
    ctypedef struct Refusal "dy_memory_refusal":
        int why
        size_t needed
        size_t left
        size_t limit
    # end of structs
    # derived: functions of last_refusal, remap, prefer_huge_pages, populate, release
    Refusal* last_refusal "dy_last_refusal"()
    void* remap "dy_remap"(void* p, size_t had, size_t bytes)
    void prefer_huge_pages "dy_prefer_huge_pages"(void* p, size_t bytes)
    void populate "dy_populate"(void* p, size_t bytes)
    void release "dy_release"(void* p, size_t bytes)
    # end of functions


cdef extern from "<unistd.h>":
    int _SC_PHYS_PAGES

cdef enum:
    FIRST_SEGMENT = 1 << 12
    FIRST_ARRAY = 1 << 10
    MAPPED = 1 << 17                # blocks of this size or more are mapped, smaller ones come from malloc
    CHARGE_STEP = 1 << 16           # arenas are charged against the limit in steps of this size
    AHEAD = 2                       # a mapped segment has address space for this many times what its arena needs,
    LEAST_ADDRESSES = 1 << 25       # and for so many bytes
    HUGE_FROM = 1 << 22             # segments of which this much or more is used ask for huge pages
    HUGE_PAGE = 1 << 21
    ASK_FROM = 1 << 20              # smaller requests are not checked against the machine's free memory

# A gap after each segment, so that the end of one and the beginning of another are never adjacent.
cdef size_t GAP = ALIGN

cdef Memory memory                  # a global of C: all 0
cdef Reclaim reclaim = NULL
cdef size_t n_shortages = 0
cdef size_t has_trimmed = 0         # whether memory above a bump pointer has been given back
cdef size_t page = <size_t>sysconf(_SC_PAGESIZE)
# An arena larger than the machine's memory could never be filled.
cdef size_t machine = <size_t>sysconf(_SC_PHYS_PAGES) * page

# Whether graphs that are opened from now on fill memory that they free with NaN.  In the environment: for tests.
cdef Number poisoning = os.environ.get("DYNET_CY_POISON", "0") not in ("", "0")
add_tunable("memory.arena.poisoning", &poisoning, 1)


def set_limit(size_t limit_bytes):
    """Limit the memory of all arenas together.

    Args:
        limit_bytes: bytes; 0 sets no limit but the machine's memory.
    """
    atomic_store(&memory.limit, limit_bytes, RELAXED)


def limit() -> int:
    """The limit in bytes; 0 if there is none."""
    return atomic_load(&memory.limit, RELAXED)


def used_bytes() -> int:
    """Bytes held by open arenas and arrays: those in use, and those kept for reuse."""
    return atomic_load(&memory.used, RELAXED)


def give_back():
    """Make all graphs that are not running free the memory that they keep for reuse."""
    if reclaim != NULL:
        reclaim(NULL, False, SIZE_MAX)


# ---- the limit -----------------------------------------------------------------

cdef void* refuse(int why, size_t needed, size_t left) noexcept nogil:
    cdef Refusal* r = last_refusal()
    r.why = why
    r.needed = needed
    r.left = left
    return NULL


cdef bint charge(Memory* of, size_t more, size_t needed) noexcept nogil:
    """Charge bytes against a limit and those around it; False if a request for `needed` bytes would exceed one."""
    cdef size_t used = atomic_add(&of.used, more, RELAXED)
    cdef size_t allowed = atomic_load(&of.limit, RELAXED)
    cdef size_t free_bytes
    if allowed and used > allowed:
        atomic_sub(&of.used, more, RELAXED)
        free_bytes = allowed - (used - more) if allowed > used - more else 0
        # Memory that is already held can be used too.
        refuse(LIMIT if of.around == NULL else PART, needed,
               free_bytes + needed - more if needed > more else free_bytes)
        last_refusal().limit = allowed
        return False
    if of.around != NULL and not charge(of.around, more, needed):
        atomic_sub(&of.used, more, RELAXED)
        return False
    return True


cdef void discharge(Memory* of, size_t n) noexcept nogil:
    while of != NULL:
        atomic_sub(&of.used, n, RELAXED)
        of = of.around


cdef Memory* process_memory() noexcept nogil:
    return &memory


cdef void memory_open(Memory* of) noexcept nogil:
    of.limit = of.used = 0
    of.grow = grow
    of.extend = extend
    of.widen = widen
    of.rewind = rewind
    of.around = &memory


cdef void limit_memory(Memory* of, size_t limit_bytes) noexcept nogil:
    atomic_store(&of.limit, limit_bytes, RELAXED)


cdef bint has_room(const Memory* of, size_t n) noexcept nogil:
    cdef size_t allowed = atomic_load(&of.limit, RELAXED)
    return not allowed or n <= allowed and atomic_load(&of.used, RELAXED) <= allowed - n


cdef bint exceeds_limit(const Memory* of) noexcept nogil:
    cdef size_t allowed = atomic_load(&of.limit, RELAXED)
    return allowed != 0 and atomic_load(&of.used, RELAXED) > allowed


# ---- blocks --------------------------------------------------------------------

cdef void* block_new(size_t n, bint zeroed) noexcept nogil:
    """A block on a 64-byte boundary; NULL if there is no memory."""
    cdef void* p = NULL
    if n >= MAPPED:
        p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0)
        return NULL if p == MAP_FAILED else p
    if posix_memalign(&p, ALIGN, n):
        return NULL
    if zeroed:
        memset(p, 0, n)
    return p


cdef void block_free(void* p, size_t n) noexcept nogil:
    if n >= MAPPED:
        munmap(p, n)
    else:
        free(p)


cdef void* block_resize(void* p, size_t had, size_t n) noexcept nogil:
    """A block with the contents of p, which is freed; NULL, and p stays valid, if there is no memory."""
    cdef void* q
    if p != NULL and had >= MAPPED and n >= MAPPED:
        q = remap(p, had, n)
        return NULL if q == MAP_FAILED else q
    q = block_new(n, False)
    if q != NULL and p != NULL:
        memcpy(q, p, min(had, n))
        block_free(p, had)
    return q


# ---- arenas --------------------------------------------------------------------

cdef void arena_open(Arena* a, bint poison, Memory* of) noexcept nogil:
    memset(a, 0, sizeof(Arena))
    a.memory = of
    a.poison = poison and poisoning


cdef void arena_close(Arena* a) noexcept nogil:
    drop_segments(a, 0)
    free(a.segments)
    memset(a, 0, sizeof(Arena))


cdef void drop_segments(Arena* a, uint32_t first) noexcept nogil:
    """Free a segment and all later ones, which are empty."""
    cdef Segment* s
    while a.n > first:
        a.n -= 1
        s = &a.segments[a.n]
        discharge(a.memory, s.charged)
        if not a.foreign:
            block_free(s.p, s.bytes + GAP)
    if a.n == 0:
        a.origin = a.top = a.end = a.begin = a.now = 0
        a.foreign = False


cdef int arena_lend(Arena* a, void* p, size_t n) except -1:
    if a.capacity == 0 and not list_segment(a):
        out_of_memory("a mapping of the caller's")
    drop_segments(a, 0)
    memset(&a.segments[0], 0, sizeof(Segment))
    a.segments[0].p = <char*>p
    a.segments[0].bytes = n
    a.n = 1
    a.foreign = True
    a.origin = <uintptr_t>p
    a.top = a.end = n
    return 0


cdef bint list_segment(Arena* a) noexcept nogil:
    """Grow the list by one segment if it is full."""
    cdef Segment* segments
    if a.n == a.capacity:
        segments = <Segment*>realloc(a.segments, (a.capacity + 4) * sizeof(Segment))
        if segments == NULL:
            refuse(SYSTEM, (a.capacity + 4) * sizeof(Segment), 0)
            return False
        a.segments = segments
        a.capacity += 4
    return True


cdef bint add_segment(Arena* a, size_t n) noexcept nogil:
    """Append a segment of at least n bytes."""
    cdef size_t total = 0, want
    cdef uint32_t i
    cdef void* p = NULL
    cdef bint drops = a.n > a.now + 1 and not a.mirrored
    for i in range(a.n):
        total += a.segments[i].bytes
    if n > machine or a.top + n > machine:
        refuse(MACHINE, n, machine - a.top if machine > a.top else 0)
        return False
    n = (n + ALIGN - 1) & ~<size_t>(ALIGN - 1)
    want = max(n, total)
    # Parts of a device have the size of their segments; planes of parameters seldom grow.
    if want >= MAPPED and not a.mirrored and not a.zeroed:
        want = max(want * AHEAD, <size_t>LEAST_ADDRESSES)
    want = max(want, max(<size_t>FIRST_SEGMENT, a.first if a.n == 0 else 0))
    if n >= MAPPED and drops:                   # the empty segments that are too small are not needed beside it
        drop_segments(a, a.now + 1)
    while True:
        p = block_new(want + GAP, a.zeroed)
        if p != NULL or want == n:
            break
        want = max(n, want // 2 & ~<size_t>(ALIGN - 1))
    if p == NULL and drops:                     # empty segments that were too small take address space
        drop_segments(a, a.now + 1)
        p = block_new(n + GAP, a.zeroed)
    if p == NULL or not list_segment(a):
        if p != NULL:
            block_free(p, want + GAP)
        else:
            refuse(SYSTEM, n, 0)
        return False
    memset(&a.segments[a.n], 0, sizeof(Segment))
    a.segments[a.n].p = <char*>p
    a.segments[a.n].bytes = want
    if a.zeroed:                                # rows of tables, few of which may ever be written
        a.segments[a.n].huge = want
    elif a.n == 0:                              # half of it is for what earlier segments held
        ask_for_huge_pages(&a.segments[0], min(a.first // 2, want))
    if a.n == 0:
        a.origin = <uintptr_t>p
    a.n += 1
    return True


cdef void ask_for_huge_pages(Segment* s, size_t end) noexcept nogil:
    """Request huge pages for the beginning of a segment, all of which will be used: one page of 2 MiB is as much as 512
    small ones, even if little of it is ever written."""
    if end >= HUGE_FROM and end >= s.huge + HUGE_PAGE:
        prefer_huge_pages(s.p, end)
        s.huge = end


cdef void populate_charged(const Arena* a, const Segment* s, size_t had) noexcept nogil:
    """Give memory to what has been charged of a segment since `had` bytes were.

    Only where memory is short, and moves from arena to arena: elsewhere some of it may never be touched.
    """
    cdef size_t first = had & ~(page - 1)
    if atomic_load(&has_trimmed, RELAXED) and not a.zeroed and s.bytes + GAP >= MAPPED and is_limited(a.memory):
        populate(s.p + first, (s.charged - first + page - 1) & ~(page - 1))


cdef inline bint is_limited(const Memory* of) noexcept nogil:
    while of != NULL and not atomic_load(&of.limit, RELAXED):
        of = of.around
    return of != NULL


cdef bint charge_segment(const Arena* a, Segment* s, size_t end, size_t needed) noexcept nogil:
    """Charge a segment up to an offset, because of a request for `needed` bytes, and request huge pages for it."""
    cdef size_t want, had = s.charged
    if end <= s.charged:
        return True
    want = min((end + CHARGE_STEP - 1) & ~<size_t>(CHARGE_STEP - 1), s.bytes)
    if not charge(a.memory, want - had, needed):
        want = end                              # try again without rounding up
        if not charge(a.memory, want - had, needed):
            return False
    s.charged = want
    # A large allocation will be used. What has grown to so much will grow by a part of it.
    ask_for_huge_pages(s, min(max(end if needed >= HUGE_FROM else 0, want + want // 8), s.bytes))
    populate_charged(a, s, had)
    return True


cdef bint fits_behind(const Arena* a, size_t at, size_t n) noexcept nogil:
    cdef const Segment* s = &a.segments[a.now]
    return a.n > 0 and at - s.begin <= s.bytes and n <= s.bytes - (at - s.begin)


cdef void* try_to_grow(Arena* a, size_t n) noexcept nogil:
    cdef size_t at
    cdef uint32_t i = 0, k
    cdef Segment* s
    if a.n == 0:                                # it was trimmed; going back to an offset from before means nothing
        a.top = 0
    at = (a.top + ALIGN - 1) & ~<size_t>(ALIGN - 1)
    if fits_behind(a, at, n):
        s = &a.segments[a.now]
        if not charge_segment(a, s, at - s.begin + n, n):
            return NULL
        a.end = s.begin + s.charged
    else:
        if a.n:
            i = a.now + 1
        while i < a.n and a.segments[i].bytes < n:
            i += 1
        if i == a.n:
            if not add_segment(a, n):
                return NULL
            i = a.n - 1
        s = &a.segments[i]
        if not charge_segment(a, s, n, n):
            return NULL
        for k in range(a.now + 1 if i else 0, i + 1):       # skipped segments stay empty
            a.segments[k].begin = at
        a.now = i
        a.begin = at
        a.origin = <uintptr_t>s.p - at
        a.end = at + s.charged
    a.top = at + n
    return <void*>(a.origin + at)


cdef void* grow(Arena* a, size_t n) noexcept nogil:
    """Slow path of `arena_alloc`: the charged part of the segment is full."""
    cdef void* p = try_to_grow(a, n)
    cdef size_t enough = n + CHARGE_STEP
    if p == NULL and reclaim != NULL and not a.quiet:
        if is_refused_by_limit():               # first what is just enough: pages that are kept need no first touch
            reclaim(a, last_refusal().why == PART, enough)
            p = try_to_grow(a, n)
        if p == NULL:
            reclaim(a, last_refusal().why == PART, SIZE_MAX)
            p = try_to_grow(a, n)
    return p


cdef inline bint is_refused_by_limit() noexcept nogil:
    return last_refusal().why == LIMIT or last_refusal().why == PART


cdef void* extend(Arena* a, void* p, size_t had, size_t more) noexcept nogil:
    """Slow path of `arena_extend`, for the same case."""
    cdef Segment* s = &a.segments[a.now]
    cdef void* q
    if more <= s.bytes - (a.top - s.begin) and charge_segment(a, s, a.top - s.begin + more, more):
        a.end = s.begin + s.charged
        a.top += more
        return p
    q = grow(a, had + more)
    if q != NULL:
        memcpy(q, p, had)
    return q


cdef void rewind(Arena* a, size_t top) noexcept nogil:
    """Slow path of `arena_rewind`: back to another segment, or with poison."""
    cdef Segment* s
    cdef size_t at = a.top
    while True:
        if a.n == 0:
            a.top = 0
            return
        s = &a.segments[a.now]
        if a.poison and at > max(top, s.begin):
            memset(<void*>(<uintptr_t>s.p + max(top, s.begin) - s.begin), 0xFF,     # all ones is a NaN
                   min(at - s.begin, s.charged) - (max(top, s.begin) - s.begin))
        if a.now == 0 or top > s.begin:
            break
        at = s.begin
        a.now -= 1
    a.begin = s.begin
    a.origin = <uintptr_t>s.p - s.begin
    a.end = s.begin + s.charged
    a.top = top


cdef void arena_unite(Arena* a) noexcept nogil:
    cdef uint32_t i
    if a.n < 2 or a.top:
        return
    a.first = 0
    for i in range(a.n):
        a.first += 2 * a.segments[i].charged    # address space for somewhat larger graphs too
    drop_segments(a, 0)


cdef void arena_trim(Arena* a, size_t most) noexcept nogil:
    cdef Segment* s
    cdef size_t kept
    if a.memory == NULL or a.n == 0 or a.foreign:
        return
    if a.top == 0 and most == SIZE_MAX:
        drop_segments(a, 0)
        return
    atomic_store(&has_trimmed, 1, RELAXED)
    drop_segments(a, a.now + 1)
    s = &a.segments[a.now]
    kept = (a.top - s.begin + page - 1) & ~(page - 1)
    if s.charged > kept and s.charged - kept > most:
        kept = (s.charged - most) & ~(page - 1)
    if s.bytes + GAP >= MAPPED and s.charged > kept:
        release(s.p + kept, s.charged - kept)
        discharge(a.memory, s.charged - kept)
        s.charged = kept
        a.end = s.begin + kept


# ---- arrays --------------------------------------------------------------------

cdef void array_open(Array* a, bint poison, Memory* of) noexcept nogil:
    memset(a, 0, sizeof(Array))
    a.memory = of
    a.poison = poison and poisoning


cdef void array_close(Array* a) noexcept nogil:
    if a.base != NULL:
        block_free(a.base, a.capacity)
        discharge(a.memory, a.capacity)
    memset(a, 0, sizeof(Array))


cdef bint resize(Array* a, size_t capacity) noexcept nogil:
    """Grow an array."""
    cdef void* p
    if not charge(a.memory, capacity - a.capacity, capacity - a.capacity):
        return False
    p = block_resize(a.base, a.capacity, capacity)
    if p == NULL:
        discharge(a.memory, capacity - a.capacity)
        refuse(SYSTEM, capacity, 0)
        return False
    a.base = <char*>p
    a.capacity = capacity
    return True


cdef int widen(Array* a, size_t top) noexcept nogil:
    """Slow path of `array_push`: the array is full."""
    cdef size_t want = max(max(top, a.capacity + a.capacity // 2), <size_t>FIRST_ARRAY)
    cdef size_t least = (top + page - 1) & ~(page - 1)
    if top > machine:
        refuse(MACHINE, top - a.top, machine - a.top)
        return False
    want = (want + ALIGN - 1) & ~<size_t>(ALIGN - 1)
    if resize(a, want) or (least < want and resize(a, least)):
        return True
    if reclaim != NULL:
        reclaim(a, last_refusal().why == PART, SIZE_MAX)
        return resize(a, least)
    return False


cdef void array_trim(Array* a) noexcept nogil:
    # The next element may already be written beyond the end: a node, before it is appended.
    cdef size_t kept = max((a.top + 2 * page - 1) & ~(page - 1), <size_t>MAPPED)
    if a.memory != NULL and a.capacity >= MAPPED and kept < a.capacity:
        munmap(a.base + kept, a.capacity - kept)
        discharge(a.memory, a.capacity - kept)
        a.capacity = kept


memory.grow = grow
memory.extend = extend
memory.widen = widen
memory.rewind = rewind


# ---- too little memory ---------------------------------------------------------

cdef void set_reclaim(Reclaim f) noexcept:
    global reclaim
    reclaim = f


cdef uint64_t shortages() noexcept nogil:
    return atomic_load(&n_shortages, RELAXED)


cdef int out_of_memory(str what) except -1:
    cdef Refusal* r = last_refusal()
    atomic_add(&n_shortages, 1, RELAXED)
    raise MemoryError(f"out of memory for {what}: " + describe(r))


cdef str describe(const Refusal* r):
    if r.why == LIMIT or r.why == PART:
        whose, how = (("the limit", "--dynet-mem MB or dynet_cy.config.set(mem=MB)") if r.why == LIMIT else
                      ("this graph's limit", "renew_cg(mem=MB)"))
        reason = (f"{r.needed:,} bytes needed, {r.left:,} left of {whose} of {r.limit:,} ({size_text(r.limit)}); "
                  f"raise it with {how}")
    elif r.why == MACHINE:
        reason = f"{r.needed:,} bytes needed, {r.left:,} left of what this machine has"
    else:
        reason = f"the system refused {r.needed:,} bytes of memory or of address space (ulimit -v)"
    return reason + "; renew_cg() gives back the memory of expressions that are no longer needed"


def growth_when_empty(
    sizes: tuple[int, ...], bint mirrored, size_t more
) -> tuple[list[tuple[int, int]], list[tuple[int, int]], bool]:
    """Fill an arena, empty it, and let it grow beyond what it holds: for tests.

    Args:
        sizes: bytes of the allocations that fill it, each 2^18 or more.
        mirrored: whether it is mirrored on a device.
        more: bytes of the allocation after that.

    Returns:
        Address and bytes of each segment, before the last allocation and after it; and whether the first 2^18 bytes
        of the one before are unchanged, which is False if its segment is gone.

    Raises:
        RuntimeError: memory of the arena still counts as used when it has been closed.
    """
    cdef Memory part
    cdef Arena a
    cdef char* p = NULL
    cdef char* q
    cdef size_t n = 1 << 18, size, i
    cdef bint unchanged
    memory_open(&part)
    arena_open(&a, False, &part)
    a.mirrored = mirrored
    try:
        for size in sizes:
            p = <char*>arena_alloc(&a, size)
            if p == NULL:
                out_of_memory("an arena")
            memset(p, 7, n)
        before = segments_as_list(&a)
        arena_rewind(&a, 0)
        q = <char*>arena_alloc(&a, more)
        if q == NULL:
            out_of_memory("an arena")
        unchanged = segment_of_any(&a, p)
        i = 0
        while unchanged and i < n:
            unchanged = p[i] == 7
            i += 1
        after = segments_as_list(&a)
    finally:
        arena_close(&a)
    if part.used:
        raise RuntimeError(f"{part.used} bytes still count as used")
    return before, after, unchanged


cdef bint segment_of_any(const Arena* a, const char* p) noexcept nogil:
    """Whether p points into a segment, be it in use or not."""
    cdef uint32_t i
    for i in range(a.n):
        if a.segments[i].p <= p < a.segments[i].p + a.segments[i].bytes:
            return True
    return False


cdef list segments_as_list(const Arena* a):
    cdef uint32_t i
    return [(<uintptr_t>a.segments[i].p, a.segments[i].bytes) for i in range(a.n)]


def available_bytes() -> int | None:
    """Memory available to programs without swapping; None if the system does not say."""
    found = []
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
        found.append(sizes["MemAvailable"] + sizes.get("SwapFree", 0))
    except (OSError, LookupError, ValueError):
        pass
    for folder, most, now in (("/sys/fs/cgroup", "memory.max", "memory.current"),
                              ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")):
        try:
            with open(f"{folder}/{most}", encoding="ascii") as a, open(f"{folder}/{now}", encoding="ascii") as b:
                found.append(max(int(a.read()) - int(b.read()), 0))
        except (OSError, ValueError):               # there is none, or it is "max"
            pass
    return min(found, default=None)


cdef int check_memory(str what, size_t n, size_t touched) except -1:
    cdef size_t allowed = limit(), used = used_bytes()
    if allowed and reclaim != NULL and n > max(allowed, used) - used:
        reclaim(NULL, False, SIZE_MAX)
        used = used_bytes()
    if allowed and n > max(allowed, used) - used:
        refuse(LIMIT, n, max(allowed, used) - used)
        last_refusal().limit = allowed
        out_of_memory(what)
    if touched < ASK_FROM:
        return 0
    available = available_bytes()
    if available is not None and touched > available or touched > machine:
        refuse(MACHINE, touched, machine if available is None else min(machine, available))
        out_of_memory(what)
    return 0
