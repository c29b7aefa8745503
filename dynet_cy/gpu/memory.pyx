"""Device memory: arenas that grow in place, copies, arenas of graphs, and results of clipping."""

cimport cython
from libc.math cimport isfinite
from libc.stdint cimport int32_t, uint8_t, uint32_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport size_of
from dynet_cy.core.threads cimport Unlocked, acquire_lock, let_be_revived, release_lock, revived
from dynet_cy.gpu.driver cimport (
    FORKED, MOST_CHUNKS, MOST_GPUS, Address, Chunk, check, check_refused, enter, failed, fetch_now, fill, gpu_at, leave,
    leave_or_raise, pthread_mutex_lock, pthread_mutex_unlock, wait, wait_for,
)
from dynet_cy.memory.storage cimport Param, bad_gradients, mirrors, touch
from dynet_cy.model.parameters cimport _Stored


# ==== clips =======================================================================================
#
# The results of clipping on devices: whether gradients were finite, their norms, how often they were clipped.
#
# Clipping runs on the device, so the host does not wait for an update. The result is stored in a record on the device,
# and copied to page-locked memory after each update: a `Clipping`. Code that has waited for the device, for a value for
# example, calls `check_updates`. The function raises an error if updates were left out. Once an update is left out, so
# are all later ones, until the error has been raised. Trainers see the result at their next call, when `poll_errors`
# reads the record.

cdef enum:
    PAGE = 4096

# For each device: addresses of free records, on the device and in page-locked memory.
cdef dict spare = {}

# The Clippings of each device that exist, as borrowed references.
cdef struct Open:
    void** all
    uint32_t n
    uint32_t capacity

cdef Open[MOST_GPUS] opened
cdef Unlocked opened_lock, places_lock
memset(opened, 0, sizeof(opened))


cdef int more_places(Gpu* gpu, list places) except -1:
    """Allocate a page of records."""
    cdef Address device_ptr = 0
    cdef void* page = NULL
    cdef int error
    cdef size_t at
    enter(gpu)
    error = gpu.driver.cuMemAlloc_v2(&device_ptr, PAGE)
    if not error:
        error = gpu.driver.cuMemHostAlloc(&page, PAGE, 0)
    leave(gpu)
    if error:
        raise MemoryError(f"out of memory of GPU:{gpu.number} for clipping")
    for at in range(0, PAGE - sizeof(Clip) + 1, sizeof(Clip)):
        places.append((device_ptr + at, <uintptr_t>page + at))
    return 0


cdef int list_opened(Clipping x) except -1:
    cdef Open* o = &opened[x.gpu.number]
    cdef void** larger
    cdef bint has_capacity
    let_be_revived(x)
    acquire_lock(&opened_lock)
    if o.n == o.capacity:
        larger = <void**>realloc(o.all, (o.capacity + 8) * sizeof(void*))
        if larger != NULL:
            o.all = larger
            o.capacity += 8
    has_capacity = o.n < o.capacity
    if has_capacity:
        o.all[o.n] = <void*>x
        o.n += 1
    release_lock(&opened_lock)
    if not has_capacity:
        raise MemoryError("the list of records of updates")
    return 0


cdef void unlist_opened(Clipping x) noexcept:
    cdef Open* o = &opened[x.gpu.number]
    cdef uint32_t i
    acquire_lock(&opened_lock)
    for i in range(o.n):
        if o.all[i] == <void*>x:
            o.n -= 1
            o.all[i] = o.all[o.n]
            break
    release_lock(&opened_lock)


cdef list all_opened(int device):
    """The records of a device that are alive."""
    cdef const Open* o = &opened[device]
    cdef uint32_t i = o.n
    found = []
    while i:                                        # from the end, since the last one takes the place of one that goes
        i -= 1
        acquire_lock(&opened_lock)
        x = revived(o.all[i] if i < o.n else NULL)
        release_lock(&opened_lock)
        if x is not None:
            found.append(x)
    return found


@cython.final
@cython.no_gc_clear
cdef class Clipping:
    """The record of the updates of one trainer on a device.

    Args:
        device: number of the GPU.
    """

    def __cinit__(self, int device) -> None:
        self.gpu = gpu_at(device)
        self.stored = []
        places = spare.setdefault(device, [])
        acquire_lock(&places_lock)
        try:
            if not places:
                more_places(self.gpu, places)
            self.device_ptr, at = places.pop()
        finally:
            release_lock(&places_lock)
        self.host_ptr = <Clip*><uintptr_t>at
        memset(self.host_ptr, 0, sizeof(Clip))
        with nogil:
            if not enter(self.gpu):
                fill(self.gpu, sizeof(Clip) // sizeof(float), 0, <void*><uintptr_t>self.device_ptr)
            leave_or_raise(self.gpu)
        list_opened(self)

    def __dealloc__(self):
        if self.host_ptr != NULL:
            unlist_opened(self)
            spare[self.gpu.number].append((self.device_ptr, <uintptr_t>self.host_ptr))

    def wait(self, bint polls=True):
        """Wait until all updates are done, so that the record is up to date.

        Args:
            polls: whether signal handlers may run meanwhile, and interrupt the wait.
        """
        if polls:
            wait_for(self.gpu)
        with nogil:
            if not enter(self.gpu):
                wait(self.gpu)
            leave_or_raise(self.gpu)
        self.under_way = False

    def check(self):
        """Check whether a finished update was left out.

        Raises:
            RuntimeError: an update was left out, and so were all later ones; the gradients are still on the device.
        """
        if self.host_ptr.skipped:
            self.report()

    cdef int report(self) except -1:
        cdef Clip found
        memset(&found, 0, sizeof(Clip))
        with nogil:
            if not enter(self.gpu) and not wait(self.gpu):
                found = self.host_ptr[0]
                if found.skipped:                   # otherwise another thread has reported it
                    self.n_clips += found.clips - self.counted
                    self.n_dropped += found.dropped - self.known
                    self.n_left_out += found.skipped
                    self.asked = self.counted = self.known = 0
                    memset(self.host_ptr, 0, sizeof(Clip))
                    self.host_ptr.norm = found.norm
                    fill(self.gpu, sizeof(Clip) // sizeof(float), 0, <void*><uintptr_t>self.device_ptr)
            leave_or_raise(self.gpu)
        if not found.skipped:
            return 0
        raise bad_gradients(found.norm, self.note_gradients(), found.skipped)

    cdef list note_gradients(self):
        """Copy the gradients to the host and mark parameters that have one; returns the names of those not finite."""
        cdef _Stored x
        cdef Param* p
        cdef size_t i, n
        cdef bint finite
        cdef list stored = self.stored
        for x in stored:
            fetch_now(self.gpu, x.p.grad, x.p.device_grad, x.p.size * sizeof(float))
        names = []
        for x in stored:
            p = x.p
            n = size_of(&p.dim)
            finite = True
            with nogil:
                pthread_mutex_lock(&p.lock)
                for i in range(p.size):
                    if p.grad[i] != 0:
                        finite = finite and isfinite(p.grad[i])
                        p.has_gradient = 1
                        if p.rows:
                            touch(p, i // n)
                pthread_mutex_unlock(&p.lock)
            if not finite:
                names.append(x.full_name)
        return names

    def left_out(self) -> int:
        """The number of updates that were left out since the last call, as far as errors have reported them."""
        found, self.n_left_out = self.n_left_out, 0
        return found

    def clips(self) -> int:
        """The number of updates that were clipped since the last call."""
        cdef uint32_t now = self.host_ptr.clips, before = self.counted
        found, self.n_clips = self.n_clips + now - before, 0
        self.counted = now
        return found

    def dropped(self) -> int:
        """The number of updates that were dropped since the last call, according to the host's latest information."""
        cdef uint32_t now = <uint32_t>(done_dropped(self.host_ptr) >> 32), before = self.known
        found, self.n_dropped = self.n_dropped + now - before, 0
        self.known = now
        return found

    def coming(self) -> int:
        """The number of updates that the device may have dropped without `dropped` having counted them yet."""
        cdef uint64_t both = done_dropped(self.host_ptr)
        return self.asked - <uint32_t>both + <uint32_t>(both >> 32) - self.known

    def catch_up(self):
        """Wait if too many updates are in progress."""
        if self.asked - <uint32_t>done_dropped(self.host_ptr) > MOST_COMING:
            self.wait()

    @property
    def norm(self) -> float:
        """The norm of the last update or, after updates were left out, of the first of these."""
        return self.host_ptr.norm


cdef int check_updates(Gpu* gpu) except -1:
    cdef Clipping x
    check_refused(gpu)
    if opened[gpu.number].n:
        for x in all_opened(gpu.number):
            if x.host_ptr.skipped:
                return x.report()
    return 0


def settle_others(list stored not None: list[Expression], Clipping own=None):
    """Wait for updates of these parameters by other trainers, and raise an error if they were left out.

    In that case the gradients that are not finite are still on the device, but the parameters are not marked as having
    a gradient.
    """
    cdef Clipping other
    cdef _Stored x
    cdef int device
    for device in range(MOST_GPUS):
        for other in all_opened(device):
            if other is own or not other.under_way:
                continue
            mine = {<uintptr_t>(<_Stored>y).p for y in stored}
            if any([<uintptr_t>x.p in mine for x in other.stored]):
                other.wait()
                other.check()


# ==== memory ======================================================================================
#
# Memory of a device: arenas that grow in place, and copies.
#
# An arena is a reserved range of device addresses.  Chunks of memory are mapped to
# it from its beginning on, each as large as all chunks before it.  So pointers into
# it stay valid when it grows, as in the arenas of the host.
#
# Copies to the device go through a ring of page-locked buffers.  Each has an
# event that says when the device has read it, so the host waits only if it is
# several buffers ahead.  The contents of one buffer are one copy for each
# contiguous range on the device.

cdef enum:
    RING = 3
    LEAST_BUFFER = 1 << 16
    MOST_AT_ONCE = 1 << 23              # larger uploads take several buffers, so that buffers stay small
    AHEAD_IF_SHORT = 4                  # of what an arena has, it takes a quarter more, if memory has been short

cdef uint8_t[MOST_GPUS] short_of_memory
memset(short_of_memory, 0, sizeof(short_of_memory))

# CUmemLocation, CUmemAllocationProp and CUmemAccessDesc of cuda.h.
cdef struct Location:
    int32_t type
    int32_t id

cdef struct Properties:
    int32_t type
    int32_t handle_types
    Location location
    void* unused
    uint8_t[8] flags

cdef struct Access:
    Location location
    int32_t flags

cdef enum:
    PINNED = 1
    ON_DEVICE = 1
    READ_WRITE = 3

cdef struct Buffer:
    char* p
    size_t n
    void* event
    bint busy

cdef struct Ring:
    Buffer[RING] buffers
    uint32_t next

cdef Ring[MOST_GPUS] rings
memset(rings, 0, sizeof(rings))


cdef Properties properties_of(const Gpu* gpu) noexcept nogil:
    cdef Properties p
    memset(&p, 0, sizeof(p))
    p.type = PINNED
    p.location.type = ON_DEVICE
    p.location.id = gpu.number
    return p


cdef int open_arena(Gpu* gpu, DeviceArena* a) except -1:
    cdef size_t total = 0
    cdef int error
    enter(gpu)
    error = gpu.driver.cuDeviceTotalMem_v2(&total, gpu.number)
    if not error:
        error = reserve_arena(gpu, a, total)
        # With many collections, addresses may run out.
        while error == OUT_OF_MEMORY and total > 1 << 27:
            total //= 2
            error = reserve_arena(gpu, a, total)
    leave(gpu)
    check(gpu, error, "reserving a range of addresses")
    return 0


cdef int reserve_arena(Gpu* gpu, DeviceArena* a, size_t n) noexcept nogil:
    cdef Properties p = properties_of(gpu)
    cdef size_t step = 0
    cdef int error
    memset(a, 0, sizeof(DeviceArena))
    a.gpu = gpu
    error = gpu.driver.cuMemGetAllocationGranularity(&step, &p, 0)
    if error:
        return error
    a.reserved = (n + step - 1) // step * step
    a.gap = step
    return gpu.driver.cuMemAddressReserve(&a.base, a.reserved + a.gap, 0, 0, 0)


cdef int extend_arena(DeviceArena* a, size_t n) noexcept nogil:
    """Map memory for n bytes.  The device is entered already."""
    cdef Gpu* gpu = a.gpu
    cdef Properties p
    cdef Access access
    cdef Chunk* chunk
    cdef size_t step, want
    cdef int error
    if n <= a.mapped:
        return 0
    if n > a.reserved or a.n_chunks == <uint32_t>MOST_CHUNKS:
        return OUT_OF_MEMORY
    p = properties_of(gpu)
    error = gpu.driver.cuMemGetAllocationGranularity(&step, &p, 0)
    if error:
        return error
    want = (max(n - a.mapped, a.mapped // AHEAD_IF_SHORT if was_short(gpu) else a.mapped) + step - 1) // step * step
    want = min(want, a.reserved - a.mapped)
    chunk = &a.chunks[a.n_chunks]
    error = gpu.driver.cuMemCreate(&chunk.handle, want, &p, 0)
    if error == OUT_OF_MEMORY:                  # try again with no more than is needed
        want = (n - a.mapped + step - 1) // step * step
        error = gpu.driver.cuMemCreate(&chunk.handle, want, &p, 0)
    if error:
        return error
    chunk.bytes = want
    error = gpu.driver.cuMemMap(a.base + a.mapped, want, 0, chunk.handle, 0)
    if not error:
        access.location = p.location
        access.flags = READ_WRITE
        error = gpu.driver.cuMemSetAccess(a.base + a.mapped, want, &access, 1)
        if error:
            gpu.driver.cuMemUnmap(a.base + a.mapped, want)
    # From now on the mapping keeps the memory alive.
    gpu.driver.cuMemRelease(chunk.handle)
    if error:
        return error
    a.mapped += want
    a.n_chunks += 1
    return 0


cdef void close_arena(DeviceArena* a, bint enters=True) noexcept nogil:
    """Free the memory and the addresses.  Errors are ignored: they mean that the driver has been shut down already."""
    cdef uint32_t i
    cdef Address at = a.base
    if a.base == 0:
        return
    if (enter(a.gpu) if enters else a.gpu.error) != FORKED:     # after a fork the memory is the parent's
        a.gpu.driver.cuStreamSynchronize(a.gpu.stream)
        for i in range(a.n_chunks):
            a.gpu.driver.cuMemUnmap(at, a.chunks[i].bytes)
            at += a.chunks[i].bytes
        a.gpu.driver.cuMemAddressFree(a.base, a.reserved + a.gap)
    if enters:
        leave(a.gpu)
    a.base = 0
    a.mapped = a.reserved = 0
    a.n_chunks = 0


cdef DeviceArena[MOST_GPUS] working
memset(working, 0, sizeof(working))


cdef Address working_memory(Gpu* gpu, size_t n, str what) except 0:
    cdef DeviceArena* a = &working[gpu.number]
    if a.base == 0:
        open_arena(gpu, a)
    mirror_extend(a, n, what)
    return a.base


cdef void note_shortage(Gpu* gpu) noexcept nogil:
    short_of_memory[gpu.number] = True


cdef bint was_short(const Gpu* gpu) noexcept nogil:
    return short_of_memory[gpu.number]


cdef int out_of_device_memory(Gpu* gpu, int error, size_t n, str what) except -1:
    """Raise the error for memory of n bytes in all that could not be allocated."""
    cdef size_t unused = 0, total = 0
    if error != OUT_OF_MEMORY:
        check(gpu, error, f"memory for {what}")
    gpu.driver.cuMemGetInfo_v2(&unused, &total)
    raise MemoryError(
        f"out of memory of GPU:{gpu.number} for {what}: {n:,} bytes are needed, {unused:,} of {total:,} "
        "are unused by all processes")


# ---- copies --------------------------------------------------------------------

cdef char* staging(Gpu* gpu, size_t n, Buffer** out) noexcept nogil:
    """The next buffer of the ring, with at least n bytes, after the device has read it; NULL after an error."""
    cdef Ring* ring = &rings[gpu.number]
    cdef Buffer* b = &ring.buffers[ring.next]
    ring.next = (ring.next + 1) % RING
    if b.busy:
        b.busy = False
        if failed(gpu, gpu.driver.cuEventSynchronize(b.event), -1):
            return NULL
    if b.event == NULL and failed(gpu, gpu.driver.cuEventCreate(&b.event, 2), -1):      # without timing
        return NULL
    if n > b.n:
        if b.p != NULL:
            gpu.driver.cuMemFreeHost(b.p)
        b.n = max(max(n, 2 * b.n), <size_t>LEAST_BUFFER)
        b.p = NULL
        if failed(gpu, gpu.driver.cuMemHostAlloc(<void**>&b.p, b.n, 0), -1):
            b.p = NULL
            b.n = 0
            return NULL
    out[0] = b
    return b.p


# A part of a buffer that is contiguous on the device too, and so is one copy.
cdef struct CopyRun:
    Address device_ptr
    char* host_ptr
    size_t n


cdef int send_run(Gpu* gpu, CopyRun* run) noexcept nogil:
    if run.n:
        gpu.counts.uploads += 1
        gpu.counts.uploaded_bytes += run.n
        failed(gpu, gpu.driver.cuMemcpyHtoDAsync_v2(run.device_ptr, run.host_ptr, run.n, gpu.stream), -1)
        run.n = 0
    return gpu.error


cdef int send_buffer(Gpu* gpu, Buffer* b, CopyRun* run) noexcept nogil:
    """Send the rest of the buffer, and record the event that says when the device has read it."""
    if send_run(gpu, run):
        return gpu.error
    b.busy = True
    return failed(gpu, gpu.driver.cuEventRecord(b.event, gpu.stream), -1)


cdef int send_ranges(Gpu* gpu, const Range* ranges, size_t count) noexcept nogil:
    cdef Buffer* b = NULL
    cdef CopyRun run
    cdef size_t i, n, done, left = 0, at = 0, capacity = 0
    cdef char* p = NULL
    run.n = 0
    for i in range(count):
        left += ranges[i].n
    for i in range(count):
        done = 0
        while done < ranges[i].n:
            if at == capacity:
                if p != NULL and send_buffer(gpu, b, &run):
                    return gpu.error
                capacity = min(left, <size_t>MOST_AT_ONCE)
                at = 0
                p = staging(gpu, capacity, &b)
                if p == NULL:
                    return gpu.error
            n = min(ranges[i].n - done, capacity - at)
            if run.n and run.device_ptr + run.n != ranges[i].device_ptr + done and send_run(gpu, &run):
                return gpu.error
            if run.n == 0:
                run.device_ptr = ranges[i].device_ptr + done
                run.host_ptr = p + at
            memcpy(p + at, <const char*>ranges[i].host_ptr + done, n)
            run.n += n
            at += n
            done += n
            left -= n
    return send_buffer(gpu, b, &run) if p != NULL else gpu.error


# ---- the functions of memory/storage --------------------------------------------

cdef void* mirror_open(int device) except NULL:
    cdef DeviceArena* a = <DeviceArena*>calloc(1, sizeof(DeviceArena))
    if a == NULL:
        raise MemoryError("the record of an arena of a device")
    try:
        open_arena(gpu_at(device - 1), a)
    except BaseException:
        free(a)
        raise
    return a


cdef int mirror_extend(void* arena, size_t n, str what) except -1:
    cdef DeviceArena* a = <DeviceArena*>arena
    cdef int error
    enter(a.gpu)
    error = extend_arena(a, n)
    leave(a.gpu)
    if error:
        out_of_device_memory(a.gpu, error, n, what)
    return 0


cdef float* mirror_base(void* arena) noexcept:
    return <float*><uintptr_t>(<DeviceArena*>arena).base


cdef void mirror_close(void* arena) noexcept:
    close_arena(<DeviceArena*>arena)
    free(arena)


cdef int mirror_fetch(int device, const float* device_ptr, float* host_ptr, size_t n) except -1:
    cdef Gpu* gpu = gpu_at(device - 1)
    wait_for(gpu)
    fetch_now(gpu, host_ptr, device_ptr, n * sizeof(float))
    return check_updates(gpu)


cdef int mirror_send(int device, const float* host_ptr, float* device_ptr, size_t n) except -1:
    cdef Gpu* gpu = gpu_at(device - 1)
    cdef Range r = Range(<Address><uintptr_t>device_ptr, host_ptr, n * sizeof(float))
    with nogil:
        if not enter(gpu):
            send_ranges(gpu, &r, 1)
        leave_or_raise(gpu)
    return 0


cdef int mirror_clear(int device, float* device_ptr, size_t n) except -1:
    cdef Gpu* gpu = gpu_at(device - 1)
    with nogil:
        if not enter(gpu):
            fill(gpu, n, 0, device_ptr)
        leave_or_raise(gpu)
    return 0


mirrors().open = mirror_open
mirrors().extend = mirror_extend
mirrors().base = mirror_base
mirrors().close = mirror_close
mirrors().fetch = mirror_fetch
mirrors().send = mirror_send
mirrors().clear = mirror_clear


def staging_bytes(int number) -> int:
    """Bytes of page-locked memory that copies to a device go through."""
    return sum([rings[number].buffers[i].n for i in range(RING)])


# ==== mirrored ====================================================================================
#
# Arenas of graphs on a device.
#
# Each segment of a host arena has a counterpart, a part, in a range of device addresses, with everything at the same
# offsets. Pointers into it stay valid. A range, or run, is AHEAD times as large as its first segment, so that later
# segments fit into it too, and one copy is enough for all of them. Memory is mapped as far as passes use it. Small runs
# are blocks of memory that all graphs share. So thousands of graphs take little memory, although no less than 2 MiB can
# be mapped.
#
# A part is dropped when its segment is.  Blocks can be reused at once, since the work on a device runs in order.

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


cdef int allocate_block(Gpu* gpu, Run* run) noexcept nogil:
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
        return allocate_block(gpu, run)
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
    cdef MirrorPart* part
    while m.n > first:
        m.n -= 1
        part = &m.parts[m.n]
        m.runs[part.run].used = part.device_ptr - m.runs[part.run].base
        if m.runs[part.run].used == 0:
            m.n_runs -= 1
            close_run(m.gpu, &m.runs[m.n_runs])


cdef int add_part(Mirror* m, const Segment* s) noexcept nogil:
    """Append a part.  The device must be entered.  Returns 0 or the error of the driver."""
    cdef MirrorPart* parts = <MirrorPart*>realloc(m.parts, (m.n + 1) * sizeof(MirrorPart))
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


cdef MirrorPart* new_part(const Arena* host, Mirror* m, uint32_t i) noexcept nogil:
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
    cdef MirrorPart* part
    cdef Run* run
    if end > host.segments[i].begin:
        part = part_of(host, m, &host.segments[i])
        if part != NULL:
            run = &m.runs[part.run]
            run.needed = max(run.needed, part.device_ptr - run.base + min(end - host.segments[i].begin, part.n))


cdef void note_uses(const Arena* host, Mirror* m) noexcept nogil:
    cdef uint32_t i
    for i in range(host.now if host.n else 0):
        note(host, m, i, host.segments[i + 1].begin)
    if host.n:
        note(host, m, host.now, host.top)


cdef bint continues_part(const Arena* host, const Mirror* m, const Segment* s) noexcept nogil:
    cdef uint32_t i = <uint32_t>(s - host.segments)
    cdef const MirrorPart* part = &m.parts[i]
    return (i + 1 < m.n and part[1].run == part.run
            and m.runs[part.run].needed > part[1].device_ptr - m.runs[part.run].base)


cdef int extend_mirror(Mirror* m) noexcept nogil:
    cdef uint32_t i
    cdef int error = m.error
    cdef size_t needed = 0
    for i in range(m.n_runs):
        needed += m.runs[i].needed
        if not error and m.runs[i].own != NULL:
            error = extend_arena(m.runs[i].own, m.runs[i].needed)
    m.most = max(m.most, needed)
    return error


cdef int poison_mirror(const Arena* host, Mirror* m, size_t top) noexcept nogil:
    cdef uint32_t i
    cdef MirrorPart* part
    cdef Run* run
    cdef size_t begin, end
    cdef int error = 0
    for i in range(m.n):
        part, run = &m.parts[i], &m.runs[m.parts[i].run]
        begin = part.device_ptr - run.base
        end = min(begin + part.n, run.own.mapped if run.own != NULL else run.size)
        if i <= host.now and top > host.segments[i].begin:
            begin += min((top - host.segments[i].begin + 3) & ~<size_t>3, part.n)
        if begin < end and not error:
            error = m.gpu.driver.cuMemsetD32Async(run.base + begin, 0xFFFFFFFF, (end - begin) // sizeof(float),
                                                  m.gpu.stream)
    return error


cdef size_t mirror_bytes(const Mirror* m) noexcept nogil:
    cdef size_t n = 0
    cdef uint32_t i
    for i in range(m.n_runs):
        n += m.runs[i].own.mapped if m.runs[i].own != NULL else m.runs[i].size
    return n
