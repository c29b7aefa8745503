"""The executor of graphs on several devices.

A plan is run in segments: batches that follow each other and run on one device.
What is copied from one device to another goes through the graph's arenas here:
a place in them stands for one on each device, so a value, or a gradient, lies
at the same place wherever it is.  A copy from a device is waited for; one to a
device is not, nor is what runs there.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy

from dynet_cy.core.interrupts cimport Interrupts, begin_interrupts, interrupted, raise_interrupt
from dynet_cy.core.tensor cimport total_of
from dynet_cy.execute.anomaly cimport bad_values, check_before, checking, raise_anomaly
from dynet_cy.execute.collect cimport add_collected
from dynet_cy.execute.cpu cimport (
    Failure, add_to_parameter, begin_failure, check_collected, count_as_run, hand_out_values, list_batches, make_room,
    mark_gradients, raise_failure, run_batch, run_batch_backward,
)
from dynet_cy.execute.gradient_hooks cimport gradient_hooks
from dynet_cy.execute.journal cimport Journal, Waiting, begin_journal, end_journal, note_before
from dynet_cy.execute.profile cimport profiling
from dynet_cy.gpu.clips cimport check_updates
from dynet_cy.gpu.driver cimport (
    MOST_GPUS, Address, Gpu, enter, fetch_bytes, gpu_at, leave, pthread_mutex_lock, pthread_mutex_unlock, raise_error,
    wait, wait_for,
)
from dynet_cy.gpu.executor cimport run_planned
from dynet_cy.gpu.gradients cimport (
    add_gradient, add_one, keep_gradients, list_batches_backward, note_after, put_gradients_back, remember_moves,
)
from dynet_cy.gpu.graphs cimport DeviceGraph, device_graph, device_ptr, fetch_within
from dynet_cy.gpu.memory cimport Range, out_of_device_memory, send_ranges
from dynet_cy.gpu.mirrored cimport begin_use, extend_mirror, note_uses
from dynet_cy.gpu.passes cimport (
    Pass, add_fill, begin_moves, begin_pass, end_moves, load_moves, raise_pass_failure, run_pass,
)
from dynet_cy.graph.graph cimport (
    COMPUTED, ENGINE_MULTI_DEVICE, LIVE, NEEDS_GRAD, NO_BATCH, TRAINABLE, Batch, Engine, Graph, Node, args_of,
    batches_of, device_of, engine, gradient_at, lock_graph, nodes_of, open_gradients, order_of, release_arguments,
    state_of, unlock_graph, untake_values, value_of,
)
from dynet_cy.graph.timeline cimport BACKWARD_PASS, FORWARD_PASS, begin_pass_span, end_span
from dynet_cy.graph.transfer cimport is_transfer, source_of
from dynet_cy.kernels.kernels cimport K
from dynet_cy.kernels.pool cimport enter_pool, leave_pool
from dynet_cy.memory.arena cimport arena_rewind, array_push, out_of_memory
from dynet_cy.memory.storage cimport Param, note_gradient
from dynet_cy.schedule.plan cimport drop_plan, plan


# ---- segments --------------------------------------------------------------------

cdef inline uint32_t node_of(const Graph* g, uint32_t batch) noexcept nogil:
    """The first node of a batch: all of them run on its device."""
    return order_of(g)[batches_of(g)[batch].first]


cdef inline bint copies(const Graph* g, uint32_t batch) noexcept nogil:
    """Whether a batch copies values from device to device.  It is a segment of its own."""
    return is_transfer(&nodes_of(g)[node_of(g, batch)])


cdef inline bint go_together(const Graph* g, uint32_t a, uint32_t b) noexcept nogil:
    """Whether batches that follow each other are of one segment."""
    return (not copies(g, a) and not copies(g, b)
            and device_of(g, node_of(g, a)) == device_of(g, node_of(g, b)))


cdef inline Param* parameter_of(const Node* x) noexcept nogil:
    return <Param*>x.object


# ---- forward ---------------------------------------------------------------------

cdef int forward(Graph* g, const uint32_t* targets, uint32_t n, int strategy) except -1:
    """Compute the values of the targets and all that they need."""
    cdef int error, device
    cdef uint32_t n_batches = 0, ran = g.n_batches, end, following
    cdef uint64_t span = begin_pass_span(g)
    cdef Interrupts s
    begin_interrupts(&s)
    lock_graph(g)
    try:
        with nogil:
            error = plan(g, targets, n, strategy, &n_batches, &s)
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
                run_planned(g, device_graph(g, device), following - g.n_batches)
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
    end_span(FORWARD_PASS, span)
    if profiling > 1:
        list_batches(g, ran)
    return 0


cdef int run_here(Graph* g, uint32_t end) except -1:
    """Run planned batches on the CPU."""
    cdef Failure failure
    cdef int error = 0
    begin_failure(&failure)
    with nogil:
        enter_pool()
        while not error and g.n_batches < end:
            error = run_batch(g, &batches_of(g)[g.n_batches], &failure)
            if not error:                       # else perhaps not one batch has run
                error = interrupted(&failure.interrupts, batches_of(g)[g.n_batches - 1].bytes)
        leave_pool()
    raise_interrupt(&failure.interrupts)
    if error:
        raise_failure(g, "the values of the graph", &failure)
    return 0


cdef int copy_forward(Graph* g, int device) except -1:
    """Run the next planned batch, which copies values to a device."""
    cdef Batch* batch = &batches_of(g)[g.n_batches]
    cdef size_t top = g.values.top
    cdef Failure failure
    begin_failure(&failure)
    batch.x = NULL
    batch.items = NULL
    batch.saved = NULL
    batch.saved_of = NULL
    if not make_room(g, batch):
        out_of_memory("the values of the graph")
    try:
        take_from(g, batch, source_of(&nodes_of(g)[order_of(g)[batch.first]]))
        if checking and bad_values(g, batch, g.check_validity, &failure.finding):
            raise_anomaly(g, &failure.finding)
        if device:
            give_to(g, device_graph(g, device), batch.y, batch.bytes // sizeof(float))
    except BaseException:
        untake_values(g, batch.y, batch.bytes, top)
        raise
    hand_out_values(g, batch, g.n_batches)
    count_as_run(g)
    if g.forward_only:
        release_arguments(g, batch)
    return 0


cdef int take_from(Graph* g, const Batch* batch, int device) except -1:
    """Bring the arguments of the nodes of a batch from a device to the place of their results here."""
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef DeviceGraph* d = device_graph(g, device) if device else NULL
    cdef Gpu* gpu = d.gpu if device else NULL
    cdef float* y = batch.y
    # What is fetched next: it goes on while the arguments lie side by side.
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
            if gpu == NULL or (a.val != NULL and a.batch == NO_BATCH):      # inputs are here
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
    """Send values at a place of the graph to the same place on a device."""
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

    What a handler of a signal raises is kept until all of it has been added, and so is what waiting for a device tells.
    """
    cdef size_t scratch_top = g.scratch.top, tables_top = g.tables.top
    cdef Failure failure
    cdef Journal journal
    cdef Waiting* w
    cdef uint32_t first, end
    cdef uint64_t used
    cdef int device, error
    cdef uint64_t span = begin_pass_span(g)
    if gradient_hooks().complete != NULL:
        raise NotImplementedError("training in several processes is not done for graphs on several devices yet")
    begin_failure(&failure)
    if checking:
        check_before(g, target)
    used = open_devices(g, target)
    lock_graph(g)
    begin_journal(&journal, True)
    try:
        keep_gradients(g, target, &journal)
        journal.irrevocable |= not checking     # gradients on devices are not taken back then
        with nogil:
            mark_gradients(g, target, full)
        if not open_gradients(g):
            out_of_memory("the gradients of the graph")
        begin(g, target, &journal)
        end = 0
        if state_of(g)[target] & COMPUTED and nodes_of(g)[target].batch < g.n_batches:
            end = nodes_of(g)[target].batch + 1
        while end:
            first = end - 1
            while first and go_together(g, first - 1, first):
                first -= 1
            device = device_of(g, node_of(g, first))
            if copies(g, first):
                copy_backward(g, &batches_of(g)[first], device, &journal, &failure)
            elif device:
                run_back(g, device_graph(g, device), first, end - 1)
            else:
                run_back_here(g, first, end, &journal, &failure)
            end = first
        with nogil:
            enter_pool()
            w = journal.waiting
            while w != NULL:
                add_collected(w, &journal)
                w = w.next
            error = check_collected(g, journal.waiting, &failure)
            leave_pool()
        if error:
            raise_failure(g, "the gradients of the graph", &failure)
        note_after(&journal)
    except BaseException:
        put_gradients_back(&journal)
        raise
    finally:
        end_journal(&journal)
        arena_rewind(&g.scratch, scratch_top)
        arena_rewind(&g.tables, tables_top)
        unlock_graph(g)
    end_span(BACKWARD_PASS, span)
    raise_interrupt(&failure.interrupts)
    for device in range(MOST_GPUS):
        if used >> device & 1:
            check_updates(gpu_at(device))
    return 0


cdef uint64_t open_devices(Graph* g, uint32_t target) except? 0:
    """Have what backward needs on each device, before anything is added; the numbers of the GPUs, as bits.

    The kernels of ops are there, since forward has run them.
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


cdef int begin(Graph* g, uint32_t target, Journal* journal) except -1:
    """The gradient of the target by itself is one."""
    cdef Node* x = &nodes_of(g)[target]
    cdef int device = device_of(g, target)
    cdef bint trained = (state_of(g)[target] & TRAINABLE) != 0
    cdef DeviceGraph* d
    cdef Pass s
    cdef int error
    if x.val != NULL:
        state_of(g)[target] |= LIVE
    if device == 0:
        if x.val != NULL:
            K.fill(x.dim.bd, 1.0, gradient_at(g, x.val))
        elif trained:
            add_to_parameter(parameter_of(x), journal)
        return 0
    d = device_graph(g, device)
    begin_pass(&s, g, d)
    if x.val != NULL:
        error = add_fill(&s, device_ptr(g, d, gradient_at(g, x.val)), x.dim.bd, 1)
    else:
        error = add_one(&s, parameter_of(x)) if trained else 0
    if error:
        raise_pass_failure(&s, "the gradients of the graph")
    return run_pass(&s, "the gradients of the graph")


cdef int run_back(Graph* g, DeviceGraph* d, uint32_t first, uint32_t last) except -1:
    """Backward over batches of a device."""
    cdef Pass s
    cdef int error
    begin_pass(&s, g, d)
    with nogil:
        error = list_batches_backward(&s, first, last)
    if error:
        raise_pass_failure(&s, "the gradients of the graph")
    return run_pass(&s, "the gradients of the graph")


cdef int run_back_here(Graph* g, uint32_t first, uint32_t end, Journal* journal, Failure* failure) except -1:
    """Backward over batches of the CPU."""
    cdef size_t top = g.scratch.top
    cdef int error = 0
    with nogil:
        enter_pool()
        while not error and end > first:
            end -= 1
            error = run_batch_backward(g, &batches_of(g)[end], journal, failure)
            interrupted(&failure.interrupts, batches_of(g)[end].bytes)
            arena_rewind(&g.scratch, top)
        leave_pool()
    if error:
        raise_failure(g, "the gradients of the graph", failure)
    return 0


cdef inline bint has_gradient(const Graph* g, uint32_t node) noexcept nogil:
    return state_of(g)[node] & (LIVE | NEEDS_GRAD) == (LIVE | NEEDS_GRAD)


cdef int copy_backward(Graph* g, const Batch* batch, int device, Journal* journal, Failure* failure) except -1:
    """Add the gradients of nodes that are copies, which are on a device, to those of what they are copies of."""
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef int source = source_of(&nodes_of(g)[ids[0]])
    cdef uint32_t j, n_live = 0
    for j in range(batch.count):
        n_live += has_gradient(g, ids[j])
    if n_live == 0:
        return 0
    if device:
        fetch_within(g, device, gradient_at(g, batch.y), batch.bytes // sizeof(float), &failure.interrupts)
    if source:
        return hand_back(g, device_graph(g, source), batch)
    with nogil:
        enter_pool()
        for j in range(batch.count):
            if has_gradient(g, ids[j]):
                add_here(g, ids[j], journal)
        leave_pool()
    return 0


cdef void add_here(Graph* g, uint32_t node, Journal* journal) noexcept nogil:
    """Add the gradient of a node to that of its argument, which is on the CPU."""
    cdef uint8_t* state = state_of(g)
    cdef Node* x = &nodes_of(g)[node]
    cdef uint32_t arg = args_of(g, x)[0]
    cdef Node* a = &nodes_of(g)[arg]
    cdef const float* dy = gradient_at(g, x.val)
    cdef size_t n = total_of(&x.dim)
    cdef Param* p
    if a.val == NULL:
        if state[arg] & TRAINABLE:
            p = parameter_of(a)
            pthread_mutex_lock(&p.lock)
            note_before(journal, p)
            K.add(n, dy, p.grad)
            note_gradient(p)
            pthread_mutex_unlock(&p.lock)
    elif state[arg] & LIVE:
        K.add(n, dy, gradient_at(g, a.val))
    elif state[arg] & NEEDS_GRAD:
        memcpy(gradient_at(g, a.val), dy, n * sizeof(float))
        state[arg] |= LIVE


cdef int hand_back(Graph* g, DeviceGraph* d, const Batch* batch) except -1:
    """Send the gradients of nodes that are here to the device of their arguments, and add them there."""
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* x
    cdef Pass s
    cdef Range* r
    cdef float* dy
    cdef uint32_t j
    cdef int error
    begin_pass(&s, g, d)
    with nogil:
        error = remember_moves(&s)
        begin_moves(&s)
        for j in range(batch.count):
            if error or not has_gradient(g, ids[j]):
                continue
            x = &nodes_of(g)[ids[j]]
            dy = gradient_at(g, x.val)
            r = <Range*>array_push(&d.ranges, sizeof(Range))
            if r == NULL:
                s.failure.needed = sizeof(Range)
                error = -1
                continue
            r.device_ptr = <Address><uintptr_t>device_ptr(g, d, dy)
            r.host_ptr = dy
            r.n = total_of(&x.dim) * sizeof(float)
            error = add_gradient(&s, args_of(g, x)[0], device_ptr(g, d, dy), total_of(&x.dim), 1)
        if not error:
            error = end_moves(&s)
    if error:
        raise_pass_failure(&s, "the gradients of the graph")
    return run_pass(&s, "the gradients of the graph")


cdef Engine* hooks = engine(ENGINE_MULTI_DEVICE)
hooks.forward = forward
hooks.backward = backward
