"""Updates of parameters on a device, and flat buffers for other processes."""

import numpy as np

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

from dynet_cy.core.mutex cimport pthread_mutex_trylock
from dynet_cy.core.tensor cimport size_of
from dynet_cy.gpu.driver cimport (
    Address, Gpu, enter, fetch_bytes, gpu_at, launch, leave_or_raise, pthread_mutex_lock, pthread_mutex_unlock,
    value_at, wait, wait_for,
)
from dynet_cy.gpu.lazy cimport begin_lazy, catch_up_rows, defer_update
from dynet_cy.gpu.memory cimport MOST_COMING, Clip, Clipping, Range, send_ranges, working_memory
from dynet_cy.gpu.registry cimport kernel_at, load, loaded, module_at
from dynet_cy.kernels.lazy_rows cimport all_current
from dynet_cy.memory.bridge cimport memory_of
from dynet_cy.memory.storage cimport Param, Plane, Storage, forget_gradient
from dynet_cy.model.parameters cimport _Stored
from dynet_cy.train.interfaces cimport (
    DECAY, FROZEN, MOST_SPANS, MOVES, OWN, GroupSettings, Plan, Span, Update, plan_entry,
)

from dynet_cy.kernels.kernels import optim_states


# ==== update ======================================================================================
#
# Updates of parameters that live on a device: the rules of trainers, clipping, weight decay, moving averages.
#
# A rule is one launch over a table of segments of the flat planes: whole
# parameters, or those rows of tables that have a gradient.  If the other rows of
# a table get the update later, it is noted for them.
#
# With clipping, the device itself computes the factor for the gradients, so the
# host does not wait.  If the norm is not finite, the device drops the update if the
# caller asked for that.  Otherwise it leaves out this update and all later ones of
# the trainer, until the host has noticed: see gpu/memory.pyx.

cdef extern from "dynet_cy/gpu_update.h" nogil:
    # derived: structs of Segment = dy_range, Hyper, Group = dy_clip_group, Limits = dy_clip_limits, Rates,
    #     Chosen
    ctypedef struct Segment "dy_range":
        size_t at
        size_t n

    ctypedef struct Hyper "dy_hyper":
        float lr
        float grad_scale
        float b1
        float b2
        float eps
        float eps_scale
        float decoupled
        float decay

    ctypedef struct Group "dy_clip_group":
        double threshold
        uint32_t first_sum
        uint32_t sums
        uint32_t own_norm
        uint32_t unused[3]

    ctypedef struct Limits "dy_clip_limits":
        double scale
        uint32_t groups
        uint32_t rates
        uint32_t known
        uint32_t skips

    ctypedef struct Rates "dy_rates":
        float lr
        float eps_scale
        float decoupled

    ctypedef struct Chosen "dy_chosen":
        float scale
        Rates rates
    # end of structs

cdef int CU_OPTIM = module_at(b"optim")
cdef int DECAY_VALUES = kernel_at(CU_OPTIM, b"decay_values")
cdef int SQUARES = kernel_at(CU_OPTIM, b"squares")
cdef int CLIP_GROUPS = kernel_at(CU_OPTIM, b"clip_groups")
cdef int DROP = kernel_at(CU_OPTIM, b"drop_gradients")
cdef int AXPBY = kernel_at(CU_OPTIM, b"axpby")
cdef int[16] RULES
cdef int which
for which, _name in enumerate(optim_states()):
    RULES[which] = kernel_at(CU_OPTIM, b"optim_" + _name.encode())

# Parameters begin at multiples of this in their planes; the gaps between them are zero and stay zero.
cdef enum:
    STEP = 16

# The norm is computed over pieces of at most so many numbers.  A row of a table and a whole parameter would be a
# segment each otherwise, and a few blocks would compute all of the parameter.
cdef enum:
    PIECE = 1 << 15

# A growing table of segments, allocated by malloc.
cdef struct Table:
    Segment* segments
    uint32_t n
    uint32_t capacity
    size_t longest
    size_t most                                 # how long a segment may become; 0: as long as there are neighbours

# Blocks along a segment, and rows of blocks for different segments; 0 if there are none.
cdef struct Grid:
    unsigned wide
    unsigned high


cdef int add_segment(Table* t, size_t at, size_t n) except -1:
    cdef Segment* larger
    if n == 0:
        return 0
    if t.n and t.segments[t.n - 1].at + t.segments[t.n - 1].n == at and (
            t.most == 0 or t.segments[t.n - 1].n + n <= t.most):
        t.segments[t.n - 1].n += n
    elif t.most and n > t.most:
        while n:
            add_segment(t, at, min(n, t.most))
            at += t.most
            n -= min(n, t.most)
        return 0
    else:
        if t.n == t.capacity:
            t.capacity = 2 * t.capacity + 64
            larger = <Segment*>realloc(t.segments, t.capacity * sizeof(Segment))
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
    t.most = PIECE
    return add_rows(t, p) if p.rows else add_whole(t, p)


cdef Grid grid_over(const Gpu* gpu, size_t count, size_t longest) noexcept nogil:
    """The grid for so many segments."""
    cdef size_t most = <size_t>16 * gpu.multiprocessors
    cdef Grid grid = Grid(0, 0)
    if count:
        grid.high = <unsigned>min(count, most)
        grid.wide = <unsigned>min((longest + 255) // 256, max(most // grid.high, <size_t>1))
    return grid


cdef inline Grid grid_of(const Gpu* gpu, const Table* t) noexcept nogil:
    return grid_over(gpu, t.n, t.longest)


cdef void lock(Param* p) noexcept:
    """Lock the gradient.  The GIL is released while waiting: the thread that holds the lock may need it to unlock."""
    if pthread_mutex_trylock(&p.lock):
        with nogil:
            pthread_mutex_lock(&p.lock)


cdef Address ready(Gpu* gpu, size_t n, str what="an update") except 0:
    """Load the kernels and allocate n bytes on the device for tables; returns their address."""
    if not loaded(gpu)[0] >> CU_OPTIM & 1:
        load(gpu, <uint64_t>1 << CU_OPTIM)
    return working_memory(gpu, n, what)


def prepare(list stored not None: list[Expression], uint32_t n_groups):
    """Load the kernels and allocate the tables for an update of these parameters, which are on one device.

    After that, the update runs no Python code, and so no signal handlers, and fails only if the device fails.
    """
    cdef _Stored x
    cdef size_t n = 0
    if not stored:
        return
    for x in stored:
        # Segments in the tables of a `GroupPart`.
        n += 2 * max(x.p.n_touched, <uint32_t>1) + x.p.size // PIECE + 2
        n += x.p.n_touched // 4 + 1                             # the list of rows
    x = stored[0]
    gpu = gpu_at(x.p.device - 1)
    n = n * sizeof(Segment) + n_groups * (
        4 * 16 + sizeof(Group) + sizeof(Chosen) + sizeof(double) + 16 * gpu.multiprocessors * sizeof(double)
        + (MOST_COMING + 2) * sizeof(float)) + 64
    ready(gpu, n)


def squared_norm(list stored not None: list[Expression]) -> float:
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
    cdef Grid grid
    cdef unsigned i
    cdef size_t bytes
    cdef Range r
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
        grid = grid_of(gpu, &t)
        bytes = t.n * sizeof(Segment)
        base = ready(gpu, bytes + grid.wide * grid.high * sizeof(double))
        sums = <double*>malloc(grid.wide * grid.high * sizeof(double))
        if sums == NULL:
            raise MemoryError("the norm of gradients")
        r = Range(base, t.segments, bytes)
        with nogil:
            if not enter(gpu) and not send_ranges(gpu, &r, 1):
                launch(gpu, SQUARES, grid.wide, grid.high, 256, 0, <void*><uintptr_t>base, t.n, grads,
                       <void*><uintptr_t>(base + bytes))
                fetch_bytes(gpu, sums, base + bytes, grid.wide * grid.high * sizeof(double))
                wait(gpu)
            leave_or_raise(gpu)
        for i in range(grid.wide * grid.high):
            total += sums[i]
        return total
    finally:
        free(t.segments)
        free(sums)


# ---- updates ---------------------------------------------------------------------

cdef struct GroupPart:
    Table whole                                 # what the rule and weight decay change
    Table rows                                  # rows of tables that the rule changes
    Table rest                                  # parameters and tables with weight decay that are not in `whole`
    Table normed                                # gradients whose norm is computed
    Hyper h

# The part of an update for a table whose updates may be deferred.
cdef struct LazyTable:
    Param* p
    uint32_t group
    bint begins                                 # no update has been noted yet
    bint notes                                  # this one is: rows without a gradient get it later
    bint all                                    # the update changes all rows, so that deferred updates come first
    const Range* rows                           # the list of rows with a gradient, on the device

# The tables of an update, on the host.
cdef struct Work:
    GroupPart* parts                            # of each group
    Group* limits
    Rates* rates                                # of each group, as many as updates may have been dropped
    uint32_t n_rates
    Range* ranges                               # four for each group, those of clipping, then those of late tables
    uint32_t n_ranges
    size_t bytes                                # that they take on the device
    LazyTable* lazy
    uint32_t n_lazy
    uint32_t n_sums                             # partial sums of squares
    Address chosen, totals, sums                # on the device: what `clip_groups` works on


cdef void add_range(Work* w, const void* host_ptr, size_t size) noexcept nogil:
    """Append a table.  Ranges begin at multiples of 16 bytes."""
    cdef Range* r = &w.ranges[w.n_ranges]
    r.device_ptr = w.bytes
    r.host_ptr = <void*>host_ptr
    r.n = size
    w.n_ranges += 1
    w.bytes += (size + 15) // 16 * 16


cdef void free_work(Work* w, uint32_t n_groups) noexcept:
    cdef uint32_t g
    cdef int k
    for g in range(n_groups if w.parts != NULL else 0):
        for k in range(4):
            free((<Table*>&w.parts[g])[k].segments)
    free(w.parts)
    free(w.limits)
    free(w.rates)
    free(w.ranges)
    free(w.lazy)


cdef int set_group(Work* w, uint32_t g, const GroupSettings* s, list rates) except -1:
    """Copy the settings of a group, and its rates for each number of drops: see `update`."""
    cdef Hyper* h = &w.parts[g].h
    cdef Rates* own
    cdef uint32_t i
    h.lr, h.grad_scale, h.b1, h.b2 = s.h.lr, s.h.grad_scale, s.h.b1, s.h.b2
    h.eps, h.eps_scale = s.h.eps, s.h.eps_scale
    h.decoupled, h.decay = <float>s.decoupled, <float>s.decay
    w.limits[g].threshold, w.limits[g].own_norm = s.threshold, s.own_norm
    for i in range(w.n_rates):
        own = &w.rates[g * w.n_rates + i]
        own.lr, own.eps_scale, own.decoupled = rates[g][i]
        if own.decoupled != 0:
            h.decoupled = own.decoupled
    return 0


cdef int add_entry(Work* w, Update* u, Py_ssize_t i, bint clips) except -1:
    """Append what the plan of an entry says to the tables of its group."""
    cdef Param* p = u.entries[i]
    cdef GroupPart* part = &w.parts[u.group[i]]
    cdef Span[MOST_SPANS] spans
    cdef LazyTable one
    cdef int k, n = plan_entry(u, i, p.n_touched, OWN, spans)
    cdef bint decayed = False
    if clips:
        add_gradient(&part.normed, p)
    memset(&one, 0, sizeof(LazyTable))
    one.p, one.group = p, u.group[i]
    for k in range(n):
        if spans[k].kind == DECAY:
            one.all = True
            if not decayed:                     # the shares of both are in the settings of the group
                add_whole(&part.rest, p)
            decayed = True
        elif not spans[k].some:
            one.all = True
            add_whole(&part.whole, p)
        else:
            one.notes = spans[k].lazy
            add_rows(&part.whole if one.notes else &part.rows, p)
    if p.lazy != NULL and (p.lazy.n or one.notes):
        one.begins = one.notes and p.lazy.n == 0
        w.lazy[w.n_lazy] = one
        w.n_lazy += 1
    return 0


def update(Plan plan not None, Clipping clipping: Clipping | None, list rates: list[list[tuple[float, float]]] | None):
    """Make the part of an update that is on the device of its first entry that is not frozen.

    Args:
        plan: the update.
        clipping: given if norms are needed; the learning rates and factors of gradients in the settings do not count
            then.
        rates: for each group, a list of (learning rate, factor of eps, share of decoupled weight decay); or None.
            Element i holds if
            i of the updates whose outcome `clipping` does not know yet are dropped.
    """
    cdef Update* u = &plan.u
    cdef uint32_t g, n_groups = u.n_groups
    cdef Work w
    cdef _Stored x
    cdef Storage storage
    cdef Py_ssize_t i
    cdef int k
    cdef list stored = [plan.stored[i] for i in range(u.n) if u.roles[i] != FROZEN], locked = []
    if not stored:
        return
    memset(&w, 0, sizeof(Work))
    w.n_rates = len(rates[0]) if rates else 0
    w.parts = <GroupPart*>calloc(n_groups, sizeof(GroupPart))
    w.limits = <Group*>calloc(n_groups, sizeof(Group))
    w.rates = <Rates*>calloc(n_groups * w.n_rates + 1, sizeof(Rates))
    w.ranges = <Range*>calloc(4 * n_groups + 2 + u.n, sizeof(Range))
    w.lazy = <LazyTable*>calloc(u.n + 1, sizeof(LazyTable))
    try:
        if w.parts == NULL or w.limits == NULL or w.rates == NULL or w.ranges == NULL or w.lazy == NULL:
            raise MemoryError("the tables of parameters to update")
        x = stored[0]
        storage = x.storage
        for g in range(n_groups):
            set_group(&w, g, &u.settings[g], rates)
            u.settings[g].decoupled = w.parts[g].h.decoupled        # not 0 if any of the rates is not
        for x in stored:                        # no other thread may change gradients meanwhile
            lock(x.p)
            locked.append(x)
        for i in range(u.n):
            if u.roles[i] != FROZEN:
                add_entry(&w, u, i, clipping is not None)
        for g in range(n_groups):
            for k in range(4):
                add_range(&w, (<Table*>&w.parts[g])[k].segments, (<Table*>&w.parts[g])[k].n * sizeof(Segment))
        if w.bytes or w.n_lazy or clipping is not None:
            if clipping is not None:
                clipping.stored = stored
            run_on_device(plan, &w, storage, clipping)
        for g in range(w.n_lazy):
            if w.lazy[g].notes:
                w.lazy[g].p.lazy.n += 1
            elif w.lazy[g].all:
                w.lazy[g].p.lazy.n = 0
        for i in range(u.n):
            if u.roles[i] == MOVES:
                forget_gradient(u.entries[i])
        storage.changes.n += 1
    finally:
        for x in locked:
            pthread_mutex_unlock(&x.p.lock)
        free_work(&w, n_groups)


cdef int lay_out(Work* w, Gpu* gpu, uint32_t n_groups, bint clips) except -1:
    """Give the tables of an update, and what the device computes for it, places in the memory of the device."""
    cdef Grid grid
    cdef LazyTable* one
    cdef Address base
    cdef uint32_t g
    if clips:
        add_range(w, w.limits, n_groups * sizeof(Group))
        add_range(w, w.rates, n_groups * w.n_rates * sizeof(Rates))
        for g in range(n_groups):
            grid = grid_of(gpu, &w.parts[g].normed)
            w.limits[g].first_sum = w.n_sums
            w.limits[g].sums = grid.wide * grid.high
            w.n_sums += grid.wide * grid.high
    for g in range(w.n_lazy):
        one = &w.lazy[g]
        one.rows = w.ranges + w.n_ranges
        add_range(w, one.p.touched, one.p.n_touched * sizeof(uint32_t))
    w.chosen = w.bytes
    w.totals = w.chosen + (n_groups * sizeof(Chosen) + 15) // 16 * 16
    w.sums = w.totals + n_groups * sizeof(double)
    base = ready(gpu, w.sums + w.n_sums * sizeof(double))
    for g in range(w.n_ranges):
        w.ranges[g].device_ptr += base
    w.chosen += base
    w.totals += base
    w.sums += base
    return 0


cdef int run_on_device(Plan plan, Work* w, Storage storage, Clipping clipping) except -1:
    """Send the tables of an update and launch it: norms, updates that rows are missing, the groups, further ones."""
    cdef Update* u = &plan.u
    cdef uint32_t g, n_groups = u.n_groups
    cdef Gpu* gpu = gpu_at(storage.device - 1)
    cdef float* values = storage.values.device_base()
    cdef float* grads = storage.grads.device_base()
    cdef float* s[3]
    cdef Plane plane
    cdef LazyTable* one
    cdef Limits limit
    cdef void* clip = <void*><uintptr_t>clipping.device_ptr if clipping is not None else NULL
    cdef int k
    lay_out(w, gpu, n_groups, clip != NULL)
    for k in range(3):
        s[k] = NULL
        if k < len(plan.planes):
            plane = plan.planes[k]
            s[k] = plane.device_base()
    limit.scale = u.scale
    limit.groups = n_groups
    limit.rates = w.n_rates
    limit.skips = u.skips
    if clip != NULL:
        clipping.under_way = True
    with nogil:
        if not enter(gpu) and not send_ranges(gpu, w.ranges, w.n_ranges):
            if clip != NULL:
                limit.known = clipping.known
                clipping.asked += 1
                clip_groups(gpu, w, &limit, grads, clip)
            for g in range(w.n_lazy):
                catch_up(gpu, &w.lazy[g], s, clip)
            for g in range(n_groups):
                run_part(gpu, &w.parts[g], w.ranges + 4 * g, u.rule, values, grads, s, chosen_of(w, g, clip), clip,
                         u.skips)
            for g in range(w.n_lazy):
                one = &w.lazy[g]
                if one.notes:
                    defer_update(gpu, one.p, &w.parts[one.group].h, chosen_of(w, one.group, clip), clip)
            if clip != NULL:
                fetch_bytes(gpu, clipping.host_ptr, clipping.device_ptr, sizeof(Clip))
        leave_or_raise(gpu)
    return 0


cdef void* chosen_of(const Work* w, uint32_t g, const void* clip) noexcept nogil:
    """The factor and rates that the device has computed for a group, if norms are needed."""
    return <void*><uintptr_t>(w.chosen + g * sizeof(Chosen)) if clip != NULL else NULL


cdef void clip_groups(Gpu* gpu, const Work* w, const Limits* limit, float* grads, void* clip) noexcept nogil:
    """Compute norms, and the factor and rates of each group."""
    cdef Grid grid
    cdef uint32_t g
    for g in range(limit.groups):
        if w.parts[g].normed.n:
            grid = grid_of(gpu, &w.parts[g].normed)
            launch(gpu, SQUARES, grid.wide, grid.high, 256, 0, <void*><uintptr_t>w.ranges[4 * g + 3].device_ptr,
                   w.parts[g].normed.n, grads, <void*><uintptr_t>(w.sums + w.limits[g].first_sum * sizeof(double)))
    launch(gpu, CLIP_GROUPS, 1, 1, 256, 0, <void*><uintptr_t>w.sums,
           <void*><uintptr_t>w.ranges[4 * limit.groups].device_ptr,
           <void*><uintptr_t>w.ranges[4 * limit.groups + 1].device_ptr, value_at(limit),
           <void*><uintptr_t>w.totals, <void*><uintptr_t>w.chosen, clip)


cdef void catch_up(Gpu* gpu, const LazyTable* one, float** states, const void* clip) noexcept nogil:
    """Apply the updates that rows are missing, before this one changes them."""
    if one.begins:
        begin_lazy(gpu, one.p, states)
    if one.all:
        catch_up_rows(gpu, one.p, one.p.rows, NULL, 0, False, clip)
    else:
        catch_up_rows(gpu, one.p, one.p.n_touched, <const void*><uintptr_t>one.rows.device_ptr, 0, one.notes, clip)


cdef void run_part(Gpu* gpu, const GroupPart* part, const Range* r, int rule, float* values, float* grads, float** s,
                   void* chosen, void* clip, bint skips) noexcept nogil:
    """Apply weight decay and the rule to a group.

    Args:
        r: where its tables are on the device.
        chosen: the factor and rates that `clip_groups` has computed for the group, if norms are needed.
        clip: see `Clipping`; NULL if norms are not needed.
    """
    cdef const Table* tables = <const Table*>part
    cdef Hyper h = part.h
    cdef Grid grid
    cdef int k
    decay(gpu, part, r, part.h.decoupled, values, chosen, clip)
    for k in range(2):
        if tables[k].n:
            if k == 1:
                h.decoupled = h.decay = 0       # `rest` contains the whole tables, and decays them
            grid = grid_of(gpu, &tables[k])
            launch(gpu, RULES[rule], grid.wide, grid.high, 256, 0, <void*><uintptr_t>r[k].device_ptr, tables[k].n,
                   value_at(&h), values, grads, s[0], s[1], s[2], chosen, clip)
    decay(gpu, part, r, part.h.decay, values, NULL, clip)
    if skips and part.normed.n:
        grid = grid_of(gpu, &part.normed)
        launch(gpu, DROP, grid.wide, grid.high, 256, 0, <void*><uintptr_t>r[3].device_ptr, part.normed.n, grads, clip)


cdef void decay(Gpu* gpu, const GroupPart* part, const Range* r, float share, float* values, void* chosen,
                void* clip) noexcept nogil:
    """Reduce values by a share.  If `share` is not 0 and `chosen` is not NULL, the share in `chosen` is used."""
    cdef Grid grid = grid_of(gpu, &part.rest)
    if share != 0 and part.rest.n:
        launch(gpu, DECAY_VALUES, grid.wide, grid.high, 256, 0, <void*><uintptr_t>r[2].device_ptr, part.rest.n, share,
               values, chosen, clip)


def axpby(
    list stored not None: list[Expression], float a, float b, Plane source not None, Plane target not None,
    Clipping clipping=None
):
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
    cdef Grid grid
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
        grid = grid_of(gpu, &t)
        r = Range(ready(gpu, t.n * sizeof(Segment)), t.segments, t.n * sizeof(Segment))
        with nogil:
            if not enter(gpu) and not send_ranges(gpu, &r, 1):
                launch(gpu, AXPBY, grid.wide, grid.high, 256, 0, <void*><uintptr_t>r.device_ptr, t.n, a, b, read_from,
                       write_to, clip)
            leave_or_raise(gpu)
    finally:
        free(t.segments)


# ==== flat buffer =================================================================================
#
# Numbers of parameters on a device, gathered in a flat buffer: one launch and one copy for all parameters.

cdef extern from "dynet_cy/gpu_update.h" nogil:
    # `segments` has its words as columns.
    # derived: structs of GatherRange
    ctypedef struct GatherRange "dy_gather_range":
        size_t at
        size_t n
        size_t to
    # end of structs

cdef int GATHER = kernel_at(CU_OPTIM, b"gather_ranges")
cdef int SCATTER = kernel_at(CU_OPTIM, b"scatter_ranges")

cdef class FlatBuffer:
    """Parts of a plane, and a buffer in which they are laid side by side.

    Args:
        parts: a list of (parameter or table, None), for all of its numbers, or (table, row numbers as uint32).

    Attributes:
        size: the total number of floats.
        starts: where each part begins in the buffer.
    """

    cdef Gpu* gpu
    cdef object segments                # array; columns: offset in the plane, number of floats, offset in the buffer
    cdef uint64_t* table                # the address of its numbers
    cdef size_t height                  # number of segments
    cdef size_t longest
    cdef readonly size_t size
    cdef readonly list starts       # type: list[int]

    def __init__(self, list parts not None: list[tuple[Expression, npt.NDArray[np.uint32] | None]]) -> None:
        cdef _Stored x
        cdef size_t n
        tables = [np.empty((0, 3), np.uint64)]
        self.starts = []
        for x, rows in parts:
            self.gpu = gpu_at(x.storage.device - 1)
            self.starts.append(self.size)
            n = x.p.size if rows is None else size_of(&x.p.dim)
            table = np.empty((1 if rows is None else len(rows), 3), np.uint64)
            table[:, 0] = x.p.offset
            if rows is not None:
                table[:, 0] += np.asarray(rows, np.uint64) * np.uint64(n)
            table[:, 1] = n
            table[:, 2] = self.size + n * np.arange(len(table), dtype=np.uint64)
            tables.append(table)
            self.size += n * <size_t>len(table)
            self.longest = max(self.longest, n if len(table) else 0)
        self.segments = np.concatenate(tables)
        self.table = <uint64_t*>memory_of(self.segments, True)
        self.height = len(self.segments)

    cdef int move(self, float* plane, const float* sent, float* fetched) except -1:
        """Write numbers that are sent to a plane, or fetch those of the plane; through a buffer behind the table."""
        cdef Gpu* gpu = self.gpu
        cdef size_t begin = self.height * sizeof(GatherRange), bytes = self.size * sizeof(float)
        cdef Address base = ready(gpu, begin + bytes, "gradients for other processes")
        cdef void* table = <void*><uintptr_t>base
        cdef void* buffer = <void*><uintptr_t>(base + begin)
        cdef Grid grid = grid_over(gpu, self.height, self.longest)
        cdef Range[2] r
        r[0] = Range(base, self.table, begin)
        r[1] = Range(base + begin, sent, bytes)
        with nogil:
            if not enter(gpu) and not send_ranges(gpu, r, 2 if sent != NULL else 1):
                if sent != NULL:
                    launch(gpu, SCATTER, grid.wide, grid.high, 256, 0, table, <uint32_t>self.height, buffer, plane)
                else:
                    launch(gpu, GATHER, grid.wide, grid.high, 256, 0, table, <uint32_t>self.height, plane, buffer)
                    fetch_bytes(gpu, fetched, base + begin, bytes)
                    wait(gpu)
            leave_or_raise(gpu)
        return 0

    def fetch(self, Plane plane not None) -> npt.NDArray[np.float32]:
        """The numbers, as a new float32 array."""
        found = np.empty(self.size, np.float32)
        if self.size:
            self.move(plane.device_base(), NULL, <float*>memory_of(found, True))
        return found

    def send(self, Plane plane not None, numbers not None: Any):
        """Write numbers, in the order of `fetch`, back to the plane.

        Raises:
            ValueError: the number of numbers is wrong.
        """
        numbers = np.ascontiguousarray(numbers, np.float32)
        if <size_t>numbers.size != self.size:
            raise ValueError(f"FlatBuffer.send: {self.size} numbers are needed, not {numbers.size}")
        if self.size:
            self.move(plane.device_base(), <const float*>memory_of(numbers), NULL)
