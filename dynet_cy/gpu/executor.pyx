"""The executor of graphs on devices: on one, or on several, of which one may be the CPU.

The walk over the devices decides nothing about batches: it divides them into parts, consecutive batches that run on
one device, and runs each part by a walk over that device; copies from one device to another run by themselves. So all
that is planned and dropped is the same as on the CPU (execute/driver). What the walk over a GPU lists is a pass. It is
sent when the next part runs elsewhere, and at the end.
"""

from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport total_of
from dynet_cy.core.threads cimport interrupted, raise_interrupt
from dynet_cy.execute.accumulation cimport Journal, begin_journal, end_journal, note_before, roll_back
from dynet_cy.execute.cpu cimport begin_cpu_walk, finish_collected
from dynet_cy.execute.driver cimport backend, walk_back, walk_forward
from dynet_cy.execute.gradient_memory cimport close_lending, take_back
from dynet_cy.execute.gradients cimport contribute
from dynet_cy.execute.rematerialize cimport may_drop
from dynet_cy.execute.walk cimport Device, Failure, Form, Part, Walk, begin_walk, clear_call, raise_failure, settle
from dynet_cy.gpu.addresses cimport is_live
from dynet_cy.gpu.cells cimport find_cells
from dynet_cy.gpu.commands cimport Pass, begin_pass, first_of, form_alone
from dynet_cy.gpu.copies cimport find_copies
from dynet_cy.gpu.driver cimport (
    MOST_GPUS, Address, Gpu, enter, fetch_bytes, gpu_at, leave, leave_or_raise, pthread_mutex_lock,
    pthread_mutex_unlock, raise_error, wait, wait_for,
)
from dynet_cy.gpu.fusion cimport find_fusions
from dynet_cy.gpu.graphs cimport (
    GRADS, VALUES, DeviceGraph, begin_uses, close, device_graph, device_ptr, extend_mirrors, fetch, fetch_within,
    limit_by_device, raise_of_device,
)
from dynet_cy.gpu.memory cimport Range, check_updates, note_uses, out_of_device_memory, send_ranges
from dynet_cy.gpu.passes cimport load_moves, raise_pass_failure, run_pass
from dynet_cy.graph.expressions cimport parameter_here, value_here
from dynet_cy.graph.making cimport is_transfer, source_of
from dynet_cy.graph.structs cimport (
    CELL, FORMS, FUSION, IN_CELL, IN_FUSION, NO_BATCH, SENT, Batch, Graph, Node, args_of, batches_of, cut_stretches,
    device_of, engine, gradient_of_node, nodes_of, order_of, release_arguments, state_of, value_leaves, value_of,
)
from dynet_cy.kernels.kernels cimport K
from dynet_cy.kernels.pool cimport enter_pool, leave_pool
from dynet_cy.memory.arena cimport arena_rewind, array_push
from dynet_cy.memory.storage cimport Param, mirrors
from dynet_cy.ops.registry cimport GPU
from dynet_cy.schedule.adjacency cimport order_nodes
from dynet_cy.schedule.budget cimport is_limited
from dynet_cy.schedule.plan cimport drop_plan, is_finished, keep_finished
from dynet_cy.watch.instruments cimport Finding, bad_values, checking, profiling, raise_anomaly

from dynet_cy.execute.walk import PARTIAL

# How many batches of a graph on one device are sent as one pass, unless the graph is one for which `may_drop`: then all
# are.  Signal handlers run between passes.
cdef enum:
    MOST_IN_PASS = 1 << 12

# Where a graph was before a pass.
cdef struct PassStart:
    uint32_t n_batches
    size_t values
    size_t scratch
    size_t tables

# A pass over a graph on devices.
cdef struct Devices:
    Walk walk                       # must be first: a pointer to it is also a pointer to the pass
    Walk cpu                        # over the batches of the CPU
    Pass part                       # what is listed for a GPU, if it is open
    bint open
    PassStart before                # it was opened, or the copy that runs began
    Journal* journal                # of backward on several devices


cdef void begin_devices(Devices* s, Graph* g) noexcept nogil:
    begin_walk(&s.walk, g, &devices)
    begin_cpu_walk(&s.cpu, g)
    s.open = False
    s.journal = NULL


# ---- parts -----------------------------------------------------------------------

cdef inline uint32_t node_of(const Graph* g, uint32_t batch) noexcept nogil:
    """The first node of a batch.  All nodes of a batch run on the same device."""
    return order_of(g)[batches_of(g)[batch].first]


cdef inline bint copies(const Graph* g, uint32_t batch) noexcept nogil:
    """Whether a batch copies values between devices.  Such a batch is a part of its own."""
    return g.multi_device and is_transfer(&nodes_of(g)[node_of(g, batch)])


cdef inline bint go_together(const Graph* g, uint32_t a, uint32_t b) noexcept nogil:
    """Whether two consecutive batches belong to the same part."""
    return (not copies(g, a) and not copies(g, b)
            and device_of(g, node_of(g, a)) == device_of(g, node_of(g, b)))


cdef uint32_t end_of_part(const Graph* g, uint32_t first, uint32_t end) noexcept nogil:
    """Where the part ends that begins with a batch, among those before another one."""
    cdef uint32_t after = first + 1
    if not g.multi_device:
        return end if may_drop(g) else min(end, first + MOST_IN_PASS)
    while after < end and go_together(g, after - 1, after):
        after += 1
    return after


cdef uint32_t begin_of_part(const Graph* g, uint32_t first, uint32_t end) noexcept nogil:
    """Where the part begins that ends with a batch, among those from another one on."""
    cdef uint32_t begin = end - 1
    if not g.multi_device:
        return first
    while begin > first and go_together(g, begin - 1, begin):
        begin -= 1
    return begin


cdef int divide(Walk* w, uint32_t first, uint32_t end, Part run, uint32_t purpose, bint back) noexcept nogil:
    cdef Devices* s = <Devices*>w
    cdef uint32_t until
    while first < end:
        until = end
        if back:
            end = begin_of_part(w.g, first, end)
            if run_part(s, end, until, run, purpose, True):
                return -1
            continue
        until = end_of_part(w.g, first, end)
        if run_part(s, first, until, run, purpose, False):
            return -1
        first = until
        if first < end and not w.going_back and not (may_drop(w.g) and not w.g.multi_device):
            if flush(w) or interrupted(&w.failure.interrupts, batches_of(w.g)[first - 1].bytes):
                return -1
    return 0


cdef int run_part(Devices* s, uint32_t first, uint32_t end, Part run, uint32_t purpose, bint back) noexcept nogil:
    cdef Walk* w = &s.walk
    cdef Walk* x
    cdef Batch* batch = &batches_of(w.g)[first]
    cdef int device = device_of(w.g, node_of(w.g, first)), failed
    if copies(w.g, first):
        if flush(w):
            return -1
        return copy_gradients(s, batch) if back else run_copies(s, first, run, purpose)
    x = on(w, device)
    if x == NULL:
        return -1
    if device:
        failed = run(x, first, end, purpose)
    else:
        enter_pool()
        failed = run(x, first, end, purpose)
        leave_pool()
        close_lending(x.g, &x.lending)
    return fail_as(w, x) if failed or x.failure.interrupts.raised != NULL and not w.going_back else 0


cdef int run_copies(Devices* s, uint32_t first, Part run, uint32_t depth) noexcept nogil:
    """Run a batch of copies between devices."""
    cdef Graph* g = s.walk.g
    cdef PassStart before = pass_start(g)
    failed = run(&s.walk, first, first + 1, depth)
    if failed and not s.walk.going_back:
        undo(g, &before)
    elif not failed and g.forward_only:
        release(g, first)
        arena_rewind(&g.tables, before.tables)
    return failed


# ---- walks over devices ----------------------------------------------------------

cdef Walk* on(Walk* w, int device) noexcept nogil:
    """The walk over the batches on one device, where the pass is; what is listed for another one is sent first."""
    cdef Devices* s = <Devices*>w
    cdef Walk* x = &s.part.walk if device else &s.cpu
    if s.open and (not device or device != 1 + s.part.d.gpu.number) and flush(w):
        return NULL
    if device and not s.open and open_part(s, device):
        return NULL
    x.draws = w.draws
    x.first = w.first
    x.going_back = w.going_back
    return x


cdef int open_part(Devices* s, int device) noexcept nogil:
    cdef Graph* g = s.walk.g
    cdef DeviceGraph* d = NULL
    with gil:
        try:
            d = device_graph(g, device)
        except BaseException as error:
            return note_raised(&s.walk, error)
    s.before = pass_start(g)
    begin_pass(&s.part, g, d)
    s.part.walk.journal = s.journal
    s.open = True
    return 0


cdef int flush(Walk* w) noexcept nogil:
    """Send the pass that is listed."""
    cdef Devices* s = <Devices*>w
    cdef Pass* part = &s.part
    if not s.open:
        return 0
    if w.going_back and part.walk.device.finish(&part.walk):
        return fail_as(w, &part.walk)
    close_lending(w.g, &part.walk.lending)
    with gil:
        try:
            send(s)
        except BaseException as error:
            return note_raised(w, error)
    s.open = False
    return 0


cdef int send(Devices* s) except -1:
    cdef Graph* g = s.walk.g
    cdef bint back = s.walk.going_back
    run_pass(&s.part, "the gradients of the graph" if back else "the values of the graph")
    if g.check_validity and not (checking or back):     # if checks are on, the pass has checked the values already
        check_values(g, s.part.d, s.before.n_batches)
    if g.forward_only:
        release(g, s.before.n_batches)
        arena_rewind(&g.tables, s.before.tables)
    return 0


# ---- failures --------------------------------------------------------------------

cdef int note_raised(Walk* w, object error) noexcept:
    """Let the pass end with an error."""
    Py_INCREF(error)
    w.failure.raised = <void*>error
    return -1


cdef int fail_as(Walk* w, const Walk* x) noexcept nogil:
    """Let the pass end with the failure of the walk over one device."""
    w.failure = x.failure
    return -1


cdef int raise_of_pass(Devices* s, str what) except -1:
    """Raise the error that stopped a pass."""
    cdef Failure failure = s.walk.failure
    s.walk.failure.raised = NULL
    raise_interrupt(&s.walk.failure.interrupts)
    if s.open and s.part.missing:
        raise_pass_failure(&s.part, what)
    raise_failure(s.walk.g, what, &failure)


cdef void limit_by_devices(Graph* g) noexcept nogil:
    cdef DeviceGraph* d = <DeviceGraph*>g.device_graphs
    while d != NULL:
        limit_by_device(g, d)
        d = d.next


cdef int raise_of_devices(Graph* g, object error) except -1:
    """After a lack of memory: what devices have left is the limit from now on; the error says whether it was before."""
    cdef DeviceGraph* d = <DeviceGraph*>g.device_graphs
    if not is_limited(g):
        g.assumed.keeps_least = False           # nothing has been dropped
    limit_by_devices(g)
    while d != NULL and not (g.memory.limit and g.memory.limit == d.limit):
        d = d.next
    if d == NULL:
        raise error
    raise_of_device(g, d, error)


cdef int raise_out_of_memory(Graph* g, object error, bint undone) except -1:
    try:
        raise_of_devices(g, error)
    except MemoryError as short:
        if undone:
            raise
        of_rest = MemoryError(f"{short}.  {PARTIAL}")
        of_rest.partial = True
        raise of_rest from None


cdef PassStart pass_start(const Graph* g) noexcept nogil:
    return PassStart(g.n_batches, g.values.top, g.scratch.top, g.tables.top)


cdef void undo(Graph* g, const PassStart* before) noexcept nogil:
    """After a pass that has failed: undo its batches, and what it has computed again; mark inputs as not sent."""
    cdef uint32_t i
    cdef uint8_t* state = state_of(g)
    cut_stretches(g, before.n_batches, before.values)
    for i in range(g.n_nodes):
        state[i] &= <uint8_t>~SENT
        if nodes_of(g)[i].batch != NO_BATCH and nodes_of(g)[i].batch >= before.n_batches:
            value_leaves(&state[i])
            nodes_of(g)[i].batch = NO_BATCH
            nodes_of(g)[i].val = NULL
    g.stale_gradients = True
    if g.n_batches > before.n_batches:
        g.n_order = batches_of(g)[before.n_batches].first
        g.n_batches = before.n_batches
    drop_plan(g)
    arena_rewind(&g.values, before.values)
    arena_rewind(&g.scratch, min(g.scratch.top, before.scratch))
    arena_rewind(&g.tables, before.tables)


cdef void release(Graph* g, uint32_t before) noexcept nogil:
    """After a pass, not during it: inputs are still read from the host when it is sent."""
    cdef uint32_t b
    for b in range(before, g.n_batches):
        release_arguments(g, &batches_of(g)[b])


cdef int check_values(Graph* g, const DeviceGraph* d, uint32_t first) except -1:
    """Raise an error if a value of the batches from number `first` on is not finite."""
    cdef Finding finding
    cdef Batch* batch
    cdef Node* x
    cdef uint32_t b, i
    memset(&finding, 0, sizeof(Finding))
    for b in range(first, g.n_batches):
        batch = &batches_of(g)[b]
        fetch(g, 1 + d.gpu.number, batch.y, batch.bytes // sizeof(float))
        if not bad_values(g, batch, True, &finding):
            continue
        x = &nodes_of(g)[finding.node]
        for i in range(x.nargs):
            value_here(g, &nodes_of(g)[args_of(g, x)[i]])
        raise_anomaly(g, &finding)
    return 0


# ---- forward ---------------------------------------------------------------------

cdef int forward(Graph* g, const uint32_t* targets, uint32_t n, int strategy) except -1:
    cdef Devices s
    cdef int failed
    limit_by_devices(g)
    begin_devices(&s, g)
    with nogil:
        failed = walk_forward(&s.walk, targets, n, strategy)
        if failed and s.open:
            undo(g, &s.before)
        elif failed:
            drop_plan(g)
    if failed:
        try:
            raise_of_pass(&s, "the values of the graph")
        except MemoryError as error:
            raise_of_devices(g, error)
    return 0


cdef bint may_join(const Graph* g) noexcept nogil:
    """Whether batches may run without a launch of their own: numbers are not checked, and calls not timed."""
    return not (profiling or checking or g.check_validity)


cdef void finish_plan(Walk* w, uint32_t n_batches) noexcept nogil:
    """The passes of devices over a plan, unless an equal structure has been through them."""
    cdef Graph* g = w.g
    cdef uint32_t first = g.n_batches, end = first + n_batches, after
    if is_finished(g):
        return
    if g.finishes:
        find_copies(g, n_batches)
    if not g.multi_device:
        order_nodes(g, n_batches)
    while first < end and may_join(g):
        after = end_of_part(g, first, end)
        if device_of(g, node_of(g, first)):
            find_cells(g, first, after - first)
            find_fusions(g, first, after - first)
        first = after
    if g.finishes and n_batches <= MOST_IN_PASS:
        keep_finished(g)


cdef void take_apart(Walk* w, uint32_t n) noexcept nogil:
    """Let planned batches run one by one."""
    cdef Batch* batch = batches_of(w.g) + w.g.n_batches
    cdef uint32_t b
    for b in range(n):
        batch[b].cell = 0
        if batch[b].form in (CELL, IN_CELL, FUSION, IN_FUSION):
            batch[b].form = form_alone(w.g, &batch[b])


cdef int copy_values(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    """Copy the values of a batch to its device."""
    with gil:
        try:
            copy_forward(w.g, batch, device_of(w.g, order_of(w.g)[batch.first]))
        except BaseException as error:
            return note_raised(w, error)
    if checking and not w.again and bad_values(w.g, batch, w.g.check_validity, &w.failure.finding):
        return -1
    return 0


# ---- backward --------------------------------------------------------------------

cdef int backward(Graph* g, uint32_t target, bint full) except -1:
    """No signal handler runs once the first gradient is recorded: exceptions of handlers, and errors that waiting for a
    device reports, are raised when all gradients have been added.  Kernels, which Python code loads, are all loaded by
    then: forward has loaded the modules of the ops."""
    cdef size_t scratch_top = g.scratch.top, tables_top = g.tables.top
    cdef Devices s
    cdef Journal journal
    cdef uint64_t used
    cdef int device, failed
    begin_devices(&s, g)
    s.cpu.whole = True
    s.cpu.journal = &journal
    if g.multi_device:
        s.journal = &journal
    used = open_devices(g, target)
    # On several devices without checks, only gradients that were zero before are restored.
    begin_journal(&journal, checking or not g.multi_device)
    try:
        keep_gradients(g, target, &journal)
        with nogil:
            failed = walk_back(&s.walk, target, full) or flush(&s.walk) or finish_on_cpu(&s)
        if failed:
            raise_of_pass(&s, "the gradients of the graph")
        with nogil:
            note_after(&journal)
    except BaseException as error:
        undone = put_gradients_back(&journal)
        if isinstance(error, MemoryError):
            raise_out_of_memory(g, error, undone)
        raise
    finally:
        end_journal(&journal)
        arena_rewind(&g.scratch, min(g.scratch.top, scratch_top))
        arena_rewind(&g.tables, tables_top)     # later uploads run after this pass, so the memory can be reused
    if g.multi_device:
        raise_interrupt(&s.cpu.failure.interrupts)
        for device in range(MOST_GPUS):
            if used >> device & 1:
                check_updates(gpu_at(device))
    return 0


cdef int finish_on_cpu(Devices* s) noexcept nogil:
    """Multiply the factors that batches of the CPU have collected."""
    cdef int failed
    enter_pool()
    failed = finish_collected(&s.cpu)
    leave_pool()
    return fail_as(&s.walk, &s.cpu) if failed else 0


cdef uint64_t open_devices(Graph* g, uint32_t target) except? 0:
    """Prepare each device for backward, before anything is added.  Returns the numbers of the GPUs, as bits.

    The kernels of ops are loaded already, since forward has run them.
    """
    cdef uint64_t used = 0
    cdef uint32_t b
    open_device(g, device_of(g, target), &used)
    for b in range(g.n_batches if g.multi_device else 0):
        open_device(g, device_of(g, node_of(g, b)), &used)
        if copies(g, b):
            open_device(g, source_of(&nodes_of(g)[node_of(g, b)]), &used)
    return used


cdef int open_device(Graph* g, int device, uint64_t* used) except -1:
    if device and not used[0] >> (device - 1) & 1:
        load_moves(device_graph(g, device).gpu)
        used[0] |= <uint64_t>1 << (device - 1)
    return 0


cdef int copy_gradients(Devices* s, Batch* batch) noexcept nogil:
    """Add the gradients of copies to those of the nodes that were copied."""
    cdef Graph* g = s.walk.g
    cdef Walk* x
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef int device = device_of(g, ids[0]), source = source_of(&nodes_of(g)[ids[0]])
    cdef uint32_t j, n_live = 0
    for j in range(batch.count):
        n_live += is_live(g, ids[j])
    if n_live:
        if device and fetch_gradients(s, device, batch):
            return -1
        x = on(&s.walk, source)
        if x == NULL:
            return -1
        if hand_back(x, s.part.d if source else NULL, batch):
            return fail_as(&s.walk, x)
        if flush(&s.walk):                      # the host memory of these gradients is given back
            return -1
    take_back(g, &s.walk.lending, batch, NULL)
    close_lending(g, &s.walk.lending)
    return 0


cdef int fetch_gradients(Devices* s, int device, const Batch* batch) noexcept nogil:
    with gil:
        try:
            fetch_within(s.walk.g, device, batch.dy, batch.bytes // sizeof(float), &s.cpu.failure.interrupts)
        except BaseException as error:
            return note_raised(&s.walk, error)
    return 0


# ---- undoing a pass --------------------------------------------------------------

cdef int keep_gradients(const Graph* g, uint32_t target, Journal* journal) except -1:
    """While checks are on: copy the gradients of all parameters that backward from target may add to, since a pass that
    fails must leave them unchanged."""
    cdef const Node* x = nodes_of(g)
    cdef Param* p
    cdef uint32_t i
    for i in range(target + 1 if checking else 0):
        if x[i].nargs == 0 and x[i].object != NULL:
            p = <Param*>x[i].object
            if p.pass_number != journal.number and p.has_gradient:
                parameter_here(p, True)
            with nogil:
                note_of(journal, p)
    return 0


cdef void note_of(Journal* journal, Param* p) noexcept nogil:
    """Without the lock of the interpreter: an update may wait for that while it holds this one."""
    pthread_mutex_lock(&p.lock)
    note_before(journal, p)
    pthread_mutex_unlock(&p.lock)


cdef void note_after(Journal* journal) noexcept nogil:
    """Record that the pass has added to the gradients, so that a pass that began meanwhile does not restore them."""
    cdef uint32_t i
    for i in range(journal.n):
        note_of(journal, journal.before[i].p)


cdef bint put_gradients_back(Journal* journal) except *:
    """Restore the gradients of before the pass, unless they were not copied or another pass has added to them."""
    cdef Param* p
    cdef uint32_t i
    if not roll_back(journal):
        return False
    for i in range(journal.n):
        p = journal.before[i].p
        if p.device and p.has_gradient:
            mirrors().send(p.device, p.grad, p.device_grad, p.size)
        elif p.device:
            mirrors().clear(p.device, p.device_grad, p.size)
    return True


# ---- the device of the walk over devices -----------------------------------------

cdef float* place_here(Walk* w, const void* p) noexcept nogil:
    return <float*>p


cdef int do_nothing(Walk* w) noexcept nogil:
    """The walk over each device settles what it has listed."""
    return 0


cdef int finish(Walk* w) noexcept nogil:
    """If the pass was opened within the stretch that ends, it has tables in the working memory of this: send it."""
    cdef Devices* s = <Devices*>w
    if w.g.multi_device:
        return flush(w)
    if s.open and s.part.walk.device.finish(&s.part.walk):
        return fail_as(w, &s.part.walk)
    return 0


cdef int fill(Walk* w, float* to, size_t n, float x) noexcept nogil:
    """Fill memory of an arena on all devices, and on the host."""
    cdef DeviceGraph* d = <DeviceGraph*>w.g.device_graphs
    cdef Walk* part
    if w.g.multi_device:
        K.fill(n, x, to)
    while d != NULL:
        part = on(w, 1 + d.gpu.number)
        if part == NULL:
            return -1
        if part.device.fill(part, part.device.place(part, to), n, x):
            return fail_as(w, part)
        d = d.next
    return 0


cdef Form[FORMS] forms
cdef int form
memset(forms, 0, sizeof(forms))
for form in range(FORMS):                       # of copies
    forms[form].forward = copy_values

cdef Device devices
memset(&devices, 0, sizeof(Device))
devices.kind = GPU
devices.forms = forms
devices.place = place_here
devices.settle = do_nothing
devices.fill = fill
devices.finish = finish
devices.take_apart = take_apart
devices.divide = divide
devices.on = on
devices.finish_plan = finish_plan
devices.flush = flush

backend(GPU).forward = forward
backend(GPU).backward = backward
engine().fetch = fetch
engine().close = close


# ---- copies between devices: of the values of a batch, and of the gradients of such copies --------
#
# They go through the graph's arenas on the host. Each address in them has a counterpart on each device, so a value or a
# gradient is at the same offset on every device. The host waits for copies from a device, but neither for copies to a
# device nor for the batches that run there.

cdef int copy_forward(Graph* g, Batch* batch, int device) except -1:
    """Copy the values of a batch to its device."""
    clear_call(batch)
    take_from(g, batch, source_of(first_of(g, batch)))
    if device:
        give_to(g, device_graph(g, device), batch.y, batch.bytes // sizeof(float))
    return 0


cdef int take_from(Graph* g, const Batch* batch, int device) except -1:
    """Copy the arguments of the nodes of a batch from a device to the host memory of their results."""
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef DeviceGraph* d = device_graph(g, device) if device else NULL
    cdef Gpu* gpu = d.gpu if device else NULL
    cdef float* y = batch.y
    # The pending copy; it is extended as long as arguments are adjacent.
    cdef float* source = NULL
    cdef size_t n = 0, size
    cdef const float* at
    cdef Node* a
    cdef uint32_t j
    if gpu != NULL:
        wait_for(gpu)
    with nogil:
        if gpu != NULL:
            enter(gpu)
        for j in range(batch.count):
            a = &nodes[args_of(g, &nodes[ids[j]])[0]]
            size = total_of(&a.dim)
            if gpu == NULL or (a.val != NULL and a.batch == NO_BATCH):      # inputs are on the host
                memcpy(y, value_of(a), size * sizeof(float))
            else:
                at = (<Param*>a.object).device_value if a.val == NULL else device_ptr(g, d, a.val)
                if n and at != source + n:
                    fetch_part(gpu, source, y - n, n)
                    n = 0
                if n == 0:
                    source = <float*>at
                n += size
                y += size
                continue
            if n:
                fetch_part(gpu, source, y - n, n)
                n = 0
            y += size
        if gpu != NULL:
            fetch_part(gpu, source, y - n, n)
            wait(gpu)
            leave_or_raise(gpu)
    return check_updates(gpu) if gpu != NULL else 0


cdef int fetch_part(Gpu* gpu, const float* source, float* to, size_t n) noexcept nogil:
    if n == 0 or gpu.error:
        return gpu.error
    return fetch_bytes(gpu, to, <Address><uintptr_t>source, n * sizeof(float))


cdef int give_to(Graph* g, DeviceGraph* d, float* v, size_t n) except -1:
    """Send n values from an arena of the graph to the mirror of the arena on a device."""
    cdef Gpu* gpu = d.gpu
    cdef size_t needed = g.values.top
    cdef int error = 0, failure, arena = 0
    cdef Range r
    begin_uses(g, d)
    r.host_ptr = v
    r.device_ptr = <Address><uintptr_t>device_ptr(g, d, v)
    r.n = n * sizeof(float)
    with nogil:
        note_uses(&g.values, &d.mirrors[VALUES])
        note_uses(&g.grads, &d.mirrors[GRADS])  # values that are dropped after the pass are there
        if not enter(gpu):
            error = extend_mirrors(d, &arena)
            if not error:
                send_ranges(gpu, &r, 1)
        failure = leave(gpu)
    if error:
        out_of_device_memory(gpu, error, needed, "the values of the graph")
    if failure:
        raise_error(gpu, failure)
    return 0


cdef int hand_back(Walk* w, DeviceGraph* d, const Batch* batch) noexcept nogil:
    """Add gradients of nodes, which are on the host, to those of their arguments, which are on `d` (NULL: the CPU)."""
    cdef Graph* g = w.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef const Node* x
    cdef float* dy
    cdef Range* r
    cdef uint32_t j
    for j in range(batch.count):
        if not is_live(g, ids[j]):
            continue
        x = &nodes_of(g)[ids[j]]
        dy = gradient_of_node(g, x)
        if d != NULL:
            r = <Range*>array_push(&d.ranges, sizeof(Range))
            if r == NULL:
                w.failure.needed = sizeof(Range)
                return -1
            r.host_ptr = dy
            dy = device_ptr(g, d, dy)
            r.device_ptr = <Address><uintptr_t>dy
            r.n = total_of(&x.dim) * sizeof(float)
        if contribute(w, args_of(g, x)[0], dy, total_of(&x.dim), 1):
            return -1
    return settle(w)
