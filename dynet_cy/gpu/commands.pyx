# Used from Cython only.
"""The commands of a pass on a device, and the functions that append them for the walk; see commands.pxd.

The arenas of the graph are mirrored on the device.  So the host decides where values, gradients and working memory are,
as for the CPU.  A pass writes only tables to its own arenas, so the other arenas take no host memory.
"""

from libc.stdint cimport uintptr_t
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport Tensor, total_of
from dynet_cy.execute.gradients cimport backward_call, backward_each, collected_of
from dynet_cy.execute.walk cimport Collected, Device, Form, allocate, begin_walk, forward_call, forward_each, settle
from dynet_cy.gpu.driver cimport Address, GpuOp
from dynet_cy.gpu.graphs cimport device_ptr
from dynet_cy.gpu.memory cimport Range, begin_use, note_use
from dynet_cy.gpu.registry cimport gpu_op_at
from dynet_cy.graph.structs cimport (
    COLUMNS, EACH, FLATTENED, FORMS, NO_BATCH, ONE, SENT, STACKED, Batch, Node, args_of, batches_of, nodes_of, order_of,
    state_of,
)
from dynet_cy.memory.arena cimport arena_alloc, arena_extend, arena_rewind, array_push, array_rewind
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport GPU, Factors, Op


cdef inline Pass* pass_of(Walk* w) noexcept nogil:
    return <Pass*>w


cdef inline void* reserve(Pass* s, Arena* a, size_t n) noexcept nogil:
    cdef void* p = arena_alloc(a, n)
    if p == NULL:
        s.walk.failure.needed = n
    return p


cdef inline float* on_device(Pass* s, const void* p) noexcept nogil:
    return device_ptr(s.walk.g, s.d, p)


# ---- commands ------------------------------------------------------------------

cdef Command* add_command(Pass* s, int kind) noexcept nogil:
    cdef Command* c = <Command*>reserve(s, &s.d.commands, sizeof(Command))
    if c == NULL:
        return NULL
    c.next = NULL
    c.kind = kind
    c.op = 0
    c.batch = s.walk.number
    c.items = NULL
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
    c.op = nodes_of(s.walk.g)[order_of(s.walk.g)[batch.first]].op
    c.items = batch.items
    c.i = i
    c.nodes = nodes
    c.first = batch.first
    c.members = batch.count
    return 0


# ---- moves -----------------------------------------------------------------------
# A group of moves is one command.  The group is a contiguous table: nothing else is added to the tables until the group
# ends.

cdef inline void open_group(Pass* s) noexcept nogil:
    if not s.walk.pending:
        s.walk.pending = True
        s.moves = NULL
        s.group += s.n_moves
        s.n_moves = 0
        s.longest = 0


cdef int end_group(Walk* w) noexcept nogil:
    cdef Pass* s = pass_of(w)
    cdef Command* c
    w.pending = False
    if s.n_moves == 0 or s.longest == 0:
        return 0
    c = add_command(s, MOVES)
    if c == NULL:
        return -1
    c.p = on_device(s, s.moves)
    c.count = s.n_moves
    c.n = s.longest
    return 0


cdef Move* add_move(Pass* s, const float* source, float* to, size_t n, bint acc) noexcept nogil:
    cdef Move* moves
    cdef Move* m
    open_group(s)
    moves = <Move*>(reserve(s, &s.walk.g.tables, sizeof(Move)) if s.n_moves == 0 else
                    arena_extend(&s.walk.g.tables, s.moves, s.n_moves * sizeof(Move), sizeof(Move)))
    m = moves + s.n_moves
    if moves == NULL:
        s.walk.failure.needed = sizeof(Move)
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


cdef int add_copy(Pass* s, const float* source, float* to, size_t n) noexcept nogil:
    """Add a move that assigns.  If it continues where the previous move ends, that move is extended instead."""
    cdef Move* m
    if s.walk.pending and s.n_moves:
        m = &s.moves[s.n_moves - 1]
        if (not m.acc and m.to + m.n == to and
                ((source == NULL) if m.source == NULL else m.source + m.n == source)):
            m.n += n
            s.longest = max(s.longest, m.n)
            return 0
    return 0 if add_move(s, source, to, n, False) != NULL else -1


# ---- the functions of the device -----------------------------------------------------

cdef float* place(Walk* w, const void* p) noexcept nogil:
    return on_device(pass_of(w), p)


cdef void note_memory(Walk* w) noexcept nogil:
    """Note that the device needs the memory too."""
    cdef Pass* s = pass_of(w)
    s.scratch_needed = max(s.scratch_needed, w.g.scratch.top)
    note_use(&w.g.scratch, &s.d.scratch)
    note_use(&w.g.grads, &s.d.grads)


cdef int send_arguments(Walk* w, const Batch* batch) noexcept nogil:
    """Add inputs of the nodes of a batch to the upload, unless they have been sent."""
    cdef Graph* g = w.g
    cdef const Node* node
    cdef uint32_t i, j
    for j in range(batch.count):
        node = &nodes_of(g)[order_of(g)[batch.first + j]]
        for i in range(node.nargs):
            if send_input(pass_of(w), args_of(g, node)[i]):
                return -1
    return 0


cdef int send_input(Pass* s, uint32_t number) noexcept nogil:
    cdef Node* x = &nodes_of(s.walk.g)[number]
    cdef uint8_t* state = state_of(s.walk.g)
    cdef Range* r
    if x.val == NULL or x.batch != NO_BATCH or state[number] & SENT:
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
    cdef Node* node = &nodes_of(g)[order_of(g)[batch.first]]
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
    c.y.v = on_device(s, c.y.v)
    if node.item_count:
        c.items = <const uint32_t*>on_device(s, batch.items)
    if c.saved != NULL:
        c.saved = on_device(s, c.saved)
    if gpu_op_at(node.op).draws:
        if s.seeds == NULL:
            s.seeds = <uint64_t*>reserve(s, &g.tables, 2 * sizeof(uint64_t))
            if s.seeds == NULL:
                return -1
            s.seeds[0] = c.seed
            s.seeds[1] = c.stream
        c.seed = <uint64_t><uintptr_t>on_device(s, s.seeds)
    return 0


cdef int forward(Walk* w, const Batch* batch, const Op* op, const Call* c) noexcept nogil:
    cdef Pass* s = pass_of(w)
    cdef const GpuOp* gpu_op = gpu_op_at(op.id)
    if gpu_op.forward == NULL:
        s.missing = op.id + 1
        return -1
    s.modules |= gpu_op.modules
    s.values_needed = max(s.values_needed, w.g.values.top)
    return add_call(s, FORWARD, c, batch, 0, batch.count)


cdef int begin_backward(Walk* w, const Batch* batch, const Op* op, const Call* c) noexcept nogil:
    cdef Pass* s = pass_of(w)
    cdef const GpuOp* gpu_op = gpu_op_at(op.id)
    if gpu_op.backward == NULL:
        s.missing = op.id + 1
        s.missing_gradient = True
        return -1
    s.modules |= gpu_op.modules
    return add_call(s, BEGIN, c, batch, 0, w.n_live) if gpu_op.begin_backward != NULL else 0


cdef int backward(Walk* w, const Batch* batch, const Op* op, const Call* c, uint32_t i) noexcept nogil:
    cdef const GpuOp* gpu_op = gpu_op_at(op.id)
    if gpu_op.note != NULL:
        gpu_op.note(c, batch.items)
    return add_call(pass_of(w), BACKWARD, c, batch, i, w.n_live)


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
    return 0


cdef int copy(Walk* w, float* to, const float* source, size_t n) noexcept nogil:
    return add_copy(pass_of(w), place(w, source), place(w, to), n)


cdef int zero(Walk* w, float* to, size_t n) noexcept nogil:
    return add_copy(pass_of(w), NULL, place(w, to), n)


cdef int add(Walk* w, uint32_t node, float* to, const float* source, size_t n, float scale,
             bint accumulate) noexcept nogil:
    """Add a move to the gradient of a node, to run after earlier moves of the group to the same gradient."""
    cdef Pass* s = pass_of(w)
    cdef const Node* a = &nodes_of(w.g)[node]
    cdef uint32_t last
    cdef Move* m
    if s.last_move == NULL:
        s.last_move = <uint32_t*>reserve(s, &s.d.commands, w.g.n_nodes * sizeof(uint32_t))
        if s.last_move == NULL:
            return -1
        memset(s.last_move, 0, w.g.n_nodes * sizeof(uint32_t))
    m = add_move(s, source, place(w, to) if a.val != NULL else (<Param*>a.object).device_grad, n, accumulate)
    if m == NULL:
        return -1
    m.scale = scale
    last = s.last_move[node]
    if last >= s.group:
        m.follower = 1
        s.moves[last - s.group].next = s.n_moves
    s.last_move[node] = s.group + s.n_moves - 1
    return 0


# ---- gradients of weights --------------------------------------------------------------
# The products for one parameter are computed as one product of factors that are laid side by side.

# The factors of one call.
cdef struct FactorPart:
    FactorPart* next
    Factors factors


cdef int collect(Walk* w, Param* p, const Factors* f) noexcept nogil:
    cdef Pass* s = pass_of(w)
    cdef Collected* x = collected_of(w, p)
    cdef FactorPart* part = <FactorPart*>reserve(s, &s.d.commands, sizeof(FactorPart))
    if part == NULL:
        return -1
    if w.number != NO_BATCH:                    # it is multiplied at the end of the pass
        batches_of(w.g)[w.number].keeps = True
    part.next = NULL
    part.factors = f[0]
    if x == NULL:
        x = <Collected*>reserve(s, &s.d.commands, sizeof(Collected))
        if x == NULL:
            return -1
        x.p = p
        x.sums = NULL
        x.product = f[0]
        x.parts = x.last = part
        x.next = w.collected
        w.collected = x
    else:
        (<FactorPart*>x.last).next = part
        x.last = part
        x.product.n += f.n
    return 1


cdef int multiply(Walk* w, Collected* x) noexcept nogil:
    cdef Factors f = x.product
    cdef Command* c
    cdef float* left
    cdef float* right
    if x.parts != x.last:
        left = <float*>allocate(w, f.rows * f.n * sizeof(float))
        right = <float*>allocate(w, f.cols * f.n * sizeof(float))
        if left == NULL or right == NULL:
            return -1
        f.left = place(w, left)
        f.right = place(w, right)
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
    while part != NULL:
        if add_copy(s, part.factors.left, left, f.rows * part.factors.n):
            return -1
        left += f.rows * part.factors.n
        part = part.next
    part = first
    while part != NULL:
        if add_copy(s, part.factors.right, right, f.cols * part.factors.n):
            return -1
        right += f.cols * part.factors.n
        part = part.next
    return settle(w)


# ---- passes ----------------------------------------------------------------------------

# Plans choose no other forms for devices.
cdef Form[FORMS] forms
cdef int form
for form in (ONE, STACKED, FLATTENED, COLUMNS):
    forms[form].forward = forward_call
    forms[form].backward = backward_call
forms[EACH].forward = forward_each
forms[EACH].backward = backward_each

cdef Device gpu
memset(&gpu, 0, sizeof(Device))
gpu.kind = GPU
gpu.forms = forms
gpu.place = place
gpu.note_memory = note_memory
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


cdef void begin_pass(Pass* s, Graph* g, DeviceGraph* d) noexcept nogil:
    memset(s, 0, sizeof(Pass))
    begin_walk(&s.walk, g, &gpu)
    s.d = d
    s.end = &s.first
    s.group = 1                                 # moves are numbered from 1; 0 means none
    s.values_needed = g.values.top
    s.scratch_needed = g.scratch.top
    s.tables_from = g.tables.top
    begin_use(&g.values, &d.values)
    begin_use(&g.grads, &d.grads)
    begin_use(&g.scratch, &d.scratch)
    begin_use(&g.tables, &d.tables)
    arena_rewind(&d.commands, 0)
    array_rewind(&d.ranges, 0)
