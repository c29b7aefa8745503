"""Memory of a device: arenas that grow in place, and copies.

An arena is a reserved range of device addresses.  Chunks of memory are mapped to
it from its beginning on, each as large as all chunks before it.  So pointers into
it stay valid when it grows, as in the arenas of the host.

Copies to the device go through a ring of page-locked buffers.  Each has an
event that says when the device has read it, so the host waits only if it is
several buffers ahead.  The contents of one buffer are one copy for each
contiguous range on the device.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from dynet_cy.gpu.clips cimport check_updates
from dynet_cy.gpu.driver cimport (
    FORKED, MOST_CHUNKS, MOST_GPUS, Address, Chunk, check, enter, failed, fetch_bytes, fill, gpu_at, leave, raise_error,
    wait, wait_for,
)
from dynet_cy.memory.mirror cimport mirrors

cdef enum:
    RING = 3
    LEAST_BUFFER = 1 << 16
    MOST_AT_ONCE = 1 << 23              # larger uploads take several buffers, so that buffers stay small

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
    want = (max(n - a.mapped, a.mapped) + step - 1) // step * step
    want = min(want, a.reserved - a.mapped)
    chunk = &a.chunks[a.n_chunks]
    error = gpu.driver.cuMemCreate(&chunk.handle, want, &p, 0)
    if error == OUT_OF_MEMORY:                  # try again with no more than is needed
        want = (n - a.mapped + step - 1) // step * step
        error = gpu.driver.cuMemCreate(&chunk.handle, want, &p, 0)
    if error:
        return error
    chunk.n = want
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
            a.gpu.driver.cuMemUnmap(at, a.chunks[i].n)
            at += a.chunks[i].n
        a.gpu.driver.cuMemAddressFree(a.base, a.reserved + a.gap)
    if enters:
        leave(a.gpu)
    a.base = 0
    a.mapped = a.reserved = 0
    a.n_chunks = 0


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
cdef struct Run:
    Address device_ptr
    char* host_ptr
    size_t n


cdef int send_run(Gpu* gpu, Run* run) noexcept nogil:
    if run.n:
        gpu.counts.uploads += 1
        gpu.counts.uploaded_bytes += run.n
        failed(gpu, gpu.driver.cuMemcpyHtoDAsync_v2(run.device_ptr, run.host_ptr, run.n, gpu.stream), -1)
        run.n = 0
    return gpu.error


cdef int send_buffer(Gpu* gpu, Buffer* b, Run* run) noexcept nogil:
    """Send the rest of the buffer, and record the event that says when the device has read it."""
    if send_run(gpu, run):
        return gpu.error
    b.busy = True
    return failed(gpu, gpu.driver.cuEventRecord(b.event, gpu.stream), -1)


cdef int send_ranges(Gpu* gpu, const Range* ranges, size_t count) noexcept nogil:
    cdef Buffer* b = NULL
    cdef Run run
    cdef size_t i, n, done, left = 0, at = 0, room = 0
    cdef char* p = NULL
    run.n = 0
    for i in range(count):
        left += ranges[i].n
    for i in range(count):
        done = 0
        while done < ranges[i].n:
            if at == room:
                if p != NULL and send_buffer(gpu, b, &run):
                    return gpu.error
                room = min(left, <size_t>MOST_AT_ONCE)
                at = 0
                p = staging(gpu, room, &b)
                if p == NULL:
                    return gpu.error
            n = min(ranges[i].n - done, room - at)
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


# ---- the functions of memory/mirror --------------------------------------------

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
    cdef int error
    cdef Gpu* gpu = gpu_at(device - 1)
    wait_for(gpu)
    with nogil:
        if not enter(gpu):
            fetch_bytes(gpu, host_ptr, <Address><uintptr_t>device_ptr, n * sizeof(float))
            wait(gpu)
        error = leave(gpu)
    if error:
        raise_error(gpu, error)
    return check_updates(gpu)


cdef int mirror_send(int device, const float* host_ptr, float* device_ptr, size_t n) except -1:
    cdef int error
    cdef Gpu* gpu = gpu_at(device - 1)
    cdef Range r
    r.device_ptr = <Address><uintptr_t>device_ptr
    r.host_ptr = host_ptr
    r.n = n * sizeof(float)
    with nogil:
        if not enter(gpu):
            send_ranges(gpu, &r, 1)
        error = leave(gpu)
    if error:
        raise_error(gpu, error)
    return 0


cdef int mirror_clear(int device, float* device_ptr, size_t n) except -1:
    cdef int error
    cdef Gpu* gpu = gpu_at(device - 1)
    with nogil:
        if not enter(gpu):
            fill(gpu, n, 0, device_ptr)
        error = leave(gpu)
    if error:
        raise_error(gpu, error)
    return 0


mirrors().open = mirror_open
mirrors().extend = mirror_extend
mirrors().base = mirror_base
mirrors().close = mirror_close
mirrors().fetch = mirror_fetch
mirrors().send = mirror_send
mirrors().clear = mirror_clear


def staging_bytes(int number):
    """Bytes of page-locked memory that copies to a device go through."""
    return sum([rings[number].buffers[i].n for i in range(RING)])
