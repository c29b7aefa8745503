"""Updates of parameters that live on a device: the rules of trainers, clipping, weight decay, moving averages.

A rule is one launch over a table of segments of the flat planes: whole
parameters, or those rows of tables that have a gradient.  If the other rows of
a table get the update later, it is noted for them: see late.pxd.

With clipping, the device itself computes the factor for the gradients, so the
host does not wait.  If the norm is not finite, the device drops the update if the
caller asked for that.  Otherwise it leaves out this update and all later ones of
the trainer, until the host has noticed: see clips.pyx.
"""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

from dynet_cy.core.tensor cimport size_of
from dynet_cy.gpu.clips cimport MOST_COMING, Clip, Clipping
from dynet_cy.gpu.driver cimport (
    MOST_GPUS, Address, DeviceArena, Gpu, enter, fetch_bytes, gpu_at, launch, leave, pthread_mutex_lock,
    pthread_mutex_unlock, raise_error, value_at, wait, wait_for,
)
from dynet_cy.gpu.late cimport begin_late, catch_up_rows, note_late
from dynet_cy.gpu.memory cimport Range, extend_arena, open_arena, out_of_device_memory, send_ranges
from dynet_cy.gpu.registry cimport kernel_at, load, loaded, module_at
from dynet_cy.kernels.kernels cimport DY_OPTIM_COUNT, dy_optim
from dynet_cy.kernels.late_rows cimport all_current, can_be_late
from dynet_cy.memory.arena cimport Arena
from dynet_cy.memory.storage cimport Param, Plane, Storage, forget_gradient, pthread_mutex_t
from dynet_cy.model.parameters cimport _Stored


cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_trylock(pthread_mutex_t* m)

cdef extern from "dynet_cy/gpu_update.h" nogil:
    ctypedef struct Segment "dy_range":
        size_t at
        size_t n

    ctypedef struct Hyper "dy_hyper":
        float lr
        float grad_scale
        float b1
        float b2
        float eps
        float decoupled
        float decay

    ctypedef struct Group "dy_clip_group":
        double threshold
        uint32_t first_sum
        uint32_t sums
        uint32_t own_norm

    ctypedef struct Limits "dy_clip_limits":
        double scale
        uint32_t groups
        uint32_t rates
        uint32_t known
        uint32_t skips

    ctypedef struct Rates "dy_rates":
        float lr
        float decoupled

    ctypedef struct Chosen "dy_chosen":
        float scale
        Rates rates

cdef extern from *:
    """
    static const char *const dy_rule_names[] = {
    #define OPTIM(name, ...) #name,
    #include "dynet_cy/optim.def"
    #undef OPTIM
    };
    """
    const char* const rule_names "dy_rule_names"[]

cdef int CU = module_at(b"optim")
cdef int DECAY = kernel_at(CU, b"decay_values")
cdef int SQUARES = kernel_at(CU, b"squares")
cdef int CLIP_GROUPS = kernel_at(CU, b"clip_groups")
cdef int DROP = kernel_at(CU, b"drop_gradients")
cdef int AXPBY = kernel_at(CU, b"axpby")
cdef int[16] RULES
cdef int which
for which in range(DY_OPTIM_COUNT):
    RULES[which] = kernel_at(CU, b"optim_" + rule_names[which])

# Parameters begin at multiples of this in their planes; the gaps between them are zero and stay zero.
cdef enum:
    STEP = 16

# A growing table of segments, allocated by malloc.
cdef struct Table:
    Segment* segments
    uint32_t n
    uint32_t room
    size_t longest

# The memory for tables on each device.
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
    """Add the rows of a table that have a gradient."""
    cdef size_t n = size_of(&p.dim)
    cdef uint32_t i
    for i in range(p.n_touched):
        add_segment(t, p.offset + p.touched[i] * n, n)
    return 0


cdef int add_gradient(Table* t, const Param* p) except -1:
    """Add what the norm is computed over: the gradient of a parameter, or of the rows of a table that have one."""
    if not p.has_gradient:
        return 0
    return add_rows(t, p) if p.rows else add_whole(t, p)


cdef void grid_of(const Gpu* gpu, const Table* t, unsigned* wide, unsigned* high) noexcept nogil:
    """The grid: blocks along a segment, and rows of blocks for different segments; 0 if the table is empty."""
    cdef size_t most = <size_t>16 * gpu.multiprocessors
    wide[0] = high[0] = 0
    if t.n == 0:
        return
    high[0] = <unsigned>min(<size_t>t.n, most)
    wide[0] = <unsigned>min((t.longest + 255) // 256, max(most // high[0], <size_t>1))


cdef void lock(Param* p) noexcept:
    """Lock the gradient.  The GIL is released while waiting: the thread that holds the lock may need it to unlock."""
    if pthread_mutex_trylock(&p.lock):
        with nogil:
            pthread_mutex_lock(&p.lock)


cdef int ready(Gpu* gpu, size_t n) except -1:
    """Load the kernels and allocate n bytes on the device for tables."""
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


def prepare(list stored not None, uint32_t n_groups):
    """Load the kernels and allocate the tables for an update of these parameters, which are on one device.

    After that, the update runs no Python code, and so no signal handlers, and fails only if the device fails.
    """
    cdef _Stored x
    cdef size_t n = 0
    if not stored:
        return
    for x in stored:
        n += 2 * max(x.p.n_touched, <uint32_t>1) + 1            # segments in the tables of a `Part`
        n += x.p.n_touched // 4 + 1                             # the list of rows
    x = stored[0]
    gpu = gpu_at(x.p.device - 1)
    n = n * sizeof(Segment) + n_groups * (
        4 * 16 + sizeof(Group) + sizeof(Chosen) + sizeof(double) + 16 * gpu.multiprocessors * sizeof(double)
        + (MOST_COMING + 2) * sizeof(float)) + 64
    ready(gpu, n)


def squared_norm(list stored not None):
    """The sum of the squares of the gradients of parameters of one storage on a device.  Waits for the device.

    Signal handlers run meanwhile, and their exceptions end the wait.
    """
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
        wait_for(gpu)
        grads = x.storage.grads.device_base()
        grid_of(gpu, &t, &wide, &high)
        bytes = t.n * sizeof(Segment)
        ready(gpu, bytes + wide * high * sizeof(double))
        sums = <double*>malloc(wide * high * sizeof(double))
        if sums == NULL:
            raise MemoryError("the norm of gradients")
        base = arenas[gpu.number].base
        r.device_ptr = base
        r.host_ptr = t.segments
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

cdef struct Part:
    Table whole                                 # what the rule and weight decay change
    Table rows                                  # rows of tables that the rule changes
    Table rest                                  # parameters and tables with weight decay that are not in `whole`
    Table normed                                # gradients whose norm is computed
    Hyper h

# What is done to a table whose rows may be late.
cdef struct LateTable:
    Param* p
    uint32_t group
    bint begins                                 # no update has been noted yet
    bint notes                                  # this one is: rows without a gradient get it later
    bint all                                    # other rows change, too, so that all get what they are missing
    const Range* rows                           # the list of rows with a gradient, on the device


cdef void add_range(Range* r, uint32_t* n, size_t* bytes, const void* host_ptr, size_t size) noexcept nogil:
    """Append a table.  Ranges begin at multiples of 16 bytes."""
    r[n[0]].device_ptr = bytes[0]
    r[n[0]].host_ptr = <void*>host_ptr
    r[n[0]].n = size
    n[0] += 1
    bytes[0] += (size + 15) // 16 * 16


def update(list stored not None, list updated not None, list group_of not None, list groups not None, int rule,
           list states not None, bint sparse, Clipping clipping=None, double scale=1, bint skips=False,
           list rates=None, bint late=False):
    """Apply a rule to parameters of one storage, which lives on a device, and set their gradients to zero.

    Args:
        stored: the parameters and tables.
        updated: for each, whether the rule changes it; if not, only weight decay does.
        group_of: for each, the number of its group.
        groups: the settings of each group, see `GroupSettings` of dynet_cy/train/structs.pxd, as a dict.
        rule: its number in optim.def.
        states: the planes of its state.
        sparse: whether only rows of tables with a gradient change.
        clipping: given if norms are needed; `h.grad_scale` and `h.lr` of the settings are ignored then.
        scale: factor for gradients before they are clipped.
        skips: whether an update of gradients that are not finite is dropped.
        rates: for each group, a list of (learning rate, share of decoupled weight decay).  Element i holds if i of the
            updates whose outcome `clipping` does not know yet are dropped.
        late: whether rows without a gradient may get this update later.
    """
    cdef uint32_t n_groups = len(groups), n_rates = len(rates[0]) if rates else 0
    cdef Part* parts = <Part*>calloc(n_groups, sizeof(Part))
    cdef Group* limits = <Group*>calloc(n_groups, sizeof(Group))
    cdef Rates* all_rates = <Rates*>calloc(n_groups * n_rates + 1, sizeof(Rates))
    cdef Range* r = <Range*>calloc(4 * n_groups + 2 + len(stored), sizeof(Range))
    cdef LateTable* late_tables = <LateTable*>calloc(len(stored) + 1, sizeof(LateTable))
    cdef LateTable* one
    cdef Part* part
    cdef dict settings
    cdef Limits limit
    cdef _Stored x
    cdef Storage storage
    cdef Gpu* gpu
    cdef Param* p
    cdef Plane plane
    cdef float* values
    cdef float* grads
    cdef float* s[3]
    cdef const Arena* memories[3]
    cdef dy_optim rule_constants
    cdef Table* tables
    cdef unsigned wide = 0, high = 0
    cdef size_t bytes = 0, chosen, totals, sums
    cdef uint32_t i, g, n_ranges = 0, n_sums = 0, n_late = 0
    cdef bint decays, notes, only_rows
    cdef Address base
    cdef void* clip = <void*><uintptr_t>clipping.device_ptr if clipping is not None else NULL
    cdef int k, error
    cdef list locked = []
    try:
        if parts == NULL or limits == NULL or all_rates == NULL or r == NULL or late_tables == NULL:
            raise MemoryError("the tables of parameters to update")
        if not stored:
            return
        x = stored[0]
        storage = x.storage
        gpu = gpu_at(storage.device - 1)
        values = storage.values.device_base()
        grads = storage.grads.device_base()
        for k in range(3):
            s[k] = NULL
            memories[k] = NULL
            if k < len(states):
                plane = states[k]
                s[k] = plane.device_base()
                memories[k] = plane.memory()
        for g in range(n_groups):
            settings = groups[g]
            part = &parts[g]
            constants = settings["h"]
            part.h.lr = constants["lr"]
            part.h.grad_scale = constants["grad_scale"]
            part.h.b1 = constants["b1"]
            part.h.b2 = constants["b2"]
            part.h.eps = constants["eps"]
            part.h.decoupled = settings["decoupled"]
            part.h.decay = settings["decay"]
            limits[g].threshold = settings["threshold"]
            limits[g].own_norm = settings["own_norm"]
            for i in range(n_rates):
                all_rates[g * n_rates + i].lr, all_rates[g * n_rates + i].decoupled = rates[g][i]
                if all_rates[g * n_rates + i].decoupled != 0:
                    part.h.decoupled = all_rates[g * n_rates + i].decoupled
        for x in stored:                        # no other thread may change gradients meanwhile
            lock(x.p)
            locked.append(x)
        for x, changes, g in zip(stored, updated, group_of):
            p = x.p
            part = &parts[g]
            if clip != NULL:
                add_gradient(&part.normed, p)
            decays = part.h.decoupled != 0 or part.h.decay != 0
            rule_constants.b1, rule_constants.b2, rule_constants.eps = part.h.b1, part.h.b2, part.h.eps
            notes = late and changes and can_be_late(p, rule, &rule_constants, memories)
            only_rows = changes and p.rows and sparse
            if p.late != NULL and (p.late.n or notes):
                one = &late_tables[n_late]
                n_late += 1
                one.p, one.group, one.notes, one.begins = p, g, notes, notes and p.late.n == 0
                one.all = not notes and (decays or (changes and not only_rows))
            if notes:
                add_rows(&part.whole, p)
            elif changes and not only_rows:
                add_whole(&part.whole, p)
            else:
                if changes:
                    add_rows(&part.rows, p)
                if decays:
                    add_whole(&part.rest, p)
        for g in range(n_groups):
            tables = <Table*>&parts[g]
            for k in range(4):
                add_range(r, &n_ranges, &bytes, tables[k].segments, tables[k].n * sizeof(Segment))
        if bytes or n_late or clip != NULL:
            if clip != NULL:
                add_range(r, &n_ranges, &bytes, limits, n_groups * sizeof(Group))
                add_range(r, &n_ranges, &bytes, all_rates, n_groups * n_rates * sizeof(Rates))
                for g in range(n_groups):
                    grid_of(gpu, &parts[g].normed, &wide, &high)
                    limits[g].first_sum = n_sums
                    limits[g].sums = wide * high
                    n_sums += wide * high
            for i in range(n_late):
                one = &late_tables[i]
                one.rows = r + n_ranges
                add_range(r, &n_ranges, &bytes, one.p.touched, one.p.n_touched * sizeof(uint32_t))
            chosen = bytes
            totals = chosen + (n_groups * sizeof(Chosen) + 15) // 16 * 16
            sums = totals + n_groups * sizeof(double)
            ready(gpu, sums + n_sums * sizeof(double))
            base = arenas[gpu.number].base
            for i in range(n_ranges):
                r[i].device_ptr += base
            chosen += base
            totals += base
            sums += base
            limit.scale = scale
            limit.groups = n_groups
            limit.rates = n_rates
            limit.skips = skips
            if clip != NULL:
                clipping.stored = stored
                clipping.under_way = True
            with nogil:
                if not enter(gpu) and not send_ranges(gpu, r, n_ranges):
                    if clip != NULL:
                        limit.known = clipping.known
                        clipping.asked += 1
                        for g in range(n_groups):
                            if parts[g].normed.n:
                                grid_of(gpu, &parts[g].normed, &wide, &high)
                                launch(gpu, SQUARES, wide, high, 256, 0, <void*><uintptr_t>r[4 * g + 3].device_ptr,
                                       parts[g].normed.n, grads,
                                       <void*><uintptr_t>(sums + limits[g].first_sum * sizeof(double)))
                        launch(gpu, CLIP_GROUPS, 1, 1, 256, 0, <void*><uintptr_t>sums,
                               <void*><uintptr_t>r[4 * n_groups].device_ptr,
                               <void*><uintptr_t>r[4 * n_groups + 1].device_ptr, value_at(&limit),
                               <void*><uintptr_t>totals, <void*><uintptr_t>chosen, clip)
                    for i in range(n_late):
                        catch_up(gpu, &late_tables[i], s, clip)
                    for g in range(n_groups):
                        run_part(gpu, &parts[g], r + 4 * g, rule, values, grads, s,
                                 <void*><uintptr_t>(chosen + g * sizeof(Chosen)) if clip != NULL else NULL, clip,
                                 skips)
                    for i in range(n_late):
                        one = &late_tables[i]
                        if one.notes:
                            note_late(gpu, one.p, &parts[one.group].h,
                                      <void*><uintptr_t>(chosen + one.group * sizeof(Chosen)) if clip != NULL else NULL,
                                      clip)
                    if clip != NULL:
                        fetch_bytes(gpu, clipping.host_ptr, clipping.device_ptr, sizeof(Clip))
                error = leave(gpu)
            if error:
                raise_error(gpu, error)
        for i in range(n_late):
            one = &late_tables[i]
            if one.notes:
                one.p.late.n += 1
            elif one.all:
                one.p.late.n = 0
        for x, changes in zip(stored, updated):
            if changes:
                forget_gradient(x.p)
        storage.changes += 1
    finally:
        for x in locked:
            pthread_mutex_unlock(&x.p.lock)
        if parts != NULL:
            for g in range(n_groups):
                tables = <Table*>&parts[g]
                for k in range(4):
                    free(tables[k].segments)
        free(parts)
        free(limits)
        free(all_rates)
        free(r)
        free(late_tables)


cdef void catch_up(Gpu* gpu, const LateTable* one, float** states, const void* clip) noexcept nogil:
    """Apply the updates that rows are missing, before this one changes them."""
    if one.begins:
        begin_late(gpu, one.p, states)
    if one.all:
        catch_up_rows(gpu, one.p, one.p.rows, NULL, 0, False, clip)
    else:
        catch_up_rows(gpu, one.p, one.p.n_touched, <const void*><uintptr_t>one.rows.device_ptr, 0, one.notes, clip)


cdef void run_part(Gpu* gpu, const Part* part, const Range* r, int rule, float* values, float* grads, float** s,
                   void* chosen, void* clip, bint skips) noexcept nogil:
    """Apply weight decay and the rule to a group.

    Args:
        r: where its tables are on the device.
        chosen: the factor and rates that `clip_groups` has computed for the group, if norms are needed.
        clip: see `Clipping`; NULL if norms are not needed.
    """
    cdef const Table* tables = <const Table*>part
    cdef Hyper h = part.h
    cdef unsigned wide = 0, high = 0
    cdef int k
    decay(gpu, part, r, part.h.decoupled, values, chosen, clip)
    for k in range(2):
        if tables[k].n:
            if k == 1:
                h.decoupled = h.decay = 0       # `rest` contains the whole tables, and decays them
            grid_of(gpu, &tables[k], &wide, &high)
            launch(gpu, RULES[rule], wide, high, 256, 0, <void*><uintptr_t>r[k].device_ptr, tables[k].n, value_at(&h),
                   values, grads, s[0], s[1], s[2], chosen, clip)
    decay(gpu, part, r, part.h.decay, values, NULL, clip)
    if skips and part.normed.n:
        grid_of(gpu, &part.normed, &wide, &high)
        launch(gpu, DROP, wide, high, 256, 0, <void*><uintptr_t>r[3].device_ptr, part.normed.n, grads, clip)


cdef void decay(Gpu* gpu, const Part* part, const Range* r, float share, float* values, void* chosen,
                void* clip) noexcept nogil:
    """Reduce values by a share.  If `share` is not 0 and `chosen` is not NULL, the share in `chosen` is used."""
    cdef unsigned wide = 0, high = 0
    if share != 0 and part.rest.n:
        grid_of(gpu, &part.rest, &wide, &high)
        launch(gpu, DECAY, wide, high, 256, 0, <void*><uintptr_t>r[2].device_ptr, part.rest.n, share, values,
               chosen, clip)


def axpby(list stored not None, float a, float b, Plane source not None, Plane target not None,
          Clipping clipping=None):
    """target = a target + b source, for the numbers of parameters in two planes.

    Args:
        stored: parameters and tables of one storage, which lives on a device.
        a, b: see above; if a is 0, the target is not read.
        source, target: planes of the storage.
        clipping: given if the preceding update clipped gradients; if that update was left out, nothing changes.
    """
    cdef Table t
    cdef _Stored x
    cdef Gpu* gpu
    cdef Range r
    cdef int error
    cdef unsigned wide = 0, high = 0
    cdef float* read_from = source.device_base()
    cdef float* write_to = target.device_base()
    cdef void* clip = <void*><uintptr_t>clipping.device_ptr if clipping is not None else NULL
    if not stored:
        return
    x = stored[0]
    gpu = gpu_at(x.storage.device - 1)
    memset(&t, 0, sizeof(Table))
    try:
        for x in stored:
            all_current(x.p)
            add_whole(&t, x.p)
        if t.n == 0:                            # all parameters are empty
            return
        grid_of(gpu, &t, &wide, &high)
        r.n = t.n * sizeof(Segment)
        r.host_ptr = t.segments
        ready(gpu, r.n)
        r.device_ptr = arenas[gpu.number].base
        with nogil:
            if not enter(gpu) and not send_ranges(gpu, &r, 1):
                launch(gpu, AXPBY, wide, high, 256, 0, <void*><uintptr_t>r.device_ptr, t.n, a, b, read_from,
                       write_to, clip)
            error = leave(gpu)
        if error:
            raise_error(gpu, error)
    finally:
        free(t.segments)
