"""The executor of graphs on several devices.

A plan is run in segments: consecutive batches that run on one device.  Copies
from one device to another go through the graph's arenas on the host.  Each
address in them has a counterpart on each device, so a value or a gradient is at
the same offset on every device.  The host waits for copies from a device, but
neither for copies to a device nor for the batches that run there.
"""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport total_of
from dynet_cy.core.threads cimport Interrupts, begin_interrupts, interrupted, raise_interrupt
from dynet_cy.execute.accumulation cimport Journal, begin_journal, end_journal
from dynet_cy.execute.cpu cimport begin_cpu_walk, finish_collected
from dynet_cy.execute.gradients cimport begin_at, contribute, open_backward, run_backward
from dynet_cy.execute.walk cimport (
    Walk, allocate_values, assign_values, clear_call, count_as_run, raise_failure, run_planned_at_once, settle,
)
from dynet_cy.execute.watch cimport (
    Finding, bad_values, check_before, checking, end_pass, list_batches, profiling, raise_anomaly,
)
from dynet_cy.gpu.commands cimport Pass, begin_pass
from dynet_cy.gpu.driver cimport MOST_GPUS, Address, Gpu, enter, fetch_bytes, gpu_at, leave, raise_error, wait, wait_for
from dynet_cy.gpu.executor cimport keep_gradients, note_after, put_gradients_back, run_planned, walk_batches_back
from dynet_cy.gpu.graphs cimport DeviceGraph, device_graph, device_ptr, fetch_within
from dynet_cy.gpu.memory cimport (
    Range, begin_use, check_updates, extend_mirror, note_uses, out_of_device_memory, send_ranges,
)
from dynet_cy.gpu.passes cimport load_moves, raise_pass_failure, run_pass
from dynet_cy.graph.making cimport is_transfer, source_of
from dynet_cy.graph.structs cimport (
    COMPUTED, ENGINE_MULTI_DEVICE, LIVE, NEEDS_GRAD, NO_BATCH, Batch, Engine, Graph, Node, args_of, batches_of,
    device_of, engine, gradient_of_node, nodes_of, order_of, release_arguments, state_of, unclaim_values, value_of,
)
from dynet_cy.graph.table cimport lock_graph, unlock_graph
from dynet_cy.graph.timeline cimport BACKWARD_PASS, FORWARD_PASS, begin_pass_span
from dynet_cy.kernels.pool cimport enter_pool, leave_pool
from dynet_cy.memory.arena cimport arena_rewind, array_push, out_of_memory
from dynet_cy.memory.storage cimport Param
from dynet_cy.schedule.plan cimport drop_plan, plan


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


# ---- forward ---------------------------------------------------------------------

cdef int forward(Graph* g, const uint32_t* targets, uint32_t n, int strategy) except -1:
    """Compute the values of the targets and of the nodes that they depend on."""
    cdef int error, device
    cdef uint32_t n_batches = 0, ran = g.n_batches, end, following
    cdef uint64_t span = begin_pass_span(g)
    cdef Interrupts s
    begin_interrupts(&s)
    lock_graph(g)
    try:
        with nogil:
            error = plan(g, targets, n, strategy, checking, &n_batches, &s)
        raise_interrupt(&s)
        if error:
            out_of_memory("the schedule of the graph")
        end = g.n_batches + n_batches
        while g.n_batches < end:
            following = g.n_batches + 1
            while following < end and go_together(g, following - 1, following):
                following += 1
            device = device_of(g, node_of(g, g.n_batches))
            if copies(g, g.n_batches):
                copy_forward(g, device)
            elif device:
                run_planned(g, device_graph(g, device), following - g.n_batches, NULL, 0, True)
            else:
                run_here(g, following)
            with nogil:
                interrupted(&s, batches_of(g)[g.n_batches - 1].bytes)
            raise_interrupt(&s)
    except BaseException:
        drop_plan(g)
        raise
    finally:
        unlock_graph(g)
    end_pass(g, FORWARD_PASS, span)
    if profiling > 1:
        list_batches(g, ran)
    return 0


cdef int run_here(Graph* g, uint32_t end) except -1:
    """Run planned batches on the CPU."""
    cdef Walk w
    cdef int error
    begin_cpu_walk(&w, g)
    with nogil:
        enter_pool()
        error = run_planned_at_once(&w, end - g.n_batches)
        leave_pool()
    raise_interrupt(&w.failure.interrupts)
    if error:
        raise_failure(g, "the values of the graph", &w.failure)
    return 0


cdef int copy_forward(Graph* g, int device) except -1:
    """Run the next planned batch, which copies values to a device."""
    cdef Batch* batch = &batches_of(g)[g.n_batches]
    cdef size_t top = g.values.top
    cdef Finding finding
    memset(&finding, 0, sizeof(Finding))
    clear_call(batch)
    if not allocate_values(g, batch):
        out_of_memory("the values of the graph")
    try:
        take_from(g, batch, source_of(&nodes_of(g)[order_of(g)[batch.first]]))
        if checking and bad_values(g, batch, g.check_validity, &finding):
            raise_anomaly(g, &finding)
        if device:
            give_to(g, device_graph(g, device), batch.y, batch.bytes // sizeof(float))
    except BaseException:
        unclaim_values(g, batch.y, batch.bytes, top)
        raise
    assign_values(g, batch, g.n_batches)
    count_as_run(g)
    if g.forward_only:
        release_arguments(g, batch)
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
    r.host_ptr = v
    r.device_ptr = <Address><uintptr_t>device_ptr(g, d, v)
    r.n = n * sizeof(float)
    with nogil:
        note_uses(&g.values, &d.values)
        if not enter(gpu):
            error = extend_mirror(&d.values)
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
    cdef Walk cpu                               # over the batches of the CPU
    cdef Journal journal
    cdef uint32_t first, end
    cdef uint64_t used
    cdef int device, error
    cdef uint64_t span = begin_pass_span(g)
    begin_cpu_walk(&cpu, g)
    cpu.journal = &journal
    cpu.whole = True
    if checking:
        check_before(g, target)
    used = open_devices(g, target)
    lock_graph(g)
    begin_journal(&journal, True)
    try:
        keep_gradients(g, target, &journal)
        journal.irrevocable |= not checking     # without checks, gradients on devices are not restored
        with nogil:
            error = open_backward(&cpu, target, full)
        if error:
            raise_failure(g, "the gradients of the graph", &cpu.failure)
        begin_at_target(&cpu, target)
        end = 0
        if state_of(g)[target] & COMPUTED and nodes_of(g)[target].batch < g.n_batches:
            end = nodes_of(g)[target].batch + 1
        while end:
            first = end - 1
            while first and go_together(g, first - 1, first):
                first -= 1
            device = device_of(g, node_of(g, first))
            if copies(g, first):
                copy_backward(&cpu, &batches_of(g)[first], device)
            elif device:
                run_back(g, device_graph(g, device), first, end - 1)
            else:
                run_back_here(&cpu, first, end - 1)
            end = first
        with nogil:
            enter_pool()
            error = finish_collected(&cpu)
            leave_pool()
        if error:
            raise_failure(g, "the gradients of the graph", &cpu.failure)
        note_after(&journal)
    except BaseException:
        put_gradients_back(&journal)
        raise
    finally:
        end_journal(&journal)
        arena_rewind(&g.scratch, scratch_top)
        arena_rewind(&g.tables, tables_top)
        unlock_graph(g)
    end_pass(g, BACKWARD_PASS, span)
    raise_interrupt(&cpu.failure.interrupts)
    for device in range(MOST_GPUS):
        if used >> device & 1:
            check_updates(gpu_at(device))
    return 0


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


cdef int begin_at_target(Walk* cpu, uint32_t target) except -1:
    """Set the gradient of the target to one, on its device."""
    cdef Graph* g = cpu.g
    cdef int device = device_of(g, target), error
    cdef Pass s
    if device == 0:
        if begin_at(cpu, target):
            raise_failure(g, "the gradients of the graph", &cpu.failure)
        return 0
    begin_pass(&s, g, device_graph(g, device))
    error = begin_at(&s.walk, target)
    return finish_pass(&s, error)


cdef int finish_pass(Pass* s, int error) except -1:
    """Run a pass that has been listed, or raise the error that stopped the listing."""
    if error:
        raise_pass_failure(s, "the gradients of the graph")
    return run_pass(s, "the gradients of the graph")


cdef int run_back(Graph* g, DeviceGraph* d, uint32_t first, uint32_t last) except -1:
    """Run batches of a GPU backward."""
    cdef Pass s
    cdef int error
    begin_pass(&s, g, d)
    with nogil:
        error = walk_batches_back(&s, first, last)
    return finish_pass(&s, error)


cdef int run_back_here(Walk* w, uint32_t first, uint32_t last) except -1:
    """Run batches of the CPU backward."""
    cdef int error
    with nogil:
        enter_pool()
        error = run_backward(w, first, last)
        leave_pool()
    if error:
        raise_failure(w.g, "the gradients of the graph", &w.failure)
    return 0


cdef inline bint has_gradient(const Graph* g, uint32_t node) noexcept nogil:
    return state_of(g)[node] & (LIVE | NEEDS_GRAD) == (LIVE | NEEDS_GRAD)


cdef int copy_backward(Walk* cpu, const Batch* batch, int device) except -1:
    """Add the gradients of copies, which are on `device`, to those of the nodes that were copied."""
    cdef Graph* g = cpu.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef int source = source_of(&nodes_of(g)[ids[0]])
    cdef uint32_t j, n_live = 0
    cdef int error
    cdef Pass s
    for j in range(batch.count):
        n_live += has_gradient(g, ids[j])
    if n_live == 0:
        return 0
    if device:
        fetch_within(g, device, batch.dy, batch.bytes // sizeof(float), &cpu.failure.interrupts)
    if source:
        begin_pass(&s, g, device_graph(g, source))
        with nogil:
            error = hand_back(&s.walk, s.d, batch)
        return finish_pass(&s, error)
    with nogil:
        enter_pool()
        error = hand_back(cpu, NULL, batch)
        leave_pool()
    if error:
        raise_failure(g, "the gradients of the graph", &cpu.failure)
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


cdef Engine* hooks = engine(ENGINE_MULTI_DEVICE)
hooks.forward = forward
hooks.backward = backward
