"""Deferred updates of rows of lookup tables on a device; see lazy.pxd."""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc

from dynet_cy.core.engine cimport add_tunable
from dynet_cy.core.tensor cimport size_of
from dynet_cy.core.threads cimport Number
from dynet_cy.gpu.driver cimport (
    Address, DeviceArena, enter, error_of, fetch_bytes, fetch_now, gpu_at, launch, launch_each, launch_rows, leave,
    leave_or_raise, raise_error, value_at, wait, wait_for,
)
from dynet_cy.gpu.memory cimport (
    check_updates, close_arena, extend_arena, out_of_device_memory, reserve_arena, working_memory,
)
from dynet_cy.gpu.registry cimport kernel_at, load, module_at
from dynet_cy.kernels.lazy_rows cimport lazy_on_devices
from dynet_cy.memory.storage cimport Lazy
from dynet_cy.model.parameters cimport _Stored


cdef extern from "dynet_cy/gpu_update.h" nogil:
    # derived: structs of Hyper
    ctypedef struct Hyper "dy_hyper":
        float lr
        float grad_scale
        float b1
        float b2
        float eps
        float eps_scale
        float decoupled
        float decay
    # end of structs

cdef int CU = module_at(b"lazy")
cdef int BEGIN = kernel_at(CU, b"lazy_begin")
cdef int READ = kernel_at(CU, b"lazy_read")
cdef int CATCH_UP = kernel_at(CU, b"lazy_catch_up")
cdef int NOTE = kernel_at(CU, b"lazy_defer")

# An update of a whole table reads and writes four planes, 32 bytes a number; deferring takes two launches more.  With
# fewer numbers than this, the whole table takes less time, at 3 TB/s.
lazy_on_devices().least = 1 << 20
add_tunable("gpu.lazy.least", <Number*>&lazy_on_devices().least)

# Tables are read in parts of this many bytes, through memory on the device.
cdef enum:
    PART = 1 << 23


def updates_had(_Stored x not None: LookupParameters) -> list[int]:
    """For each row of a table, how many of the updates recorded on its device it has had, as a list."""
    cdef Lazy* lazy = x.p.lazy
    cdef Gpu* gpu = gpu_at(x.p.device - 1)
    cdef uint32_t* had = <uint32_t*>malloc(x.p.rows * sizeof(uint32_t) + 1)
    if had == NULL:
        raise MemoryError("updates_had")
    try:
        fetch_now(gpu, had, lazy.there + 1, x.p.rows * sizeof(uint32_t))
        return [had[i] for i in range(x.p.rows)]
    finally:
        free(had)


# ---- launchers -------------------------------------------------------------------

cdef int begin_lazy(Gpu* gpu, const Param* p, float** states) noexcept nogil:
    cdef const Lazy* lazy = p.lazy
    cdef float* s[3]
    cdef int k
    for k in range(3):
        s[k] = states[k] + p.offset if states[k] != NULL else NULL
    return launch_each(gpu, BEGIN, p.rows, lazy.there, <void*>(lazy.there + 1), <size_t>p.rows, lazy.rule, lazy.b1,
                       lazy.b2, lazy.eps, s[0], s[1], s[2])


cdef int catch_up_rows(Gpu* gpu, const Param* p, size_t rows, const void* items, size_t first, bint notes,
                       const void* clip) noexcept nogil:
    cdef size_t n = size_of(&p.dim)
    if rows == 0:
        return 0
    return launch_rows(gpu, CATCH_UP, rows, n, p.lazy.there, rows, n, items, first, p.device_value, <int>notes, clip)


cdef int defer_update(Gpu* gpu, const Param* p, const void* h, const void* chosen, const void* clip) noexcept nogil:
    return launch(gpu, NOTE, 1, 1, 256, 0, p.lazy.there, value_at(<const Hyper*>h), chosen, clip)


cdef int read_rows(Gpu* gpu, const Param* p, size_t rows, const uint32_t* items, size_t first, float* y) noexcept nogil:
    cdef size_t n = size_of(&p.dim)
    return launch_rows(gpu, READ, rows, n, p.lazy.there, rows, n, items, first, p.device_value, y) if rows else 0


# ---- the functions of kernels/lazy_rows --------------------------------------------

cdef int open_lazy(Param* p, Lazy* lazy) except -1:
    """The record of a table on its device: the updates, then for each row how many of them it has had."""
    cdef Gpu* gpu = gpu_at(p.device - 1)
    cdef size_t n = sizeof(Lazy) + p.rows * sizeof(uint32_t)
    cdef DeviceArena* a
    cdef int error
    load(gpu, <uint64_t>1 << CU)
    a = <DeviceArena*>calloc(1, sizeof(DeviceArena))
    if a == NULL:
        raise MemoryError("the updates that rows of a table have had")
    error = enter(gpu)
    if not error:
        error = reserve_arena(gpu, a, n)
    if not error:
        error = extend_arena(a, n)
    leave(gpu)
    if error:
        close_arena(a)
        free(a)
        return out_of_device_memory(gpu, error, n, "the updates that rows of a table have had")
    lazy.there = <Lazy*><uintptr_t>a.base
    lazy.memory = a
    lazy.close = close_lazy
    return 0


cdef void close_lazy(Lazy* lazy) noexcept nogil:
    close_arena(<DeviceArena*>lazy.memory)
    free(lazy.memory)
    free(lazy)


cdef int catch_up(Param* p, size_t first, size_t end) except -1:
    cdef Gpu* gpu = (<DeviceArena*>p.lazy.memory).gpu
    cdef int error
    with nogil:
        if not enter(gpu):
            catch_up_rows(gpu, p, end - first, NULL, first, False, NULL)
        error = leave(gpu)
    if error and not error_of(gpu):             # after a fatal error every read of the table raises an error
        raise_error(gpu, error)
    return 0


cdef int read(const Param* p, size_t first, size_t rows, float* y) except -1:
    cdef Gpu* gpu = gpu_at(p.device - 1)
    cdef size_t n = size_of(&p.dim), some, done = 0, most = min(rows, max(PART // (n * sizeof(float)), <size_t>1))
    cdef Address part
    wait_for(gpu)
    part = working_memory(gpu, most * n * sizeof(float), "reading a table")
    with nogil:
        if not enter(gpu):
            while done < rows and not gpu.error:
                some = min(rows - done, most)
                read_rows(gpu, p, some, NULL, first + done, <float*><uintptr_t>part)
                fetch_bytes(gpu, y + done * n, part, some * n * sizeof(float))
                done += some
            wait(gpu)
        leave_or_raise(gpu)
    return check_updates(gpu)


lazy_on_devices().open = open_lazy
lazy_on_devices().catch_up = catch_up
lazy_on_devices().read = read
