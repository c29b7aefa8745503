"""Arenas of graphs on a device.

Each segment of a host arena has a counterpart, a part, in a range of device addresses, with everything at the same
offsets.  Pointers into it stay valid.  A range, or run, is AHEAD times as large as its first segment, so that later
segments fit into it too, and one copy is enough for all of them.  Memory is mapped as far as passes use it.  Small runs
are blocks of memory that all graphs share.  So thousands of graphs take little memory, although no less than 2 MiB can
be mapped.

A part is dropped when its segment is.  Blocks can be reused at once, since the work on a device runs in order.
"""

from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from dynet_cy.gpu.driver cimport MOST_GPUS, enter, leave
from dynet_cy.gpu.memory cimport OUT_OF_MEMORY, close_arena, extend_arena, reserve_arena

cdef enum:
    SLAB = 1 << 21
    LEAST_BLOCK = 1 << 14
    SIZES = 7                           # up to a MiB
    AHEAD = 16                          # size of a run, relative to its first segment

# Slabs with free blocks, by device and block size, the smallest first; accessed with the device entered.
ctypedef Slab* OfSize
cdef OfSize[MOST_GPUS][SIZES] slabs
memset(slabs, 0, sizeof(slabs))


# ---- blocks ----------------------------------------------------------------------

cdef inline size_t block_bytes(uint32_t size) noexcept nogil:
    return <size_t>LEAST_BLOCK << size


cdef int take_block(Gpu* gpu, Run* run) noexcept nogil:
    """Take a block for a run.  Returns 0 or the error of the driver."""
    cdef uint32_t size = 0, i = 0
    cdef Slab* s
    cdef int error
    while block_bytes(size) < run.size:
        size += 1
    s = slabs[gpu.number][size]
    if s == NULL:
        s = <Slab*>calloc(1, sizeof(Slab))
        if s == NULL:
            return OUT_OF_MEMORY
        s.size = size
        error = reserve_arena(gpu, &s.memory, SLAB)
        if not error:
            error = extend_arena(&s.memory, SLAB)
        if error:
            close_arena(&s.memory, False)
            free(s)
            return error
        slabs[gpu.number][size] = s
    while s.used[i // 64] >> (i % 64) & 1:
        i += 1
    s.used[i // 64] |= <unsigned long long>1 << (i % 64)
    s.n_used += 1
    if s.n_used == SLAB // block_bytes(size):
        slabs[gpu.number][size] = s.next            # it is full
    run.slab = s
    run.base = s.memory.base + i * block_bytes(size)
    return 0


cdef void give_block(Gpu* gpu, Run* run) noexcept nogil:
    cdef Slab* s = run.slab
    cdef uint32_t i = <uint32_t>((run.base - s.memory.base) // block_bytes(s.size))
    cdef Slab** at = &slabs[gpu.number][s.size]
    if s.n_used == SLAB // block_bytes(s.size):
        s.next = at[0]
        at[0] = s
    s.used[i // 64] &= ~(<unsigned long long>1 << (i % 64))
    s.n_used -= 1
    if s.n_used or (at[0] == s and s.next == NULL):     # keep the last slab
        return
    while at[0] != s:
        at = &at[0].next
    at[0] = s.next
    close_arena(&s.memory, False)
    free(s)


# ---- runs and parts --------------------------------------------------------------

cdef int open_run(Gpu* gpu, Run* run, size_t first, size_t before) noexcept nogil:
    """Open a run for a segment of `first` bytes, after `before` bytes of others.  Returns 0 or the driver's error."""
    cdef int error
    memset(run, 0, sizeof(Run))
    run.size = max(first * AHEAD if before else first, <size_t>LEAST_BLOCK)
    if first <= block_bytes(SIZES - 1):
        run.size = min(run.size, block_bytes(SIZES - 1))
        return take_block(gpu, run)
    run.own = <DeviceArena*>calloc(1, sizeof(DeviceArena))
    if run.own == NULL:
        return OUT_OF_MEMORY
    error = reserve_arena(gpu, run.own, run.size)
    if error == OUT_OF_MEMORY and run.size > first:     # addresses are scarce
        run.size = first
        error = reserve_arena(gpu, run.own, first)
    run.base = run.own.base
    return error


cdef void close_run(Gpu* gpu, Run* run) noexcept nogil:
    if run.slab != NULL:
        give_block(gpu, run)
    elif run.own != NULL:
        close_arena(run.own, False)
        free(run.own)


cdef void drop_parts(Mirror* m, uint32_t first) noexcept nogil:
    """Drop a part and all after it.  The device must be entered."""
    cdef Part* part
    while m.n > first:
        m.n -= 1
        part = &m.parts[m.n]
        m.runs[part.run].used = part.device_ptr - m.runs[part.run].base
        if m.runs[part.run].used == 0:
            m.n_runs -= 1
            close_run(m.gpu, &m.runs[m.n_runs])


cdef int add_part(Mirror* m, const Segment* s) noexcept nogil:
    """Append a part.  The device must be entered.  Returns 0 or the error of the driver."""
    cdef Part* parts = <Part*>realloc(m.parts, (m.n + 1) * sizeof(Part))
    cdef Run* runs
    cdef Run* run
    cdef size_t before = 0
    cdef uint32_t i
    cdef int error
    if parts == NULL:
        return OUT_OF_MEMORY
    m.parts = parts
    if m.n_runs == 0 or m.runs[m.n_runs - 1].size - m.runs[m.n_runs - 1].used < s.bytes:
        runs = <Run*>realloc(m.runs, (m.n_runs + 1) * sizeof(Run))
        if runs == NULL:
            return OUT_OF_MEMORY
        m.runs = runs
        for i in range(m.n):
            before += m.parts[i].n
        error = open_run(m.gpu, &m.runs[m.n_runs], s.bytes, before)
        if error:
            close_run(m.gpu, &m.runs[m.n_runs])
            return error
        m.n_runs += 1
    run = &m.runs[m.n_runs - 1]
    parts[m.n].host_ptr = s.p
    parts[m.n].n = s.bytes
    parts[m.n].device_ptr = run.base + run.used
    parts[m.n].run = m.n_runs - 1
    run.used += s.bytes
    m.n += 1
    return 0


cdef Part* new_part(const Arena* host, Mirror* m, uint32_t i) noexcept nogil:
    if m.error:
        return NULL
    if not enter(m.gpu):
        drop_parts(m, i)
        while m.n <= i and not m.error:
            m.error = add_part(m, &host.segments[m.n])
    leave(m.gpu)
    return &m.parts[i] if i < m.n else NULL


# ---- arenas ----------------------------------------------------------------------

cdef void open_mirror(Gpu* gpu, Mirror* m) noexcept nogil:
    memset(m, 0, sizeof(Mirror))
    m.gpu = gpu


cdef void close_mirror(Mirror* m) noexcept nogil:
    """Free all parts.  Errors are ignored: they mean that the driver has been shut down already."""
    if m.n:
        enter(m.gpu)
        drop_parts(m, 0)
        leave(m.gpu)
    free(m.parts)
    free(m.runs)
    m.parts = NULL
    m.runs = NULL


cdef void begin_use(const Arena* host, Mirror* m) noexcept nogil:
    cdef uint32_t i = 0
    m.error = 0
    while i < m.n and i < host.n and is_copy_of(&m.parts[i], &host.segments[i]):
        i += 1
    if i < m.n:
        enter(m.gpu)
        drop_parts(m, i)
        leave(m.gpu)
    for i in range(m.n_runs):
        m.runs[i].needed = 0


cdef void note(const Arena* host, Mirror* m, uint32_t i, size_t end) noexcept nogil:
    """Note that segment i is used up to an offset."""
    cdef Part* part
    cdef Run* run
    if end > host.segments[i].begin:
        part = part_of(host, m, &host.segments[i])
        if part != NULL:
            run = &m.runs[part.run]
            run.needed = max(run.needed, part.device_ptr - run.base + min(end - host.segments[i].begin, part.n))


cdef void note_use(const Arena* host, Mirror* m) noexcept nogil:
    if host.n:
        note(host, m, host.now, host.top)


cdef void note_uses(const Arena* host, Mirror* m) noexcept nogil:
    cdef uint32_t i
    for i in range(host.now if host.n else 0):
        note(host, m, i, host.segments[i + 1].begin)
    note_use(host, m)


cdef bint continues_part(const Arena* host, const Mirror* m, const Segment* s) noexcept nogil:
    cdef uint32_t i = <uint32_t>(s - host.segments)
    cdef const Part* part = &m.parts[i]
    return (i + 1 < m.n and part[1].run == part.run
            and m.runs[part.run].needed > part[1].device_ptr - m.runs[part.run].base)


cdef int extend_mirror(Mirror* m) noexcept nogil:
    cdef uint32_t i
    cdef int error = m.error
    for i in range(m.n_runs):
        if not error and m.runs[i].own != NULL:
            error = extend_arena(m.runs[i].own, m.runs[i].needed)
    return error
