"""The CPU executor: walks over plans forward and over batches backward, and runs each call at once."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memset

from dynet_cy.core.threads cimport coarse_ms, now, raise_interrupt
from dynet_cy.execute.accumulation cimport (
    Background, Journal, Use, begin_background, begin_journal, end_background, end_journal, gradient_hooks, list_uses,
    roll_back,
)
from dynet_cy.execute.driver cimport backend, walk_back, walk_forward
from dynet_cy.execute.gradients cimport (
    backward_call, backward_each, backward_pieces, backward_views, collect, collected_of, multiply, multiply_collected,
    multiply_one, sums_of,
)
from dynet_cy.execute.walk cimport (
    Device, Failure, Form, allocate, begin_walk, forward_call, forward_each, forward_pieces, forward_views,
    raise_failure, raise_of_op,
)
from dynet_cy.graph.structs cimport COLUMNS, EACH, FLATTENED, FORMS, ONE, PIECES, STACKED, TILES, VIEWS, Batch
from dynet_cy.kernels.kernels cimport K
from dynet_cy.kernels.pool cimport enter_pool, leave_pool
from dynet_cy.kernels.product cimport pack_for_narrow
from dynet_cy.memory.arena cimport arena_rewind
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport CPU
from dynet_cy.schedule.budget cimport ran_short
from dynet_cy.watch.instruments cimport WEIGHT_GRADIENTS, bad_collected, checking, note, profiling, raise_anomaly
from dynet_cy.watch.usage cimport raise_no_memory

from dynet_cy.execute.walk import PARTIAL

# After a forward pass of this duration, the backward pass may be long enough to be interrupted.
cdef enum:
    LONG_FORWARD = 50               # milliseconds


# ---- the device --------------------------------------------------------------------

cdef int zero(Walk* w, float* to, size_t n) noexcept nogil:
    memset(to, 0, n * sizeof(float))
    return 0


cdef int fill(Walk* w, float* to, size_t n, float x) noexcept nogil:
    K.fill(n, x, to)
    return 0


cdef Form[FORMS] forms
cdef int form
for form in (ONE, STACKED, FLATTENED, COLUMNS):     # the walk runs batches of one node inline
    forms[form].forward = forward_call
    forms[form].backward = backward_call
forms[EACH].forward = forward_each
forms[EACH].backward = backward_each
for form in (PIECES, TILES):
    forms[form].forward = forward_pieces
    forms[form].backward = backward_pieces
forms[VIEWS].forward = forward_views
forms[VIEWS].backward = backward_views

cdef Device cpu
memset(&cpu, 0, sizeof(Device))
cpu.kind = CPU
cpu.forms = forms
cpu.zero = zero
cpu.fill = fill
cpu.collect = collect
cpu.sums = sums_of
cpu.multiply = multiply


cdef void begin_cpu_walk(Walk* w, Graph* g) noexcept nogil:
    begin_walk(w, g, &cpu)
    pack_for_narrow(g.missing != 0)


# ---- passes ----------------------------------------------------------------------------

cdef int forward(Graph* g, const uint32_t* targets, uint32_t n, int strategy) except -1:
    cdef Walk w
    cdef int failed
    cdef int64_t begun = coarse_ms()
    begin_cpu_walk(&w, g)
    with nogil:
        enter_pool()
        failed = walk_forward(&w, targets, n, strategy)
        leave_pool()
    g.forward_ms += <uint32_t>(coarse_ms() - begun)
    raise_interrupt(&w.failure.interrupts)
    if failed:
        raise_failure(g, "the values of the graph", &w.failure)
    return 0


cdef int backward(Graph* g, uint32_t target, bint full) except -1:
    """An exception of a signal handler stops the pass only if its changes of gradients can be undone.  Otherwise the
    pass is finished first."""
    cdef Walk w
    cdef Journal journal
    cdef Uses uses
    begin_cpu_walk(&w, g)
    w.journal = &journal
    w.hook.data = &uses
    with nogil:
        begin_journal(&journal, checking or g.may_raise or g.forward_ms >= LONG_FORWARD)
        # Gradients are sent while the pass runs, so they cannot be undone.
        journal.irrevocable = gradient_hooks().complete != NULL
        enter_pool()
        walk_back_together(&w, target, full)
        if w.failure.needed or w.failure.finding.kind or w.failure.raised != NULL:
            w.failure.partial = not roll_back(&journal)
        leave_pool()
        end_journal(&journal)
    try:
        raise_interrupt(&w.failure.interrupts)
    finally:
        if w.failure.raised != NULL:
            raise_of_op(&w.failure)
        if w.failure.finding.kind:
            raise_anomaly(g, &w.failure.finding)
        if w.failure.changed != NULL:
            raise_failure(g, "", &w.failure)
        if w.failure.needed:
            raise_out_of_memory(g, &w.failure)
    return 0


cdef int raise_out_of_memory(const Graph* g, const Failure* failure) except -1:
    try:
        raise_no_memory(g, "the gradients of the graph")
    except MemoryError as error:
        if not failure.partial:
            raise
        of_rest = MemoryError(f"{error}.  {PARTIAL}")
        of_rest.partial = True
        raise of_rest from None
    return 0


# The parameters that backward adds to, in the order in which their gradients are complete.
cdef struct Uses:
    Use* all
    uint32_t n
    uint32_t n_complete


cdef int walk_back_together(Walk* w, uint32_t target, bint full) noexcept nogil:
    """Walk back while another thread, if there is one, computes weight gradients; then multiply the collected
    factors."""
    cdef Background background
    cdef size_t top = w.g.scratch.top
    cdef int failed
    # Checks and profiles look at weight gradients where they arise, and hooks send them from there.  Another thread
    # would keep memory longer.
    if (not checking and not profiling and gradient_hooks().complete == NULL and not ran_short(w.g)
            and begin_background(&background)):
        w.collecting.background = &background
        w.lasting = w.g.scratch.top
    failed = walk_back(w, target, full)
    arena_rewind(&w.g.scratch, min(w.g.scratch.top, top))
    if w.collecting.background != NULL:
        w.collecting.background = NULL
        end_background(&background)
    return -1 if failed else finish_collected(w)


cdef int after_batch(Walk* w, const Batch* batch) noexcept nogil:
    """Call the hooks for gradients that are complete now."""
    cdef Uses* uses = <Uses*>w.hook.data
    cdef Collected* x
    while uses.n_complete < uses.n and uses.all[uses.n_complete].batch == w.number:
        x = collected_of(w, uses.all[uses.n_complete].p)
        if x != NULL:
            multiply_one(w, x)
        gradient_hooks().complete(uses.all[uses.n_complete].p)
        uses.n_complete += 1
    if gradient_hooks().progress != NULL:
        gradient_hooks().progress()
    return 0


cdef int announce_uses(Walk* w, uint32_t target) noexcept nogil:
    """If there are hooks: list the parameters that get gradients and the batches after which these are complete, and
    call the hook `begin_pass` with them."""
    cdef Graph* g = w.g
    cdef Uses* uses = <Uses*>w.hook.data
    cdef Param** coming
    cdef uint32_t i
    uses.n = uses.n_complete = 0
    if gradient_hooks().complete == NULL:
        return 0
    w.hook.after = after_batch
    if g.aside:
        return 0
    if list_uses(g, target, &uses.all, &uses.n):
        w.failure.needed = g.n_nodes * sizeof(Use)
        return -1
    coming = <Param**>allocate(w, (uses.n + 1) * sizeof(Param*))
    if coming == NULL:
        return -1
    for i in range(uses.n):
        coming[i] = uses.all[i].p
    gradient_hooks().begin_pass(coming, uses.n)
    return 0


cpu.announce = announce_uses


cdef int finish_collected(Walk* w) noexcept nogil:
    """Multiply the collected factors, and check the results if checks are on."""
    cdef uint64_t begun = now() if profiling else 0
    cdef const Collected* x = w.collecting.first
    if multiply_collected(w):
        return -1
    if profiling and x != NULL:
        note(WEIGHT_GRADIENTS, True, 1, begun)
    while checking and x != NULL:
        if bad_collected(w.g, x.p, &w.failure.finding):
            return -1
        x = x.next
    return 0


backend(CPU).forward = forward
backend(CPU).backward = backward
