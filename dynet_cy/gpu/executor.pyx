"""The GPU executor: runs plans forward, and what has run backward, on a device.

The arenas of the graph stand for arenas of the device: what lies at an offset
in one lies at the same offset in the other.  So all that is decided about where
values, gradients and working memory lie is decided on the host, as for the CPU,
and costs no memory there, since nothing is written.

A pass has two halves.  The first lays out all batches and lists what is to be
done as commands; tables that the device reads (items, lists of places, moves of
numbers) and inputs are collected, and go there in one upload.  The second runs
the commands: it launches kernels and waits for nothing.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport Call, Tensor, size_of, total_of
from dynet_cy.execute.cpu cimport (
    FEW, Failure, first_not_finite, is_shared, mark_gradients, raise_not_finite, set_call, take,
)
from dynet_cy.execute.profile cimport WEIGHT_GRADIENTS, note, now, profiling
from dynet_cy.gpu.driver cimport (
    Address, DeviceArena, Gpu, GpuOp, enter, failed, fill, gemm, gpu_at, launch, leave, pthread_mutex_lock,
    pthread_mutex_unlock, raise_error, wait,
)
from dynet_cy.gpu.memory cimport (
    Range, close_arena, extend_arena, open_arena, out_of_device_memory, send_ranges,
)
from dynet_cy.gpu.registry cimport gpu_op_at, kernel_at, load, loaded, module_at
from dynet_cy.graph.graph cimport (
    COMPUTED, ENGINE_GPU, LIVE, NEEDS_GRAD, NO_BATCH, SENT, TRAINABLE, WANTED, Batch, Engine, Graph, Laid, Node,
    args_of, batches_of, engine, gradient_at, items_of, lock_graph, nodes_of, order_of, release_arguments, state_of,
    take_values, unlock_graph,
)
from dynet_cy.kernels.kernels cimport K
from dynet_cy.memory.arena cimport (
    Arena, arena_alloc, arena_close, arena_open, arena_push, arena_rewind, out_of_memory,
)
from dynet_cy.memory.storage cimport Param, note_gradient
from dynet_cy.ops.registry cimport LIST, Factors, Op, op_at, rule_of
from dynet_cy.schedule.plan cimport drop_plan, plan
cdef int BASE = module_at(b"base")
cdef int MOVE = kernel_at(BASE, b"move_floats")


# What is kept for a graph that runs on a device.
cdef struct There:
    Gpu* gpu
    DeviceArena values
    DeviceArena grads
    DeviceArena scratch
    DeviceArena tables
    Arena commands                  # of the host: those of the pass that runs
    Arena ranges                    # of the host: Range, what its upload consists of

# n numbers that are copied or added (acc) from one place of the device to another; from NULL: zeros.  Moves with one
# destination are a chain, in the order in which they are added; its first one is no follower.  cuda/base.cu has it too.
cdef struct Move:
    float* source
    float* to
    size_t n
    uint32_t next                   # number of the next one in the chain + 1, or 0
    uint8_t acc
    uint8_t follower
    uint8_t[2] unused

cdef enum:
    MOVES                           # p: Moves, count of them, the longest has n numbers
    FILL                            # n numbers at p become x
    FORWARD
    BEGIN
    BACKWARD                        # of argument i
    PRODUCT                         # C += A B': call.x[0], call.x[1] and n

cdef struct Command:
    Command* next
    int kind
    uint32_t i
    uint32_t nodes                  # for the profile
    uint16_t op
    float* p
    size_t n
    size_t rows
    size_t cols
    const float* left
    const float* right
    float x
    uint32_t count
    const uint32_t* items           # of the call, on the host
    Call call

# Factors of a parameter's gradient that wait for the end of the pass.
cdef struct Waiting:
    Waiting* next
    Param* p
    Waiting* more                   # of the same parameter
    Waiting* last
    Factors product
    size_t n                        # of all

# A pass in the making.
cdef struct Pass:
    Graph* g
    There* t
    Command* first
    Command** end
    uint64_t modules
    uint32_t missing                # number of an op that has no GPU half + 1
    bint missing_gradient
    size_t values_needed            # of the device, for the pass
    size_t scratch_needed
    size_t tables_from
    Move* moves                     # of the group that is being collected
    uint32_t n_moves
    size_t longest
    uint32_t group                  # where the numbers of its moves begin, among those of all groups
    uint32_t* place                 # by number of a node: its last move, as one of all groups
    Waiting* waiting
    Failure failure


cdef void* room(Pass* s, Arena* a, size_t n) noexcept nogil:
    cdef void* p = arena_alloc(a, n)
    if p == NULL:
        s.failure.needed = n
    return p


cdef void* scratch(Pass* s, size_t n) noexcept nogil:
    """Room in the scratch arena, which the device has to have too."""
    cdef void* p = room(s, &s.g.scratch, n)
    s.scratch_needed = max(s.scratch_needed, s.g.scratch.top)
    return p


cdef float* there(const Graph* g, const There* t, const void* p) noexcept nogil:
    """Where on the device something lies that has a place in an arena of the graph."""
    cdef size_t at = <size_t>(<const char*>p - g.values.base)
    if at < g.values.reserved:
        return <float*><uintptr_t>(t.values.base + at)
    at = <size_t>(<const char*>p - g.scratch.base)
    if at < g.scratch.reserved:
        return <float*><uintptr_t>(t.scratch.base + at)
    at = <size_t>(<const char*>p - g.grads.base)
    if at < g.grads.reserved:
        return <float*><uintptr_t>(t.grads.base + at)
    at = <size_t>(<const char*>p - g.tables.base)
    return <float*><uintptr_t>(t.tables.base + at)


# ---- commands ------------------------------------------------------------------

cdef Command* add_command(Pass* s, int kind) noexcept nogil:
    cdef Command* c = <Command*>room(s, &s.t.commands, sizeof(Command))
    if c == NULL:
        return NULL
    c.next = NULL
    c.kind = kind
    c.op = 0
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
    x = <Tensor*>room(s, &s.t.commands, call.n * sizeof(Tensor))
    if x == NULL:
        return -1
    memcpy(x, call.x, call.n * sizeof(Tensor))
    c.call = call[0]
    c.call.x = x
    c.op = nodes_of(s.g)[order_of(s.g)[batch.first]].op
    c.items = batch.items
    c.i = i
    c.nodes = nodes
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
    cdef Move* m = <Move*>(room(s, &s.g.tables, sizeof(Move)) if s.n_moves == 0
                           else arena_push(&s.g.tables, sizeof(Move)))
    if m == NULL:
        s.failure.needed = sizeof(Move)
        return NULL
    if s.n_moves == 0:
        s.moves = m
    memset(m, 0, sizeof(Move))
    m.source = <float*>source
    m.to = to
    m.n = n
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
    c.p = there(s.g, s.t, s.moves)
    c.count = s.n_moves
    c.n = s.longest
    return 0


# ---- laying out a batch ----------------------------------------------------------

cdef int send_input(Pass* s, uint32_t number) noexcept nogil:
    """Let the upload hold the numbers of a node, if it is an input that the device lacks."""
    cdef Node* x = &nodes_of(s.g)[number]
    cdef uint8_t* state = state_of(s.g)
    cdef Range* r
    if x.val == NULL or x.batch != NO_BATCH or state[number] & SENT:
        return 0
    r = <Range*>arena_push(&s.t.ranges, sizeof(Range))
    if r == NULL:
        s.failure.needed = sizeof(Range)
        return -1
    r.there = <Address><uintptr_t>there(s.g, s.t, x.val)
    r.here = x.val
    r.n = total_of(&x.dim) * sizeof(float)
    state[number] |= SENT
    return 0


cdef int arrange(Pass* s, Batch* batch) noexcept nogil:
    """Lay the arguments and items of a batch side by side, and list inputs to be sent."""
    cdef Graph* g = s.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef Node* node = &nodes[ids[0]]
    cdef Op* op = op_at(node.op)
    cdef Laid* x
    cdef Node* a
    cdef float* at
    cdef uint32_t i, j
    cdef size_t n
    for j in range(batch.count):
        for i in range(node.nargs):
            if send_input(s, args_of(g, &nodes[ids[j]])[i]):
                return -1
    if node.item_count:
        batch.items = <uint32_t*>room(s, &g.tables, <size_t>batch.bd * node.item_count * sizeof(uint32_t))
        if batch.items == NULL:
            return -1
        n = 0
        for j in range(batch.count):
            a = &nodes[ids[j]]
            memcpy(batch.items + n, items_of(g, a), <size_t>a.dim.bd * a.item_count * sizeof(uint32_t))
            n += <size_t>a.dim.bd * a.item_count
    if batch.count == 1 or node.nargs == 0:
        return 0
    batch.x = <Laid*>take(g, node.nargs * sizeof(Laid), &s.failure)
    if batch.x == NULL:
        return -1
    for i in range(node.nargs):
        batch.x[i].v = NULL
        batch.x[i].list = NULL
        if not is_shared(state_of(g), op, i, args_of(g, node)[i]) and lay(s, batch, op, i):
            return -1
    begin_moves(s)
    for i in range(node.nargs):
        x = &batch.x[i]
        a = &nodes[args_of(g, node)[i]]
        if x.v == NULL or x.v == a.val:
            continue
        at = x.v
        for j in range(batch.count):
            a = &nodes[args_of(g, &nodes[ids[j]])[i]]
            n = total_of(&a.dim)
            if add_move(s, there(g, s.t, a.val), there(g, s.t, at), n, False) == NULL:
                return -1
            at += n
    return end_moves(s)


cdef int lay(Pass* s, Batch* batch, Op* op, uint32_t i) noexcept nogil:
    """Decide where argument i of several nodes lies: where it is, listed, or in room of its own."""
    cdef Graph* g = s.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef Laid* x = &batch.x[i]
    cdef Node* a = &nodes[args_of(g, &nodes[ids[0]])[i]]
    cdef uint32_t j
    cdef size_t n = 0, stride
    cdef float* at = a.val
    cdef bint listed = rule_of(op, i) == LIST
    cdef bint together = True
    x.v = at
    for j in range(batch.count):
        a = &nodes[args_of(g, &nodes[ids[j]])[i]]
        together = together and a.val == at and not (listed and a.dim.bd < nodes[ids[j]].dim.bd)
        at = a.val + total_of(&a.dim)
        n += total_of(&a.dim)
    if together:
        return 0
    if not listed:
        x.v = <float*>scratch(s, n * sizeof(float))
        return 0 if x.v != NULL else -1
    x.v = NULL
    x.list = <float**>room(s, &g.tables, batch.bd * sizeof(float*))
    if x.list == NULL:
        return -1
    n = 0
    for j in range(batch.count):
        a = &nodes[args_of(g, &nodes[ids[j]])[i]]
        at = there(g, s.t, a.val)
        stride = size_of(&a.dim) if a.dim.bd > 1 else 0
        for _ in range(nodes[ids[j]].dim.bd):
            x.list[n] = at
            at += stride
            n += 1
    return 0


cdef int call_there(Pass* s, Batch* batch, Tensor* few, Call* c) noexcept nogil:
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
            x.list = <float**>there(g, s.t, x.list)
        elif a.val == NULL and (batch.count == 1 or batch.x[i].v == NULL):
            x.v = (<Param*>a.object).there_value
        else:
            x.v = there(g, s.t, x.v)
        x.pack = NULL
    c.y.v = there(g, s.t, c.y.v)
    if node.item_count:
        c.items = <const uint32_t*>there(g, s.t, batch.items)
    if c.kept != NULL:
        c.kept = there(g, s.t, c.kept)
    return 0


cdef int lay_out(Pass* s, Batch* batch, uint32_t number) noexcept nogil:
    """Find room for a planned batch, and add its commands."""
    cdef Graph* g = s.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef Node* node = &nodes[ids[0]]
    cdef GpuOp* half = gpu_op_at(node.op)
    cdef Tensor few[FEW]
    cdef Call c
    cdef uint32_t j
    cdef size_t total = 0, top, before = g.scratch.top
    cdef float* y
    if half.forward == NULL:
        s.missing = node.op + 1
        return -1
    s.modules |= half.modules
    batch.bd = 0
    for j in range(batch.count):
        batch.bd += nodes[ids[j]].dim.bd
        total += total_of(&nodes[ids[j]].dim)
    batch.bytes = total * sizeof(float)
    batch.live = batch.count
    batch.y = <float*>take_values(g, batch.bytes)
    batch.kept = NULL
    batch.items = NULL
    batch.x = NULL
    if batch.y == NULL:
        s.failure.needed = batch.bytes
        return -1
    s.values_needed = max(s.values_needed, g.values.top)
    if arrange(s, batch) or call_there(s, batch, few, &c):
        return -1
    if half.kept != NULL:
        batch.kept = <float*>scratch(s, half.kept(&c) * sizeof(float))
        if batch.kept == NULL:
            return -1
        c.kept = there(g, s.t, batch.kept)
    top = before if g.forward_only else g.scratch.top       # no backward: nothing is kept
    if half.work != NULL:
        c.work = <float*>scratch(s, half.work(&c, -1) * sizeof(float))
        if c.work == NULL:
            return -1
        c.work = there(g, s.t, c.work)
    if add_call(s, FORWARD, &c, batch, 0, batch.count):
        return -1
    arena_rewind(&g.scratch, top)               # the device does one thing after another
    y = batch.y
    for j in range(batch.count):
        node = &nodes[ids[j]]
        node.val = y
        node.batch = number
        y += total_of(&node.dim)
    return 0


# ---- running a pass ----------------------------------------------------------------

cdef There* there_for(Graph* g) except NULL:
    """What is kept for the graph on its device; made when it first runs there."""
    cdef There* t = <There*>g.there
    cdef Gpu* gpu = gpu_at(g.device - 1)
    if t != NULL and t.gpu != gpu:
        close(g)
        t = NULL
    if t == NULL:
        t = <There*>calloc(1, sizeof(There))
        if t == NULL:
            raise MemoryError("the record of a graph on a device")
        t.gpu = gpu
        g.there = t
        try:
            open_arena(gpu, &t.values)
            open_arena(gpu, &t.grads)
            open_arena(gpu, &t.scratch)
            open_arena(gpu, &t.tables)
            arena_open(&t.commands, False)
            arena_open(&t.ranges, False)
        except BaseException:
            close(g)
            raise
    return t


cdef void close(Graph* g) noexcept:
    cdef There* t = <There*>g.there
    g.there = NULL
    close_arena(&t.values)
    close_arena(&t.grads)
    close_arena(&t.scratch)
    close_arena(&t.tables)
    arena_close(&t.commands)
    arena_close(&t.ranges)
    free(t)


cdef void begin_pass(Pass* s, Graph* g, There* t) noexcept nogil:
    memset(s, 0, sizeof(Pass))
    s.t = t
    s.g = g
    s.end = &s.first
    s.modules = <uint64_t>1 << BASE
    s.values_needed = g.values.top
    s.scratch_needed = g.scratch.top
    s.tables_from = g.tables.top
    arena_rewind(&t.commands, 0)
    arena_rewind(&t.ranges, 0)


cdef int raise_failure(Pass* s, str what) except -1:
    """Raise for what stopped the first half of a pass."""
    if s.missing:
        name = op_at(s.missing - 1).name.decode()
        raise NotImplementedError(
            f"{name}: {'its gradient' if s.missing_gradient else 'it'} is not done on GPU:{s.t.gpu.number} yet; "
            "docs/gpu.md lists what is not")
    out_of_memory(&s.g.values, what, s.failure.needed)


cdef int run_pass(Pass* s, str what) except -1:
    """The second half: load what is needed, make room on the device, upload, run the commands."""
    cdef Gpu* gpu = s.t.gpu
    cdef int error = 0
    cdef size_t needed = 0
    if s.modules & ~loaded(gpu)[0]:
        load(gpu, s.modules)
    with nogil:
        if not enter(gpu):
            error = extend_all(s, &needed)
            if not error and not upload(s):
                run_commands(s)
        gpu.items = NULL
        leave(gpu)
    if error:
        out_of_device_memory(gpu, error, needed, what)
    if gpu.error:
        raise_error(gpu)
    return 0


cdef int extend_all(Pass* s, size_t* needed) noexcept nogil:
    cdef int error
    needed[0] = s.values_needed
    error = extend_arena(&s.t.values, needed[0])
    if not error:
        needed[0] = s.g.grads.top
        error = extend_arena(&s.t.grads, needed[0])
    if not error:
        needed[0] = s.scratch_needed
        error = extend_arena(&s.t.scratch, needed[0])
    if not error:
        needed[0] = s.g.tables.top
        error = extend_arena(&s.t.tables, needed[0])
    return error


cdef int upload(Pass* s) noexcept nogil:
    """Inputs and tables, in one buffer."""
    cdef Range* r
    if s.g.tables.top > s.tables_from:
        r = <Range*>arena_push(&s.t.ranges, sizeof(Range))
        if r == NULL:
            return failed(s.t.gpu, 2, -1)
        r.there = s.t.tables.base + s.tables_from
        r.here = s.g.tables.base + s.tables_from
        r.n = s.g.tables.top - s.tables_from
    return send_ranges(s.t.gpu, <Range*>s.t.ranges.base, s.t.ranges.top // sizeof(Range))


cdef int run_commands(Pass* s) noexcept nogil:
    cdef Gpu* gpu = s.t.gpu
    cdef Command* c = s.first
    cdef GpuOp* half
    cdef uint64_t begun
    while c != NULL and not gpu.error:
        begun = now() if profiling else 0
        half = gpu_op_at(c.op)
        gpu.items = c.items
        gpu.op = c.op
        if c.kind == MOVES:
            move(gpu, c)
        elif c.kind == FILL:
            fill(gpu, c.n, c.x, c.p)
        elif c.kind == PRODUCT:
            gemm(gpu, 0, 1, c.rows, c.cols, c.n, 1, c.left, c.rows, c.right, c.cols, 1, c.p, c.rows)
            if profiling:
                note(WEIGHT_GRADIENTS, True, 1, begun)
        elif c.kind == FORWARD:
            half.forward(gpu, &c.call)
        elif c.kind == BEGIN:
            half.begin(gpu, &c.call)
        else:
            half.backward(gpu, &c.call, c.i)
        if profiling and (c.kind == FORWARD or c.kind == BACKWARD):
            note(c.op, c.kind == BACKWARD, c.nodes, begun)
        c = c.next
    return gpu.error


cdef int move(Gpu* gpu, const Command* c) noexcept nogil:
    """Blocks side by side work on one move, rows of blocks on different ones."""
    cdef size_t most = 16 * gpu.multiprocessors
    cdef size_t wide = min((c.n + 1023) // 1024, max(most // c.count, <size_t>1))
    return launch(gpu, MOVE, <unsigned>wide, min(c.count, <uint32_t>65535), 256, 0, c.p, c.count)


# ---- forward -------------------------------------------------------------------------

cdef int forward(Graph* g, const uint32_t* targets, uint32_t n, int strategy) except -1:
    """Compute the values of the targets and all that they need."""
    cdef Pass s
    cdef int error
    cdef uint32_t before = g.n_batches, n_batches = 0, number
    cdef size_t values_top = g.values.top, scratch_top = g.scratch.top
    cdef size_t tables_top = g.tables.top
    lock_graph(g)
    try:
        begin_pass(&s, g, there_for(g))
        with nogil:
            error = plan(g, targets, n, strategy, &n_batches)
            if error:
                s.failure.needed = g.n_nodes * sizeof(uint32_t)
            for number in range(before, before + n_batches):
                if not error:
                    error = lay_out(&s, &batches_of(g)[number], number)
        if error:
            raise_failure(&s, "the values of the graph")
        if n_batches:
            run_pass(&s, "the values of the graph")
            finish(g, n_batches)
        if g.check_validity:
            check_values(g, before)
        if g.forward_only:
            release(g, before)
            g.tables.top = tables_top
    except BaseException:
        undo(g, before)
        g.values.top = values_top
        g.scratch.top = scratch_top
        g.tables.top = tables_top
        raise
    finally:
        unlock_graph(g)
    return 0


cdef void finish(Graph* g, uint32_t n_batches) noexcept nogil:
    """Note that batches have run."""
    cdef uint32_t* ids
    cdef uint8_t* state = state_of(g)
    cdef uint32_t j
    for _ in range(n_batches):
        ids = order_of(g) + batches_of(g)[g.n_batches].first
        for j in range(batches_of(g)[g.n_batches].count):
            state[ids[j]] = (state[ids[j]] | COMPUTED) & <uint8_t>~WANTED
        g.n_order += batches_of(g)[g.n_batches].count
        g.n_batches += 1


cdef void release(Graph* g, uint32_t before) noexcept nogil:
    """Drop what nobody needs now that the batches since have run.  It is dropped after the pass and not within it:
    inputs are read from here when the pass is laid out."""
    cdef uint32_t b
    for b in range(before, g.n_batches):
        release_arguments(g, &batches_of(g)[b])


cdef void undo(Graph* g, uint32_t before) noexcept nogil:
    """Forget the batches that were laid out since, and that inputs were sent."""
    cdef uint32_t i
    cdef uint8_t* state = state_of(g)
    for i in range(g.n_nodes):
        state[i] &= <uint8_t>~SENT
        if nodes_of(g)[i].batch != NO_BATCH and nodes_of(g)[i].batch >= before:
            state[i] &= <uint8_t>~COMPUTED
            nodes_of(g)[i].batch = NO_BATCH
            nodes_of(g)[i].val = NULL
    if g.n_batches > before:
        g.n_order = batches_of(g)[before].first
        g.n_batches = before
    drop_plan(g)


cdef int check_values(Graph* g, uint32_t first) except -1:
    """Raise where a value that has been computed since is not finite."""
    cdef Batch* batch
    cdef size_t total
    cdef uint32_t b, j
    for b in range(first, g.n_batches):
        batch = &batches_of(g)[b]
        total = 0
        for j in range(batch.count):
            total += total_of(&nodes_of(g)[order_of(g)[batch.first + j]].dim)
        fetch(g, batch.y, total)
        if not K.all_finite(total, batch.y):
            raise_not_finite(g, first_not_finite(batch, order_of(g) + batch.first, g))
    return 0


cdef int fetch(Graph* g, float* v, size_t n) except -1:
    """Copy n floats at v, a place in an arena of the graph, from the device to there."""
    cdef There* t = there_for(g)
    cdef Gpu* gpu = t.gpu
    with nogil:
        if not enter(gpu):
            gpu.counts.fetches += 1
            gpu.counts.fetched_bytes += n * sizeof(float)
            failed(gpu, gpu.driver.cuMemcpyDtoHAsync_v2(
                v, <Address><uintptr_t>there(g, t, v), n * sizeof(float), gpu.stream), -1)
            wait(gpu)
        leave(gpu)
    if gpu.error:
        raise_error(gpu)
    return 0


# ---- backward ------------------------------------------------------------------------

cdef int backward(Graph* g, uint32_t target, bint full) except -1:
    """Add the gradient of target to the gradients of parameters."""
    cdef Pass s
    cdef int error
    cdef size_t scratch_top = g.scratch.top, tables_top = g.tables.top
    lock_graph(g)
    try:
        begin_pass(&s, g, there_for(g))
        with nogil:
            error = list_backward_pass(&s, target, full)
        if error:
            raise_failure(&s, "the gradients of the graph")
        run_pass(&s, "the gradients of the graph")
    finally:
        g.scratch.top = scratch_top
        g.tables.top = tables_top               # what comes there next comes after this pass
        unlock_graph(g)
    return 0


cdef int list_backward_pass(Pass* s, uint32_t target, bint full) noexcept nogil:
    cdef Graph* g = s.g
    cdef Node* node = &nodes_of(g)[target]
    cdef size_t top
    cdef uint32_t b
    mark_gradients(g, target, full)
    # The gradient arena mirrors the value arena.
    arena_rewind(&g.grads, 0)
    if room(s, &g.grads, g.values.top) == NULL:
        return -1
    if node.val == NULL:                        # a parameter is its own gradient's place
        return add_one(s, <Param*>node.object) if state_of(g)[target] & TRAINABLE else 0
    if add_fill(s, there(g, s.t, gradient_at(g, node.val)), node.dim.bd, 1):
        return -1
    state_of(g)[target] |= LIVE
    if not state_of(g)[target] & COMPUTED or node.batch >= g.n_batches:
        return 0
    s.place = <uint32_t*>room(s, &s.t.commands, g.n_nodes * sizeof(uint32_t))
    if s.place == NULL:
        return -1
    memset(s.place, 0, g.n_nodes * sizeof(uint32_t))
    s.group = 1                                 # a place of 0 is none
    for b in range(node.batch + 1):
        top = g.scratch.top
        if batch_backward(s, &batches_of(g)[node.batch - b]):
            return -1
        arena_rewind(&g.scratch, top)
    return multiply_waiting(s)


cdef int add_one(Pass* s, Param* p) noexcept nogil:
    """The gradient of a parameter by itself."""
    cdef float* one = <float*>room(s, &s.g.tables, sizeof(float))
    if one == NULL:
        return -1
    one[0] = 1
    begin_moves(s)
    if add_move(s, there(s.g, s.t, one), p.there_grad, 1, True) == NULL or end_moves(s):
        return -1
    note_gradient_of(p)
    return 0


cdef void note_gradient_of(Param* p) noexcept nogil:
    pthread_mutex_lock(p.lock)
    note_gradient(p)
    pthread_mutex_unlock(p.lock)


cdef int batch_backward(Pass* s, Batch* batch) noexcept nogil:
    cdef Graph* g = s.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef Node* node = &nodes[ids[0]]
    cdef Op* op = op_at(node.op)
    cdef GpuOp* half = gpu_op_at(node.op)
    cdef uint8_t* state = state_of(g)
    cdef Tensor few[FEW]
    cdef Call c
    cdef uint32_t i, j, n_live = 0
    cdef size_t top
    for j in range(batch.count):
        n_live += (state[ids[j]] & (LIVE | NEEDS_GRAD)) == (LIVE | NEEDS_GRAD)
    if n_live == 0 or op.backward == NULL:
        return 0
    if half.backward == NULL:
        s.missing = node.op + 1
        s.missing_gradient = True
        return -1
    s.modules |= half.modules
    if n_live < batch.count:                    # the loss does not depend on the others
        begin_moves(s)
        for j in range(batch.count):
            if not state[ids[j]] & LIVE and zero_gradient(s, &nodes[ids[j]]):
                return -1
        if end_moves(s):
            return -1
    if call_there(s, batch, few, &c):
        return -1
    c.dy = c.y
    c.dy.v = there(g, s.t, gradient_at(g, batch.y))
    c.first = 1
    if half.begin != NULL and add_call(s, BEGIN, &c, batch, 0, n_live):
        return -1
    top = g.scratch.top
    if node.nargs == 0 and state[ids[0]] & TRAINABLE:
        (<Param*>node.object).has_gradient = 1
        if add_call(s, BACKWARD, &c, batch, 0, n_live):
            return -1
    for i in range(node.nargs):
        if argument_backward(s, batch, op, half, &c, i, n_live):
            return -1
        arena_rewind(&g.scratch, top)
    return 0


cdef int zero_gradient(Pass* s, const Node* x) noexcept nogil:
    cdef float* to = there(s.g, s.t, gradient_at(s.g, x.val))
    return 0 if add_move(s, NULL, to, total_of(&x.dim), False) != NULL else -1


cdef int argument_backward(Pass* s, Batch* batch, Op* op, GpuOp* half, Call* c, uint32_t i,
                           uint32_t n_nodes) noexcept nogil:
    """Gradient of argument i of all nodes of a batch."""
    cdef Graph* g = s.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef uint8_t* state = state_of(g)
    cdef uint32_t j, arg = args_of(g, &nodes[ids[0]])[i]
    cdef uint32_t n_need = 0, n_live = 0
    cdef bint one = batch.count == 1 or (batch.x[i].v == NULL and batch.x[i].list == NULL)
    cdef Node* a = &nodes[arg]
    cdef Factors factors
    cdef float* at
    if one:
        if not state[arg] & NEEDS_GRAD or (a.val == NULL and not state[arg] & TRAINABLE):
            return 0
    else:
        for j in range(batch.count):
            arg = args_of(g, &nodes[ids[j]])[i]
            n_need += (state[arg] & NEEDS_GRAD) != 0
            n_live += (state[arg] & LIVE) != 0
        if n_need == 0:
            return 0
    c.work = NULL
    if half.work != NULL:
        c.work = <float*>scratch(s, half.work(c, <int>i) * sizeof(float))
        if c.work == NULL:
            return -1
        c.work = there(g, s.t, c.work)
    c.dx = c.x[i]
    if one and a.val == NULL:                   # a parameter: its gradient is in storage
        note_gradient_of(<Param*>a.object)
        if half.factors != NULL:
            factors.n = 0
            half.factors(c, i, &factors)
            if factors.n:
                return wait_for_more(s, <Param*>a.object, &factors)
        c.dx.v = (<Param*>a.object).there_grad
        return call_backward(s, batch, half, c, i, True, n_nodes)
    if one:
        arg = args_of(g, &nodes[ids[0]])[i]
        c.dx.v = there(g, s.t, gradient_at(g, a.val))
        if call_backward(s, batch, half, c, i, (state[arg] & LIVE) != 0, n_nodes):
            return -1
        state[arg] |= LIVE
        return 0
    if batch.x[i].list != NULL:
        return list_backward(s, batch, half, c, i, n_nodes)
    if batch.x[i].v == a.val and n_need == batch.count:
        # Side by side, so each argument occurs once.
        if n_live and n_live < batch.count:
            begin_moves(s)
            for j in range(batch.count):
                arg = args_of(g, &nodes[ids[j]])[i]
                if not state[arg] & LIVE and zero_gradient(s, &nodes[arg]):
                    return -1
            if end_moves(s):
                return -1
        c.dx.v = there(g, s.t, gradient_at(g, a.val))
        if call_backward(s, batch, half, c, i, n_live != 0, n_nodes):
            return -1
        for j in range(batch.count):
            state[args_of(g, &nodes[ids[j]])[i]] |= LIVE
        return 0
    at = <float*>scratch(s, total_of(&c.dx.dim) * sizeof(float))
    if at == NULL:
        return -1
    c.dx.v = there(g, s.t, at)
    if call_backward(s, batch, half, c, i, False, n_nodes):
        return -1
    return hand_out(s, batch, i, c.dx.v)


cdef int hand_out(Pass* s, Batch* batch, uint32_t i, float* source) noexcept nogil:
    """Add gradients that lie side by side to those of argument i of each node."""
    cdef Graph* g = s.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef uint8_t* state = state_of(g)
    cdef uint32_t j, arg, last
    cdef float* to
    cdef size_t n
    cdef Move* m
    begin_moves(s)
    for j in range(batch.count):
        arg = args_of(g, &nodes[ids[j]])[i]
        n = total_of(&nodes[arg].dim)
        if state[arg] & NEEDS_GRAD and nodes[arg].val != NULL:
            to = there(g, s.t, gradient_at(g, nodes[arg].val))
            last = s.place[arg]
            if last >= s.group:                 # an argument of several nodes
                m = add_move_apart(s, source, to, n, True)
                if m == NULL:
                    return -1
                m.follower = 1
                s.moves[last - s.group].next = s.n_moves
            elif add_move_apart(s, source, to, n, (state[arg] & LIVE) != 0) == NULL:
                return -1
            s.place[arg] = s.group + s.n_moves - 1
            state[arg] |= LIVE
        source += n
    return end_moves(s)


cdef int list_backward(Pass* s, Batch* batch, GpuOp* half, Call* c, uint32_t i, uint32_t n_nodes) noexcept nogil:
    """Gradient of an argument that is read where it lies: added to where its gradients lie."""
    cdef Graph* g = s.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef uint8_t* state = state_of(g)
    cdef float** dx = <float**>room(s, &g.tables, batch.bd * sizeof(float*))
    cdef uint32_t j, arg
    if dx == NULL:
        return -1
    for j in range(batch.bd):
        dx[j] = <float*>(<char*>batch.x[i].list[j] - s.t.values.base + s.t.grads.base)
    begin_moves(s)
    for j in range(batch.count):
        arg = args_of(g, &nodes_of(g)[ids[j]])[i]
        if not state[arg] & LIVE:
            # What needs no gradient has a place for it all the same.
            if zero_gradient(s, &nodes_of(g)[arg]):
                return -1
            state[arg] |= LIVE if state[arg] & NEEDS_GRAD else 0
    if end_moves(s):
        return -1
    c.dx.list = <float**>there(g, s.t, dx)
    c.accumulate = 1
    return add_call(s, BACKWARD, c, batch, i, n_nodes)


cdef int call_backward(Pass* s, Batch* batch, GpuOp* half, Call* c, uint32_t i, bint accumulate,
                       uint32_t n_nodes) noexcept nogil:
    if not half.assigns and not accumulate:
        if add_fill(s, c.dx.v, total_of(&c.dx.dim), 0):
            return -1
        accumulate = True
    c.accumulate = accumulate
    return add_call(s, BACKWARD, c, batch, i, n_nodes)


# ---- gradients of weights --------------------------------------------------------------
# They are products; those of one parameter are one product, of factors laid side by side.

cdef int wait_for_more(Pass* s, Param* p, const Factors* f) noexcept nogil:
    cdef Waiting* w = s.waiting
    cdef Waiting* x = <Waiting*>room(s, &s.t.commands, sizeof(Waiting))
    if x == NULL:
        return -1
    memset(x, 0, sizeof(Waiting))
    x.p = p
    x.product = f[0]
    while w != NULL and w.p != p:
        w = w.next
    if w == NULL:
        x.next = s.waiting
        x.last = x
        x.n = f.n
        s.waiting = x
    else:
        w.last.more = x
        w.last = x
        w.n += f.n
    return 0


cdef int gather_factors(Pass* s, const Waiting* w, float* left, float* right) noexcept nogil:
    """Lay the factors of one parameter side by side."""
    cdef const Waiting* x = w
    begin_moves(s)
    while x != NULL:
        if add_move(s, x.product.left, left, w.product.rows * x.product.n, False) == NULL:
            return -1
        left += w.product.rows * x.product.n
        x = x.more
    x = w
    while x != NULL:
        if add_move(s, x.product.right, right, w.product.cols * x.product.n, False) == NULL:
            return -1
        right += w.product.cols * x.product.n
        x = x.more
    return end_moves(s)


cdef int multiply_waiting(Pass* s) noexcept nogil:
    cdef Waiting* w = s.waiting
    cdef Command* c
    cdef float* left
    cdef float* right
    cdef size_t rows, cols, top = s.g.scratch.top
    while w != NULL:
        rows = w.product.rows
        cols = w.product.cols
        left = <float*>w.product.left
        right = <float*>w.product.right
        if w.more != NULL:
            left = <float*>scratch(s, rows * w.n * sizeof(float))
            right = <float*>scratch(s, cols * w.n * sizeof(float))
            if left == NULL or right == NULL:
                return -1
            left = there(s.g, s.t, left)
            right = there(s.g, s.t, right)
            if gather_factors(s, w, left, right):
                return -1
        c = add_command(s, PRODUCT)
        if c == NULL:
            return -1
        c.p = w.p.there_grad
        c.left = left
        c.right = right
        c.rows = rows
        c.cols = cols
        c.n = w.n
        arena_rewind(&s.g.scratch, top)
        w = w.next
    return 0


cdef Engine* hooks = engine(ENGINE_GPU)
hooks.forward = forward
hooks.backward = backward
hooks.fetch = fetch
hooks.close = close
