"""Updates of parameters that live on a device: the rules of trainers, clipping, weight decay, moving averages.

A rule is one launch over a table of segments of the flat planes: whole
parameters, or those rows of tables that have a gradient.

With clipping the device computes by itself what gradients are to be multiplied
by, so the host does not wait.  Where their norm is not finite, it leaves out
this update and all later ones of the trainer, and the host learns of it when it
next looks: see `Clipping`.
"""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset

from dynet_cy.core.tensor cimport size_of
from dynet_cy.gpu.driver cimport (
    MOST_GPUS, Address, DeviceArena, Gpu, enter, fetch_bytes, fill, gpu_at, launch, leave, pthread_mutex_lock,
    pthread_mutex_unlock, raise_error, value_at, wait,
)
from dynet_cy.gpu.memory cimport Range, extend_arena, open_arena, out_of_device_memory, send_ranges
from dynet_cy.gpu.registry cimport kernel_at, load, loaded, module_at
from dynet_cy.kernels.kernels cimport DY_OPTIM_COUNT, dy_optim
from dynet_cy.memory.storage cimport Param, Plane, Storage, pthread_mutex_t
from dynet_cy.model.parameters cimport _Stored


cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_trylock(pthread_mutex_t* m)

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
cdef int CLIP_FACTOR = kernel_at(CU, b"clip_factor")
cdef int BLEND = kernel_at(CU, b"blend")
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

cdef struct Limit:
    double scale
    double threshold

cdef struct Clip:
    double norm
    float factor
    uint32_t clips
    uint32_t skipped

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


cdef int add_gradient(Table* t, const Param* p) except -1:
    """Where the gradient is that the norm of gradients is of."""
    if not p.has_gradient:
        return 0
    return add_rows(t, p) if p.rows else add_whole(t, p)


cdef void grid_of(const Gpu* gpu, const Table* t, unsigned* wide, unsigned* high) noexcept nogil:
    """Blocks along a segment, and for different ones: 0 where there is none."""
    cdef size_t most = <size_t>16 * gpu.multiprocessors
    wide[0] = high[0] = 0
    if t.n == 0:
        return
    high[0] = <unsigned>min(<size_t>t.n, most)
    wide[0] = <unsigned>min((t.longest + 255) // 256, max(most // high[0], <size_t>1))


cdef void lock(Param* p) noexcept:
    """Lock its gradient.  The GIL is not kept meanwhile: another thread may need it before it unlocks."""
    if pthread_mutex_trylock(&p.lock):
        with nogil:
            pthread_mutex_lock(&p.lock)


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


# ---- clipping --------------------------------------------------------------------

cdef enum:
    PAGE = 4096

# For each device: places of clips, on the device and in page-locked memory, that nobody uses; and bytes of all of them.
cdef dict spare_clips = {}
cdef size_t[MOST_GPUS] clip_bytes
memset(clip_bytes, 0, sizeof(clip_bytes))
cdef DeviceArena[MOST_GPUS] clip_arenas
memset(clip_arenas, 0, sizeof(clip_arenas))


cdef int more_clips(Gpu* gpu, list spare) except -1:
    """Make a page of places."""
    cdef DeviceArena* a = &clip_arenas[gpu.number]
    cdef void* page = NULL
    cdef int error
    cdef size_t at, begun = clip_bytes[gpu.number]
    if a.base == 0:
        open_arena(gpu, a)
    enter(gpu)
    error = extend_arena(a, begun + PAGE)
    if not error:
        error = gpu.driver.cuMemHostAlloc(&page, PAGE, 0)
    leave(gpu)
    if error:
        out_of_device_memory(gpu, error, begun + PAGE, "clipping")
    for at in range(0, PAGE - sizeof(Clip) + 1, sizeof(Clip)):
        spare.append((a.base + begun + at, <uintptr_t>page + at))
    clip_bytes[gpu.number] = begun + PAGE
    return 0


cdef class Clipping:
    """What a device knows of the clipping of one trainer.

    After each update a copy of it is on its way to page-locked memory, so
    looking at it costs nothing and tells of updates that are done.

    Args:
        device: number of the GPU.
    """

    cdef Gpu* gpu
    cdef Address there
    cdef Clip* here
    cdef uint32_t counted

    def __cinit__(self, int device):
        self.gpu = gpu_at(device)
        spare = spare_clips.setdefault(device, [])
        if not spare:
            more_clips(self.gpu, spare)
        self.there, at = spare.pop()
        self.here = <Clip*><uintptr_t>at
        self.forget()

    def __dealloc__(self):
        if self.here != NULL:
            spare_clips[self.gpu.number].append((self.there, <uintptr_t>self.here))

    def forget(self):
        """Let updates be made again."""
        cdef int error
        with nogil:
            if not enter(self.gpu):
                fill(self.gpu, sizeof(Clip) // sizeof(float), 0, <void*><uintptr_t>self.there)
                wait(self.gpu)                  # for copies to `here` too
            error = leave(self.gpu)
        if error:
            raise_error(self.gpu, error)
        memset(self.here, 0, sizeof(Clip))
        self.counted = 0

    def wait(self):
        """Wait until all updates are done, so that what is said here holds for them."""
        cdef int error
        with nogil:
            if not enter(self.gpu):
                wait(self.gpu)
            error = leave(self.gpu)
        if error:
            raise_error(self.gpu, error)

    def clips(self):
        """Updates that were clipped since the last call."""
        cdef uint32_t before = self.counted
        self.counted = self.here.clips
        return self.counted - before

    @property
    def skipped(self):
        """Updates that were left out since `forget`."""
        return self.here.skipped

    @property
    def norm(self):
        """The norm because of which the first of these was left out."""
        return self.here.norm


def squared_norm(list stored not None):
    """Sum of the squares of the gradients of parameters of one storage, which lives on a device: it is waited for."""
    cdef Table t
    cdef _Stored x
    cdef Gpu* gpu
    cdef Address base
    cdef double* sums = NULL
    cdef double total = 0
    cdef float* grads
    cdef unsigned wide = 0, high = 0, i
    cdef size_t bytes
    cdef Range r
    cdef int error
    memset(&t, 0, sizeof(Table))
    try:
        for x in stored:
            lock(x.p)
            try:
                add_gradient(&t, x.p)
            finally:
                pthread_mutex_unlock(&x.p.lock)
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
                fetch_bytes(gpu, sums, base + bytes, wide * high * sizeof(double))
                wait(gpu)
            error = leave(gpu)
        if error:
            raise_error(gpu, error)
        for i in range(wide * high):
            total += sums[i]
        return total
    finally:
        free(t.segments)
        free(sums)


# ---- updates ---------------------------------------------------------------------

def update(list stored not None, list moves not None, int rule, dy_optim hyper, list states not None, bint sparse,
           double decay, Clipping clipping=None, double scale=1, double threshold=0):
    """Apply a rule to parameters of one storage, which lives on a device; their gradients are zero then.

    Args:
        stored: the parameters and tables.
        moves: for each, whether the rule changes it.
        rule: its number in optim.def.
        hyper: its constants.
        states: the planes of its state.
        sparse: whether only rows of tables with a gradient change.
        decay: the share that all values lose afterwards, also of those that the rule does not change.
        clipping: if gradients are to be clipped; `hyper.grad_scale` does not count then.
        scale: what gradients are multiplied by before they are clipped.
        threshold: the norm that they may have then.
    """
    cdef Table[4] tables                        # whole parameters, rows, what decays beside them; what the norm is of
    cdef Table* whole = &tables[0]
    cdef Table* rows = &tables[1]
    cdef Table* rest = &tables[2]
    cdef Table* normed = &tables[3]
    cdef _Stored x
    cdef Storage storage
    cdef Gpu* gpu
    cdef Param* p
    cdef Hyper h
    cdef Limit limit
    cdef Plane plane
    cdef float* values
    cdef float* grads
    cdef float* s[3]
    cdef Range[4] r
    cdef unsigned wide = 0, high = 0
    cdef size_t bytes = 0
    cdef uint32_t i
    cdef void* clip = <void*><uintptr_t>clipping.there if clipping is not None else NULL
    cdef void* sums = NULL
    cdef int k, error
    if not stored:
        return
    x = stored[0]
    storage = x.storage
    gpu = gpu_at(storage.device - 1)
    memset(tables, 0, sizeof(tables))
    h.lr = hyper.lr
    h.grad_scale = hyper.grad_scale
    h.b1 = hyper.b1
    h.b2 = hyper.b2
    h.eps = hyper.eps
    limit.scale = scale
    limit.threshold = threshold
    values = storage.values.base_there()
    grads = storage.grads.base_there()
    for k in range(3):
        s[k] = NULL
        if k < len(states):
            plane = states[k]
            s[k] = plane.base_there()
    for x in stored:                            # gradients stay as they are while this lasts
        lock(x.p)
    try:
        for x, moved in zip(stored, moves):
            p = x.p
            if clip != NULL:
                add_gradient(normed, p)
            if moved and not (p.rows and sparse):
                add_whole(whole, p)
                continue
            if moved:
                add_rows(rows, p)
            if decay != 0:
                add_whole(rest, p)
        for k in range(4):
            bytes += tables[k].n * sizeof(Segment)
        if bytes:
            if clip != NULL:
                grid_of(gpu, normed, &wide, &high)
            ready(gpu, bytes + wide * high * sizeof(double))
            bytes = 0
            for k in range(4):
                r[k].there = arenas[gpu.number].base + bytes
                r[k].here = tables[k].segments
                r[k].n = tables[k].n * sizeof(Segment)
                bytes += r[k].n
            sums = <void*><uintptr_t>(arenas[gpu.number].base + bytes)
            with nogil:
                if not enter(gpu) and not send_ranges(gpu, r, 4):
                    if clip != NULL:
                        if normed.n:
                            launch(gpu, SQUARES, wide, high, 256, 0, <void*><uintptr_t>r[3].there, normed.n, grads,
                                   sums)
                        launch(gpu, CLIP_FACTOR, 1, 1, 256, 0, sums, wide * high, value_at(&limit), clip)
                    for k in range(2):
                        if tables[k].n:
                            h.decay = <float>decay if k == 0 else 0
                            grid_of(gpu, &tables[k], &wide, &high)
                            launch(gpu, RULES[rule], wide, high, 256, 0, <void*><uintptr_t>r[k].there, tables[k].n,
                                   value_at(&h), values, grads, s[0], s[1], s[2], clip)
                    if rest.n:
                        grid_of(gpu, rest, &wide, &high)
                        launch(gpu, DECAY, wide, high, 256, 0, <void*><uintptr_t>r[2].there, rest.n, <float>decay,
                               values, clip)
                    if clip != NULL:
                        fetch_bytes(gpu, clipping.here, clipping.there, sizeof(Clip))
                error = leave(gpu)
            if error:
                raise_error(gpu, error)
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
        for k in range(4):
            free(tables[k].segments)


def blend(list stored not None, float a, float b, Plane source not None, Plane target not None,
          Clipping clipping=None):
    """Let the numbers of parameters in a plane become a target + b source.

    Args:
        stored: parameters and tables of one storage, which lives on a device.
        a, b: see above; where a is 0, the target is not read.
        source, target: planes of the storage.
        clipping: if the update before is one with clipping: nothing happens if it was left out.
    """
    cdef Table t
    cdef _Stored x
    cdef Gpu* gpu
    cdef Range r
    cdef int error
    cdef unsigned wide = 0, high = 0
    cdef float* read_from = source.base_there()
    cdef float* write_to = target.base_there()
    cdef void* clip = <void*><uintptr_t>clipping.there if clipping is not None else NULL
    if not stored:
        return
    x = stored[0]
    gpu = gpu_at(x.storage.device - 1)
    memset(&t, 0, sizeof(Table))
    try:
        for x in stored:
            add_whole(&t, x.p)
        if t.n == 0:                            # nothing but parameters without numbers
            return
        grid_of(gpu, &t, &wide, &high)
        r.n = t.n * sizeof(Segment)
        r.here = t.segments
        ready(gpu, r.n)
        r.there = arenas[gpu.number].base
        with nogil:
            if not enter(gpu) and not send_ranges(gpu, &r, 1):
                launch(gpu, BLEND, wide, high, 256, 0, <void*><uintptr_t>r.there, t.n, a, b, read_from, write_to, clip)
            error = leave(gpu)
        if error:
            raise_error(gpu, error)
    finally:
        free(t.segments)
