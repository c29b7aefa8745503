"""Backward on a device.

Contributions to one gradient are added in the order in which backward meets
them: the first one assigns.  Gradients of weights that are products are
collected, and multiplied at the end of the pass.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport Call, Tensor, total_of
from dynet_cy.execute.anomaly cimport check_before, checking
from dynet_cy.execute.cpu cimport FEW, mark_gradients, set_one, wants_gradient
from dynet_cy.execute.gradient_hooks cimport gradient_hooks
from dynet_cy.execute.journal cimport Journal, begin_journal, end_journal, note_before, take_back
from dynet_cy.gpu.driver cimport Address, GpuOp, pthread_mutex_lock, pthread_mutex_unlock
from dynet_cy.gpu.graphs cimport DeviceGraph, device_graph, device_ptr
from dynet_cy.gpu.mirrored cimport place_of
from dynet_cy.gpu.passes cimport (
    BACKWARD, BEGIN, PRODUCT, Command, Move, Pass, Waiting, add_call, add_command, add_fill, add_move, add_move_apart,
    begin_moves, begin_pass, end_moves, lay_items, load_moves, raise_pass_failure, room, run_pass, scratch,
    set_device_call, uses_in,
)
from dynet_cy.gpu.registry cimport gpu_op_at
from dynet_cy.graph.graph cimport (
    COMPUTED, EACH, LIVE, NEEDS_GRAD, NO_BATCH, TRAINABLE, Batch, Graph, Node, args_of, batches_of, gradient_at,
    lock_graph, nodes_of, open_gradients, order_of, parameter_here, state_of, unlock_graph,
)
from dynet_cy.graph.timeline cimport BACKWARD_PASS, begin_pass_span, end_span
from dynet_cy.memory.arena cimport arena_rewind
from dynet_cy.memory.mirror cimport mirrors
from dynet_cy.memory.storage cimport Param, note_gradient
from dynet_cy.ops.registry cimport Factors, Op, op_at


cdef int backward(Graph* g, uint32_t target, bint full) except -1:
    """Add the gradient of target to the gradients of parameters: all of it, or after an anomaly nothing.

    No handler of a signal runs from where the first gradient is noted on: all kernels that ops need are loaded, since
    forward has run them.
    """
    cdef DeviceGraph* d = device_graph(g, g.device)
    cdef Pass s
    cdef Journal journal
    cdef int error
    cdef uint64_t span = begin_pass_span(g)
    cdef size_t scratch_top = g.scratch.top, tables_top = g.tables.top
    if gradient_hooks().complete != NULL:
        raise NotImplementedError(
            "backward on a GPU is not done beside parameters on the CPU that are trained over MPI yet")
    if checking:
        check_before(g, target)
    load_moves(d.gpu)
    lock_graph(g)
    begin_journal(&journal, True)
    try:
        keep_gradients(g, target, &journal)
        begin_pass(&s, g, d)
        with nogil:
            error = list_backward_pass(&s, target, full)
        if error:
            raise_pass_failure(&s, "the gradients of the graph")
        run_pass(&s, "the gradients of the graph")
        note_after(&journal)
    except BaseException:
        put_gradients_back(&journal)
        raise
    finally:
        end_journal(&journal)
        arena_rewind(&g.scratch, scratch_top)
        arena_rewind(&g.tables, tables_top)     # what comes there next comes after this pass
        unlock_graph(g)
    end_span(BACKWARD_PASS, span)
    return 0


# ---- taking a pass back ----------------------------------------------------------------

cdef int keep_gradients(const Graph* g, uint32_t target, Journal* journal) except -1:
    """While checks are on: keep the gradients of all parameters that backward from target may add to."""
    cdef const Node* x = nodes_of(g)
    cdef Param* p
    cdef uint32_t i
    for i in range(target + 1 if checking else 0):
        if x[i].nargs == 0 and x[i].object != NULL:
            p = <Param*>x[i].object
            if p.pass_number != journal.number and p.has_gradient:
                parameter_here(p, True)
            note_of(journal, p)
    return 0


cdef void note_of(Journal* journal, Param* p) noexcept nogil:
    pthread_mutex_lock(&p.lock)
    note_before(journal, p)
    pthread_mutex_unlock(&p.lock)


cdef void note_after(Journal* journal) noexcept nogil:
    """The pass has added to what was kept: a pass that has begun meanwhile cannot take back what it finds there."""
    cdef uint32_t i
    for i in range(journal.n):
        note_of(journal, journal.before[i].p)


cdef int put_gradients_back(Journal* journal) except -1:
    """Let gradients that were kept be what they were, where no other pass has added to them."""
    cdef Param* p
    cdef uint32_t i
    if not take_back(journal):
        return 0
    for i in range(journal.n):
        p = journal.before[i].p
        if p.device and p.has_gradient:
            mirrors().send(p.device, p.grad, p.device_grad, p.size)
        elif p.device:
            mirrors().clear(p.device, p.device_grad, p.size)
    return 0


cdef int list_backward_pass(Pass* s, uint32_t target, bint full) noexcept nogil:
    cdef Graph* g = s.g
    cdef Node* node = &nodes_of(g)[target]
    mark_gradients(g, target, full)
    if not open_gradients(g):
        s.failure.needed = g.values.top
        return -1
    if node.val == NULL:                        # a parameter is its own gradient's place
        return add_one(s, <Param*>node.object) if state_of(g)[target] & TRAINABLE else 0
    if add_fill(s, device_ptr(g, s.d, gradient_at(g, node.val)), node.dim.bd, 1):
        return -1
    state_of(g)[target] |= LIVE
    if not state_of(g)[target] & COMPUTED or node.batch >= g.n_batches:
        return 0
    return list_batches_backward(s, 0, node.batch)


cdef int remember_moves(Pass* s) noexcept nogil:
    """Room for where moves to the gradient of each node are."""
    s.place = <uint32_t*>room(s, &s.d.commands, s.g.n_nodes * sizeof(uint32_t))
    if s.place == NULL:
        return -1
    memset(s.place, 0, s.g.n_nodes * sizeof(uint32_t))
    s.group = 1                                 # a place of 0 is none
    return 0


cdef int list_batches_backward(Pass* s, uint32_t first, uint32_t last) noexcept nogil:
    """List the commands of backward over batches, the last one first."""
    cdef size_t top = s.g.scratch.top
    cdef uint32_t b
    if remember_moves(s):
        return -1
    for b in range(last - first + 1):
        s.batch = last - b
        if batch_backward(s, &batches_of(s.g)[last - b]):
            return -1
        arena_rewind(&s.g.scratch, top)
    s.batch = NO_BATCH
    return multiply_waiting(s)


cdef int add_one(Pass* s, Param* p) noexcept nogil:
    """The gradient of a parameter by itself."""
    cdef float* one = <float*>room(s, &s.g.tables, sizeof(float))
    if one == NULL:
        return -1
    one[0] = 1
    begin_moves(s)
    if add_move(s, device_ptr(s.g, s.d, one), p.device_grad, 1, True) == NULL or end_moves(s):
        return -1
    note_gradient_of(p)
    return 0


cdef void note_gradient_of(Param* p) noexcept nogil:
    pthread_mutex_lock(&p.lock)
    note_gradient(p)
    pthread_mutex_unlock(&p.lock)


cdef int batch_backward(Pass* s, Batch* batch) noexcept nogil:
    cdef Batch one
    cdef uint32_t j
    cdef size_t top = s.g.scratch.top
    if batch.form != EACH:
        return call_gradients(s, batch)
    one.y = batch.y
    for j in range(batch.count):
        set_one(s.g, batch, j, &one)
        one.saved = batch.saved_of[j] if batch.saved_of != NULL else NULL
        if lay_items(s, &one) or call_gradients(s, &one):
            return -1
        arena_rewind(&s.g.scratch, top)
        one.y += total_of(&nodes_of(s.g)[order_of(s.g)[one.first]].dim)
    return 0


cdef int call_gradients(Pass* s, Batch* batch) noexcept nogil:
    """Gradients of the arguments of one call."""
    cdef Graph* g = s.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef Node* node = &nodes[ids[0]]
    cdef Op* op = op_at(node.op)
    cdef GpuOp* gpu_op = gpu_op_at(node.op)
    cdef uint8_t* state = state_of(g)
    cdef Tensor few[FEW]
    cdef Call c
    cdef uint32_t i, j, n_live = 0
    cdef size_t top
    for j in range(batch.count):
        n_live += (state[ids[j]] & (LIVE | NEEDS_GRAD)) == (LIVE | NEEDS_GRAD)
    if n_live == 0 or op.backward == NULL:
        return 0
    if gpu_op.backward == NULL:
        s.missing = node.op + 1
        s.missing_gradient = True
        return -1
    s.modules |= gpu_op.modules
    if n_live < batch.count:                    # the loss does not depend on the others
        begin_moves(s)
        for j in range(batch.count):
            if not state[ids[j]] & LIVE and zero_gradient(s, &nodes[ids[j]]):
                return -1
        if end_moves(s):
            return -1
    if set_device_call(s, batch, few, &c):
        return -1
    c.dy = c.y
    c.dy.v = device_ptr(g, s.d, gradient_at(g, batch.y))
    c.first = 1
    if gpu_op.begin != NULL and add_call(s, BEGIN, &c, batch, 0, n_live):
        return -1
    top = g.scratch.top
    if node.nargs == 0 and state[ids[0]] & TRAINABLE:
        (<Param*>node.object).has_gradient = 1
        if gpu_op.note != NULL:
            gpu_op.note(&c, batch.items)
        if add_call(s, BACKWARD, &c, batch, 0, n_live):
            return -1
    if gpu_op.spread != NULL and spread(s, batch, &c, gpu_op.spread(&c)):
        return -1
    for i in range(node.nargs):
        if gpu_op.spread != NULL and c.x[i].dim.bd == c.y.dim.bd:
            continue                            # done by `spread`
        if argument_backward(s, batch, gpu_op, &c, i, n_live):
            return -1
        if op.part != NULL:
            c.before += op.part(&c, i)
        if not s.handing_out:                   # what is to be handed out still lies there
            arena_rewind(&g.scratch, top)
    if end_hand_out(s):
        return -1
    arena_rewind(&g.scratch, top)
    return 0


cdef int spread(Pass* s, Batch* batch, const Call* c, float scale) noexcept nogil:
    """The gradients of all arguments that lie as the results do are theirs, times a number: one group of moves."""
    cdef Graph* g = s.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef float* source = c.dy.v
    cdef uint32_t i, j
    begin_moves(s)
    for j in range(batch.count):
        for i in range(c.n):
            if c.x[i].dim.bd == c.y.dim.bd and add_gradient(
                    s, args_of(g, &nodes[ids[j]])[i], source, total_of(&nodes[ids[j]].dim), scale):
                return -1
        source += total_of(&nodes[ids[j]].dim)
    return end_moves(s)


cdef int add_gradient(Pass* s, uint32_t arg, float* source, size_t n, float scale) noexcept nogil:
    """Let the group of moves add n numbers to the gradient of a node, after what it has added there before."""
    cdef Graph* g = s.g
    cdef uint8_t* state = state_of(g)
    cdef Node* a = &nodes_of(g)[arg]
    cdef uint32_t last = s.place[arg]
    cdef bint first = last < s.group            # in this group
    cdef Move* m
    if a.val == NULL:
        if not state[arg] & TRAINABLE:
            return 0
        m = add_move_apart(s, source, (<Param*>a.object).device_grad, n, True)
        note_gradient_of(<Param*>a.object)
    elif state[arg] & NEEDS_GRAD:
        m = add_move_apart(s, source, device_ptr(g, s.d, gradient_at(g, a.val)), n,
                           not first or (state[arg] & LIVE) != 0)
        state[arg] |= LIVE
    else:
        return 0
    if m == NULL:
        return -1
    m.scale = scale
    if not first:
        m.follower = 1
        s.moves[last - s.group].next = s.n_moves
    s.place[arg] = s.group + s.n_moves - 1
    return 0


cdef int zero_gradient(Pass* s, const Node* x) noexcept nogil:
    cdef float* to = device_ptr(s.g, s.d, gradient_at(s.g, x.val))
    return 0 if add_move(s, NULL, to, total_of(&x.dim), False) != NULL else -1


cdef int argument_backward(Pass* s, Batch* batch, GpuOp* gpu_op, Call* c, uint32_t i,
                           uint32_t n_nodes) noexcept nogil:
    """Gradient of argument i of all nodes of a batch."""
    cdef Graph* g = s.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef uint8_t* state = state_of(g)
    cdef uint32_t j, arg = args_of(g, &nodes[ids[0]])[i]
    cdef uint32_t n_need, n_live
    cdef bint one = batch.count == 1 or (batch.x[i].v == NULL and batch.x[i].list == NULL)
    cdef Node* a = &nodes[arg]
    cdef Factors factors
    cdef float* at
    if not wants_gradient(g, batch, i, one, &n_need, &n_live):
        return 0
    c.work = NULL
    if gpu_op.work != NULL:
        c.work = <float*>scratch(s, gpu_op.work(c, <int>i) * sizeof(float))
        if c.work == NULL:
            return -1
        c.work = device_ptr(g, s.d, c.work)
    c.dx = c.x[i]
    if one and a.val == NULL:                   # a parameter: its gradient is in storage
        note_gradient_of(<Param*>a.object)
        if gpu_op.factors != NULL:
            factors.n = 0
            gpu_op.factors(c, i, &factors)
            if factors.n:
                return wait_for_more(s, <Param*>a.object, &factors)
        if end_hand_out(s):
            return -1
        c.dx.v = (<Param*>a.object).device_grad
        return call_backward(s, batch, gpu_op, c, i, True, n_nodes)
    if one:
        if end_hand_out(s):
            return -1
        arg = args_of(g, &nodes[ids[0]])[i]
        c.dx.v = device_ptr(g, s.d, gradient_at(g, a.val))
        if call_backward(s, batch, gpu_op, c, i, (state[arg] & LIVE) != 0, n_nodes):
            return -1
        state[arg] |= LIVE
        return 0
    if batch.x[i].list != NULL:
        return -1 if end_hand_out(s) else list_backward(s, batch, gpu_op, c, i, n_nodes)
    if batch.x[i].v == a.val and n_need == batch.count:
        # Side by side, so each argument occurs once.
        if end_hand_out(s):
            return -1
        if n_live and n_live < batch.count:
            begin_moves(s)
            for j in range(batch.count):
                arg = args_of(g, &nodes[ids[j]])[i]
                if not state[arg] & LIVE and zero_gradient(s, &nodes[arg]):
                    return -1
            if end_moves(s):
                return -1
        c.dx.v = device_ptr(g, s.d, gradient_at(g, a.val))
        if call_backward(s, batch, gpu_op, c, i, n_live != 0, n_nodes):
            return -1
        for j in range(batch.count):
            state[args_of(g, &nodes[ids[j]])[i]] |= LIVE
        return 0
    if gpu_op.same != NULL:
        at = gpu_op.same(c, i)
        if at != NULL:
            return hand_out(s, batch, i, at)
    at = <float*>scratch(s, total_of(&c.dx.dim) * sizeof(float))
    if at == NULL:
        return -1
    c.dx.v = device_ptr(g, s.d, at)
    if call_backward(s, batch, gpu_op, c, i, False, n_nodes):
        return -1
    return hand_out(s, batch, i, c.dx.v)


cdef int hand_out(Pass* s, Batch* batch, uint32_t i, float* source) noexcept nogil:
    """Let gradients that lie side by side be added to those of argument i of each node.

    Those of several arguments are one group of moves, up to where something else is about to change a gradient: that
    calls `end_hand_out` first.
    """
    cdef Graph* g = s.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef uint32_t j, arg
    cdef size_t n
    if not s.handing_out:
        begin_moves(s)
        s.handing_out = True
    for j in range(batch.count):
        arg = args_of(g, &nodes_of(g)[ids[j]])[i]
        n = total_of(&nodes_of(g)[arg].dim)
        for _ in range(uses_in(batch, &nodes_of(g)[arg], &nodes_of(g)[ids[j]])):
            if add_gradient(s, arg, source, n, 1):
                return -1
            source += n
    return 0


cdef int end_hand_out(Pass* s) noexcept nogil:
    if not s.handing_out:
        return 0
    s.handing_out = False
    return end_moves(s)


cdef int list_backward(Pass* s, Batch* batch, GpuOp* gpu_op, Call* c, uint32_t i, uint32_t n_nodes) noexcept nogil:
    """Gradient of an argument that is read where it lies: goes to where its gradients lie."""
    cdef Graph* g = s.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef uint8_t* state = state_of(g)
    cdef float** dx = <float**>room(s, &g.tables, batch.bd * sizeof(float*))
    # What has no gradient yet; NULL for the others.
    cdef Node** empty = <Node**>room(s, &s.d.commands, batch.count * sizeof(Node*))
    cdef uint32_t j, arg
    cdef bint adds = not gpu_op.assigns
    cdef Address at
    cdef Node* a
    if dx == NULL or empty == NULL:
        return -1
    for j in range(batch.bd):
        at = <Address><uintptr_t>batch.x[i].list[j]
        dx[j] = device_ptr(g, s.d, gradient_at(g, <float*>place_of(&g.values, &s.d.values, at)))
    for j in range(batch.count):
        arg = args_of(g, &nodes_of(g)[ids[j]])[i]
        a = &nodes_of(g)[arg]
        empty[j] = NULL
        # It serves several batch elements, or has one, perhaps as the argument of a node before in this batch.
        if a.dim.bd != nodes_of(g)[ids[j]].dim.bd or state[arg] & LIVE:
            adds = True
        if not state[arg] & LIVE:
            # What needs no gradient has a place for it all the same.
            empty[j] = a
            state[arg] |= LIVE if state[arg] & NEEDS_GRAD else 0
    if adds:
        begin_moves(s)
        for j in range(batch.count):
            if empty[j] != NULL and zero_gradient(s, empty[j]):
                return -1
        if end_moves(s):
            return -1
    c.dx.list = <float**>device_ptr(g, s.d, dx)
    c.accumulate = adds
    return add_call(s, BACKWARD, c, batch, i, n_nodes)


cdef int call_backward(Pass* s, Batch* batch, GpuOp* gpu_op, Call* c, uint32_t i, bint accumulate,
                       uint32_t n_nodes) noexcept nogil:
    if not gpu_op.assigns and not accumulate:
        if add_fill(s, c.dx.v, total_of(&c.dx.dim), 0):
            return -1
        accumulate = True
    c.accumulate = accumulate
    return add_call(s, BACKWARD, c, batch, i, n_nodes)


# ---- gradients of weights --------------------------------------------------------------
# They are products; those of one parameter are one product, of factors laid side by side.

cdef int wait_for_more(Pass* s, Param* p, const Factors* f) noexcept nogil:
    cdef Waiting* w = s.waiting
    cdef Waiting* x = <Waiting*>room(s, &s.d.commands, sizeof(Waiting))
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
            left = device_ptr(s.g, s.d, left)
            right = device_ptr(s.g, s.d, right)
            if gather_factors(s, w, left, right):
                return -1
        c = add_command(s, PRODUCT)
        if c == NULL:
            return -1
        c.p = w.p.device_grad
        c.left = left
        c.right = right
        c.rows = rows
        c.cols = cols
        c.n = w.n
        arena_rewind(&s.g.scratch, top)
        w = w.next
    return 0
