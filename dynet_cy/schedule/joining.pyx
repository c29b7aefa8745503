"""Joins batches of several forward passes for backward, and orders them; see joining.pxd.

An agenda decides, as in `schedule/plan`, but it schedules batches instead of nodes, and begins at the loss: a batch
is ready when all users of its values have run backward.  Batches that cannot be joined run as soon as they are ready.
Of the others, those of one signature run when all of them are ready.  If there is no such signature, one whose batches
depend on each other comes next, since they can never all be ready at once.

After a single pass, batches run in reverse order, but those of one signature run together where the first of them
would, if all their users have run by then.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from dynet_cy.core.engine cimport add_count, add_tunable
from dynet_cy.core.threads cimport Number, add_to
from dynet_cy.core.tensor cimport rows_of, size_of
from dynet_cy.graph.structs cimport (
    EACH, NEEDS_GRAD, NO_BATCH, SHARED, Batch, Graph, Node, args_of, batches_of, nodes_of, order_of, state_of,
)
from dynet_cy.memory.arena cimport arena_alloc, arena_rewind
from dynet_cy.ops.registry cimport op_at
from dynet_cy.schedule.facts cimport NONE
from dynet_cy.schedule.plan cimport Signatures, has_parameter_value, signature_of, signatures_open

# A product with ENOUGH_COLUMNS columns gains nothing from more; MOST_COLUMNS limits the memory of a call.
cdef enum:
    ENOUGH_COLUMNS = 128
    MOST_COLUMNS = 512

# A matrix with fewer elements stays in the cache from product to product, so that joining them gains nothing.
cdef Number least_size = 1 << 17
add_tunable("schedule.joining.least_size", &least_size)

# Planned calls for several batches, and these.
cdef Number joined_calls = 0
cdef Number joined_batches = 0
add_count("schedule.joining.calls", &joined_calls)
add_count("schedule.joining.batches", &joined_batches)


# Per batch.
cdef struct JoiningWork:
    uint32_t* sig                   # its signature; NONE: it runs alone
    uint32_t* waits                 # uses of its values that have not run backward
    uint32_t* depth                 # distance from the loss
    uint32_t* next                  # the batch after it in the list of its signature, or of those that run alone
    uint64_t* behind                # signatures of all that must run before it, as bits; those beyond 64 share bits
    uint32_t alone                  # the first ready batch that runs alone
    uint32_t n_active
    uint32_t* active                # signatures with ready batches
    Queue* queues
    Signatures signatures

# Per signature.
cdef struct Queue:
    uint32_t head, tail, ready
    uint32_t left                   # batches that have not run
    bint chained                    # some of them depend on others of them
    uint64_t depths                 # sum over those that have not run


cdef inline size_t columns_of(const Graph* g, const Batch* batch) noexcept nogil:
    # Empty values have no rows, but a batch of them may take bytes.
    return batch.bytes // (sizeof(float) * max(<size_t>1, rows_of(&nodes_of(g)[order_of(g)[batch.first]].dim)))


cdef inline bint is_large(const Graph* g, const Node* x) noexcept nogil:
    """Whether a node multiplies by a large shared matrix."""
    cdef const uint32_t* args = args_of(g, x)
    cdef uint32_t i
    for i in range(x.nargs):
        if state_of(g)[args[i]] & SHARED and size_of(&nodes_of(g)[args[i]].dim) >= least_size:
            return True
    return False


cdef inline bint may_join(const Graph* g, const Batch* batch) noexcept nogil:
    cdef uint32_t id = order_of(g)[batch.first]
    cdef const Node* x = &nodes_of(g)[id]
    if batch.form == EACH or not batch.bytes or not state_of(g)[id] & NEEDS_GRAD:
        return False
    return columns_of(g, batch) < ENOUGH_COLUMNS and op_at(x.op).joins and is_large(g, x)


cdef uint32_t typical_node(const Graph* g, const Batch* batch) noexcept nogil:
    """The first node without a parameter in place of a value, if there is one: its signature is that of the batch."""
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef uint32_t j
    for j in range(batch.count):
        if not has_parameter_value(g, &nodes_of(g)[ids[j]]):
            return ids[j]
    return ids[0]


cdef bint find_signatures(Graph* g, uint32_t n, JoiningWork* w) noexcept nogil:
    """Find the signatures of the batches that may be joined; False if no two are equal."""
    cdef const Batch* batches = batches_of(g)
    cdef uint32_t b, n_may = 0
    for b in range(n):
        n_may += may_join(g, &batches[b])
    if n_may < 2:
        return False
    w.sig = <uint32_t*>arena_alloc(&g.scratch, n * sizeof(uint32_t))
    if w.sig == NULL or signatures_open(g, &w.signatures, n_may):
        return False
    for b in range(n):
        w.sig[b] = NONE
        if (may_join(g, &batches[b])
                and signature_of(g, &w.signatures, typical_node(g, &batches[b]), 0, &w.sig[b])):
            return False
    return w.signatures.n < n_may


cdef bint open_plan(Graph* g, uint32_t n, JoiningWork* w, BackwardPlan* plan) noexcept nogil:
    w.next = <uint32_t*>arena_alloc(&g.scratch, n * sizeof(uint32_t))
    plan.numbers = <uint32_t*>arena_alloc(&g.scratch, n * sizeof(uint32_t))
    plan.steps = <Step*>arena_alloc(&g.scratch, n * sizeof(Step))
    plan.n_steps = 0
    return w.next != NULL and plan.numbers != NULL and plan.steps != NULL


cdef bint open_work(Graph* g, uint32_t n, JoiningWork* w, BackwardPlan* plan) noexcept nogil:
    w.waits = <uint32_t*>arena_alloc(&g.scratch, n * sizeof(uint32_t))
    w.depth = <uint32_t*>arena_alloc(&g.scratch, n * sizeof(uint32_t))
    w.behind = <uint64_t*>arena_alloc(&g.scratch, n * sizeof(uint64_t))
    w.active = <uint32_t*>arena_alloc(&g.scratch, w.signatures.n * sizeof(uint32_t))
    w.queues = <Queue*>arena_alloc(&g.scratch, w.signatures.n * sizeof(Queue))
    if (w.waits == NULL or w.depth == NULL or w.behind == NULL or w.active == NULL or w.queues == NULL
            or not open_plan(g, n, w, plan)):
        return False
    memset(w.waits, 0, n * sizeof(uint32_t))
    memset(w.depth, 0, n * sizeof(uint32_t))
    memset(w.behind, 0, n * sizeof(uint64_t))
    memset(w.queues, 0, w.signatures.n * sizeof(Queue))
    w.alone = NONE
    w.n_active = 0
    return True


cdef inline bint passes_back(const Graph* g, uint32_t arg) noexcept nogil:
    """Whether an argument is a value of a batch, which then has to wait for this use."""
    return state_of(g)[arg] & NEEDS_GRAD and nodes_of(g)[arg].batch != NO_BATCH


cdef void find_uses(Graph* g, uint32_t n, JoiningWork* w) noexcept nogil:
    """Count the uses of each batch, and find what has to run before it."""
    cdef const Node* nodes = nodes_of(g)
    cdef const uint32_t* ids
    cdef const uint32_t* args
    cdef uint32_t b, a, j, k
    cdef uint64_t behind
    cdef Queue* q
    b = n
    while b:
        b -= 1
        behind = w.behind[b]
        if w.sig[b] != NONE:
            q = &w.queues[w.sig[b]]
            q.left += 1
            q.depths += w.depth[b]
            q.chained |= behind >> (w.sig[b] & 63) & 1
            behind |= <uint64_t>1 << (w.sig[b] & 63)
        ids = order_of(g) + batches_of(g)[b].first
        for j in range(batches_of(g)[b].count):
            args = args_of(g, &nodes[ids[j]])
            for k in range(nodes[ids[j]].nargs):
                if passes_back(g, args[k]):
                    a = nodes[args[k]].batch
                    w.waits[a] += 1
                    w.behind[a] |= behind
                    w.depth[a] = max(w.depth[a], w.depth[b] + 1)


cdef inline void make_ready(JoiningWork* w, uint32_t b) noexcept nogil:
    cdef Queue* q
    if w.sig[b] == NONE:
        w.next[b] = w.alone
        w.alone = b
        return
    q = &w.queues[w.sig[b]]
    w.next[b] = NONE
    if q.ready:
        w.next[q.tail] = b
    else:
        q.head = b
        w.active[w.n_active] = w.sig[b]
        w.n_active += 1
    q.tail = b
    q.ready += 1


cdef void release(Graph* g, JoiningWork* w, uint32_t b) noexcept nogil:
    """A batch has run: those that waited only for it become ready."""
    cdef const Node* nodes = nodes_of(g)
    cdef const uint32_t* ids = order_of(g) + batches_of(g)[b].first
    cdef const uint32_t* args
    cdef uint32_t a, j, k
    for j in range(batches_of(g)[b].count):
        args = args_of(g, &nodes[ids[j]])
        for k in range(nodes[ids[j]].nargs):
            if passes_back(g, args[k]):
                a = nodes[args[k]].batch
                w.waits[a] -= 1
                if w.waits[a] == 0:
                    make_ready(w, a)


cdef inline int rank_of(const Queue* q) noexcept nogil:
    return 0 if q.ready == q.left else 1 if q.chained else 2


cdef inline bint is_before(const Queue* q, const Queue* r) noexcept nogil:
    cdef int q_rank = rank_of(q), r_rank = rank_of(r)
    if q_rank != r_rank:
        return q_rank < r_rank
    return q.depths * r.left < r.depths * q.left            # the least average, without division


cdef uint32_t next_signature(JoiningWork* w) noexcept nogil:
    """Take the signature whose ready batches run next."""
    cdef uint32_t k, sig, best = 0
    for k in range(1, w.n_active):
        if is_before(&w.queues[w.active[k]], &w.queues[w.active[best]]):
            best = k
    sig = w.active[best]
    w.n_active -= 1
    w.active[best] = w.active[w.n_active]
    return sig


cdef inline Step* begin_step(BackwardPlan* plan, uint32_t first, uint32_t form) noexcept nogil:
    cdef Step* step = &plan.steps[plan.n_steps]
    step.first = first
    step.count = 0
    step.form = form
    plan.n_steps += 1
    return step


cdef void write_joined(const Graph* g, const JoiningWork* w, uint32_t b, uint32_t form, uint32_t at,
                       BackwardPlan* plan) noexcept nogil:
    """Write the batches from b on as steps, each with as many columns as are useful."""
    cdef Step* step = NULL
    cdef size_t n, columns = 0
    while b != NONE:
        n = columns_of(g, &batches_of(g)[b])
        columns += n
        if step == NULL or columns > MOST_COLUMNS:
            step = begin_step(plan, at, form)
            columns = n
        plan.numbers[at] = b
        at += 1
        step.count += 1
        b = w.next[b]


cdef void run_agenda(Graph* g, uint32_t n, JoiningWork* w, BackwardPlan* plan) noexcept nogil:
    cdef uint32_t b, at = 0, gone, sig
    cdef Queue* q
    for b in range(n):
        if w.waits[b] == 0:
            make_ready(w, b)
    while True:
        while w.alone != NONE:
            b = w.alone
            w.alone = w.next[b]
            begin_step(plan, at, 0).count = 1
            plan.numbers[at] = b
            at += 1
            release(g, w, b)
        if w.n_active == 0:
            return
        sig = next_signature(w)
        q = &w.queues[sig]
        write_joined(g, w, q.head, w.signatures.keys[sig].form, at, plan)
        gone = q.ready
        q.left -= gone
        q.ready = 0
        for _ in range(gone):
            b = plan.numbers[at]
            q.depths -= w.depth[b]
            at += 1
            release(g, w, b)


# ---- a single pass ------------------------------------------------------------------------------

# Per signature.
cdef struct Group:
    uint32_t first                  # the number of its last batch, the first to run backward; `next` leads to others
    uint32_t count
    bint apart                      # a user of one of them would run after the first


cdef void find_first_users(const Graph* g, uint32_t n, uint32_t* users) noexcept nogil:
    """For each batch, the first one that passes it a gradient, the last to run backward; NONE: there is none."""
    cdef const Node* nodes = nodes_of(g)
    cdef const uint32_t* ids
    cdef const uint32_t* args
    cdef uint32_t b, j, k
    memset(users, 0xFF, n * sizeof(uint32_t))
    b = n
    while b:
        b -= 1
        ids = order_of(g) + batches_of(g)[b].first
        for j in range(batches_of(g)[b].count):
            if not state_of(g)[ids[j]] & NEEDS_GRAD or op_at(nodes[ids[j]].op).backward == NULL:
                continue                    # as of indices
            args = args_of(g, &nodes[ids[j]])
            for k in range(nodes[ids[j]].nargs):
                if passes_back(g, args[k]):
                    users[nodes[args[k]].batch] = b


cdef bint join_in_order(Graph* g, uint32_t n, JoiningWork* w, BackwardPlan* plan) noexcept nogil:
    """Plan the reverse order with groups; False if there is none, or no memory."""
    cdef Group* groups = <Group*>arena_alloc(&g.scratch, w.signatures.n * sizeof(Group))
    cdef uint32_t* users = <uint32_t*>arena_alloc(&g.scratch, n * sizeof(uint32_t))
    cdef Group* group
    cdef uint32_t b, at = 0
    cdef bint found = False
    if groups == NULL or users == NULL or not open_plan(g, n, w, plan):
        return False
    memset(groups, 0, w.signatures.n * sizeof(Group))
    find_first_users(g, n, users)
    for b in range(n):
        if w.sig[b] != NONE:
            group = &groups[w.sig[b]]
            w.next[b] = group.first if group.count else NONE
            group.first = b
            group.count += 1
    for b in range(n):
        if w.sig[b] != NONE:
            groups[w.sig[b]].apart |= users[b] <= groups[w.sig[b]].first
    for b in range(w.signatures.n):
        found |= groups[b].count > 1 and not groups[b].apart
    if not found:
        return False
    b = n
    while b:
        b -= 1
        group = &groups[w.sig[b]] if w.sig[b] != NONE else NULL
        if group == NULL or group.apart:
            begin_step(plan, at, 0).count = 1
            plan.numbers[at] = b
            at += 1
        elif b == group.first:
            write_joined(g, w, b, w.signatures.keys[w.sig[b]].form, at, plan)
            at += group.count
    return True


cdef bint plan_backward(Graph* g, uint32_t last, BackwardPlan* plan) noexcept nogil:
    cdef size_t top = g.scratch.top
    cdef uint32_t n = last + 1
    cdef JoiningWork w
    cdef bint planned = find_signatures(g, n, &w)
    if planned and g.n_passes == 1:
        planned = join_in_order(g, n, &w, plan)
    elif planned:
        planned = open_work(g, n, &w, plan)
        if planned:
            find_uses(g, n, &w)
            run_agenda(g, n, &w, plan)
    if planned:
        count_joined(plan)
    else:
        arena_rewind(&g.scratch, top)
    return planned


cdef void count_joined(const BackwardPlan* plan) noexcept nogil:
    cdef uint32_t i
    for i in range(plan.n_steps):
        if plan.steps[i].count > 1:
            add_to(&joined_calls, 1)
            add_to(&joined_batches, plan.steps[i].count)
