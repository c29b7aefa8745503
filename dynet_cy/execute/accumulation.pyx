"""Gradients of parameters in backward: undo, another thread, and hooks; see accumulation.pxd."""

from libc.stdint cimport UINT64_MAX
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from dynet_cy.core.engine cimport add_count
from dynet_cy.core.threads cimport RELEASE, Number, add_to, atomic_store
from dynet_cy.core.mutex cimport pthread_mutex_lock, pthread_mutex_trylock, pthread_mutex_unlock
from dynet_cy.core.tensor cimport size_of
from dynet_cy.graph.structs cimport COMPUTED, NEEDS_GRAD, TRAINABLE, Node, args_of, is_dropped, nodes_of, state_of
from dynet_cy.kernels.pool cimport (
    background_paused, claim_background, offer_background, pause_background, release_background, resume_background,
)
from dynet_cy.kernels.product cimport LEAST_ASLEEP, Product, cut_weight_gradient, in_parts, part_of_weight_gradient
from dynet_cy.memory.arena cimport arena_alloc
from dynet_cy.memory.storage cimport forget_gradient, touch


cdef Number passes = 0

cdef extern from *:
    Addition* load_addition "__atomic_load_n"(Addition* const* p, int order) nogil
    void store_addition "__atomic_store_n"(Addition** p, Addition* a, int order) nogil


# ---- the journal -----------------------------------------------------------------------

cdef Number copied = 0              # gradients, so that passes could be undone
add_count("execute.accumulation.copied", &copied)


cdef void begin_journal(Journal* j, bint copies) noexcept nogil:
    memset(j, 0, sizeof(Journal))
    j.number = add_to(&passes, 1) + 1
    j.copies = copies


cdef void end_journal(Journal* j) noexcept nogil:
    cdef uint32_t i
    for i in range(j.n):
        free(j.before[i].numbers)
        free(j.before[i].rows)
    free(j.before)
    j.before = NULL
    j.n = j.capacity = 0


cdef void note_first(Journal* j, Param* p) noexcept nogil:
    cdef Before* b
    # A pass that began later has added to the gradient.  The number UINT64_MAX means that this pass has done so, too.
    cdef bint later = p.has_gradient and p.pass_number > j.number
    p.pass_number = UINT64_MAX if later else j.number
    if later or (p.has_gradient and not j.copies):
        j.irrevocable = True
    if j.irrevocable:
        return
    b = add_record(j, p)
    if b == NULL or (p.has_gradient and copy(b, p)):
        j.irrevocable = True


cdef Before* add_record(Journal* j, Param* p) noexcept nogil:
    cdef Before* b
    cdef uint32_t capacity
    if j.n == j.capacity:
        capacity = 2 * j.capacity + 8
        b = <Before*>realloc(j.before, capacity * sizeof(Before))
        if b == NULL:
            return NULL
        j.before = b
        j.capacity = capacity
    b = &j.before[j.n]
    j.n += 1
    memset(b, 0, sizeof(Before))
    b.p = p
    return b


cdef int copy(Before* b, const Param* p) noexcept nogil:
    """Copy the gradient of p; -1 if there is no memory."""
    cdef size_t n = size_of(&p.dim)
    cdef uint32_t i
    add_to(&copied, 1)
    if not p.rows:
        b.numbers = <float*>malloc(p.size * sizeof(float))
        if b.numbers == NULL:
            return -1
        memcpy(b.numbers, p.grad, p.size * sizeof(float))
        return 0
    b.numbers = <float*>malloc((p.n_touched * n + 1) * sizeof(float))
    b.rows = <uint32_t*>malloc((p.n_touched + 1) * sizeof(uint32_t))
    if b.numbers == NULL or b.rows == NULL:
        return -1
    b.n_rows = p.n_touched
    memcpy(b.rows, p.touched, p.n_touched * sizeof(uint32_t))
    for i in range(p.n_touched):
        memcpy(b.numbers + i * n, p.grad + p.touched[i] * n, n * sizeof(float))
    return 0


cdef bint roll_back(Journal* j) noexcept nogil:
    cdef uint32_t i, held = 0
    cdef bint all_own = not j.irrevocable
    cdef Param* p
    while all_own and held < j.n:
        p = j.before[held].p
        # Do not wait for the lock: its owner may be waiting for a lock that this thread holds.
        if pthread_mutex_trylock(&p.lock):
            all_own = False
            break
        held += 1
        all_own = p.pass_number == j.number
    if all_own:
        for i in range(j.n):
            put_back(&j.before[i])
    for i in range(held):
        pthread_mutex_unlock(&j.before[i].p.lock)
    return all_own


cdef void put_back(const Before* b) noexcept nogil:
    cdef Param* p = b.p
    cdef size_t n = size_of(&p.dim)
    cdef uint32_t i
    if p.rows:
        for i in range(p.n_touched):
            memset(p.grad + p.touched[i] * n, 0, n * sizeof(float))
    else:
        memset(p.grad, 0, p.size * sizeof(float))
    forget_gradient(p)
    p.pass_number = 0
    if b.numbers == NULL:
        return
    p.has_gradient = True
    if not p.rows:
        memcpy(p.grad, b.numbers, p.size * sizeof(float))
    for i in range(b.n_rows):
        touch(p, b.rows[i])
        memcpy(p.grad + b.rows[i] * n, b.numbers + i * n, n * sizeof(float))


# ---- in the background -----------------------------------------------------------------

cdef bint begin_background(Background* b) noexcept nogil:
    memset(b, 0, sizeof(Background))
    b.made = b.last = &b.first
    b.first.done = True
    return claim_background(run, b)


cdef void add_in_background(Background* b, Addition* a, Param* p, const Factors* f, Addition* before) noexcept nogil:
    memset(a, 0, sizeof(Addition))
    a.p = p
    a.before = before
    cut_weight_gradient(f.rows, f.cols, f.n, f.left, f.right, p.grad, &a.product)
    store_addition(&b.last.next, a, RELEASE)
    b.last = a
    b.waking += f.rows * f.cols * f.n
    offer_background(b.waking >= LEAST_ASLEEP)
    if b.waking >= LEAST_ASLEEP:
        b.waking = 0


cdef void run(void* work) noexcept nogil:
    """Make additions, in another thread, until none is left or this is paused."""
    cdef Background* b = <Background*>work
    cdef Addition* a = load_addition(&b.made.next, ACQUIRE)
    while a != NULL and not background_paused():
        pthread_mutex_lock(&a.p.lock)
        while a.at < a.product.cut.parts and not background_paused():
            part_of_weight_gradient(&a.product, a.at)
            a.at += 1
        pthread_mutex_unlock(&a.p.lock)
        if a.at < a.product.cut.parts:
            return
        made(b, a)
        a = load_addition(&a.next, ACQUIRE)


cdef inline void made(Background* b, Addition* a) noexcept nogil:
    b.made = a
    atomic_store(&a.done, 1, RELEASE)


cdef void run_left(void* job, size_t i) noexcept nogil:
    """Compute part of an addition, the i-th of the remaining ones."""
    cdef const Addition* a = <const Addition*>job
    part_of_weight_gradient(&a.product, a.at + i)


cdef void finish_background(Background* b) noexcept nogil:
    cdef Addition* a
    cdef const Product* whole
    cdef size_t i, parts
    pause_background()
    a = b.made.next
    while a != NULL:
        parts = a.product.cut.parts - a.at
        whole = &a.product.product
        pthread_mutex_lock(&a.p.lock)
        if not in_parts(parts, whole.m * whole.n * whole.k // a.product.cut.parts * parts, run_left, a):
            for i in range(parts):
                run_left(a, i)
        pthread_mutex_unlock(&a.p.lock)
        made(b, a)
        a = a.next
    resume_background()


cdef void end_background(Background* b) noexcept nogil:
    finish_background(b)
    pause_background()
    release_background()


# ---- hooks -----------------------------------------------------------------------------

cdef GradientHooks hooks
hooks.begin_pass = NULL
hooks.complete = NULL
hooks.progress = NULL


cdef GradientHooks* gradient_hooks() noexcept nogil:
    return &hooks


cdef int list_uses(Graph* g, uint32_t target, Use** uses, uint32_t* n) noexcept nogil:
    """The parameters that backward from target adds to, in the order in which their gradients are complete.

    The list is in the scratch arena. -1 if there is no memory for it.
    """
    cdef Node* nodes = nodes_of(g)
    cdef uint8_t* state = state_of(g)
    cdef uint32_t last = nodes[target].batch
    cdef uint32_t i, j, k, arg, found = 0
    cdef Use use
    cdef Use* list = NULL
    cdef Param* p
    for i in range(target + 1):                 # at most as many as there are parameter leaves
        found += nodes[i].nargs == 0 and nodes[i].val == NULL
    uses[0] = list = <Use*>arena_alloc(&g.scratch, (found + 1) * sizeof(Use))
    n[0] = 0
    if list == NULL:
        return -1
    for i in range(target + 1):
        if (not state[i] & NEEDS_GRAD or not (state[i] & COMPUTED or is_dropped(g, i)) or nodes[i].nargs == 0
                or nodes[i].batch > last):
            continue
        for k in range(nodes[i].nargs):
            arg = args_of(g, &nodes[i])[k]
            p = <Param*>nodes[arg].object
            if nodes[arg].val != NULL or not state[arg] & TRAINABLE or p.rows:
                continue
            for j in range(n[0]):
                if list[j].p == p:
                    list[j].batch = min(list[j].batch, nodes[i].batch)
                    break
            else:
                list[n[0]].p = p
                list[n[0]].batch = nodes[i].batch
                n[0] += 1
    for i in range(1, n[0]):
        use = list[i]
        j = i
        while j > 0 and list[j - 1].batch < use.batch:
            list[j] = list[j - 1]
            j -= 1
        list[j] = use
    return 0
