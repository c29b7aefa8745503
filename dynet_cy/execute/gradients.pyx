"""Backward over the batches that have run; see gradients.pxd.

The first contribution to a node's gradient assigns it, later ones are added.  Gradients of parameters go straight to
their storage, except two kinds, which are collected over the pass.  The gradient of a weight matrix is a sum of
products L R', one for each call of the ops that use it.  A product with few columns is limited by memory traffic on
the matrix rather than by arithmetic, so the columns of many calls are laid side by side and multiplied at once.  Each
contribution to the gradient of a small parameter is small, compared to the cost of locking the parameter and recording
the change.  So the contributions of one pass are summed separately, where no other thread sees them, and added once.

Batches of different forward passes that run backward as one call (schedule/joining) form a temporary batch, which
exists for this call only: its list of nodes follows those of the batches that have run, in `graph.order`.  As in
forward, the arguments are laid side by side.  The gradients of the results are copied side by side too, and the
gradients that the call computes are added to those of the arguments.
"""

from libc.math cimport INFINITY
from libc.stdint cimport SIZE_MAX, UINT32_MAX, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from dynet_cy.core.mutex cimport pthread_mutex_lock, pthread_mutex_unlock
from dynet_cy.core.threads cimport interrupted, now
from dynet_cy.execute.accumulation cimport (
    MOST_IN_BACKGROUND, add_in_background, finish_background, is_made, note_before, roll_back,
)
from dynet_cy.execute.gradient_memory cimport come_back, donate_values, give_back, take_back
from dynet_cy.execute.walk cimport (
    FEW, allocate, allocate_table, arrange, claim, gather, in_turn, is_empty, lay_items, neighbours_before,
    op_raised, open_section, part_views, pieces_backward, place_of, set_call, set_call_of_one, set_one, set_tensor,
    settle, settle_gradients, uses_in, views_backward,
)
from dynet_cy.graph.structs cimport (
    EACH, IN_ANY_ORDER, IN_ORDER, KEEPS_ASKED, KEEPS_FACTORS, LIVE, NEEDS_GRAD, NO_BATCH, ONE, TILES, TRAINABLE, VIEWS,
    Absorbed, Graph, are_joint, args_of, batches_of, claim_memory, free_memory, gradient_of_node, held_of, home_of,
    is_donatable, keep_gradient, keep_held_gradients, lie_over, nodes_of, open_gradients, order_of, state_of,
)
from dynet_cy.kernels.kernels cimport K
from dynet_cy.kernels.product cimport weight_gradient
from dynet_cy.memory.arena cimport arena_offset, arena_rewind, array_push, array_rewind, segment_of
from dynet_cy.memory.storage cimport note_gradient
from dynet_cy.ops.registry cimport UNCHANGED, Needs, Op, goes_over, op_at, reads, reads_result
from dynet_cy.schedule.budget cimport ENOUGH_COLUMNS, LEAST_COLLECTED, MOST_COLUMNS, memory_left
from dynet_cy.schedule.joining cimport BackwardPlan, Step, plan_backward
from dynet_cy.schedule.transient cimport least_donated
from dynet_cy.watch.instruments cimport bad_gradients, checking, note_call, profiling


cdef enum:
    COLLECTS = 2                    # within a limit: factors take this part of what is left, or less
    LENDS = 32                      # the same of gradients that wait until another thread has read them
    NOTES = 1 << 12                 # bytes of notes of what is collected

cdef const Op* ops = op_at(0)                   # all ops; the table never moves


cdef inline bint stops(Walk* w, size_t bytes) noexcept nogil:
    """Whether the pass ends here because a signal handler has raised an exception.

    Backward ends only if its changes can be undone.  Passes on a GPU are only listed at this time, and are not stopped.
    """
    if not w.at_once or not interrupted(&w.failure.interrupts, bytes) or w.whole:
        return False
    if w.collecting.background != NULL:
        finish_background(w.collecting.background)
    return w.journal == NULL or roll_back(w.journal)


# ---- locks of parameters ---------------------------------------------------------------

cdef inline void begin_parameter(Walk* w, Param* p) noexcept nogil:
    """Lock the gradient of a parameter for a contribution, and record it in the journal."""
    pthread_mutex_lock(&p.lock)
    if w.journal != NULL:
        note_before(w.journal, p)


cdef inline void begin_addition(Walk* w, Param* p) noexcept nogil:
    """`begin_parameter` for a contribution that is made now, after those that another thread computes."""
    cdef const Collected* x
    if w.collecting.background != NULL:
        x = collected_of(w, p)
        if x != NULL and x.added != NULL and not is_made(x.added):
            finish_background(w.collecting.background)
    begin_parameter(w, p)


cdef inline void end_parameter(Param* p) noexcept nogil:
    note_gradient(p)
    pthread_mutex_unlock(&p.lock)


# ---- memory of collected factors -----------------------------------------------------

cdef bint give_back_factors(Walk* w) noexcept nogil:
    """Add the products that are collected, free their factors and what another thread reads, and collect no more.

    False: there are none.
    """
    cdef Collected* x
    cdef Addition* a
    cdef bint found = False
    w.collecting.left = 0
    if multiply_collected(w):
        return False
    if w.collecting.background != NULL:
        finish_background(w.collecting.background)
        found = w.lending.first != NULL
        come_back(w.g, &w.lending)
    x = w.collecting.first
    while x != NULL:
        if x.sums == NULL:
            found = free_factors(w, x, &x.product.left, x.product.right) or found
            a = x.added
            while a != NULL:
                found = free_factors(w, x, <const float**>&a.left, a.right) or found
                a = a.before
        x = x.next
    return found


cdef bint free_factors(Walk* w, const Collected* x, const float** left, const float* right) noexcept nogil:
    if left[0] == NULL:
        return False
    free_memory(w.g, <void*>left[0], x.product.rows * w.collecting.columns * sizeof(float))
    free_memory(w.g, <void*>right, x.product.cols * w.collecting.columns * sizeof(float))
    left[0] = NULL
    return True


# ---- numbers -----------------------------------------------------------------------

cdef inline int add_numbers(Walk* w, uint32_t node, float* to, const float* source, size_t n, float scale,
                            bint accumulate) noexcept nogil:
    if not w.at_once:
        w.listing.added += 1
        return w.device.add(w, node, to, source, n, scale, accumulate)
    if scale != 1:
        if accumulate:
            K.axpy(n, scale, source, to)
        else:
            K.scale(n, scale, source, to)
    elif accumulate:
        K.add(n, source, to)
    else:
        memcpy(to, source, n * sizeof(float))
    return 0


cdef inline int add_contribution(Walk* w, uint32_t node, const Node* a, uint8_t* state, const float* source, size_t n,
                                 float scale) noexcept nogil:
    """Add n numbers, times scale, to the gradient of a node, if it needs one: the first contribution assigns."""
    cdef bint live = (state[0] & LIVE) != 0
    cdef float* to
    if a.val == NULL:
        return contribute_to_parameter(w, node, source, n, scale) if state[0] & TRAINABLE else 0
    if not state[0] & NEEDS_GRAD:
        return 0
    to = claim(w, a)
    if to == NULL:
        return -1
    state[0] |= LIVE
    return add_numbers(w, node, to, source, n, scale, live)


cdef int contribute_to_parameter(Walk* w, uint32_t node, const float* source, size_t n, float scale) noexcept nogil:
    cdef Param* p = <Param*>nodes_of(w.g)[node].object
    cdef int failed
    begin_addition(w, p)
    failed = add_numbers(w, node, p.grad, source, n, scale, True)
    end_parameter(p)
    return failed


cdef int contribute(Walk* w, uint32_t node, const float* source, size_t n, float scale) noexcept nogil:
    return add_contribution(w, node, &nodes_of(w.g)[node], &state_of(w.g)[node], source, n, scale)


cdef int add_each(Walk* w, const Batch* batch, uint32_t i, const float* source) noexcept nogil:
    """Add gradients that are side by side, one for each node, to those of the nodes' arguments i."""
    cdef Graph* g = w.g
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Node* nodes = nodes_of(g)
    cdef const Node* a
    cdef uint8_t* state = state_of(g)
    cdef uint32_t j, arg
    cdef size_t n
    for j in range(batch.count):
        arg = args_of(g, &nodes[ids[j]])[i]
        a = &nodes[arg]
        n = total_of(&a.dim)
        for _ in range(uses_in(batch, a, &nodes[ids[j]])):
            if add_contribution(w, arg, a, &state[arg], source, n, 1):
                return -1
            source += n
    return 0


cdef bint takes_spread(const Walk* w, const Batch* batch, const Call* c, uint32_t i) noexcept nogil:
    """Whether `spread` adds to the gradients of argument i: it has the batch size of the result.

    On devices, ops whose arguments may be broadcast pass dy on too, to those that are not.
    """
    cdef const Graph* g = w.g
    cdef const Node* node
    cdef uint32_t j
    if c.x[i].dim.bd != c.y.dim.bd:
        return False
    for j in range(0 if w.at_once else batch.count):
        node = &nodes_of(g)[order_of(g)[batch.first + j]]
        if total_of(&nodes_of(g)[args_of(g, node)[i]].dim) != total_of(&node.dim):
            return False
    return True


cdef int spread_on_device(Walk* w, const Batch* batch, const Call* c, float scale, uint32_t last) noexcept nogil:
    """Spread a gradient on a device, without argument `last`, which takes the place of the result."""
    cdef uint32_t i
    for i in range(c.n):
        if i != last and takes_spread(w, batch, c, i) and spread_to(w, batch, c, scale, i):
            return -1
    return 0


cdef int spread_to(Walk* w, const Batch* batch, const Call* c, float scale, uint32_t i) noexcept nogil:
    cdef const Graph* g = w.g
    cdef const Node* node
    cdef const float* source = c.dy.v
    cdef uint32_t j
    for j in range(batch.count):
        node = &nodes_of(g)[order_of(g)[batch.first + j]]
        if contribute(w, args_of(g, node)[i], source, total_of(&node.dim), scale):
            return -1
        source += total_of(&node.dim)
    return 0


cdef int spread(Walk* w, const Batch* batch, const Call* c, float scale, uint32_t last) noexcept nogil:
    """Add dy, times a number, to the gradients of all arguments that have the batch size of the result."""
    cdef Graph* g = w.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* node
    cdef const float* source = c.dy.v
    cdef uint32_t i, j
    if not w.at_once:
        return spread_on_device(w, batch, c, scale, last)
    for j in range(batch.count):
        node = &nodes_of(g)[ids[j]]
        for i in range(c.n):
            if c.x[i].dim.bd == c.y.dim.bd and contribute(w, args_of(g, node)[i], source, total_of(&node.dim), scale):
                return -1
        source += total_of(&node.dim)
    return 0


# ---- contributions collected over a pass ---------------------------------------------

cdef inline void* allocate_lasting(Walk* w, size_t bytes) noexcept nogil:
    """Memory that lasts as long as the pass, among that of gradients; NULL if there is none."""
    return claim_memory(w.g, bytes, False)


cdef void* allocate_note(Walk* w, size_t bytes) noexcept nogil:
    """The same for a few bytes, side by side with others: each by itself would divide free memory."""
    cdef void* p
    if bytes > w.collecting.notes_left:
        w.collecting.notes = <char*>allocate_lasting(w, NOTES)
        w.collecting.notes_left = NOTES if w.collecting.notes != NULL else 0
    if bytes > w.collecting.notes_left:
        return NULL
    p = w.collecting.notes
    w.collecting.notes += bytes
    w.collecting.notes_left -= bytes
    return p


cdef inline Collected** collected_at(Walk* w, const Param* p) noexcept nogil:
    """Where the collected contributions to a parameter are in the tree, or would be: the bits of a hash lead there."""
    cdef uint64_t bits = <uint64_t><size_t>p * <uint64_t>0x9E3779B97F4A7C15
    cdef Collected** at = &w.collecting.tree
    while at[0] != NULL and at[0].p != p:
        at = &at[0].below[bits >> 63]
        bits <<= 1
    return at


cdef Collected* collected_of(Walk* w, const Param* p) noexcept nogil:
    """The collected contributions to a parameter; NULL: none so far."""
    return collected_at(w, p)[0]


cdef Collected* add_collected(Walk* w, Param* p, void* memory) noexcept nogil:
    cdef Collected* c = <Collected*>memory
    if c != NULL:
        c.below[0] = c.below[1] = NULL
        c.p = p
        c.sums = NULL
        c.added = NULL
        c.product.left = NULL
        c.product.n = 0
        c.next = w.collecting.first
        w.collecting.first = c
        collected_at(w, p)[0] = c
    return c


cdef int multiply_one(Walk* w, Collected* x) noexcept nogil:
    """Add the collected contributions to the gradient of a parameter."""
    cdef int failed
    if x.product.n == 0:
        return 0
    if w.collecting.background != NULL and x.sums == NULL and add_later(w, x, &x.product):
        x.added.left = <float*>x.product.left           # until it is made; see `allocate_factors`
        x.added.right = <float*>x.product.right
        x.product.left = NULL
        x.product.n = 0
        return 0
    begin_addition(w, x.p)
    failed = w.device.multiply(w, x)
    end_parameter(x.p)
    x.product.n = 0
    return failed


cdef bint add_later(Walk* w, Collected* x, const Factors* f) noexcept nogil:
    """Let another thread add a product to the gradient of a parameter.

    False: it is large, or there is no memory for that.  Then no other thread is busy in the background.
    """
    cdef Addition* a = NULL
    if f.rows * f.cols * f.n <= MOST_IN_BACKGROUND:
        a = <Addition*>allocate_note(w, sizeof(Addition))
    if a == NULL:
        finish_background(w.collecting.background)
        return False
    begin_parameter(w, x.p)
    add_in_background(w.collecting.background, a, x.p, f, x.added)
    end_parameter(x.p)
    x.added = a
    return True


cdef int multiply_collected(Walk* w) noexcept nogil:
    """Add all collected contributions to the gradients of their parameters."""
    cdef size_t top = w.g.scratch.top
    cdef Collected* x = w.collecting.first
    while x != NULL:
        if multiply_one(w, x) or stops(w, x.p.size * sizeof(float)):
            return -1
        arena_rewind(&w.g.scratch, top)
        x = x.next
    return 0


# ---- contributions collected on the CPU ------------------------------------------------

cdef int collect(Walk* w, Param* p, const Factors* f) noexcept nogil:
    """Copy the factors, side by side; 0 if that gains nothing or there is no memory."""
    cdef Collected* c
    cdef Factors* x
    if f.rows * f.cols < LEAST_COLLECTED:
        return 0
    if f.n >= min(<size_t>ENOUGH_COLUMNS, w.collecting.columns):
        return w.collecting.background != NULL and lasts(w, f.left) and lasts(w, f.right) and multiply_later(w, p, f)
    c = products_of(w, p, f)
    if c == NULL or not allocate_factors(w, c):
        return 0
    x = &c.product
    if x.n + f.n > w.collecting.columns:
        multiply_one(w, c)
        if not allocate_factors(w, c):
            return 0
    memcpy(<float*>x.left + x.rows * x.n, f.left, f.rows * f.n * sizeof(float))
    memcpy(<float*>x.right + x.cols * x.n, f.right, f.cols * f.n * sizeof(float))
    x.n += f.n
    return 1


cdef Collected* products_of(Walk* w, Param* p, const Factors* f) noexcept nogil:
    """The collected factors of a weight matrix; NULL if there is no memory."""
    cdef Collected* c = collected_of(w, p)
    if c == NULL:
        c = add_collected(w, p, allocate_note(w, sizeof(Collected)))
        if c != NULL:
            c.product.rows = f.rows
            c.product.cols = f.cols
    return c


cdef bint allocate_factors(Walk* w, Collected* c) noexcept nogil:
    """Give a product memory for its factors, if it has none: that of an earlier one that has been added, or new."""
    cdef Factors* x = &c.product
    cdef Addition* a = c.added
    cdef size_t bytes = (x.rows + x.cols) * w.collecting.columns * sizeof(float)
    if x.left != NULL:
        return True
    if a != NULL and w.collecting.most_lent != SIZE_MAX and w.collecting.background != NULL:
        finish_background(w.collecting.background)      # memory is limited: what there is will do
    while a != NULL and (a.left == NULL or not is_made(a)):
        a = a.before
    if a != NULL:
        x.left = a.left
        x.right = a.right
        a.left = NULL
        return True
    if bytes > w.collecting.left:
        return False
    x.right = <float*>allocate_lasting(w, x.cols * w.collecting.columns * sizeof(float))
    if x.right != NULL:
        x.left = <float*>allocate_lasting(w, x.rows * w.collecting.columns * sizeof(float))
    if x.left != NULL:
        w.collecting.left -= bytes
    return x.left != NULL


cdef inline bint lasts(const Walk* w, const float* v) noexcept nogil:
    """Whether numbers stay what they are as long as the pass: all do but those in working memory of a batch."""
    return segment_of(&w.g.scratch, v) == NULL or arena_offset(&w.g.scratch, v) < w.lasting


cdef bint multiply_later(Walk* w, Param* p, const Factors* f) noexcept nogil:
    """Let another thread multiply factors where they are; False: this one has to do it."""
    cdef Collected* c = products_of(w, p, f)
    if c == NULL or not add_later(w, c, f):
        return False
    w.collecting.reader = c.added
    return True


cdef Collected* sums_of(Walk* w, Param* p) noexcept nogil:
    """The sums for the gradient of a small parameter; NULL for a large parameter, and if there is no memory."""
    cdef Collected* c = w.collecting.last
    cdef float* numbers
    if c != NULL and c.p == p:                  # the common case: the same parameter as last time
        return c
    if p.size >= LEAST_COLLECTED or checking:   # checks must see each contribution at the node that made it
        return NULL
    c = collected_of(w, p)
    if c == NULL:
        numbers = <float*>allocate_lasting(w, p.size * sizeof(float))
        c = add_collected(w, p, allocate_note(w, sizeof(Collected)) if numbers != NULL else NULL)
        if c == NULL:
            return NULL
        c.sums = numbers
    w.collecting.last = c
    return c


cdef int multiply(Walk* w, Collected* c) noexcept nogil:
    cdef const Factors* x = &c.product
    if c.sums != NULL:
        K.add(c.p.size, c.sums, c.p.grad)
    else:
        weight_gradient(x.rows, x.cols, x.n, x.left, x.right, 1, c.p.grad)
    return 0


# ---- gradients that take the place of others ----------------------------------------------
#
# A gradient that an op computes element by element from that of its result may be written over it, if nothing reads the
# latter any more: the memory is handed on to the batch of the argument.  So of the arguments of such an op, one that
# has no gradient yet comes last.  On devices additions that are listed may still read the gradient of the result: then
# the argument gets memory of its own.

cdef inline bint may_hand_on(const Walk* w, const Batch* batch, const Node* a) noexcept nogil:
    """Whether the gradients of a batch may become those of the batch whose first node is `a`.

    These have the same size and no memory yet.  Gradients that the program may ask for stay where they are.
    """
    cdef const Batch* to
    if a.batch == NO_BATCH or batch.keeps or batch.joint or batch.dy == NULL:
        return False
    to = &batches_of(w.g)[a.batch]
    return (to.dy == NULL and to.y == a.val and to.bytes == batch.bytes and not to.joint and to.form != VIEWS
            and not (to.keeps and w.g.donates))      # it may be memory of values


cdef inline void hand_on(const Walk* w, Batch* batch, const Node* a) noexcept nogil:
    cdef Batch* to = &batches_of(w.g)[a.batch]
    to.dy = batch.dy
    to.live = 1
    batch.dy = NULL


cdef int take_place(const Walk* w, Batch* batch, uint32_t i) noexcept nogil:
    """Let the gradients of argument i of all nodes be those of the results."""
    cdef const Graph* g = w.g
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef uint32_t j
    hand_on(w, batch, &nodes_of(g)[args_of(g, &nodes_of(g)[ids[0]])[i]])
    for j in range(batch.count):
        state_of(g)[args_of(g, &nodes_of(g)[ids[j]])[i]] |= <uint8_t>LIVE
    return 0


cdef bint takes_place(const Walk* w, const Batch* batch, uint32_t i, uint32_t n) noexcept nogil:
    """Whether the gradients of argument i of n may take the place of those of the results of a batch, when those of the
    other arguments have been computed."""
    cdef const Graph* g = w.g
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Node* nodes = nodes_of(g)
    cdef const uint32_t* args = args_of(g, &nodes[ids[0]])
    cdef const float* at = nodes[args[i]].val
    cdef uint32_t home = nodes[args[i]].batch, j, k
    if not may_hand_on(w, batch, &nodes[args[i]]):
        return False
    for j in range(batch.count):
        args = args_of(g, &nodes[ids[j]])
        if (nodes[args[i]].val != at or not state_of(g)[args[i]] & NEEDS_GRAD
                or total_of(&nodes[args[i]].dim) != total_of(&nodes[ids[j]].dim)):
            return False
        at += total_of(&nodes[args[i]].dim)
        for k in range(n):
            if k != i and nodes[args[k]].batch == home:
                return False
    return True


cdef inline bint may_come_last(const Walk* w, const Batch* batch, const uint32_t* args, uint32_t i,
                               uint32_t n) noexcept nogil:
    """`takes_place` for batches of one node, on the CPU."""
    cdef const Node* a = &nodes_of(w.g)[args[i]]
    cdef const Batch* to
    cdef uint32_t k
    if a.batch == NO_BATCH or not state_of(w.g)[args[i]] & NEEDS_GRAD:
        return False
    to = &batches_of(w.g)[a.batch]
    if (to.dy != NULL or to.bytes != batch.bytes or to.count != 1 or to.joint or to.form == VIEWS
            or to.keeps and w.g.donates):
        return False
    for k in range(n):
        if k != i and args[k] == args[i]:
            return False
    return True


cdef inline uint32_t last_of_one(const Walk* w, const Batch* batch, const Op* op, const uint32_t* args,
                                 uint32_t n) noexcept nogil:
    """`comes_last` for batches of one node, on the CPU."""
    cdef uint32_t i
    if op.in_place and not batch.keeps and not batch.joint:
        for i in range(n):
            if may_come_last(w, batch, args, i, n):
                return i
    return n


cdef uint32_t comes_last(const Walk* w, const Batch* batch, const Op* op, uint32_t n) noexcept nogil:
    """Which of n arguments takes the place of the result; n: none does."""
    cdef uint32_t i
    if op.in_place:
        for i in range(n):
            if takes_place(w, batch, i, n):
                return i
    return n


# ---- gradients that take the place of values ------------------------------------------------
#
# The gradients of a batch may be written over its values, when the batch that reads these last in backward has run so
# far that it computes them, and the op of that one allows it (`Op.over`).

cdef bint goes_over_values(const Walk* w, const Batch* batch, const Op* op, const Call* c, uint32_t i) noexcept nogil:
    """Whether the gradients of argument i of a call, which is read in place, may be written over its values.

    These are all values of a batch, which its own backward does not read, nor that of any other batch from now on.  In
    a batch that runs as a call for each node, the next node may read them.
    """
    cdef const Graph* g = w.g
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Node* nodes = nodes_of(g)
    cdef const Node* a = &nodes[args_of(g, &nodes[ids[0]])[i]]
    cdef const Batch* of
    cdef uint32_t j, k
    if (a.batch == NO_BATCH or w.collecting.reader != NULL or not goes_over(op, i)
            or batches_of(g)[w.number].form == EACH):
        return False
    of = &batches_of(g)[a.batch]
    if (of.reader != w.number + 1 or of.dy != NULL or of.y != a.val or of.joint or not is_donatable(of)
            or of.bytes < least_donated or of.bytes != total_of(&c.x[i].dim) * sizeof(float)
            or reads_result(&ops[nodes[order_of(g)[of.first]].op])):
        return False
    for j in range(batch.count if c.n > 1 else 0):      # no other argument may read them
        for k in range(c.n):
            if k != i and nodes[args_of(g, &nodes[ids[j]])[k]].batch == a.batch:
                return False
    return True


# ---- arguments of a call ---------------------------------------------------------------

cdef inline int zero_gradient(Walk* w, const Node* x) noexcept nogil:
    cdef float* to = claim(w, x)
    return w.device.zero(w, to, total_of(&x.dim)) if to != NULL else -1


cdef inline int one_backward(Walk* w, const Batch* batch, const Op* op, Call* c, uint32_t i) noexcept nogil:
    """Run the op's backward for one argument; `c.accumulate` says whether it adds."""
    cdef int failed = 0
    if w.at_once:
        op.backward(c, i)
    else:
        failed = w.device.backward(w, batch, op, c, i)
    c.first = 0
    return failed


cdef inline int backward_into(Walk* w, const Batch* batch, const Op* op, const Needs* needs, Call* c, uint32_t i,
                              bint accumulate) noexcept nogil:
    """Run the op's backward for one argument, adding to its gradient or else assigning it."""
    if not needs.assigns and not accumulate:
        if w.device.fill(w, c.dx.v, total_of(&c.dx.dim), 0):
            return -1
        accumulate = True
    c.accumulate = accumulate
    return one_backward(w, batch, op, c, i)


cdef int leaf_backward(Walk* w, const Batch* batch, const Op* op, Call* c, Param* p) noexcept nogil:
    """Compute the gradient of rows of a table, the parameter of the node itself; the op records which rows."""
    cdef int failed
    begin_addition(w, p)
    failed = one_backward(w, batch, op, c, c.n)
    p.has_gradient = 1
    pthread_mutex_unlock(&p.lock)
    return failed


cdef int parameter_backward(Walk* w, const Batch* batch, const Op* op, const Needs* needs, Call* c, uint32_t i,
                            Param* p) noexcept nogil:
    """Compute the gradient of an argument that is a parameter; it is in the storage."""
    cdef Factors factors
    cdef Collected* sums
    cdef const float* at = needs.same(c, i) if needs.same != NULL and not w.at_once else NULL
    cdef int done
    if at != NULL:
        return contribute_to_parameter(w, args_of(w.g, &nodes_of(w.g)[order_of(w.g)[batch.first]])[i], at, p.size, 1)
    if needs.factors != NULL:
        factors.n = 0
        needs.factors(c, i, &factors)
        if factors.n:
            c.first = 0
            done = w.device.collect(w, p, &factors)
            if done:
                return 0 if done == 1 else -1
    sums = w.device.sums(w, p) if w.device.sums != NULL else NULL
    if sums != NULL:
        c.dx.v = sums.sums
        done = backward_into(w, batch, op, needs, c, i, sums.product.n != 0)
        sums.product.n = 1
        return done
    if settle(w):
        return -1
    begin_addition(w, p)
    c.dx.v = p.grad if w.at_once else p.device_grad
    c.accumulate = True
    done = one_backward(w, batch, op, c, i)
    end_parameter(p)
    return done


cdef inline int allocate_work(Walk* w, const Needs* needs, Call* c, uint32_t i) noexcept nogil:
    """Working memory for the gradient of argument i; none if all that it needs is prepared."""
    cdef float* work
    cdef size_t n = needs.work(c, <int>i) if needs.work != NULL else 0
    if n == 0:
        return 0
    work = <float*>allocate(w, n * sizeof(float))
    if work == NULL:
        return -1
    c.work = place_of(w, work)
    return 0


cdef inline int value_backward(Walk* w, Batch* batch, const Op* op, const Needs* needs, Call* c, uint32_t i,
                               uint32_t arg, const Node* a, uint8_t* state, bint over) noexcept nogil:
    """Compute the gradient of an argument that is one value; `over`: it may take the place of the result's."""
    cdef const float* at = needs.same(c, i) if needs.same != NULL and not w.at_once else NULL
    cdef float* to
    if at != NULL:
        return add_contribution(w, arg, a, state, at, total_of(&a.dim), 1)
    if over:
        hand_on(w, batch, a)
        if op.in_place == UNCHANGED:
            state[0] |= LIVE
            return 0
    to = claim(w, a)
    if to == NULL:
        return -1
    c.dx.v = place_of(w, to)
    if settle(w) or settle_gradients(w, a.batch) or backward_into(w, batch, op, needs, c, i, (state[0] & LIVE) != 0):
        return -1
    state[0] |= LIVE
    return 0


cdef int shared_backward(Walk* w, Batch* batch, const Op* op, const Needs* needs, Call* c, uint32_t i,
                         uint32_t arg, bint over) noexcept nogil:
    """Compute the gradient of an argument that is one node for the whole batch: a value or a parameter."""
    cdef const Node* a = &nodes_of(w.g)[arg]
    cdef uint8_t* state = &state_of(w.g)[arg]
    if not state[0] & NEEDS_GRAD or not (a.val != NULL or state[0] & TRAINABLE):
        return 0
    if allocate_work(w, needs, c, i):
        return -1
    c.dx = c.x[i]
    if a.val == NULL:
        return parameter_backward(w, batch, op, needs, c, i, <Param*>a.object)
    return value_backward(w, batch, op, needs, c, i, arg, a, state, over)


cdef int list_backward(Walk* w, const Batch* batch, const Op* op, const Needs* needs, Call* c,
                       uint32_t i) noexcept nogil:
    """Compute the gradient of an argument that is read as a list: it is written through a list of pointers too."""
    cdef Graph* g = w.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef uint8_t* state = state_of(g)
    cdef float** dx = <float**>allocate_table(w, batch.bd * sizeof(float*))
    # For each node, the gradient of its argument if that has none yet, otherwise NULL.
    cdef float** empty = <float**>allocate(w, batch.count * sizeof(float*))
    cdef uint32_t j, arg
    cdef size_t n = 0, stride
    cdef bint adds = not needs.assigns, among_values = False
    cdef float* at
    cdef const Node* a
    if dx == NULL or empty == NULL:
        return -1
    for j in range(batch.count):
        arg = args_of(g, &nodes[ids[j]])[i]
        a = &nodes[arg]
        empty[j] = NULL
        if a.val == NULL:
            among_values = True
            at = <float*>allocate_zeros(w, total_of(&a.dim))
        elif state[arg] & NEEDS_GRAD:
            at = claim(w, a)
        else:                                   # the op writes one all the same
            at = <float*>allocate(w, total_of(&a.dim) * sizeof(float))
        if at == NULL:
            return -1
        if a.val != NULL:
            if settle_gradients(w, a.batch):
                return -1
            if not state[arg] & LIVE:
                empty[j] = at
            at = place_of(w, at)
        stride = size_of(&a.dim) if a.dim.bd > 1 else 0
        for _ in range(nodes[ids[j]].dim.bd):
            dx[n] = at
            at += stride
            n += 1
        # Several batch elements share it, or it has a gradient, perhaps from an earlier node of this batch.
        if a.dim.bd != nodes[ids[j]].dim.bd or state[arg] & LIVE:
            adds = True
        if a.val != NULL and state[arg] & NEEDS_GRAD:
            state[arg] |= LIVE
    if adds:
        for j in range(batch.count):
            a = &nodes[args_of(g, &nodes[ids[j]])[i]]
            if empty[j] != NULL and w.device.zero(w, empty[j], total_of(&a.dim)):
                return -1
        if settle(w):
            return -1
    c.dx.list = <float**>place_of(w, dx)
    c.accumulate = adds
    if one_backward(w, batch, op, c, i):
        return -1
    if not among_values:
        return 0
    w.listing.held = not w.at_once
    return add_to_parameters(w, batch, i, dx)


cdef inline void* allocate_zeros(Walk* w, size_t n) noexcept nogil:
    cdef void* p = allocate(w, n * sizeof(float))
    if p != NULL:
        memset(p, 0, n * sizeof(float))
    return p


cdef int add_to_parameters(Walk* w, const Batch* batch, uint32_t i, float* const* dx) noexcept nogil:
    """Add listed gradients to those of arguments that are parameters."""
    cdef const uint32_t* ids = order_of(w.g) + batch.first
    cdef const Node* nodes = nodes_of(w.g)
    cdef uint32_t j, arg
    cdef size_t n = 0
    for j in range(batch.count):
        arg = args_of(w.g, &nodes[ids[j]])[i]
        if nodes[arg].val == NULL and contribute(w, arg, dx[n], total_of(&nodes[arg].dim), 1):
            return -1
        n += nodes[ids[j]].dim.bd
    return 0


cdef int adjacent_backward(Walk* w, Batch* batch, const Op* op, const Needs* needs, Call* c, uint32_t i,
                           bint live, bint over) noexcept nogil:
    """Compute the gradients of arguments that are read in place, so that each occurs once.

    Args:
        live: one of them has a gradient already, so all are added to.
        over: they may take the place of those of the results.
    """
    cdef Graph* g = w.g
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Node* nodes = nodes_of(g)
    cdef uint8_t* state = state_of(g)
    cdef uint32_t j, arg
    cdef const Node* a = &nodes[args_of(g, &nodes[ids[0]])[i]]
    cdef float* to
    if over and not live:
        hand_on(w, batch, a)
    elif w.g.donates == IN_ORDER and not live and goes_over_values(w, batch, op, c, i):
        lie_over(g, &batches_of(g)[a.batch])
    to = claim(w, a)
    if to == NULL or settle(w):
        return -1
    if live:
        for j in range(batch.count):
            arg = args_of(g, &nodes[ids[j]])[i]
            if (settle_gradients(w, nodes[arg].batch) if state[arg] & LIVE else zero_gradient(w, &nodes[arg])):
                return -1
        if settle(w):
            return -1
    c.dx.v = place_of(w, to)
    if not (c.dx.v == c.dy.v and op.in_place == UNCHANGED) and backward_into(w, batch, op, needs, c, i, live):
        return -1
    for j in range(batch.count):
        state[args_of(g, &nodes[ids[j]])[i]] |= LIVE
    return 0


cdef void gather_earlier(Walk* w, const Batch* batch, uint32_t i, float* to) noexcept nogil:
    """Copy the gradients so far of argument i of all nodes side by side, zeros for those that have none.

    Their nodes have none then, until `add_each` assigns the results.  An argument that occurs again gets zeros, and its
    results are added.
    """
    cdef const Graph* g = w.g
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Node* nodes = nodes_of(g)
    cdef const Node* a
    cdef uint8_t* state = state_of(g)
    cdef uint32_t j, arg
    cdef size_t n
    for j in range(batch.count):
        arg = args_of(g, &nodes[ids[j]])[i]
        a = &nodes[arg]
        n = total_of(&a.dim)
        for _ in range(uses_in(batch, a, &nodes[ids[j]])):
            if a.val != NULL and (state[arg] & (LIVE | NEEDS_GRAD)) == (LIVE | NEEDS_GRAD):
                memcpy(to, gradient_of_node(g, a), n * sizeof(float))
                state[arg] ^= <uint8_t>LIVE
            else:
                memset(to, 0, n * sizeof(float))
            to += n


cdef int scattered_backward(Walk* w, const Batch* batch, const Op* op, const Needs* needs, Call* c, uint32_t i,
                            bint live) noexcept nogil:
    """Compute the gradients of arguments that were copied side by side, and add each to its node's.

    Args:
        live: one of them has a gradient already.  On the CPU the call then adds to copies of these gradients, so that
            sums round as for arguments that are read in place.  On devices additions are listed, and run together.
    """
    cdef float* at = needs.same(c, i) if needs.same != NULL else NULL
    if at != NULL:                              # they are somewhere already
        return add_each(w, batch, i, at)
    live = live and w.at_once
    # Over the copies of the arguments, if no other thread reads them, and the op finds nothing there to add to.
    if w.copies.own and goes_over(op, i) and batch.x[i].bytes and w.collecting.reader == NULL and not live:
        at = batch.x[i].v
    else:
        at = <float*>allocate(w, total_of(&c.dx.dim) * sizeof(float))
    if at == NULL:
        return -1
    if live:
        gather_earlier(w, batch, i, at)
    c.dx.v = place_of(w, at)
    if backward_into(w, batch, op, needs, c, i, live):
        return -1
    w.listing.held = not w.at_once
    return add_each(w, batch, i, c.dx.v)


cdef inline bint lie_together(const Graph* g, const Batch* batch, uint32_t i) noexcept nogil:
    """Whether argument i of the nodes of a batch is read in place, and its gradients lie as the values do."""
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Node* nodes = nodes_of(g)
    cdef const Node* a = &nodes[args_of(g, &nodes[ids[0]])[i]]
    if batch.x[i].v != a.val:
        return False
    return are_joint(g, home_of(g, a), home_of(g, &nodes[args_of(g, &nodes[ids[batch.count - 1]])[i]]))


cdef int argument_backward(Walk* w, Batch* batch, const Op* op, const Needs* needs, Call* c,
                           uint32_t i, bint over) noexcept nogil:
    """Compute the gradient of argument i of all nodes of a batch; `over`: it may take the place of the result's."""
    cdef Graph* g = w.g
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Node* nodes = nodes_of(g)
    cdef const uint8_t* state = state_of(g)
    cdef uint32_t j, arg = args_of(g, &nodes[ids[0]])[i]
    cdef uint32_t n_need = 0, n_live = 0        # arguments that need a gradient, and those that have one already
    if batch.count == 1 or (batch.x[i].v == NULL and batch.x[i].list == NULL):
        return shared_backward(w, batch, op, needs, c, i, arg, over)
    for j in range(batch.count):
        arg = args_of(g, &nodes[ids[j]])[i]
        n_need += (state[arg] & NEEDS_GRAD) != 0
        n_live += (state[arg] & LIVE) != 0
    if n_need == 0:
        return 0
    if allocate_work(w, needs, c, i):
        return -1
    c.dx = c.x[i]
    if batch.x[i].list != NULL:
        return list_backward(w, batch, op, needs, c, i)
    if (n_need == batch.count and lie_together(g, batch, i)
            and (w.at_once or needs.same == NULL or needs.same(c, i) == NULL)):
        return adjacent_backward(w, batch, op, needs, c, i, n_live != 0, over)
    return scattered_backward(w, batch, op, needs, c, i, n_live != 0)


# ---- the forms ---------------------------------------------------------------------------

cdef inline int begin_arguments(Walk* w, const Batch* batch, const Op* op, const Needs* needs, Call* c,
                                uint32_t last) noexcept nogil:
    """Do what comes before the gradients of the arguments: prepare them, and those that are dy times a number."""
    c.first = 1
    if w.at_once and op.prepare != NULL:
        if op.prepares_over and not batch.keeps:
            c.work = c.dy.v
        else:
            c.work = <float*>allocate(w, op.prepared(c) * sizeof(float))
            if c.work == NULL:
                return -1
        op.prepare(c)
        if op_raised(op, &w.failure):
            return -1
    return spread(w, batch, c, needs.spread(c), last) if needs.spread != NULL else 0


cdef int place_prepared(Walk* w, const Batch* batch, Call* c) noexcept nogil:
    """On devices: where `begin_backward` puts what all arguments need; over dy, unless the program may ask for that."""
    cdef float* at
    if not batch.keeps & KEEPS_ASKED:
        c.work = c.dy.v
        return 0
    at = <float*>allocate_lasting(w, total_of(&c.y.dim) * sizeof(float))
    if at == NULL:
        w.failure.needed = total_of(&c.y.dim) * sizeof(float)
        return -1
    c.work = place_of(w, at)
    return 0


cdef int contribute_nothing(Walk* w, const Batch* batch, uint32_t i) noexcept nogil:
    """Add zeros to the gradients of argument i of all nodes of a batch: the result or the argument has no elements."""
    cdef Graph* g = w.g
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Node* nodes = nodes_of(g)
    cdef const Node* a
    cdef uint8_t* state = state_of(g)
    cdef uint32_t j, arg
    for j in range(batch.count):
        arg = args_of(g, &nodes[ids[j]])[i]
        a = &nodes[arg]
        if a.val == NULL:
            if state[arg] & TRAINABLE:
                begin_parameter(w, <Param*>a.object)
                end_parameter(<Param*>a.object)
        elif state[arg] & NEEDS_GRAD and not state[arg] & LIVE:
            if zero_gradient(w, a):
                return -1
            state[arg] |= LIVE
    return settle(w)


cdef int contribute_nothing_at_all(Walk* w, const Batch* batch, uint32_t n) noexcept nogil:
    """Add zeros to the gradients of all n arguments."""
    cdef uint32_t i
    for i in range(n):
        if contribute_nothing(w, batch, i):
            return -1
    return 0


cdef inline int backward_of_one(Walk* w, Batch* batch) noexcept nogil:
    """`call_backward` for a batch of one node on the CPU; it omits what only other batches and devices need."""
    cdef Graph* g = w.g
    cdef const Node* nodes = nodes_of(g)
    cdef uint8_t* state = state_of(g)
    cdef uint32_t number = order_of(g)[batch.first]
    cdef Node* node = &nodes_of(g)[number]
    cdef const Op* op = &ops[node.op]
    cdef const uint32_t* args = args_of(g, node)
    cdef const Needs* needs = &op.needs[w.kind]
    cdef const Node* a
    cdef Tensor few[FEW]
    cdef Call c
    cdef uint32_t i, k, last
    cdef uint8_t* of_arg
    cdef size_t top
    if (state[number] & (LIVE | NEEDS_GRAD)) != (LIVE | NEEDS_GRAD):
        w.n_live = 0
        return 0
    w.n_live = 1
    w.n_live_in_batch += 1
    if set_call_of_one(w, batch, node, few, &c):
        return -1
    if is_empty(w, &node.dim):
        return contribute_nothing_at_all(w, batch, node.nargs)
    set_tensor(&c.dy, &node.dim, node.dim.bd, batch.dy)
    if begin_arguments(w, batch, op, needs, &c, node.nargs):
        return -1
    if node.object != NULL and state[number] & TRAINABLE and leaf_backward(w, batch, op, &c, <Param*>node.object):
        return -1
    top = g.scratch.top
    last = last_of_one(w, batch, op, args, node.nargs)
    for k in range(node.nargs):
        i = in_turn(k, last, node.nargs)
        a = &nodes[args[i]]
        of_arg = &state[args[i]]
        if needs.spread != NULL and a.dim.bd == node.dim.bd:
            continue                            # done by `spread`
        if is_empty(w, &a.dim):
            if contribute_nothing(w, batch, i):
                return -1
        elif of_arg[0] & NEEDS_GRAD and (a.val != NULL or of_arg[0] & TRAINABLE):
            if allocate_work(w, needs, &c, i):
                return -1
            if a.val == NULL:
                c.dx = c.x[i]
                if parameter_backward(w, batch, op, needs, &c, i, <Param*>a.object):
                    return -1
            else:
                if i == last:
                    hand_on(w, batch, a)
                    if op.in_place == UNCHANGED:
                        of_arg[0] |= LIVE
                        continue
                elif g.donates == IN_ORDER and not of_arg[0] & LIVE and goes_over_values(w, batch, op, &c, i):
                    lie_over(g, &batches_of(g)[a.batch])
                set_tensor(&c.dx, &a.dim, a.dim.bd, claim(w, a))
                if c.dx.v == NULL or backward_into(w, batch, op, needs, &c, i, (of_arg[0] & LIVE) != 0):
                    return -1
                of_arg[0] |= LIVE
            arena_rewind(&g.scratch, top)
        if op.part != NULL:
            c.before += op.part(&c, i)
    return 0


cdef inline bint is_copy_gone(const Batch* batch, uint32_t i) noexcept nogil:
    return batch.x[i].bytes != 0 and batch.x[i].v == NULL


cdef int backward_call(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    """Compute the gradients of the arguments of one call; first copy arguments again whose copies were given back."""
    cdef uint32_t i, first = 0, n_args = nodes_of(w.g)[order_of(w.g)[batch.first]].nargs
    cdef int failed
    if batch.x == NULL or not w.at_once or batch.dy == NULL:
        return backward_of_call(w, batch)
    while first < n_args and not is_copy_gone(batch, first):
        first += 1
    if first == n_args:
        return backward_of_call(w, batch)
    failed = copy_again(w, batch, n_args)
    if not failed:
        w.copies.own = True
        failed = backward_of_call(w, batch)
        w.copies.own = False
    for i in range(first, n_args):
        if batch.x[i].bytes and batch.x[i].v != NULL:
            if w.collecting.background != NULL and batch.x[i].v != batch.y:
                give_back(w.g, &w.lending, batch.x[i].v, batch.x[i].bytes, w.collecting.reader)
            batch.x[i].v = NULL
    return failed


cdef int copy_again(Walk* w, Batch* batch, uint32_t n_args) noexcept nogil:
    """Copy the arguments whose copies were given back.  Another thread reads working memory only if it lasts."""
    cdef const Op* op = &ops[nodes_of(w.g)[order_of(w.g)[batch.first]].op]
    cdef uint32_t i
    for i in range(n_args):
        if not is_copy_gone(batch, i):
            continue
        if not reads(op, i) and not goes_over(op, i):
            batch.x[i].v = batch.y                  # some address
        elif w.collecting.background != NULL:
            batch.x[i].v = <float*>allocate_lasting(w, batch.x[i].bytes)
            if batch.x[i].v == NULL:
                w.failure.needed = batch.x[i].bytes
        else:
            batch.x[i].v = <float*>allocate(w, batch.x[i].bytes)
        if batch.x[i].v == NULL or reads(op, i) and gather(w, batch, i):
            return -1
    return 0


cdef int zero_others(Walk* w, const Batch* batch) noexcept nogil:
    """Zero the gradients of the nodes of a batch that the loss does not depend on."""
    cdef Graph* g = w.g
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef uint32_t j
    for j in range(batch.count):
        if not state_of(g)[ids[j]] & LIVE and zero_gradient(w, &nodes_of(g)[ids[j]]):
            return -1
    return settle(w)


cdef int backward_of_call(Walk* w, Batch* batch) noexcept nogil:
    cdef Graph* g = w.g
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Node* nodes = nodes_of(g)
    cdef const Node* node = &nodes[ids[0]]
    cdef const uint8_t* state = state_of(g)
    cdef const Op* op = &ops[node.op]
    cdef const Needs* needs = &op.needs[w.kind]
    cdef Tensor few[FEW]
    cdef Call c
    cdef uint32_t i, j, k, last = node.nargs, listed, n_live = 0
    cdef bint over
    cdef size_t top
    for j in range(batch.count):
        n_live += (state[ids[j]] & (LIVE | NEEDS_GRAD)) == (LIVE | NEEDS_GRAD)
    w.n_live = n_live
    w.n_live_in_batch += n_live
    if n_live == 0:
        return 0
    if settle_gradients(w, w.number):
        return -1
    if n_live < batch.count and zero_others(w, batch):
        return -1
    if set_call(w, batch, few, &c):
        return -1
    c.dy = c.y
    c.dy.v = w.dy if w.dy != NULL else place_of(w, batch.dy)
    if is_empty(w, &c.y.dim):
        return contribute_nothing_at_all(w, batch, node.nargs)
    if not w.at_once and ((op.prepares_over and place_prepared(w, batch, &c))
                          or w.device.begin_backward(w, batch, op, &c)):
        return -1
    if needs.spread == NULL or not w.at_once and op.in_place == UNCHANGED:
        last = comes_last(w, batch, op, node.nargs)
    listed = w.listing.added
    if begin_arguments(w, batch, op, needs, &c, last):
        return -1
    if node.object != NULL and state[ids[0]] & TRAINABLE and leaf_backward(w, batch, op, &c, <Param*>node.object):
        return -1
    top = g.scratch.top
    for k in range(node.nargs):
        i = in_turn(k, last, node.nargs)
        over = i == last and w.listing.added == listed and not batch.keeps
        if needs.spread != NULL and takes_spread(w, batch, &c, i):
            if i == last and (take_place(w, batch, i) if over else spread_to(w, batch, &c, needs.spread(&c), i)):
                return -1
            continue                            # the others are done by `spread`
        if (contribute_nothing(w, batch, i) if is_empty(w, &c.x[i].dim)
                else argument_backward(w, batch, op, needs, &c, i, over)):
            return -1
        if op.part != NULL:
            c.before += op.part(&c, i)
        if not w.listing.pending and not w.listing.held:
            arena_rewind(&g.scratch, top)
    if settle(w):
        return -1
    if not w.listing.held:
        arena_rewind(&g.scratch, top)
    return 0


cdef int backward_each(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    """Compute the gradients of the arguments of an EACH batch, node by node."""
    cdef Graph* g = w.g
    cdef const Needs* needs = &ops[nodes_of(g)[order_of(g)[batch.first]].op].needs[w.kind]
    cdef Batch one
    cdef uint32_t j
    cdef size_t size, top = g.scratch.top
    if batch.dy == NULL:                        # the loss depends on none of them
        return 0
    if not w.at_once and needs.work == NULL and (settle_each(w, batch, needs) or open_section(w)):
        return -1
    one.y = batch.y
    one.dy = batch.dy
    one.keeps = batch.keeps | <uint8_t>KEEPS_FACTORS    # its gradients are a part of those of the batch
    one.joint = 0
    for j in range(batch.count):
        w.listing.member = j
        set_one(g, batch, j, &one)
        one.saved = batch.saved_of[j] if batch.saved_of != NULL else NULL
        size = total_of(&nodes_of(g)[order_of(g)[one.first]].dim)
        if (lay_items(w, &one) or (backward_of_one(w, &one) if w.at_once else backward_call(w, &one, 1))
                or stops(w, size * sizeof(float))):
            return -1
        if not w.listing.held:
            arena_rewind(&g.scratch, top)
        one.y += size
        one.dy += size
    w.listing.section = 0
    return 0


cdef int settle_each(Walk* w, const Batch* batch, const Needs* needs) noexcept nogil:
    """Make pending additions run to the gradients that the calls for the nodes of a batch read or write."""
    cdef const Graph* g = w.g
    cdef const Node* node
    cdef const Node* a
    cdef uint32_t i, j, arg
    if settle_gradients(w, w.number):
        return -1
    for j in range(batch.count):
        node = &nodes_of(g)[order_of(g)[batch.first + j]]
        for i in range(node.nargs):
            arg = args_of(g, node)[i]
            a = &nodes_of(g)[arg]
            if needs.spread != NULL and total_of(&a.dim) == total_of(&node.dim):    # it gets a further addition
                continue
            if state_of(g)[arg] & NEEDS_GRAD and settle_gradients(w, a.batch):
                return -1
    return 0


cdef int backward_pieces(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    """Compute the gradients of the arguments of n batches that ran in pieces.

    Those of an argument of a batch that runs alone may take the place of those of the results, as in one call.
    """
    cdef const Graph* g = w.g
    cdef uint32_t first = order_of(g)[batch.first], n_args = nodes_of(g)[first].nargs
    cdef const Op* op = &ops[nodes_of(g)[first].op]
    cdef uint32_t last = n_args
    cdef Batch* to
    cdef int failed
    if n == 1 and op.backward_all == NULL:
        last = comes_last(w, batch, op, n_args)
    if last == n_args:
        return pieces_backward(w, batch, n, UINT32_MAX)
    to = &batches_of(g)[nodes_of(g)[args_of(g, &nodes_of(g)[first])[last]].batch]
    to.dy = batch.dy
    to.live = 1
    failed = pieces_backward(w, batch, 1, last)
    batch.dy = NULL
    return failed


cdef int backward_views(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    """Complete the gradients of the arguments, which contain those of the views."""
    w.n_live_in_batch = views_backward(w.g, batch)
    return 0


# ---- the beginning of a pass --------------------------------------------------------------

cdef int open_backward(Walk* w, uint32_t target, bint full) noexcept nogil:
    """Mark the nodes up to target that need a gradient, and allocate the gradients."""
    cdef Graph* g = w.g
    cdef uint8_t* state = state_of(g)
    cdef uint32_t i, k
    cdef uint8_t needs
    cdef double left
    cdef Node* node = nodes_of(g)
    cdef const uint32_t* args
    w.going_back = True
    w.failure.needed = part_views(w, target)
    if w.failure.needed:
        return -1
    for i in range(target + 1):
        # A parameter may have been frozen or unfrozen since; `aside` passes have marked their parameters already.
        if node.object != NULL and not g.aside:
            state[i] &= <uint8_t>~TRAINABLE
            if node.attrs[0].u and (<Param*>node.object).updated:
                state[i] |= TRAINABLE
        needs = full or state[i] & TRAINABLE
        args = args_of(g, node)
        for k in range(node.nargs):
            needs |= state[args[k]] & NEEDS_GRAD
        state[i] = (state[i] & <uint8_t>~(LIVE | NEEDS_GRAD)) | (NEEDS_GRAD if needs else 0)
        node += 1
    for i in range(target + 1, g.n_nodes):
        state[i] &= <uint8_t>~(LIVE | NEEDS_GRAD)
    if not open_gradients(g, full or checking):
        w.failure.needed = g.values.top
        return -1
    if not g.whole_gradients:
        keep_referred(g)
    if w.at_once:
        w.relieve = give_back_factors
    left = memory_left(g)
    w.collecting.left = SIZE_MAX if left == INFINITY else <size_t>(left / COLLECTS)
    w.collecting.most_lent = SIZE_MAX if left == INFINITY else <size_t>(left / LENDS)
    w.collecting.columns = MOST_COLUMNS if left == INFINITY else g.assumed.columns
    return 0


cdef void keep_referred(Graph* g) noexcept nogil:
    """Keep the gradients for which the program can ask: those of nodes to which an expression refers.  That of a node
    that a sum has absorbed is computed from the sum's."""
    cdef const Absorbed* absorbed = <const Absorbed*>g.absorbed.base
    cdef const uint8_t* held = held_of(g)
    cdef size_t k
    keep_held_gradients(g)
    for k in range(g.absorbed.top // sizeof(Absorbed)):
        if held[absorbed[k].part]:
            keep_gradient(g, absorbed[k].sum)


cdef int begin_at(Walk* w, uint32_t target) noexcept nogil:
    """Set the gradient of the target to one."""
    cdef Node* x = &nodes_of(w.g)[target]
    cdef float* one
    if x.val != NULL:
        one = claim(w, x)
        if one == NULL:
            return -1
        state_of(w.g)[target] |= LIVE
        return w.device.fill(w, place_of(w, one), x.dim.bd, 1)
    one = <float*>allocate_table(w, sizeof(float))
    if one == NULL:
        return -1
    one[0] = 1
    if contribute(w, target, place_of(w, one), 1, 1):
        return -1
    return settle(w)


# ---- the loop ------------------------------------------------------------------------------

cdef inline bint is_looked_at(const Walk* w) noexcept nogil:
    return w.at_once and (profiling or checking)


cdef int run_part_back(Walk* w, uint32_t first, uint32_t end, uint32_t purpose) noexcept nogil:
    return run_backward(w, first, end - 1)


cdef int run_backward(Walk* w, uint32_t first, uint32_t last) noexcept nogil:
    """Compute the gradients of the arguments of batches, the last batch first."""
    cdef const Graph* g = w.g
    cdef Batch* batch
    cdef size_t top = g.scratch.top
    cdef uint32_t number = last + 1, together
    cdef bint looked_at = is_looked_at(w)
    if w.device.divide != NULL:
        return w.device.divide(w, first, last + 1, run_part_back, 0, True)
    while number > first:
        number -= 1
        batch = &batches_of(g)[number]
        together = 1
        if batch.form == TILES and not looked_at:
            together = neighbours_before(batch, &batches_of(g)[first])
        if step_back(w, batch, number, together, top, looked_at):
            return -1
        number -= together - 1
    w.number = NO_BATCH
    return 0


cdef int go_back(Walk* w, Batch* batch, uint32_t number) noexcept nogil:
    """Compute the gradients of the arguments of one batch."""
    return step_back(w, batch, number, 1, w.g.scratch.top, is_looked_at(w))


cdef inline int step_back(Walk* w, Batch* batch, uint32_t number, uint32_t together, size_t top,
                          bint looked_at) noexcept nogil:
    """Compute the gradients of the arguments of a batch, then call the hooks and check for signals.

    Args:
        together: how many batches, this one last, run backward together.
        top: the end of working memory.
    """
    cdef uint64_t begun = 0
    cdef uint32_t k, n = 0
    cdef bint failed
    w.number = number
    w.n_live_in_batch = 0
    w.collecting.reader = NULL
    if looked_at:
        begun = now()
    for k in range(together):
        n += (batch - k).count
    failed = (batch_backward(w, batch, together)
              or (looked_at and w.n_live_in_batch and look_at(w, batch, begun)))
    if not w.listing.held:
        arena_rewind(&w.g.scratch, top)
    if failed:
        return -1
    while True:
        if stops(w, batch.bytes) or (w.hook.after != NULL and w.hook.after(w, batch)):
            return -1
        if w.number != NO_BATCH:
            let_gradients_go(w, batch, w.n_live_in_batch == n)
        together -= 1
        if together == 0:
            return 0
        batch -= 1
        w.number -= 1


cdef inline void let_gradients_go(Walk* w, Batch* batch, bint all_live) noexcept nogil:
    """A batch has run backward: its gradients are not read again, nor are its values, if all of its nodes are done."""
    cdef const Addition* reader = w.collecting.reader
    if batch.joint and w.collecting.background != NULL:
        reader = w.collecting.background.last
    take_back(w.g, &w.lending, batch, reader)
    if w.g.donates and all_live:
        donate_values(w.g, &w.lending, batch, w.collecting.background.last if w.collecting.background != NULL else NULL)
    if w.lending.bytes > w.collecting.most_lent and w.collecting.background != NULL:
        finish_background(w.collecting.background)
        come_back(w.g, &w.lending)


cdef inline int batch_backward(Walk* w, Batch* batch, uint32_t together) noexcept nogil:
    if together == 1 and ops[nodes_of(w.g)[order_of(w.g)[batch.first]].op].backward == NULL:
        return 0
    if batch.form == ONE and w.at_once:
        return backward_of_one(w, batch)
    return w.device.forms[batch.form].backward(w, batch - (together - 1), together)


cdef int look_at(Walk* w, const Batch* batch, uint64_t begun) noexcept nogil:
    """Profile and check a batch that has run backward."""
    if profiling:
        note_call(w.g, batch.first, batch.count, True, w.n_live_in_batch, begun)
    return -1 if checking and bad_gradients(w.g, batch, &w.failure.finding) else 0


# ---- joined batches ------------------------------------------------------------------------

cdef int run_backward_joined(Walk* w, uint32_t last) noexcept nogil:
    cdef Graph* g = w.g
    cdef size_t top = g.scratch.top
    cdef BackwardPlan plan
    cdef const Step* step
    cdef uint32_t i, number
    cdef int failed = 0
    if not plan_backward(g, last, &plan):
        return run_backward(w, 0, last)
    if g.donates:
        g.donates = IN_ANY_ORDER
    for i in range(plan.n_steps):
        step = &plan.steps[i]
        if step.count > 1:
            failed = join(w, plan.numbers + step.first, step.count, step.form)
        else:
            number = plan.numbers[step.first]
            failed = go_back(w, &batches_of(g)[number], number)
        if failed:
            break
    w.number = NO_BATCH
    arena_rewind(&g.scratch, top)
    return failed


cdef int join(Walk* w, const uint32_t* numbers, uint32_t count, uint32_t form) noexcept nogil:
    """Run some batches backward as one, on the CPU."""
    cdef Graph* g = w.g
    cdef size_t top = g.scratch.top, order_top = g.order.top
    cdef Batch joined
    cdef uint32_t i, n = 0
    cdef int failed
    memset(&joined, 0, sizeof(Batch))
    joined.form = form
    failed = list_nodes(w, numbers, count, &joined)
    if not failed and joined.count:
        failed = (gather_gradients(w, &joined)
                  or arrange(w, &joined, &ops[nodes_of(g)[order_of(g)[joined.first]].op])
                  or go_back(w, &joined, NO_BATCH))
    w.dy = NULL
    array_rewind(&g.order, order_top)
    arena_rewind(&g.scratch, top)
    for i in range(count):
        n += batches_of(g)[numbers[i]].count
    for i in range(count):
        let_gradients_go(w, &batches_of(g)[numbers[i]], not failed and joined.count == n)
    return failed


cdef int list_nodes(Walk* w, const uint32_t* numbers, uint32_t count, Batch* joined) noexcept nogil:
    """The nodes of some batches, without those that the loss does not depend on."""
    cdef Graph* g = w.g
    cdef const Batch* batch
    cdef uint32_t* to
    cdef uint32_t i, j, id
    joined.first = <uint32_t>(g.order.top // sizeof(uint32_t))
    for i in range(count):
        batch = &batches_of(g)[numbers[i]]
        to = <uint32_t*>array_push(&g.order, batch.count * sizeof(uint32_t))
        if to == NULL:
            w.failure.needed = batch.count * sizeof(uint32_t)
            return -1
        for j in range(batch.count):
            id = order_of(g)[batch.first + j]
            if state_of(g)[id] & LIVE:
                to[0] = id
                to += 1
                joined.count += 1
                joined.bd += nodes_of(g)[id].dim.bd
                joined.bytes += total_of(&nodes_of(g)[id].dim) * sizeof(float)
        array_rewind(&g.order, (joined.first + joined.count) * sizeof(uint32_t))
    return 0


cdef int gather_gradients(Walk* w, const Batch* joined) noexcept nogil:
    """Lay the gradients of the results of a joined batch side by side."""
    cdef const Graph* g = w.g
    cdef const Node* node
    cdef float* to = <float*>allocate(w, joined.bytes)
    cdef uint32_t j
    if to == NULL:
        return -1
    w.dy = to
    for j in range(joined.count):
        node = &nodes_of(g)[order_of(g)[joined.first + j]]
        memcpy(to, gradient_of_node(g, node), total_of(&node.dim) * sizeof(float))
        to += total_of(&node.dim)
    return 0
