"""Updates of parameters that live on a device: the rules of trainers, clipping, weight decay.

A rule is one launch over a table of segments of the flat planes: whole
parameters, or those rows of tables that have a gradient.
"""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset

from dynet_cy.core.tensor cimport size_of
from dynet_cy.gpu.driver cimport (
    MOST_GPUS, Address, DeviceArena, Gpu, enter, failed, gpu_at, launch, leave, pthread_mutex_lock,
    pthread_mutex_unlock, raise_error, value_at, wait,
)
from dynet_cy.gpu.memory cimport Range, extend_arena, open_arena, out_of_device_memory, send_ranges
from dynet_cy.gpu.registry cimport kernel_at, load, loaded, module_at
from dynet_cy.kernels.kernels cimport DY_OPTIM_COUNT, dy_optim
from dynet_cy.memory.storage cimport Param, Plane, Storage
from dynet_cy.model.parameters cimport _Stored


cdef extern from *:
    """
    static const char *const dy_rule_names[] = {
    #define OPTIM(name, states, rule) #name,
    #include "dynet_cy/optim.def"
    #undef OPTIM
    };
    """
    const char* const rule_names "dy_rule_names"[]

cdef int CU = module_at(b"optim")
cdef int DECAY = kernel_at(CU, b"decay_values")
cdef int SQUARES = kernel_at(CU, b"squares")
cdef int[16] RULES
cdef int which
for which in range(DY_OPTIM_COUNT):
    RULES[which] = kernel_at(CU, b"optim_" + rule_names[which])

# Parameters begin at multiples of this in their planes; what lies between them is zero and stays so.
cdef enum:
    STEP = 16

# As in cuda/optim.cu.
cdef struct Segment:
    size_t at
    size_t n

cdef struct Hyper:
    float lr
    float grad_scale
    float b1
    float b2
    float eps
    float decay

# A table of segments in the making, in memory of malloc.
cdef struct Table:
    Segment* segments
    uint32_t n
    uint32_t room
    size_t longest

# Where the tables go on each device.
cdef DeviceArena[MOST_GPUS] arenas
memset(arenas, 0, sizeof(arenas))


cdef int add_segment(Table* t, size_t at, size_t n) except -1:
    cdef Segment* larger
    if n == 0:
        return 0
    if t.n and t.segments[t.n - 1].at + t.segments[t.n - 1].n == at:
        t.segments[t.n - 1].n += n
    else:
        if t.n == t.room:
            t.room = 2 * t.room + 64
            larger = <Segment*>realloc(t.segments, t.room * sizeof(Segment))
            if larger == NULL:
                raise MemoryError("the table of parameters to update")
            t.segments = larger
        t.segments[t.n].at = at
        t.segments[t.n].n = n
        t.n += 1
    t.longest = max(t.longest, t.segments[t.n - 1].n)
    return 0


cdef int add_whole(Table* t, const Param* p) except -1:
    return add_segment(t, p.offset, (p.size + STEP - 1) // STEP * STEP)


cdef int add_rows(Table* t, const Param* p) except -1:
    """The rows of a table that have a gradient."""
    cdef size_t n = size_of(&p.dim)
    cdef uint32_t i
    for i in range(p.n_touched):
        add_segment(t, p.offset + p.touched[i] * n, n)
    return 0


cdef void grid_of(const Gpu* gpu, const Table* t, unsigned* wide, unsigned* high) noexcept nogil:
    """Blocks along a segment, and for different ones."""
    cdef size_t most = <size_t>16 * gpu.multiprocessors
    high[0] = <unsigned>min(<size_t>t.n, most)
    wide[0] = <unsigned>min((t.longest + 255) // 256, max(most // high[0], <size_t>1))


cdef int ready(Gpu* gpu, size_t n) except -1:
    """Load the kernels and have n bytes of the device for tables."""
    cdef DeviceArena* a = &arenas[gpu.number]
    cdef int error
    if not loaded(gpu)[0] >> CU & 1:
        load(gpu, <uint64_t>1 << CU)
    if a.base == 0:
        open_arena(gpu, a)
    enter(gpu)
    error = extend_arena(a, n)
    leave(gpu)
    if error:
        out_of_device_memory(gpu, error, n, "an update")
    return 0


def squared_norm(list stored not None):
    """Sum of the squares of the gradients of parameters of one storage, which lives on a device."""
    cdef Table t
    cdef _Stored x
    cdef Gpu* gpu
    cdef Param* p
    cdef Address base
    cdef double* sums = NULL
    cdef double total = 0
    cdef float* grads
    cdef unsigned wide = 0, high = 0, i
    cdef size_t bytes
    cdef Range r
    memset(&t, 0, sizeof(Table))
    try:
        for x in stored:
            p = x.p
            if p.has_gradient and not p.rows:
                add_whole(&t, p)
            elif p.has_gradient:
                pthread_mutex_lock(&p.lock)
                try:
                    add_rows(&t, p)
                finally:
                    pthread_mutex_unlock(&p.lock)
        if t.n == 0:
            return 0.0
        x = stored[0]
        gpu = gpu_at(x.p.device - 1)
        grads = x.storage.grads.base_there()
        grid_of(gpu, &t, &wide, &high)
        bytes = t.n * sizeof(Segment)
        ready(gpu, bytes + wide * high * sizeof(double))
        sums = <double*>malloc(wide * high * sizeof(double))
        if sums == NULL:
            raise MemoryError("the norm of gradients")
        base = arenas[gpu.number].base
        r.there = base
        r.here = t.segments
        r.n = bytes
        with nogil:
            if not enter(gpu) and not send_ranges(gpu, &r, 1):
                launch(gpu, SQUARES, wide, high, 256, 0, <void*><uintptr_t>base, t.n, grads,
                       <void*><uintptr_t>(base + bytes))
                gpu.counts.fetches += 1
                gpu.counts.fetched_bytes += wide * high * sizeof(double)
                failed(gpu, gpu.driver.cuMemcpyDtoHAsync_v2(
                    sums, base + bytes, wide * high * sizeof(double), gpu.stream), -1)
                wait(gpu)
            leave(gpu)
        if gpu.error:
            raise_error(gpu)
        for i in range(wide * high):
            total += sums[i]
        return total
    finally:
        free(t.segments)
        free(sums)


def update(list stored not None, list moves not None, int rule, dy_optim hyper, list states not None, bint sparse,
           double decay):
    """Apply a rule to parameters of one storage, which lives on a device; their gradients are zero then.

    Args:
        stored: the parameters and tables.
        moves: for each, whether the rule changes it.
        rule: its number in optim.def.
        hyper: its constants.
        states: the planes of its state.
        sparse: whether only rows of tables with a gradient change.
        decay: the share that all values lose afterwards, also of those that the rule does not change.
    """
    cdef Table whole, rows, rest
    cdef Table* tables[3]
    cdef _Stored x
    cdef Storage storage
    cdef Gpu* gpu
    cdef Param* p
    cdef Hyper h
    cdef Plane plane
    cdef float* values
    cdef float* grads
    cdef float* s[3]
    cdef Range[3] r
    cdef unsigned wide = 0, high = 0
    cdef size_t bytes = 0
    cdef uint32_t i
    cdef int k
    if not stored:
        return
    x = stored[0]
    storage = x.storage
    gpu = gpu_at(storage.device - 1)
    memset(&whole, 0, sizeof(Table))
    memset(&rows, 0, sizeof(Table))
    memset(&rest, 0, sizeof(Table))
    tables[0] = &whole
    tables[1] = &rows
    tables[2] = &rest
    h.lr = hyper.lr
    h.grad_scale = hyper.grad_scale
    h.b1 = hyper.b1
    h.b2 = hyper.b2
    h.eps = hyper.eps
    values = storage.values.base_there()
    grads = storage.grads.base_there()
    for k in range(3):
        s[k] = NULL
        if k < len(states):
            plane = states[k]
            s[k] = plane.base_there()
    for x in stored:                            # gradients stay as they are while this lasts
        pthread_mutex_lock(&x.p.lock)
    try:
        for x, moved in zip(stored, moves):
            p = x.p
            if moved and not (p.rows and sparse):
                add_whole(&whole, p)
                continue
            if moved:
                add_rows(&rows, p)
            if decay != 0:
                add_whole(&rest, p)
        for k in range(3):
            bytes += tables[k].n * sizeof(Segment)
        if bytes:
            ready(gpu, bytes)
            bytes = 0
            for k in range(3):
                r[k].there = arenas[gpu.number].base + bytes
                r[k].here = tables[k].segments
                r[k].n = tables[k].n * sizeof(Segment)
                bytes += r[k].n
            with nogil:
                if not enter(gpu) and not send_ranges(gpu, r, 3):
                    for k in range(2):
                        if tables[k].n:
                            h.decay = <float>decay if k == 0 else 0
                            grid_of(gpu, tables[k], &wide, &high)
                            launch(gpu, RULES[rule], wide, high, 256, 0, <void*><uintptr_t>r[k].there, tables[k].n,
                                   value_at(&h), values, grads, s[0], s[1], s[2])
                    if rest.n:
                        grid_of(gpu, &rest, &wide, &high)
                        launch(gpu, DECAY, wide, high, 256, 0, <void*><uintptr_t>r[2].there, rest.n, <float>decay,
                               values)
                leave(gpu)
            if gpu.error:
                raise_error(gpu)
        for x, moved in zip(stored, moves):
            p = x.p
            if moved:
                for i in range(p.n_touched):
                    p.is_touched[p.touched[i]] = 0
                p.n_touched = 0
                p.has_gradient = 0
        storage.changes += 1
    finally:
        for x in stored:
            pthread_mutex_unlock(&x.p.lock)
        for k in range(3):
            free(tables[k].segments)
