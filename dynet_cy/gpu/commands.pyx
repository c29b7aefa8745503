# Used from Cython only.
"""Commands of a pass on a device, and functions that append them; see commands.pxd.

The arenas of the graph are mirrored on the device.  So the host decides where values, gradients and working memory are,
as for the CPU.  A pass writes only tables to its own arenas, so the other arenas take no host memory.
"""

from libc.stdint cimport uint8_t, uint32_t, uintptr_t
from libc.string cimport memcpy, memset

from dynet_cy.core.engine cimport add_tunable
from dynet_cy.core.tensor cimport Tensor, rows_of, total_of
from dynet_cy.core.threads cimport Number
from dynet_cy.execute.gradient_memory cimport come_back, end_lending, take_back
from dynet_cy.execute.gradients cimport (
    add_collected, backward_call, backward_each, collected_of, multiply_collected,
)
from dynet_cy.execute.walk cimport (
    Collected, Device, allocate, arrange, begin_walk, clear_call, forward_call, forward_each, is_too_long, owed_place,
    settle,
)
from dynet_cy.gpu.driver cimport Address, GpuOp
from dynet_cy.gpu.graphs cimport ARENAS, GRADS, SCRATCH, begin_uses, device_ptr
from dynet_cy.gpu.memory cimport Mirror, Range, note_uses
from dynet_cy.gpu.registry cimport gpu_op_at, module_at
from dynet_cy.graph.structs cimport (
    COLUMNS, EACH, FLATTENED, FORMS, IN_CELL, IN_FUSION, KEEPS_FACTORS, NO_BATCH, ONE, SENT, STACKED, Batch, Node,
    args_of, batches_of, home_of, nodes_of, order_of, state_of,
)
from dynet_cy.memory.arena cimport Arena, Segment, arena_alloc, arena_rewind, array_push, array_rewind, segment_of
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport FLAT, GPU, Factors, Op, op_at
from dynet_cy.watch.instruments cimport checking


cdef int GROUPS = module_at(b"groups")      # kernels for several calls


cdef inline Pass* pass_of(Walk* w) noexcept nogil:
    return <Pass*>w


cdef inline void* reserve(Pass* s, Arena* a, size_t n) noexcept nogil:
    cdef void* p = arena_alloc(a, n)
    if p == NULL:
        s.walk.failure.needed = n
    return p


cdef int make_table(Pass* s, void** table, size_t bytes) noexcept nogil:
    if table[0] == NULL:
        table[0] = reserve(s, &s.d.commands, bytes)
        if table[0] == NULL:
            return -1
        memset(table[0], 0, bytes)
    return 0


cdef inline Move* moves_of(Pass* s) noexcept nogil:
    return <Move*>s.d.moves.base


cdef float* on_device(Pass* s, const void* p) noexcept nogil:
    cdef const Window* x
    cdef int k
    for k in range(WINDOWS):
        x = &s.windows[k]
        if <uintptr_t>p - x.here < x.n:
            return <float*>(x.there + (<uintptr_t>p - x.here))
    return <float*>found_on_device(s, p)


cdef float* found_on_device(Pass* s, const void* p) noexcept nogil:
    """`on_device` for a pointer into another segment, which is remembered."""
    cdef Graph* g = s.walk.g
    cdef const Segment* part
    cdef float* there = device_ptr(g, s.d, p)
    cdef int k
    for k in range(ARENAS if there != NULL else 0):
        part = segment_of(&g.arenas[k], p)
        if part != NULL:
            s.windows[ARENAS + k] = s.windows[k]
            s.windows[k].here = <uintptr_t>part.p
            s.windows[k].n = part.bytes
            s.windows[k].there = <uintptr_t>there - (<uintptr_t>p - <uintptr_t>part.p)
            break
    return there


# ---- commands ------------------------------------------------------------------

cdef Command* add_command(Pass* s, int kind) noexcept nogil:
    cdef Command* c = <Command*>reserve(s, &s.d.commands, sizeof(Command))
    if c == NULL:
        return NULL
    note_memory(s)
    c.next = NULL
    c.kind = kind
    c.op = 0
    c.batch = s.walk.number if not s.walk.again else <uint32_t>NO_BATCH     # numbers are checked once
    c.section = 0
    c.items = NULL
    c.table = NULL
    s.end[0] = c
    s.end = &c.next
    return c


cdef int add_call(Pass* s, int kind, const Call* call, const Batch* batch, uint32_t i, uint32_t nodes) noexcept nogil:
    """Append the command of a call: a copy of the call and of its arguments."""
    cdef Command* c = add_command(s, kind)
    cdef Tensor* x
    if c == NULL:
        return -1
    x = <Tensor*>reserve(s, &s.d.commands, call.n * sizeof(Tensor))
    if x == NULL:
        return -1
    memcpy(x, call.x, call.n * sizeof(Tensor))
    c.call = call[0]
    c.call.x = x
    c.op = first_of(s.walk.g, batch).op
    c.items = batch.items
    c.i = i
    c.nodes = nodes
    c.first = batch.first
    c.members = batch.count
    note_section(s, c)
    return 0


cdef inline void note_section(Pass* s, Command* c) noexcept nogil:
    c.section = s.walk.listing.section
    c.member = s.walk.listing.member
    if c.section:
        s.modules |= <uint64_t>1 << GROUPS


cdef void note_written(Pass* s, const float* dx) noexcept nogil:
    """Begin a new section if a call of this one writes to the same gradient: contributions keep their order."""
    cdef Walk* w = &s.walk
    cdef uint32_t k
    if s.written_in != w.listing.section:
        s.written_in = w.listing.section
        s.n_written = 0
    for k in range(s.n_written):
        if s.written[k] == <uintptr_t>dx:
            break
    else:
        k = s.n_written
    if k < s.n_written or k == MOST_WRITTEN:
        w.listing.sections += 1
        w.listing.section = s.written_in = w.listing.sections
        s.n_written = 0
    s.written[s.n_written] = <uintptr_t>dx
    s.n_written += 1


# ---- moves -----------------------------------------------------------------------
# A group of moves is one command.  Copies are needed by the next command, so `pending` makes the walk end the group
# before it.  Additions to gradients wait until a batch reads the gradient, or a kernel writes it (`owed`), or until
# copies end the group anyway; so contributions of many batches are one launch.

# How much working memory pending additions hold at most; tables of how many bytes are passed by value.
cdef enum:
    MOST_HELD = 1 << 26
    SMALL_TABLE = 1024


cdef void* allocate_lines(Pass* s, size_t bytes) noexcept nogil:
    return reserve(s, &s.d.commands if bytes <= SMALL_TABLE else &s.walk.g.tables, bytes)


cdef void set_lines(Pass* s, Command* c, void* table, size_t bytes) noexcept nogil:
    c.cols = bytes if bytes <= SMALL_TABLE else 0
    c.p = <float*>table if c.cols else on_device(s, table)


cdef int end_group(Walk* w) noexcept nogil:
    if list_group(w):
        return -1
    if w.lending.spoil != NULL:                 # it fills memory once nothing reads it any more
        come_back(w.g, &w.lending)
    return 0


cdef int list_group(Walk* w) noexcept nogil:
    cdef Pass* s = pass_of(w)
    cdef Command* c
    cdef Move* table
    cdef uint32_t n = s.n_moves
    cdef size_t longest = s.longest
    w.listing.pending = w.listing.held = False
    w.listing.turn += 1
    end_lending(&w.lending)
    s.group += n
    s.n_moves = s.n_copied = 0
    s.longest = 0
    if longest == 0:
        return 0
    table = <Move*>allocate_lines(s, n * sizeof(Move))
    c = add_command(s, MOVES)
    if table == NULL or c == NULL:
        return -1
    memcpy(table, s.d.moves.base, n * sizeof(Move))
    set_lines(s, c, table, n * sizeof(Move))
    c.table = table
    c.count = n
    c.n = longest
    return 0


cdef int end_commands(Pass* s) noexcept nogil:
    """End the last group of moves, and list those that run first.

    They join the moves that the pass begins with, if these are few.
    """
    cdef Command* c
    cdef Command** end
    cdef EarlyMove* early = s.early
    cdef Move* table
    cdef uint32_t n = s.n_early, others = 0
    if end_group(&s.walk):
        return -1
    if n == 0:
        return 0
    c = s.first
    if c != NULL and c.kind == MOVES and c.cols:        # its table is on the host
        others = c.count
    table = <Move*>allocate_lines(s, (others + n) * sizeof(Move))
    if table == NULL:
        return -1
    if others:
        memcpy(table, c.p, others * sizeof(Move))
    else:
        end = s.end
        c = add_command(s, MOVES)
        if c == NULL:
            return -1
        c.n = 0
        if s.first != c:                        # it was added as the last one
            end[0] = NULL
            s.end = end
            c.next = s.first
            s.first = c
    n += others
    c.count = n
    c.table = table
    set_lines(s, c, table, n * sizeof(Move))
    while early != NULL:
        n -= 1
        table[n] = early.move
        c.n = max(c.n, early.move.n)
        early = early.next
    return 0


cdef Move* add_move(Pass* s, const float* source, float* to, size_t n, bint acc) noexcept nogil:
    cdef Move* m
    array_rewind(&s.d.moves, s.n_moves * sizeof(Move))
    m = <Move*>array_push(&s.d.moves, sizeof(Move))
    if m == NULL:
        s.walk.failure.needed = sizeof(Move)
        return NULL
    set_move(m, source, to, n)
    m.acc = acc
    note_memory(s)
    s.n_moves += 1
    s.walk.lending.waiting = True
    s.longest = max(s.longest, n)
    return m


cdef inline void set_move(Move* m, const float* source, float* to, size_t n) noexcept nogil:
    memset(m, 0, sizeof(Move))
    m.source = <float*>source
    m.to = to
    m.n = n
    m.scale = 1


cdef int add_copy(Pass* s, const float* source, float* to, size_t n) noexcept nogil:
    """Add a move that assigns.  If it continues where the previous move ends, that move is extended instead."""
    cdef Move* m
    if s.n_moves and s.n_copied == s.n_moves:   # the last move is a copy
        m = &moves_of(s)[s.n_moves - 1]
        if m.to + m.n == to and ((source == NULL) if m.source == NULL else m.source + m.n == source):
            m.n += n
            s.longest = max(s.longest, m.n)
            note_memory(s)
            return 0
    if add_move(s, source, to, n, False) == NULL:
        return -1
    s.n_copied = s.n_moves
    return 0


# ---- the functions of the device -----------------------------------------------------

cdef float* place(Walk* w, const void* p) noexcept nogil:
    return on_device(pass_of(w), p)


cdef inline void note_memory(Pass* s) noexcept nogil:
    """Note that the device needs the memory that the next command reads and writes."""
    cdef Graph* g = s.walk.g
    s.scratch_needed = max(s.scratch_needed, g.scratch.top)
    note_growth(&g.scratch, &s.d.mirrors[SCRATCH], &s.scratch_noted)
    note_growth(&g.grads, &s.d.mirrors[GRADS], &s.grads_noted)


cdef inline void note_growth(const Arena* a, Mirror* m, Noted* noted) noexcept nogil:
    """`note_uses`, unless as much of the segment in use was noted before."""
    if a.origin == noted.origin and a.top <= noted.top:
        return
    noted.origin = a.origin
    noted.top = a.top
    note_uses(a, m)


cdef int send_arguments(Walk* w, const Batch* batch) noexcept nogil:
    """Add inputs of the nodes of a batch to the upload, unless they have been sent."""
    cdef const Graph* g = w.g
    cdef const Node* nodes = nodes_of(g)
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const uint32_t* owed = w.listing.owed
    cdef const uint32_t* args
    cdef uint32_t i, j, of_arg, turn = w.listing.turn
    cdef bint waits = False
    for j in range(batch.count):
        args = args_of(g, &nodes[ids[j]])
        for i in range(nodes[ids[j]].nargs):
            of_arg = nodes[args[i]].batch
            if of_arg != NO_BATCH:
                waits |= owed != NULL and owed[of_arg] == turn
            elif nodes[args[i]].val != NULL and send_input(pass_of(w), args[i]):
                return -1
    if waits:
        w.listing.pending = True                            # some values are copies that are pending
    return 0


cdef int send_input(Pass* s, uint32_t number) noexcept nogil:
    cdef Node* x = &nodes_of(s.walk.g)[number]
    cdef uint8_t* state = state_of(s.walk.g)
    cdef Range* r
    if state[number] & SENT:
        return 0
    r = <Range*>array_push(&s.d.ranges, sizeof(Range))
    if r == NULL:
        s.walk.failure.needed = sizeof(Range)
        return -1
    r.device_ptr = <Address><uintptr_t>on_device(s, x.val)
    r.host_ptr = x.val
    r.n = total_of(&x.dim) * sizeof(float)
    state[number] |= SENT
    return 0


cdef int translate(Walk* w, const Batch* batch, Call* c) noexcept nogil:
    """Replace the pointers of a call by device pointers."""
    cdef Pass* s = pass_of(w)
    cdef Graph* g = w.g
    cdef Node* node = first_of(g, batch)
    cdef uint32_t* args = args_of(g, node)
    cdef Tensor* x
    cdef Node* a
    cdef uint32_t i
    for i in range(c.n):
        x = <Tensor*>&c.x[i]
        a = &nodes_of(g)[args[i]]
        if x.list != NULL:
            x.list = <float**>on_device(s, x.list)
        elif a.val == NULL and (batch.count == 1 or batch.x[i].v == NULL):
            x.v = (<Param*>a.object).device_value
        else:
            x.v = on_device(s, x.v)
        x.pack = NULL
    c.on = s.d.gpu
    c.y.v = on_device(s, c.y.v)
    if node.item_count:
        c.items = <const uint32_t*>on_device(s, batch.items)
    if c.saved != NULL:
        c.saved = on_device(s, c.saved)
    if gpu_op_at(node.op).draws:
        if s.seeds == NULL or s.seeds[0] != c.seed or s.seeds[1] != c.stream:   # others, if it runs again
            s.seeds = <uint64_t*>reserve(s, &g.tables, 2 * sizeof(uint64_t))
            if s.seeds == NULL:
                return -1
            s.seeds[0] = c.seed
            s.seeds[1] = c.stream
        c.seed = <uint64_t><uintptr_t>on_device(s, s.seeds)
    return 0


cdef int forward(Walk* w, const Batch* batch, const Op* op, const Call* c) noexcept nogil:
    cdef Pass* s = pass_of(w)
    cdef GpuOp* gpu_op = gpu_op_at(op.id)
    if gpu_op.forward == NULL:
        s.missing = op.id + 1
        return -1
    if gpu_op.load != NULL and not gpu_op.devices >> s.d.gpu.number & 1:
        w.failure.raised = gpu_op.load(s.d.gpu, op.id)
        if w.failure.raised != NULL:
            return -1
    cdef bint begun = gpu_op.adds_to_first and begin_with_first(s, batch, c)
    s.modules |= gpu_op.modules
    s.values_needed = max(s.values_needed, w.g.values.top)
    if settle(w):
        return -1
    return add_call(s, SUMS_ONLY if batch.cell or begun else FORWARD, c, batch, 0, batch.count)


cdef bint begin_with_first(Pass* s, const Batch* batch, const Call* c) noexcept nogil:
    """Let the result begin as a copy of argument 0; False if it is broadcast otherwise than column by column.

    The copy runs with the copies that are pending, or with all others from parameters and inputs, first in the pass.
    """
    cdef const Graph* g = s.walk.g
    cdef const Node* node = first_of(g, batch)
    cdef const Node* a = &nodes_of(g)[args_of(g, node)[0]]
    cdef size_t n = total_of(&c.y.dim), period = total_of(&c.x[0].dim)
    cdef bint columns = period == rows_of(&c.y.dim) and rows_of(&c.x[0].dim) == period
    if c.x[0].list != NULL or (period != n and not columns) or period >> 32:
        return False
    if batch.count > 1 and batch.x[0].v != NULL and batch.x[0].v != a.val:      # it is copied itself
        return False
    if s.walk.listing.pending and period == n and (
            a.batch == NO_BATCH or s.walk.listing.owed == NULL
            or s.walk.listing.owed[a.batch] != s.walk.listing.turn):
        return add_copy(s, c.x[0].v, c.y.v, n) == 0
    # Values of stretches (graph/regions) may take the memory of others that the pass has computed before.
    return (a.batch == NO_BATCH and batch.level == 0 and g.stretches.top == 0 and not checking
            and add_early(s, c.x[0].v, c.y.v, n, period))


cdef bint add_early(Pass* s, const float* source, float* to, size_t n, size_t period) noexcept nogil:
    """List a copy that runs first in the pass."""
    cdef EarlyMove* x = <EarlyMove*>reserve(s, &s.d.commands, sizeof(EarlyMove))
    if x == NULL:
        return False
    set_move(&x.move, source, to, n)
    x.move.period = <uint32_t>period if period != n else 0
    x.next = s.early
    s.early = x
    s.n_early += 1
    return True


cdef int begin_backward(Walk* w, const Batch* batch, const Op* op, const Call* c) noexcept nogil:
    cdef Pass* s = pass_of(w)
    cdef const GpuOp* gpu_op = gpu_op_at(op.id)
    cdef float* prepared
    if gpu_op.backward == NULL:
        s.missing = op.id + 1
        s.missing_gradient = True
        return -1
    s.modules |= gpu_op.modules
    if gpu_op.begin_backward == NULL or (batch.cell and s.done != NULL and s.done[batch.cell - 1]):
        return 0
    if gpu_op.prepared != NULL:
        prepared = <float*>allocate(w, gpu_op.prepared(c) * sizeof(float))
        if prepared == NULL:
            return -1
        (<Call*>c).work = place(w, prepared)            # as `translate` changes its tensors
    return add_call(s, BEGIN, c, batch, 0, w.n_live)


cdef int backward(Walk* w, const Batch* batch, const Op* op, const Call* c, uint32_t i) noexcept nogil:
    cdef const GpuOp* gpu_op = gpu_op_at(op.id)
    cdef uint32_t member = w.listing.member
    cdef int failed
    if gpu_op.note != NULL:
        gpu_op.note(c, batch.items)
    if w.listing.section:
        note_written(pass_of(w), c.dx.v)
        # The gradients of the arguments of a node do not depend on each other, unless something is computed first.
        if op.needs[GPU].assigns and gpu_op.begin_backward == NULL:
            w.listing.member = member * c.n + i
    failed = add_call(pass_of(w), BACKWARD, c, batch, i, w.n_live)
    w.listing.member = member
    return failed


cdef int fill(Walk* w, float* to, size_t n, float x) noexcept nogil:
    cdef Command* c
    if n == 0:
        return 0
    c = add_command(pass_of(w), FILL)
    if c == NULL:
        return -1
    c.p = to
    c.n = n
    c.x = x
    note_section(pass_of(w), c)
    return 0


cdef int copy(Walk* w, float* to, const float* source, size_t n) noexcept nogil:
    w.listing.pending = True
    return add_copy(pass_of(w), place(w, source), place(w, to), n)


cdef int copy_later(Pass* s, float* to, const float* source, size_t n) noexcept nogil:
    if n == 0:
        return 0
    if open_additions(s):
        return -1
    s.walk.listing.owed[s.walk.number] = s.walk.listing.turn
    return add_copy(s, source, place(&s.walk, to), n)


cdef int zero(Walk* w, float* to, size_t n) noexcept nogil:
    w.listing.pending = True
    return add_copy(pass_of(w), NULL, place(w, to), n)


cdef int add(Walk* w, uint32_t node, float* to, const float* source, size_t n, float scale,
             bint accumulate) noexcept nogil:
    """Add a move to the gradient of a node, to run after earlier moves of the group to the same gradient."""
    cdef Pass* s = pass_of(w)
    cdef const Node* a = &nodes_of(w.g)[node]
    cdef uint32_t last
    cdef Move* m
    if open_additions(s):
        return -1
    m = add_move(s, source, place(w, to) if a.val != NULL else (<Param*>a.object).device_grad, n, accumulate)
    if m == NULL:
        return -1
    m.scale = scale
    last = s.last_move[node]
    if last >= s.group:
        m.follower = 1
        moves_of(s)[last - s.group].next = s.n_moves
    s.last_move[node] = s.group + s.n_moves - 1
    if a.val != NULL:
        w.listing.owed[owed_place(w, a.batch)] = w.listing.owed[owed_place(w, home_of(w.g, a))] = w.listing.turn
    # While numbers are checked, each batch is waited for.
    if checking or (w.listing.held and w.g.scratch.top > s.most_scratch):
        w.listing.pending = True
    return 0


cdef int open_additions(Pass* s) noexcept nogil:
    """Make the tables of the last additions, by node and by batch."""
    cdef Graph* g = s.walk.g
    cdef size_t batches = g.batches.top // sizeof(Batch) + 1
    return (make_table(s, <void**>&s.last_move, g.n_nodes * sizeof(uint32_t))
            or make_table(s, <void**>&s.walk.listing.owed, batches * sizeof(uint32_t)))


# ---- gradients of weights --------------------------------------------------------------
# The products for one parameter are computed as one product of factors that are laid side by side, or as a few, so that
# not all gradients have to be kept until the end of the pass.

# So many bytes of gradients are kept as factors, or more, until a product has so many columns: more are not faster.
cdef enum:
    MOST_COLLECTED = 1 << 21
    ENOUGH_COLUMNS = 256

cdef Number most_collected = MOST_COLLECTED
add_tunable("gpu.commands.most_collected", &most_collected)

# The factors of one call.
cdef struct FactorPart:
    FactorPart* next
    uint32_t batch                  # whose gradients they are, or NO_BATCH
    Factors factors


cdef int collect(Walk* w, Param* p, const Factors* f) noexcept nogil:
    cdef Pass* s = pass_of(w)
    cdef Collected* x = collected_of(w, p)
    cdef FactorPart* part
    if x != NULL and (x.product.right == NULL) != (f.right == NULL):    # a vector that is a matrix too
        return 0
    part = <FactorPart*>reserve(s, &s.d.commands, sizeof(FactorPart))
    if part == NULL:
        return -1
    if w.number != NO_BATCH:
        batches_of(w.g)[w.number].keeps |= <uint8_t>KEEPS_FACTORS
    s.collected_bytes += f.rows * f.n * sizeof(float)
    part.next = NULL
    part.batch = w.number
    part.factors = f[0]
    if x == NULL:
        x = add_collected(w, p, reserve(s, &s.d.commands, sizeof(Collected)))
        if x == NULL:
            return -1
        x.product = f[0]
        x.parts = x.last = part
    elif x.parts == NULL:
        x.product = f[0]
        x.parts = x.last = part
    else:
        (<FactorPart*>x.last).next = part
        x.last = part
        x.product.n += f.n
    s.most_columns = max(s.most_columns, x.product.n)
    return 1


cdef int finish(Walk* w) noexcept nogil:
    """Make the pending copies and additions, and multiply the factors that were collected so far."""
    cdef Pass* s = pass_of(w)
    cdef Collected* x = w.collecting.first
    if end_group(w) or multiply_collected(w):
        return -1
    s.collected_bytes = s.most_columns = 0
    while x != NULL:
        let_factors_go(w, <const FactorPart*>x.parts)
        x.parts = x.last = NULL
        x = x.next
    return 0


cdef void let_factors_go(Walk* w, const FactorPart* part) noexcept nogil:
    """Free the gradients that were factors; those of the batch that is running backward are freed afterwards."""
    cdef Batch* batch
    while part != NULL:
        batch = &batches_of(w.g)[part.batch] if part.batch != NO_BATCH else NULL
        if batch != NULL and batch.keeps & KEEPS_FACTORS:
            batch.keeps &= <uint8_t>~KEEPS_FACTORS
            if part.batch != w.number:
                take_back(w.g, &w.lending, batch, NULL)
        part = part.next


cdef int after_batch(Walk* w, const Batch* batch) noexcept nogil:
    cdef const Pass* s = pass_of(w)
    return finish(w) if s.collected_bytes > most_collected and s.most_columns >= <size_t>ENOUGH_COLUMNS else 0


cdef int multiply(Walk* w, Collected* x) noexcept nogil:
    cdef Factors f = x.product
    cdef Command* c
    cdef float* left
    cdef float* right
    if x.parts != x.last:
        left = <float*>allocate(w, f.rows * f.n * sizeof(float))
        right = <float*>allocate(w, f.cols * f.n * sizeof(float)) if f.right != NULL else NULL
        if w.failure.needed:
            return -1
        f.left = place(w, left)
        f.right = place(w, right) if f.right != NULL else NULL
        if gather_factors(w, <const FactorPart*>x.parts, &f):
            return -1
    c = add_command(pass_of(w), PRODUCT)
    if c == NULL:
        return -1
    c.p = x.p.device_grad
    c.left = f.left
    c.right = f.right
    c.rows = f.rows
    c.cols = f.cols
    c.n = f.n
    return 0


cdef int gather_factors(Walk* w, const FactorPart* first, const Factors* f) noexcept nogil:
    """Lay the factors of one parameter side by side."""
    cdef Pass* s = pass_of(w)
    cdef const FactorPart* part = first
    cdef float* left = <float*>f.left
    cdef float* right = <float*>f.right
    w.listing.pending = True
    while part != NULL:
        if add_copy(s, part.factors.left, left, f.rows * part.factors.n):
            return -1
        left += f.rows * part.factors.n
        part = part.next
    part = first
    while part != NULL and right != NULL:
        if add_copy(s, part.factors.right, right, f.cols * part.factors.n):
            return -1
        right += f.cols * part.factors.n
        part = part.next
    return settle(w)


# ---- batches that are computed with others (gpu/cells, gpu/fusion) -----------------------

cdef uint32_t form_alone(const Graph* g, const Batch* batch) noexcept nogil:
    cdef Batch x = batch[0]
    x.form = FLATTENED if op_at(first_of(g, batch).op).batching == FLAT else STACKED
    if is_too_long(&x, x.bd):
        return EACH
    return ONE if x.count == 1 else x.form


cdef int forward_alone(Walk* w, Batch* batch) noexcept nogil:
    cdef Batch kept = batch[0]
    cdef int failed
    batch.form = form_alone(w.g, batch)
    batch.cell = 0
    failed = w.device.forms[batch.form].forward(w, batch, 1)
    batch.form = kept.form
    batch.cell = kept.cell
    return failed


cdef int backward_alone(Walk* w, Batch* batch) noexcept nogil:
    cdef Batch kept = batch[0]
    cdef int failed = 0
    batch.form = form_alone(w.g, batch)
    batch.cell = 0
    cdef bint arranges = batch.form != EACH and batch.x == NULL and batch.items == NULL     # it ran with others
    if arranges:
        failed = arrange(w, batch, op_at(first_of(w.g, batch).op)) or settle(w)
    failed = failed or w.device.forms[batch.form].backward(w, batch, 1)
    batch.form = kept.form
    batch.cell = kept.cell
    if arranges:
        clear_call(batch)                       # that memory is working memory of backward
    return failed


cdef int waiting_forward(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    if w.again:                                 # it was dropped, perhaps without those that it was computed with
        return forward_alone(w, batch)
    clear_call(batch)
    return w.device.send_arguments(w, batch)


cdef int waiting_backward(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    cdef Pass* s = pass_of(w)
    return 0 if s.done != NULL and s.done[w.number] else backward_alone(w, batch)


cdef int note_done(Pass* s, uint32_t first, uint32_t n) noexcept nogil:
    if make_table(s, <void**>&s.done, s.walk.g.n_batches):
        return -1
    memset(s.done + first, True, n)
    return 0


# ---- passes ----------------------------------------------------------------------------

# Plans choose no other forms for devices.
cdef Form[FORMS] forms
cdef int form
for form in (ONE, STACKED, FLATTENED, COLUMNS):
    forms[form].forward = forward_call
    forms[form].backward = backward_call
forms[EACH].forward = forward_each
forms[EACH].backward = backward_each
for form in (IN_CELL, IN_FUSION):
    forms[form].forward = waiting_forward
    forms[form].backward = waiting_backward


cdef Form* device_forms() noexcept nogil:
    return forms


cdef Device gpu
memset(&gpu, 0, sizeof(Device))
gpu.kind = GPU
gpu.forms = forms
gpu.place = place
gpu.send_arguments = send_arguments
gpu.translate = translate
gpu.forward = forward
gpu.begin_backward = begin_backward
gpu.backward = backward
gpu.fill = fill
gpu.copy = copy
gpu.zero = zero
gpu.add = add
gpu.settle = end_group
gpu.collect = collect
gpu.multiply = multiply
gpu.finish = finish


cdef void begin_pass(Pass* s, Graph* g, DeviceGraph* d) noexcept nogil:
    memset(s, 0, sizeof(Pass))
    begin_walk(&s.walk, g, &gpu)
    s.walk.hook.after = after_batch
    s.d = d
    s.end = &s.first
    s.group = s.walk.listing.turn = 1                   # moves are numbered from 1, and so are groups; 0 means none
    s.most_scratch = g.scratch.top + MOST_HELD
    s.values_needed = s.values_from = g.values.top
    s.scratch_needed = s.scratch_from = g.scratch.top
    s.tables_from = g.tables.top
    begin_uses(g, d)
    arena_rewind(&d.commands, 0)
    array_rewind(&d.ranges, 0)
