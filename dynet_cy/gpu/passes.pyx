"""Passes over a graph on a device: commands that are listed first, and then run."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport qsort
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport total_of
from dynet_cy.execute.anomaly cimport bad_collected, bad_gradients, bad_values, checking, raise_anomaly
from dynet_cy.execute.cpu cimport raise_failure, set_call
from dynet_cy.execute.profile cimport WEIGHT_GRADIENTS, note, note_call, now, profiling
from dynet_cy.gpu.driver cimport (
    Address, Gpu, GpuOp, enter, failed, fetch_bytes, fill, gemm, launch, leave, raise_error, wait,
)
from dynet_cy.gpu.graphs cimport device_ptr
from dynet_cy.gpu.memory cimport Range, out_of_device_memory, send_ranges
from dynet_cy.gpu.mirrored cimport address_in, begin_use, extend_mirror, goes_on, note_use, note_uses
from dynet_cy.gpu.registry cimport gpu_op_at, kernel_at, load, loaded, module_at
from dynet_cy.gpu.replay cimport begin_listing, run_listed
from dynet_cy.graph.graph cimport (
    LIVE, NEEDS_GRAD, NO_BATCH, TRAINABLE, Node, args_of, batches_of, gradient_at, items_of, nodes_of, order_of,
    state_of,
)
from dynet_cy.memory.arena cimport (
    ALIGN, Segment, arena_alloc, arena_extend, arena_rewind, array_push, array_rewind, segment_at,
)
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport op_at

cdef int BASE = module_at(b"base")
cdef int MOVE = kernel_at(BASE, b"move_floats")


cdef void* room(Pass* s, Arena* a, size_t n) noexcept nogil:
    cdef void* p = arena_alloc(a, n)
    if p == NULL:
        s.failure.needed = n
    return p


cdef void* scratch(Pass* s, size_t n) noexcept nogil:
    """Room in the scratch arena, which the device has to have too."""
    cdef void* p = room(s, &s.g.scratch, n)
    s.scratch_needed = max(s.scratch_needed, s.g.scratch.top)
    note_use(&s.g.scratch, &s.d.scratch)
    return p


# ---- commands ------------------------------------------------------------------

cdef Command* add_command(Pass* s, int kind) noexcept nogil:
    cdef Command* c = <Command*>room(s, &s.d.commands, sizeof(Command))
    if c == NULL:
        return NULL
    c.next = NULL
    c.kind = kind
    c.op = 0
    c.batch = s.batch
    c.items = NULL
    s.end[0] = c
    s.end = &c.next
    return c


cdef int add_fill(Pass* s, float* p, size_t n, float x) noexcept nogil:
    cdef Command* c
    if n == 0:
        return 0
    c = add_command(s, FILL)
    if c == NULL:
        return -1
    c.p = p
    c.n = n
    c.x = x
    return 0


cdef int add_call(Pass* s, int kind, const Call* call, Batch* batch, uint32_t i, uint32_t nodes) noexcept nogil:
    """The command of a call: a copy of it, with its arguments."""
    cdef Command* c = add_command(s, kind)
    cdef Tensor* x
    if c == NULL:
        return -1
    x = <Tensor*>room(s, &s.d.commands, call.n * sizeof(Tensor))
    if x == NULL:
        return -1
    memcpy(x, call.x, call.n * sizeof(Tensor))
    c.call = call[0]
    c.call.x = x
    c.op = nodes_of(s.g)[order_of(s.g)[batch.first]].op
    c.items = batch.items
    c.i = i
    c.nodes = nodes
    c.first = batch.first
    c.members = batch.count
    return 0


cdef void begin_moves(Pass* s) noexcept nogil:
    s.moves = NULL
    s.group += s.n_moves
    s.n_moves = 0
    s.longest = 0


cdef Move* add_move(Pass* s, const float* source, float* to, size_t n, bint acc) noexcept nogil:
    """A move more in the group; one that goes on where the one before it ends is part of that."""
    cdef Move* m
    if s.n_moves:
        m = &s.moves[s.n_moves - 1]
        if (m.acc == acc and m.to + m.n == to
                and ((source == NULL) if m.source == NULL else m.source + m.n == source)):
            m.n += n
            s.longest = max(s.longest, m.n)
            return m
    return add_move_apart(s, source, to, n, acc)


cdef Move* add_move_apart(Pass* s, const float* source, float* to, size_t n, bint acc) noexcept nogil:
    """A move that is not joined to the one before it."""
    # The group is a contiguous table: nothing else is put there meanwhile.
    cdef Move* moves = <Move*>(room(s, &s.g.tables, sizeof(Move)) if s.n_moves == 0 else
                               arena_extend(&s.g.tables, s.moves, s.n_moves * sizeof(Move), sizeof(Move)))
    cdef Move* m = moves + s.n_moves
    if moves == NULL:
        s.failure.needed = sizeof(Move)
        return NULL
    s.moves = moves
    memset(m, 0, sizeof(Move))
    m.source = <float*>source
    m.to = to
    m.n = n
    m.scale = 1
    m.acc = acc
    s.n_moves += 1
    s.longest = max(s.longest, n)
    return m


cdef int end_moves(Pass* s) noexcept nogil:
    cdef Command* c
    if s.n_moves == 0 or s.longest == 0:
        return 0
    c = add_command(s, MOVES)
    if c == NULL:
        return -1
    c.p = device_ptr(s.g, s.d, s.moves)
    c.count = s.n_moves
    c.n = s.longest
    return 0


cdef int lay_items(Pass* s, Batch* batch) noexcept nogil:
    """The items of the nodes of a call, in the tables."""
    cdef Graph* g = s.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* node = &nodes_of(g)[ids[0]]
    cdef uint32_t j
    cdef size_t n = 0
    batch.items = NULL
    if node.item_count == 0:
        return 0
    batch.items = <uint32_t*>room(s, &g.tables, <size_t>batch.bd * node.item_count * sizeof(uint32_t))
    if batch.items == NULL:
        return -1
    for j in range(batch.count):
        node = &nodes_of(g)[ids[j]]
        memcpy(batch.items + n, items_of(g, node), <size_t>node.dim.bd * node.item_count * sizeof(uint32_t))
        n += <size_t>node.dim.bd * node.item_count
    return 0


cdef int set_device_call(Pass* s, Batch* batch, Tensor* few, Call* c) noexcept nogil:
    """The call of a batch with places on the device."""
    cdef Graph* g = s.g
    cdef Node* node = &nodes_of(g)[order_of(g)[batch.first]]
    cdef uint32_t* args = args_of(g, node)
    cdef Tensor* x
    cdef Node* a
    cdef uint32_t i
    if set_call(g, batch, few, c, &s.failure):
        return -1
    for i in range(c.n):
        x = <Tensor*>&c.x[i]
        a = &nodes_of(g)[args[i]]
        if x.list != NULL:
            x.list = <float**>device_ptr(g, s.d, x.list)
        elif a.val == NULL and (batch.count == 1 or batch.x[i].v == NULL):
            x.v = (<Param*>a.object).device_value
        else:
            x.v = device_ptr(g, s.d, x.v)
        x.pack = NULL
    c.y.v = device_ptr(g, s.d, c.y.v)
    if node.item_count:
        c.items = <const uint32_t*>device_ptr(g, s.d, batch.items)
    if c.saved != NULL:
        c.saved = device_ptr(g, s.d, c.saved)
    if gpu_op_at(node.op).draws:
        if s.seeds == NULL:
            s.seeds = <uint64_t*>room(s, &g.tables, 2 * sizeof(uint64_t))
            if s.seeds == NULL:
                return -1
            s.seeds[0] = c.seed
            s.seeds[1] = c.stream
        c.seed = <uint64_t><uintptr_t>device_ptr(g, s.d, s.seeds)
    return 0


cdef void begin_pass(Pass* s, Graph* g, DeviceGraph* d) noexcept nogil:
    memset(s, 0, sizeof(Pass))
    s.d = d
    s.g = g
    s.end = &s.first
    s.modules = <uint64_t>1 << BASE
    s.batch = NO_BATCH
    s.values_needed = g.values.top
    s.scratch_needed = g.scratch.top
    s.tables_from = g.tables.top
    begin_use(&g.values, &d.values)
    begin_use(&g.grads, &d.grads)
    begin_use(&g.scratch, &d.scratch)
    begin_use(&g.tables, &d.tables)
    arena_rewind(&d.commands, 0)
    array_rewind(&d.ranges, 0)


cdef int raise_pass_failure(Pass* s, str what) except -1:
    """Raise for what stopped the first part of a pass."""
    if s.missing:
        name = op_at(s.missing - 1).name.decode()
        raise NotImplementedError(
            f"{name}: {'its gradient' if s.missing_gradient else 'it'} is not done on GPU:{s.d.gpu.number} yet; "
            "docs/gpu.md lists what is not, and to_device(x, 'CPU') lets it run on the CPU")
    raise_failure(s.g, what, &s.failure)


cdef int load_moves(Gpu* gpu) except -1:
    if not loaded(gpu)[0] >> BASE & 1:
        load(gpu, <uint64_t>1 << BASE)
    return 0


cdef int run_pass(Pass* s, str what) except -1:
    """The second part: load what is needed, make room on the device, upload, run the commands."""
    cdef Gpu* gpu = s.d.gpu
    cdef int error = 0, failure
    cdef size_t needed = 0
    if s.modules & ~loaded(gpu)[0]:
        load(gpu, s.modules)
    with nogil:
        note_uses(&s.g.values, &s.d.values)
        note_uses(&s.g.grads, &s.d.grads)
        note_uses(&s.g.tables, &s.d.tables)
        if not enter(gpu):
            error = extend_all(s, &needed)
            if not error and not upload(s):
                run_commands(s)
        gpu.items = NULL
        failure = leave(gpu)
    if error:
        out_of_device_memory(gpu, error, needed, what)
    if failure:
        raise_error(gpu, failure)
    if s.failure.finding.kind:
        raise_anomaly(s.g, &s.failure.finding)
    return 0


cdef int extend_all(Pass* s, size_t* needed) noexcept nogil:
    cdef int error
    needed[0] = s.values_needed
    error = extend_mirror(&s.d.values)
    if not error:
        needed[0] = s.g.grads.top
        error = extend_mirror(&s.d.grads)
    if not error:
        needed[0] = s.scratch_needed
        error = extend_mirror(&s.d.scratch)
    if not error:
        needed[0] = s.g.tables.top
        error = extend_mirror(&s.d.tables)
    return error


cdef int by_place(const void* a, const void* b) noexcept nogil:
    cdef uint64_t x = (<const Range*>a).device_ptr
    cdef uint64_t y = (<const Range*>b).device_ptr
    return (x > y) - (x < y)


cdef size_t join_ranges(Range* r, size_t n) noexcept nogil:
    """Let inputs be one range where nothing but the gaps of alignment lies between them."""
    cdef size_t i, k = 0
    cdef uint64_t gap
    qsort(r, n, sizeof(Range), by_place)
    for i in range(1, n):
        gap = r[i].device_ptr - r[k].device_ptr - r[k].n
        if gap < <uint64_t>ALIGN:
            r[k].n += gap
            if <const char*>r[k].host_ptr + r[k].n == <const char*>r[i].host_ptr:
                r[k].n += r[i].n
                continue                        # else two segments of an arena meet there
        k += 1
        r[k] = r[i]
    return k + 1 if n else 0


cdef int upload(Pass* s) noexcept nogil:
    """Inputs and tables, in one buffer."""
    cdef Arena* tables = &s.g.tables
    cdef Range* r = <Range*>s.d.ranges.base
    cdef const Segment* part
    cdef size_t begin = s.tables_from, end, copied
    s.d.ranges.top = join_ranges(r, s.d.ranges.top // sizeof(Range)) * sizeof(Range)
    while begin < tables.top:                   # from segment to segment
        part = segment_at(tables, begin)
        end = copied = tables.top
        if part < tables.segments + tables.now:
            end = copied = part[1].begin
            if goes_on(tables, &s.d.tables, part):  # with its unused end it is one copy with the next one
                copied = part.begin + part.bytes
        r = <Range*>array_push(&s.d.ranges, sizeof(Range))
        if r == NULL:
            return failed(s.d.gpu, 2, -1)
        r.host_ptr = part.p + (begin - part.begin)
        r.device_ptr = address_in(tables, &s.d.tables, r.host_ptr)
        r.n = copied - begin
        begin = end
    return send_ranges(s.d.gpu, <Range*>s.d.ranges.base, s.d.ranges.top // sizeof(Range))


cdef int run_commands(Pass* s) noexcept nogil:
    cdef Gpu* gpu = s.d.gpu
    cdef Command* c = s.first
    cdef GpuOp* gpu_op
    cdef uint64_t begun
    # While commands are timed, each is run and waited for by itself.
    cdef bint timed = profiling != 0
    # While they are checked, each batch is waited for.
    cdef bint checked = checking != 0
    cdef bint listed = not timed and not checked and begin_listing(gpu)
    if timed:
        wait(gpu)
    while c != NULL and not gpu.error:
        begun = now() if timed else 0
        gpu_op = gpu_op_at(c.op)
        gpu.items = c.items
        gpu.op = c.op
        if c.kind == MOVES:
            move(gpu, c)
        elif c.kind == FILL:
            fill(gpu, c.n, c.x, c.p)
        elif c.kind == PRODUCT:
            gemm(gpu, 0, 1, c.rows, c.cols, c.n, 1, c.left, c.rows, c.right, c.cols, 1, c.p, c.rows)
        elif c.kind == FORWARD:
            gpu_op.forward(gpu, &c.call)
        elif c.kind == BEGIN:
            gpu_op.begin(gpu, &c.call)
        else:
            gpu_op.backward(gpu, &c.call, c.i)
        if timed:
            wait(gpu)
            if c.kind == PRODUCT:
                note(WEIGHT_GRADIENTS, True, 1, begun)
            elif c.kind == FORWARD or c.kind == BACKWARD:
                note_call(s.g, c.first, c.members, c.kind == BACKWARD, c.nodes, begun)
        if checked and c.batch != NO_BATCH and (c.next == NULL or c.next.batch != c.batch) and look(s, c.batch):
            return gpu.error
        c = c.next
    if checked:
        look_at_collected(s)
    return run_listed(gpu, &s.d.replays) if listed else gpu.error


# ---- checks: what CPU executors look at, after it was fetched --------------------------

cdef int bring(Pass* s, const float* source, const float* host_ptr, size_t n) noexcept nogil:
    """Ask for n numbers of the device."""
    if n == 0 or s.d.gpu.error:
        return s.d.gpu.error
    return fetch_bytes(s.d.gpu, <void*>host_ptr, <Address><uintptr_t>source, n * sizeof(float))


cdef int bring_node(Pass* s, uint32_t number, bint gradient) noexcept nogil:
    """Ask for the value or the gradient of a node."""
    cdef Node* x = &nodes_of(s.g)[number]
    cdef Param* p
    cdef float* v = x.val
    if v == NULL:
        p = <Param*>x.object
        if not p.device:
            return 0
        return bring(s, p.device_grad if gradient else p.device_value, p.grad if gradient else p.value, p.size)
    if gradient:
        v = gradient_at(s.g, v)
    elif x.batch == NO_BATCH:                   # an input
        return 0
    return bring(s, device_ptr(s.g, s.d, v), v, total_of(&x.dim))


cdef bint look(Pass* s, uint32_t number) noexcept nogil:
    """Look at the numbers that a batch has just made; True if there is something to report."""
    cdef Graph* g = s.g
    cdef const Batch* batch = &batches_of(g)[number]
    cdef Node* x
    cdef uint8_t* state = state_of(g)
    cdef bint forward = number >= g.n_batches
    cdef uint32_t i, j, arg
    if forward:
        bring(s, device_ptr(g, s.d, batch.y), batch.y, batch.bytes // sizeof(float))
    else:
        for j in range(batch.count):
            x = &nodes_of(g)[order_of(g)[batch.first + j]]
            for i in range(x.nargs):
                arg = args_of(g, x)[i]
                if state[arg] & NEEDS_GRAD and (nodes_of(g)[arg].val != NULL or state[arg] & TRAINABLE):
                    bring_node(s, arg, True)
    wait(s.d.gpu)
    if s.d.gpu.error:
        return True
    if not (bad_values(g, batch, True, &s.failure.finding) if forward
            else bad_gradients(g, batch, &s.failure.finding)):
        return False
    bring_all(s, batch)
    if not forward:
        return True
    # Infinities that came in with an input are no anomaly: the inputs are here now.
    s.failure.finding.kind = 0
    return bad_values(g, batch, g.check_validity, &s.failure.finding)


cdef void bring_all(Pass* s, const Batch* batch) noexcept nogil:
    """Fetch what an error tells of: arguments, and of what has run forward values and gradients."""
    cdef Graph* g = s.g
    cdef Node* x
    cdef uint32_t i, j, number
    for j in range(batch.count):
        number = order_of(g)[batch.first + j]
        x = &nodes_of(g)[number]
        for i in range(x.nargs):
            bring_node(s, args_of(g, x)[i], False)
        bring_node(s, number, False)
        if state_of(g)[number] & LIVE:
            bring_node(s, number, True)
    wait(s.d.gpu)


cdef void look_at_collected(Pass* s) noexcept nogil:
    """Look at the gradients of weights that the pass has multiplied in the end."""
    cdef Waiting* w = s.waiting
    cdef Graph* g = s.g
    cdef uint32_t i
    while w != NULL and not s.d.gpu.error:
        bring(s, w.p.device_grad, w.p.grad, w.p.size)
        wait(s.d.gpu)
        if not s.d.gpu.error and bad_collected(g, w.p, &s.failure.finding):
            for i in range(g.n_batches):
                bring_all(s, &batches_of(g)[i])
            bad_collected(g, w.p, &s.failure.finding)       # now with the numbers of those that use it
            return
        w = w.next


cdef int move(Gpu* gpu, const Command* c) noexcept nogil:
    """Blocks side by side work on one move, rows of blocks on different ones."""
    cdef size_t most = 16 * gpu.multiprocessors
    cdef size_t wide = min((c.n + 1023) // 1024, max(most // c.count, <size_t>1))
    return launch(gpu, MOVE, <unsigned>wide, min(c.count, <uint32_t>65535), 256, 0, c.p, c.count)
