"""The executor of graphs on several devices.

A plan is run in segments: consecutive batches that run on one device.  Copies
from one device to another go through the graph's arenas on the host.  Each
address in them has a counterpart on each device, so a value or a gradient is at
the same offset on every device.  The host waits for copies from a device, but
neither for copies to a device nor for the batches that run there.
"""

from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport total_of
from dynet_cy.core.threads cimport interrupted, raise_interrupt
from dynet_cy.execute.accumulation cimport Journal, begin_journal, end_journal
from dynet_cy.execute.cpu cimport begin_cpu_walk, finish_collected
from dynet_cy.execute.gradient_memory cimport close_lending, take_back
from dynet_cy.execute.gradients cimport begin_at, contribute, open_backward, run_backward
from dynet_cy.execute.recompute cimport may_drop, prepare_backward, run_backward_in_stretches
from dynet_cy.execute.rematerialize cimport bring_back, run_plan
from dynet_cy.execute.walk cimport (
    Device, Failure, Form, Part, Walk, begin_walk, clear_call, raise_failure, raise_of_op, settle,
)
from dynet_cy.gpu.cells cimport find_cells
from dynet_cy.gpu.commands cimport Pass, begin_pass, device_of_graphs
from dynet_cy.gpu.driver cimport MOST_GPUS, Address, Gpu, enter, fetch_bytes, gpu_at, leave, raise_error, wait, wait_for
from dynet_cy.gpu.executor cimport (
    PassStart, check_values, keep_gradients, may_join, note_after, pass_start, put_gradients_back, release, undo,
)
from dynet_cy.gpu.fusion cimport find_fusions
from dynet_cy.gpu.graphs cimport (
    DeviceGraph, device_graph, device_ptr, fetch_within, limit_by_device, raise_of_device,
)
from dynet_cy.gpu.memory cimport (
    Range, begin_use, check_updates, extend_mirror, note_uses, out_of_device_memory, send_ranges,
)
from dynet_cy.gpu.passes cimport load_moves, raise_pass_failure, run_pass
from dynet_cy.graph.making cimport is_transfer, source_of
from dynet_cy.graph.structs cimport (
    COMPUTED, ENGINE_MULTI_DEVICE, FORMS, LIVE, NEEDS_GRAD, NO_BATCH, Batch, Engine, Graph, Node, args_of, batches_of,
    device_of, engine, gradient_of_node, nodes_of, order_of, state_of, value_of,
)
from dynet_cy.graph.table cimport lock_graph, unlock_graph
from dynet_cy.kernels.kernels cimport K
from dynet_cy.kernels.pool cimport enter_pool, leave_pool
from dynet_cy.memory.arena cimport arena_rewind, array_push, out_of_memory
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport CPU
from dynet_cy.schedule.budget cimport ENOUGH, is_limited
from dynet_cy.schedule.plan cimport drop_plan, plan
from dynet_cy.watch.instruments cimport bad_values, check_before, checking, end_pass, list_batches, profiling
from dynet_cy.watch.timeline cimport BACKWARD_PASS, FORWARD_PASS, begin_pass_span

from dynet_cy.execute.walk import PARTIAL


# ---- segments --------------------------------------------------------------------

cdef inline uint32_t node_of(const Graph* g, uint32_t batch) noexcept nogil:
    """The first node of a batch.  All nodes of a batch run on the same device."""
    return order_of(g)[batches_of(g)[batch].first]


cdef inline bint copies(const Graph* g, uint32_t batch) noexcept nogil:
    """Whether a batch copies values between devices.  Such a batch is a segment of its own."""
    return is_transfer(&nodes_of(g)[node_of(g, batch)])


cdef inline bint go_together(const Graph* g, uint32_t a, uint32_t b) noexcept nogil:
    """Whether two consecutive batches belong to the same segment."""
    return (not copies(g, a) and not copies(g, b)
            and device_of(g, node_of(g, a)) == device_of(g, node_of(g, b)))


cdef inline Param* parameter_of(const Node* x) noexcept nogil:
    return <Param*>x.object


# ---- parts -----------------------------------------------------------------------
#
# The walk over several devices decides nothing about batches: it runs each segment by a walk over its device, and a
# copy by itself.  So all that is planned and dropped is the same as on one device (execute/recompute,
# execute/rematerialize).

# A pass over a graph on several devices.
cdef struct Several:
    Walk walk                       # must be first: a pointer to it is also a pointer to the pass
    Walk cpu                        # over the batches of the CPU
    Journal* journal                # of backward


cdef void begin_several(Several* s, Graph* g) noexcept nogil:
    begin_walk(&s.walk, g, &several)
    begin_cpu_walk(&s.cpu, g)
    s.journal = NULL


cdef int raise_several(Several* s, str what) except -1:
    """Raise the error that stopped a pass."""
    cdef Failure failure = s.walk.failure
    s.walk.failure.raised = NULL
    raise_interrupt(&s.walk.failure.interrupts)
    if failure.raised != NULL:
        raise_of_op(&failure)
    raise_failure(s.walk.g, what, &failure)


cdef int note_raised(Walk* w, object error) noexcept:
    """Let the pass end with an error."""
    Py_INCREF(error)
    w.failure.raised = <void*>error
    return -1


cdef int divide(Walk* w, uint32_t first, uint32_t end, Part run, uint32_t depth, bint back) noexcept nogil:
    with gil:
        try:
            if back:
                run_parts_back(<Several*>w, first, end, run, depth)
            else:
                run_parts(<Several*>w, first, end, run, depth)
        except BaseException as error:
            return note_raised(w, error)
    return 0


cdef int run_parts(Several* s, uint32_t first, uint32_t end, Part run, uint32_t depth) except -1:
    cdef Graph* g = s.walk.g
    cdef uint32_t following
    while first < end:
        following = first + 1
        while following < end and go_together(g, following - 1, following):
            following += 1
        run_part(s, first, following, run, depth, False)
        first = following
        if not s.walk.going_back:
            with nogil:
                interrupted(&s.walk.failure.interrupts, batches_of(g)[first - 1].bytes)
            raise_interrupt(&s.walk.failure.interrupts)
    return 0


cdef int run_parts_back(Several* s, uint32_t first, uint32_t end, Part run, uint32_t depth) except -1:
    cdef Graph* g = s.walk.g
    cdef uint32_t begin
    while end > first:
        begin = end - 1
        while begin > first and go_together(g, begin - 1, begin):
            begin -= 1
        run_part(s, begin, end, run, depth, True)
        end = begin
    return 0


cdef int run_part(Several* s, uint32_t first, uint32_t end, Part run, uint32_t depth, bint back) except -1:
    cdef Graph* g = s.walk.g
    cdef int device = device_of(g, node_of(g, first)), error
    cdef PassStart before = pass_start(g)
    try:
        if copies(g, first):
            if back:
                copy_gradients(s, &batches_of(g)[first])
            else:
                s.walk.in_part = True
                with nogil:
                    error = run(&s.walk, first, end, depth)
                s.walk.in_part = False
                if error:
                    raise_several(s, "the values of the graph")
        elif device:
            run_there(s, device_graph(g, device), first, end, run, depth, back)
            if g.check_validity and not (checking or s.walk.going_back):    # with checks, the pass has done so
                check_values(g, device_graph(g, device), first)
        else:
            run_here(s, first, end, run, depth, back)
    except BaseException:
        if not back and not s.walk.going_back and (device or copies(g, first)):
            undo(g, &before)                    # what the CPU has computed is there
        raise
    if g.forward_only and (device or copies(g, first)):
        release(g, first)
        arena_rewind(&g.tables, before.tables)
    return 0


cdef void follow(const Several* s, Walk* w) noexcept nogil:
    """Let the walk over one device go on where the pass is."""
    w.seed = s.walk.seed
    w.stream = s.walk.stream
    w.first = s.walk.first
    w.going_back = s.walk.going_back


cdef int run_there(Several* s, DeviceGraph* d, uint32_t first, uint32_t end, Part run, uint32_t depth,
                   bint back) except -1:
    """Run batches on a GPU, as a pass."""
    cdef Pass part
    cdef int error
    begin_pass(&part, s.walk.g, d)
    follow(s, &part.walk)
    part.walk.journal = s.journal
    with nogil:
        error = run(&part.walk, first, end, depth)
        if back and not error:
            error = part.walk.device.finish(&part.walk)
    return finish_pass(&part, error)


cdef int finish_pass(Pass* part, int error) except -1:
    """Run a pass that has been listed, or raise the error that stopped the listing."""
    cdef str what = "the gradients of the graph" if part.walk.going_back else "the values of the graph"
    if error:
        raise_pass_failure(part, what)
    with nogil:
        close_lending(part.walk.g, &part.walk.lending)
    return run_pass(part, what)


cdef int run_here(Several* s, uint32_t first, uint32_t end, Part run, uint32_t depth, bint back) except -1:
    """Run batches on the CPU."""
    cdef Walk* w = &s.cpu
    cdef int error
    follow(s, w)
    with nogil:
        enter_pool()
        error = run(w, first, end, depth)
        leave_pool()
        close_lending(w.g, &w.lending)
    if not s.walk.going_back:
        raise_interrupt(&w.failure.interrupts)
    if error:
        raise_failure(w.g, "the gradients of the graph" if back else "the values of the graph", &w.failure)
    return 0


# ---- forward ---------------------------------------------------------------------

cdef int forward(Graph* g, const uint32_t* targets, uint32_t n, int strategy) except -1:
    """Compute the values of the targets and of the nodes that they depend on."""
    cdef int error
    cdef uint32_t n_batches = 0, ran = g.n_batches
    cdef uint64_t span = begin_pass_span(g)
    cdef Several s
    limit_by_devices(g)
    begin_several(&s, g)
    lock_graph(g)
    try:
        if may_drop(g):
            bring_values_back(&s, targets, n)
        with nogil:
            error = plan(g, targets, n, strategy, checking, &n_batches, &s.walk.failure.interrupts)
        if error == 1:
            bring_values_back(&s, targets, n)
            with nogil:
                error = plan(g, targets, n, strategy, checking, &n_batches, &s.walk.failure.interrupts)
        raise_interrupt(&s.walk.failure.interrupts)
        if error:
            out_of_memory("the schedule of the graph")
        find_joined(g, n_batches)
        g.n_passes += n_batches != 0
        with nogil:
            error = run_plan(&s.walk, n_batches, targets, n)
        if error:
            raise_several(&s, "the values of the graph")
    except BaseException as failed:
        drop_plan(g)
        if isinstance(failed, MemoryError):
            raise_of_devices(g, failed)
        raise
    finally:
        unlock_graph(g)
    end_pass(g, FORWARD_PASS, span)
    if profiling > 1:
        list_batches(g, ran)
    return 0


cdef int bring_values_back(Several* s, const uint32_t* targets, uint32_t n) except -1:
    """Compute values again that were dropped and that the targets need."""
    cdef PassStart before = pass_start(s.walk.g)
    cdef int error
    with nogil:
        error = bring_back(&s.walk, targets, n)
    if error:
        undo(s.walk.g, &before)
        raise_several(s, "the values of the graph")
    return 0


cdef void find_joined(Graph* g, uint32_t n_batches) noexcept nogil:
    """Find the batches of each GPU that run as one launch."""
    cdef uint32_t first = g.n_batches, end = first + n_batches, following
    while first < end and may_join(g):
        following = first + 1
        while following < end and go_together(g, following - 1, following):
            following += 1
        if device_of(g, node_of(g, first)):
            find_cells(g, first, following - first)
            find_fusions(g, first, following - first)
        first = following


cdef void limit_by_devices(Graph* g) noexcept nogil:
    cdef DeviceGraph* d = <DeviceGraph*>g.device_graphs
    while d != NULL:
        limit_by_device(g, d)
        d = d.next


cdef int raise_of_devices(Graph* g, object error) except -1:
    """After a lack of memory: what devices have left is the limit from now on; the error says whether it was before."""
    cdef DeviceGraph* d = <DeviceGraph*>g.device_graphs
    if not is_limited(g):
        g.assumed.kept = ENOUGH                 # nothing has been dropped
    limit_by_devices(g)
    while d != NULL and not (g.memory.limit and g.memory.limit == d.limit):
        d = d.next
    if d == NULL:
        raise error
    raise_of_device(g, d, error)


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


cdef int copy_forward(Graph* g, Batch* batch, int device) except -1:
    clear_call(batch)
    take_from(g, batch, source_of(&nodes_of(g)[order_of(g)[batch.first]]))
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
    cdef int error = 0
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
                at = parameter_of(a).device_value if a.val == NULL else device_ptr(g, d, a.val)
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
            error = leave(gpu)
    if gpu != NULL:
        if error:
            raise_error(gpu, error)
        check_updates(gpu)
    return 0


cdef int fetch_part(Gpu* gpu, const float* source, float* to, size_t n) noexcept nogil:
    if n == 0 or gpu.error:
        return gpu.error
    return fetch_bytes(gpu, to, <Address><uintptr_t>source, n * sizeof(float))


cdef int give_to(Graph* g, DeviceGraph* d, float* v, size_t n) except -1:
    """Send n values from an arena of the graph to the mirror of the arena on a device."""
    cdef Gpu* gpu = d.gpu
    cdef size_t needed = g.values.top
    cdef int error = 0, failure
    cdef Range r
    begin_use(&g.values, &d.values)
    begin_use(&g.grads, &d.grads)               # values that are dropped after the pass are there
    r.host_ptr = v
    r.device_ptr = <Address><uintptr_t>device_ptr(g, d, v)
    r.n = n * sizeof(float)
    with nogil:
        note_uses(&g.values, &d.values)
        note_uses(&g.grads, &d.grads)
        if not enter(gpu):
            error = extend_mirror(&d.values)
            if not error:
                error = extend_mirror(&d.grads)
            if not error:
                send_ranges(gpu, &r, 1)
        failure = leave(gpu)
    if error:
        out_of_device_memory(gpu, error, needed, "the values of the graph")
    if failure:
        raise_error(gpu, failure)
    return 0


# ---- backward --------------------------------------------------------------------

cdef int backward(Graph* g, uint32_t target, bint full) except -1:
    """Add the gradient of target to the gradients of parameters, each on its device.

    Exceptions of signal handlers, and errors that waiting for a device reports, are raised when all gradients have been
    added.
    """
    cdef size_t scratch_top = g.scratch.top, tables_top = g.tables.top
    cdef Several s
    cdef Journal journal
    cdef uint64_t used
    cdef int device, error
    cdef uint64_t span = begin_pass_span(g)
    begin_several(&s, g)
    s.journal = s.cpu.journal = &journal
    s.cpu.whole = s.walk.going_back = True
    if checking:
        check_before(g, target)
    used = open_devices(g, target)
    lock_graph(g)
    begin_journal(&journal, checking)           # without checks, only gradients that were zero before are restored
    try:
        keep_gradients(g, target, &journal)
        with nogil:
            error = begin_backward(&s, target, full)
        if error:
            raise_several_or_cpu(&s)
        begin_at_target(&s, target)
        with nogil:
            error = run_all_back(&s, target)
        if error:
            raise_several(&s, "the gradients of the graph")
        with nogil:
            enter_pool()
            error = finish_collected(&s.cpu)
            leave_pool()
        if error:
            raise_failure(g, "the gradients of the graph", &s.cpu.failure)
        with nogil:
            note_after(&journal)
    except BaseException as failed:
        undone = put_gradients_back(&journal)
        if isinstance(failed, MemoryError):
            raise_out_of_memory(g, failed, undone)
        raise
    finally:
        end_journal(&journal)
        arena_rewind(&g.scratch, min(g.scratch.top, scratch_top))
        arena_rewind(&g.tables, tables_top)
        unlock_graph(g)
    end_pass(g, BACKWARD_PASS, span)
    raise_interrupt(&s.cpu.failure.interrupts)
    for device in range(MOST_GPUS):
        if used >> device & 1:
            check_updates(gpu_at(device))
    return 0


cdef int begin_backward(Several* s, uint32_t target, bint full) noexcept nogil:
    cdef const Node* node = &nodes_of(s.walk.g)[target]
    if s.walk.g.stretches.top and node.batch != NO_BATCH and prepare_backward(&s.walk, node.batch):
        return -1
    return open_backward(&s.cpu, target, full)


cdef int raise_several_or_cpu(Several* s) except -1:
    if s.cpu.failure.needed:
        raise_failure(s.walk.g, "the gradients of the graph", &s.cpu.failure)
    raise_several(s, "the gradients of the graph")


cdef int run_all_back(Several* s, uint32_t target) noexcept nogil:
    cdef Graph* g = s.walk.g
    cdef const Node* node = &nodes_of(g)[target]
    if node.val == NULL or not state_of(g)[target] & COMPUTED or node.batch >= g.n_batches:
        return 0
    if g.stretches.top:
        return run_backward_in_stretches(&s.walk, node.batch)
    return run_backward(&s.walk, 0, node.batch)


cdef int raise_out_of_memory(Graph* g, object error, bint undone) except -1:
    try:
        raise_of_devices(g, error)
    except MemoryError as short:
        if undone:
            raise
        of_rest = MemoryError(f"{short}.  {PARTIAL}")
        of_rest.partial = True
        raise of_rest from None


cdef uint64_t open_devices(Graph* g, uint32_t target) except? 0:
    """Prepare each device for backward, before anything is added.  Returns the numbers of the GPUs, as bits.

    The kernels of ops are loaded already, since forward has run them.
    """
    cdef uint64_t used = 0
    cdef uint32_t b
    cdef int device
    open_device(g, device_of(g, target), &used)
    for b in range(g.n_batches):
        device = device_of(g, node_of(g, b))
        open_device(g, device, &used)
        if copies(g, b):
            open_device(g, source_of(&nodes_of(g)[node_of(g, b)]), &used)
    return used


cdef int open_device(Graph* g, int device, uint64_t* used) except -1:
    if device and not used[0] >> (device - 1) & 1:
        load_moves(device_graph(g, device).gpu)
        used[0] |= <uint64_t>1 << (device - 1)
    return 0


cdef int begin_at_target(Several* s, uint32_t target) except -1:
    """Set the gradient of the target to one, on its device."""
    cdef Graph* g = s.walk.g
    cdef int device = device_of(g, target), error
    cdef Pass part
    if device == 0:
        if begin_at(&s.cpu, target):
            raise_failure(g, "the gradients of the graph", &s.cpu.failure)
        return 0
    begin_pass(&part, g, device_graph(g, device))
    follow(s, &part.walk)
    part.walk.journal = s.journal
    error = begin_at(&part.walk, target)
    return finish_pass(&part, error)


cdef inline bint has_gradient(const Graph* g, uint32_t node) noexcept nogil:
    return state_of(g)[node] & (LIVE | NEEDS_GRAD) == (LIVE | NEEDS_GRAD)


cdef int copy_gradients(Several* s, Batch* batch) except -1:
    """Add the gradients of copies to those of the nodes that were copied."""
    cdef Graph* g = s.walk.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef int device = device_of(g, ids[0]), source = source_of(&nodes_of(g)[ids[0]])
    cdef uint32_t j, n_live = 0
    cdef int error
    cdef Pass part
    for j in range(batch.count):
        n_live += has_gradient(g, ids[j])
    if n_live:
        if device:
            fetch_within(g, device, batch.dy, batch.bytes // sizeof(float), &s.cpu.failure.interrupts)
        if source:
            begin_pass(&part, g, device_graph(g, source))
            follow(s, &part.walk)
            part.walk.journal = s.journal
            with nogil:
                error = hand_back(&part.walk, part.d, batch)
            finish_pass(&part, error)
        else:
            hand_back_here(s, batch)
    with nogil:
        take_back(g, &s.walk.lending, batch, NULL)
        close_lending(g, &s.walk.lending)
    return 0


cdef int hand_back_here(Several* s, const Batch* batch) except -1:
    cdef int error
    with nogil:
        enter_pool()
        error = hand_back(&s.cpu, NULL, batch)
        leave_pool()
    if error:
        raise_failure(s.walk.g, "the gradients of the graph", &s.cpu.failure)
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
        if not has_gradient(g, ids[j]):
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


# ---- the device of the walk over several -------------------------------------------

cdef float* place_here(Walk* w, const void* p) noexcept nogil:
    return <float*>p


cdef int do_nothing(Walk* w) noexcept nogil:
    """Each part ends what it has begun."""
    return 0


cdef void note_nothing(Walk* w) noexcept nogil:
    """Each part notes the memory that its device needs."""


cdef int fill(Walk* w, float* to, size_t n, float x) noexcept nogil:
    """Fill memory of an arena on the host and on all devices."""
    K.fill(n, x, to)
    with gil:
        try:
            fill_there(w.g, to, n, x)
        except BaseException as error:
            return note_raised(w, error)
    return 0


cdef int fill_there(Graph* g, float* to, size_t n, float x) except -1:
    cdef DeviceGraph* d = <DeviceGraph*>g.device_graphs
    cdef Pass part
    cdef int error
    while d != NULL:
        load_moves(d.gpu)
        begin_pass(&part, g, d)
        error = part.walk.device.fill(&part.walk, part.walk.device.place(&part.walk, to), n, x)
        finish_pass(&part, error)
        d = d.next
    return 0


cdef Form[FORMS] forms
cdef int form
memset(forms, 0, sizeof(forms))
for form in range(FORMS):                       # of copies
    forms[form].forward = copy_values

cdef Device several
memset(&several, 0, sizeof(Device))
several.kind = CPU
several.forms = forms
several.place = place_here
several.note_memory = note_nothing
several.settle = do_nothing
several.fill = fill
several.finish = do_nothing
several.take_apart = device_of_graphs().take_apart
several.divide = divide

cdef Engine* hooks = engine(ENGINE_MULTI_DEVICE)
hooks.forward = forward
hooks.backward = backward
