"""Plans as they ran, with the lifetime of each value and gradient: recorded for those who read them.

What the engine has decided stands in the batches when backward has ended: which values it kept, and why, dropped or
donated (include/dynet_cy/graph.h). What it decides while backward runs is noted after each call: which batch gave the
first contribution to a gradient, and in whose memory.
"""

from collections.abc import Callable
from typing import NamedTuple

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from dynet_cy.core.mutex cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock
from dynet_cy.core.threads cimport change
from dynet_cy.graph.origin cimport origin_at, scope_at
from dynet_cy.graph.structs cimport (
    CELL, COLUMNS, COPIES, DONATED, EACH, FLATTENED, FUSION, IN_CELL, IN_FUSION, IN_STRETCH, LIVE, NO_BATCH, ONE,
    PIECES, STACKED, TILES, TRANSIENT, VIEWS, WHY_BESIDE, WHY_HELD, WHY_ONCE, WHY_READ, WHY_REQUESTED, WHY_RESULT,
    WHY_SMALL, WHY_VIEW, Batch, Graph, Node, Stretch, args_of, batches_of, device_of, first_joint, home_of,
    n_stretches, nodes_of, order_of, origin_of, state_of, stretches_of,
)
from dynet_cy.memory.bridge cimport shape_of
from dynet_cy.ops.registry cimport op_at, reads

from dynet_cy.core.devices import device_name
from dynet_cy.graph.origin import Origin

cdef dict FORMS = {
    ONE: "one", STACKED: "stacked", FLATTENED: "flattened", COLUMNS: "columns", EACH: "each", PIECES: "pieces",
    TILES: "tiles", VIEWS: "views", COPIES: "copies", IN_CELL: "in cell", CELL: "cell", IN_FUSION: "in fusion",
    FUSION: "fusion",
}

# Why values are kept.
cdef dict REASONS = {
    WHY_HELD: "held", WHY_REQUESTED: "requested", WHY_RESULT: "result", WHY_READ: "read", WHY_ONCE: "once",
    WHY_VIEW: "view", WHY_BESIDE: "beside", WHY_SMALL: "small",
}


class BatchLifetime(NamedTuple):
    """A batch of a plan: what it runs, and how long its values and gradients live.

    Batches have numbers in the order of execution; backward runs them from the last one to the first.

    Attributes:
        number: its number.
        op: the name of the operation.
        nodes: how many nodes it has.
        shape: the shape of the first; a batch size is its last number.
        form: how it runs, in small letters, as docs/layout.md names forms.
        device: the device that it runs on.
        reads: the batches that it reads; parameters and inputs are no batches.
        reads_back: those of them that its backward reads, too.
        bytes: what its values take.
        value: what becomes of its values: "kept" until the graph is renewed, "transient", "dropped" within a stretch
            and computed again, or "view": they are a part of the values of an argument.
        why: why they are kept: the program refers to them ("held") or has asked for them, or a node outside the plan
            reads them ("requested"); their own backward ("result") or that of others ("read") reads them; they cannot
            be computed again ("once"); a view lies in them ("view"); they may be read in place together with those
            beside them ("beside"); they are too small to pay ("small"); () if it was not worth the time to look.
        last: the last batch that reads them forward; None if none does.
        read: the batch whose backward is the last to read them: of those that do, the first in the plan; None if none
            does, or if it was not worth the time to look.
        stretch: the first and the last batch of the stretch that it is in; None if it is in none.
        again: how often they were computed again.
        donated: the batch after whose backward their memory was used for gradients; None if it was not.
        gradient: the batch whose backward has written the first contribution to its gradient; None if none has.
        over: what that gradient was written over: "value", its own values; or the number of the batch whose gradient it
            has replaced; None: it had memory of its own.
        free: the batch after whose backward the memory of the gradient was free; None if it was kept, or if there was
            none.
        origin: the line of the program that made the first node; None if lines were not recorded.
        scope: the scope of that node (`name_scope`); empty outside of any.
    """

    number: int
    op: str
    nodes: int
    shape: tuple[int, ...]
    form: str
    device: str
    reads: list[int]
    reads_back: list[int]
    bytes: int
    value: str
    why: tuple[str, ...]
    last: int | None
    read: int | None
    stretch: tuple[int, int] | None
    again: int
    donated: int | None
    gradient: int | None
    over: str | int | None
    free: int | None
    origin: Origin | None
    scope: str


class RecordedPlan(NamedTuple):
    """A plan as it ran.

    Attributes:
        batches: the batches, in the order of execution.
        passes: the number of the first batch of each forward pass.
        target: the batch of the loss; None if that is no result of an operation.
        transient: bytes that all transient values took at a time.
        values, gradients, scratch: bytes in the arenas of the graph when it held most.
        peak: the batch after which it held most; None if nothing ran.
        peak_back: whether that was in backward.
    """

    batches: list[BatchLifetime]
    passes: list[int]
    target: int | None
    transient: int
    values: int
    gradients: int
    scratch: int
    peak: int | None
    peak_back: bool


# What is noted of a batch while backward runs.
cdef struct Noted:
    uint32_t gradient               # 1 + the batch that gave the first contribution to its gradients; 0: none has
    uint32_t donated                # 1 + the batch after whose backward its values were gone
    uint32_t took                   # 1 + the batch whose gradients its own have replaced
    float* dy                       # where they were

# The graph that is looked at, and when it held most.
cdef struct Noting:
    uint64_t renewal                # 0: none
    uint32_t n_forgets
    Noted* batches
    uint32_t n
    size_t values, gradients, scratch
    uint32_t peak
    bint peak_back

cdef Noting noting
cdef list passes = []               # the first batches of its forward passes
cdef pthread_mutex_t lock           # guards `noting`
pthread_mutex_init(&lock, NULL)

cdef uint32_t passes_left = 0       # backward passes, until one is recorded
cdef uint32_t n_backward = 0        # backward passes since then
cdef object recorded = None
cdef object when_recorded = None


# ---- while passes run --------------------------------------------------------------------

cdef void begin_noting(const Graph* g) noexcept nogil:
    """Forget the graph before, or its pass that has failed; the lock is held."""
    free(noting.batches)
    memset(&noting, 0, sizeof(Noting))
    noting.renewal = g.renewal
    noting.n_forgets = g.n_forgets
    noting.peak = NO_BATCH


cdef void note_lifetimes(const Graph* g, uint32_t first, uint32_t count, bint back) noexcept nogil:
    cdef const Node* x = &nodes_of(g)[order_of(g)[first]]
    pthread_mutex_lock(&lock)
    # If memory is short in backward, the graph forgets its values, and the pass runs anew with fewer that are kept.
    if not back and (noting.renewal != g.renewal or noting.n_forgets != g.n_forgets):
        begin_noting(g)
    if noting.renewal == g.renewal:
        if g.values.top + g.grads.top + g.scratch.top > noting.values + noting.gradients + noting.scratch:
            noting.values = g.values.top
            noting.gradients = g.grads.top
            noting.scratch = g.scratch.top
            noting.peak = x.batch
            noting.peak_back = back
        if back:
            note_gradients(g, order_of(g) + first, count)
    pthread_mutex_unlock(&lock)


cdef void note_gradients(const Graph* g, const uint32_t* ids, uint32_t count) noexcept nogil:
    """Note what backward of some nodes has made of the gradients and values of their arguments."""
    cdef const Node* x
    cdef uint32_t i, j, arg, own, of
    if noting.batches == NULL:
        noting.batches = <Noted*>calloc(g.n_batches, sizeof(Noted))
        noting.n = g.n_batches if noting.batches != NULL else 0
    for j in range(count):
        x = &nodes_of(g)[ids[j]]
        own = x.batch
        for i in range(x.nargs):
            arg = args_of(g, x)[i]
            of = home_of(g, &nodes_of(g)[arg])
            if of >= noting.n or not state_of(g)[arg] & LIVE:
                continue
            if not noting.batches[of].gradient:
                noting.batches[of].gradient = own + 1
                noting.batches[of].dy = batches_of(g)[of].dy
                # On devices the whole pass has been listed by now, and what is free is NULL.
                if (own < noting.n and batches_of(g)[own].dy == NULL and noting.batches[own].dy != NULL
                        and batches_of(g)[of].dy == noting.batches[own].dy):
                    noting.batches[of].took = own + 1
            if batches_of(g)[of].lifetime & DONATED and not noting.batches[of].donated:
                noting.batches[of].donated = own + 1


cdef int note_forward_pass(const Graph* g, uint32_t first) except -1:
    if noting.renewal == g.renewal and first < g.n_batches:
        while passes and (passes[-1][0] != g.renewal or passes[-1][1] >= first):    # of another graph; reverted
            passes.pop()
        passes.append((g.renewal, first))
    return 0


cdef int note_backward_pass(const Graph* g, uint32_t target) except -1:
    global recorded, passes_left, n_backward
    n_backward += 1
    if n_backward == passes_left:
        change(&recording, -1)
        recorded = described(g, target)
    pthread_mutex_lock(&lock)
    free(noting.batches)
    noting.batches = NULL
    noting.n = 0
    pthread_mutex_unlock(&lock)
    if n_backward == passes_left and when_recorded is not None:
        when_recorded()
    return 0


# ---- when they have ended ----------------------------------------------------------------

cdef object described(const Graph* g, uint32_t target):
    cdef uint32_t b, home = home_of(g, &nodes_of(g)[target])
    cdef list read = [batches_read(g, &batches_of(g)[b], False) for b in range(g.n_batches)]
    cdef list last = [None] * g.n_batches
    for b in range(g.n_batches):
        for of in read[b]:
            last[of] = b
    firsts = [first for renewal, first in passes if renewal == g.renewal and first < g.n_batches]
    known = noting.renewal == g.renewal
    return RecordedPlan(
        [described_batch(g, b, read[b], last[b]) for b in range(g.n_batches)], firsts,
        None if home == NO_BATCH else home, bytes_of_transient(g), noting.values if known else g.values.top,
        noting.gradients if known else g.grads.top, noting.scratch if known else g.scratch.top,
        noting.peak if known and noting.peak != NO_BATCH else None, known and noting.peak_back)


cdef list batches_read(const Graph* g, const Batch* batch, bint back):
    """The batches that a batch reads forward, or those of them that its backward reads."""
    cdef const Node* x
    cdef uint32_t i, j, of
    cdef set found = set()
    for j in range(batch.count):
        x = &nodes_of(g)[order_of(g)[batch.first + j]]
        for i in range(x.nargs):
            of = nodes_of(g)[args_of(g, x)[i]].batch
            if of != NO_BATCH and (not back or batch.form != VIEWS and reads(op_at(x.op), i)):
                found.add(of)
    return sorted(found)


cdef object described_batch(const Graph* g, uint32_t number, list read, object last):
    cdef const Batch* batch = &batches_of(g)[number]
    cdef uint32_t node = order_of(g)[batch.first]
    cdef const Node* x = &nodes_of(g)[node]
    cdef const Noted* noted = &noting.batches[number] if number < noting.n and noting.renewal == g.renewal else NULL
    shape = shape_of(&x.dim) + ((x.dim.bd,) if x.dim.bd > 1 else ())
    value = value_of_batch(batch)
    donated = gradient = over = end = None
    if batch.lifetime & DONATED:
        donated = number if noted == NULL or not noted.donated else noted.donated - 1
    if noted != NULL and noted.gradient:
        gradient = noted.gradient - 1
        if noted.took:
            over = noted.took - 1
        elif batch.lifetime & DONATED and noted.dy == batch.y:
            over = "value"
        if batch.dy == NULL:
            end = first_joint(<Batch*>batch) - batches_of(g)
    why = tuple([name for bit, name in REASONS.items() if batch.why & bit and value == "kept"])
    return BatchLifetime(
        number, op_at(x.op).name.decode(), batch.count, shape, FORMS[batch.form], device_name(device_of(g, node)), read,
        batches_read(g, batch, True), batch.bytes, value, why, last, last_read_back(batch, number),
        stretch_of(g, batch, number), batch.again, donated, gradient, over, end, origin_at(origin_of(g, node)),
        scope_at(origin_of(g, node)))


cdef str value_of_batch(const Batch* batch):
    if batch.planned:
        return "transient" if batch.planned == TRANSIENT else "dropped"
    return "view" if batch.form == VIEWS else "kept"


cdef object last_read_back(const Batch* batch, uint32_t number):
    if batch.why & WHY_RESULT:
        return number
    return batch.reader - 1 if batch.reader and batch.why & WHY_READ else None


cdef object stretch_of(const Graph* g, const Batch* batch, uint32_t number):
    """The stretch that a batch is in: the one with which it is dropped, or if it is not, the outermost."""
    cdef const Stretch* s
    cdef uint32_t i
    cdef uint32_t depth = 1 if batch.planned == 0 or batch.planned == TRANSIENT else batch.planned
    for i in range(n_stretches(g)):
        s = &stretches_of(g)[i]
        if s.depth == depth and s.first <= number < s.end:
            return s.first, s.end - 1
    return None


cdef size_t bytes_of_transient(const Graph* g):
    """The most that a pass has taken for transient values: they lie in one block."""
    cdef const Batch* batch
    cdef uint32_t b
    cdef size_t begin = <size_t>-1, end = 0
    for b in range(g.n_batches):
        batch = &batches_of(g)[b]
        if batch.planned == TRANSIENT and batch.level == TRANSIENT and not batch.lifetime & IN_STRETCH:
            begin = min(begin, <size_t>batch.y)
            end = max(end, <size_t>batch.y + batch.bytes)
    return end - begin if end else 0


# ---- requests ------------------------------------------------------------------------------

def record(uint32_t number, then: Callable[[], object] | None = None):
    """Record the plan of a backward pass, the first of which has the number 1, and then call a function.

    Profiles must be on from then on.
    """
    global passes_left, n_backward, recorded, when_recorded
    stop()
    recorded = None
    n_backward = 0
    passes_left = number
    when_recorded = then
    change(&recording, 1)


def stop():
    """Record no plan any more."""
    global passes_left, when_recorded
    if recording:
        change(&recording, -1)
    passes_left = 0
    when_recorded = None
    passes.clear()


def recorded_plan() -> RecordedPlan | None:
    """The plan, a RecordedPlan; None if that pass has not run."""
    return recorded


def passes_seen() -> int:
    """How many backward passes have run since `record`."""
    return n_backward
