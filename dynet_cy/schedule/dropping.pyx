"""Chooses stretches of a plan, whose values are dropped after they ran, and the values to keep.

`checkpoint` marks regions of a graph: the nodes that one call of it made. A plan may run nodes of several regions as
one batch, such as the same layer of several sentences. So what is dropped are stretches of a plan, which are
consecutive batches all of whose nodes are in regions. Where one stretch ends and the next begins is chosen here, not by
the program: so that what is kept of all stretches, and the largest of them, together take the least memory. For a chain
that is a square root of stretches (Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear memory cost",
2016). Each batch runs at most twice, wherever stretches end. A batch of the form TILES is never parted from its
neighbours, since the order of sums depends on them. Regions within regions make stretches within stretches, which run
once more.

A batch of a stretch is kept if a batch outside reads one of its values, or the program has asked for one. If stretches
are nested, it is kept until the innermost stretch ends that has all batches that read it: that is its level. A batch is
kept as a whole, so that its values are side by side, as in every plan.
"""

from libc.math cimport pow, sqrt
from libc.stdint cimport SIZE_MAX, uint8_t, uint32_t
from libc.stdlib cimport qsort
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport Dim, size_of, total_of
from dynet_cy.graph.structs cimport (
    COPIES, CUT, IN_STRETCH, MOST_DEPTH, RESIDENT, TILES, TRANSIENT, VIEWS, Batch, Graph, Node, Region, Stretch,
    args_of, batches_of, block_bytes, held_of, n_regions, n_stretches, nodes_of, order_of, regions_of, stretches_of,
)
from dynet_cy.memory.arena cimport arena_alloc, arena_rewind, array_rewind
from dynet_cy.ops.registry cimport CPU, PRODUCT, SHARE, Op, op_at, rule_of
from dynet_cy.schedule.budget cimport (
    MOST_COLUMNS, bytes_missing, bytes_of, bytes_of_call, bytes_of_pass, bytes_to_use, limit_factors, memory_to_plan,
)
from dynet_cy.schedule.chains cimport SEARCHED, append_stretch, plan_chain
from dynet_cy.schedule.dividing cimport Undivided, divide, keep_undivided
from dynet_cy.schedule.facts cimport NONE, PlanFacts, batch_of, open_facts
from dynet_cy.schedule.transient cimport Places, find_kept, keep_all, lay_out_dropped

cdef enum:
    LEAST_TO_CUT = 1 << 12          # bytes; less is one stretch
    # About how long a batch takes, in multiplications: for itself, and for each node and each number that it
    # reads or writes.
    COST_OF_BATCH = 50000
    COST_OF_NODE = 1000
    COST_OF_NUMBER = 16
    LEAST_OF_NODE = 1024            # bytes
    LARGE = 4                       # a batch is large that has more bytes than the largest one divided by this
    MOST_DIVIDED = 64               # parts that do not depend on each other
    SURE = 6                        # a plan fits whose values take no more than this part of the memory

# What a batch takes besides its values: bytes, and time.
cdef struct Besides:
    size_t gradients                # all that are there while it runs backward
    size_t call                     # what its call keeps for that
    size_t copies                   # of its arguments, while it runs
    double cost                     # about how long it takes, in multiplications

# What the plan of stretches needs to know, in the scratch arena.
cdef struct Search:
    Graph* g
    uint32_t begin, end             # the planned batches
    PlanFacts facts
    bint limited                    # there is a limit on memory
    bint all                        # they may be dropped, whether they are in regions or not
    uint32_t before                 # how many stretches earlier plans have
    uint32_t* around                # by region: the region around it, or NONE
    uint32_t* depth                 # by region: 1, or one more than that of the region around it
    uint32_t* region                # by position in the plan: the innermost region of a node, or NONE; NULL: no regions
    uint32_t* within                # by batch: the innermost stretch of it, or NONE
    uint32_t deepest                # depth of the regions of planned nodes
    size_t* bytes                   # by batch
    Besides* besides                # by batch, within a limit
    uint32_t* reads                 # by batch: where the batches that it reads begin in `read`, and their end
    uint32_t* read
    uint32_t* last                  # by batch: the last batch that reads it; NONE: the program does
    size_t* across                  # by batch: bytes that it and later ones read of earlier ones
    size_t usual                    # its average
    size_t held                     # bytes of what may be dropped although the program refers to it
    size_t others                   # bytes of a pass besides those of batches, such as factors of weights' gradients
    bint is_chain                   # all batches have one small node: a search takes longer than they do
    size_t most_along               # of transient values; 0: there are none
    uint8_t* kept                   # by batch: whether its values are not transient, wherever stretches are
    uint8_t* cuts                   # by batch: whether a stretch begins there, in the best plan so far, and in this one
    uint8_t* trial


# A stretch that may be dropped, or a batch.
cdef struct Choice:
    uint32_t first, end             # its batches
    size_t bytes                    # that it frees
    double cost                     # about how long it takes to compute it again, in multiplications
    bint drops

# What backward over a stretch takes.
cdef struct Passage:
    size_t bytes                    # of values and gradients
    size_t calls                    # of what calls keep: it stays from forward on if nothing of the stretch is dropped
    uint32_t n_dropped              # choices

# The most that a plan takes at a time.
cdef struct Peak:
    size_t kept                     # bytes of values that are kept, and of what calls keep outside stretches
    size_t forward, backward        # bytes besides
    size_t in_calls                 # besides `backward`: what calls of a stretch keep, and others


cdef bint plan_stretches(Graph* g, uint32_t* n_batches, const uint32_t* targets, uint32_t n, size_t most_along,
                         Places* places) noexcept nogil:
    cdef size_t top = g.scratch.top
    cdef uint32_t before = n_stretches(g)
    cdef uint8_t* kept = NULL
    cdef bint found
    find_plan(g, n_batches, targets, n, most_along, &kept)
    found = n_stretches(g) > before
    if found and not lay_out_plan(g, n_batches[0], before, kept, places):
        found = False
        array_rewind(&g.stretches, before * sizeof(Stretch))
        keep_all(g, n_batches[0])
    arena_rewind(&g.scratch, top)
    return found


cdef void find_plan(Graph* g, uint32_t* n_batches, const uint32_t* targets, uint32_t n, size_t most_along,
                    uint8_t** kept) noexcept nogil:
    """Append the stretches that are needed, and set the levels of batches.

    Args:
        kept: set to whether the values of each batch outside stretches are not transient, in the scratch arena; NULL:
            none is.
    """
    cdef double left = memory_to_plan(g)
    cdef size_t bytes = 0, whole, most = bytes_to_use(g, left), missing = 0
    cdef bint divides = False
    cdef Search s
    memset(&s, 0, sizeof(Search))
    s.g = g
    s.limited = most != SIZE_MAX
    s.most_along = most_along
    s.before = n_stretches(g)
    begin_search(&s, n_batches[0])
    g.assumed.keeps_least = False
    if s.limited:
        bytes = bytes_of_plan(&s)
        s.limited = bytes > most // SURE
    if not (g.regions.top or s.limited) or not open_facts(&s.facts, g, s.begin, n_batches[0]):
        return
    if (s.limited and g.regions.top == 0 and most_along == 0
            and plan_chain(&s.facts, targets, n, most, bytes) != SEARCHED or not open_search(&s, targets, n)):
        return
    whole = bytes_at_a_time(&s) if s.limited else 0
    bytes = limit_others(&s, whole, most)
    if bytes > most:
        g.missing = max(g.missing, bytes_missing(g, whole, most))
        missing = bytes
        divides = s.reads != NULL               # some batches have several nodes
        drop_enough(&s, most, 1 if divides else MOST_DEPTH, &missing)
    else:
        drop_regions(&s)
    if missing and divides:                     # at once, which takes less time than to run out of memory
        drop_divided(&s, most, missing, n_batches, targets, n)
    if n_stretches(g) > s.before:
        keep_inside(&s)
        read_through_views(&s)
        kept[0] = s.kept


cdef bint fits(Graph* g, uint32_t n_batches, const uint32_t* targets, uint32_t n) noexcept nogil:
    cdef size_t top = g.scratch.top, most = bytes_to_use(g, memory_to_plan(g))
    cdef Search s
    cdef bint found
    if most == SIZE_MAX:
        return True
    memset(&s, 0, sizeof(Search))
    s.g = g
    s.limited = True
    s.before = n_stretches(g)
    begin_search(&s, n_batches)
    found = bytes_of_plan(&s) <= most // SURE or (
        open_facts(&s.facts, g, s.begin, n_batches) and open_search(&s, targets, n)
        and limit_others(&s, bytes_at_a_time(&s), most) <= most)
    arena_rewind(&g.scratch, top)
    return found


cdef size_t limit_others(Search* s, size_t bytes, size_t most) noexcept nogil:
    """The bytes that a plan takes at a time, with fewer columns of factors if `bytes` are more than `most`."""
    if bytes <= most:
        return bytes
    s.others = limit_factors(s.g, s.others, most)
    return bytes_at_a_time(s)


cdef void begin_search(Search* s, uint32_t n_batches) noexcept nogil:
    s.begin = s.g.n_batches
    s.end = s.begin + n_batches


cdef size_t bytes_of_plan(const Search* s) noexcept nogil:
    cdef size_t n = 0
    cdef uint32_t b
    for b in range(s.begin, s.end):
        n += bytes_of(s.g, &batches_of(s.g)[b])
    return n


cdef void measure(Search* s) noexcept nogil:
    """Find what batches take besides their values.

    The gradients of a batch are there from the backward of its last reader to its own.  Those of nodes that the program
    can ask for stay.  What it refers to and may be dropped is found along the way.
    """
    cdef size_t now = 0, stay = 0
    cdef uint32_t b, last, n = s.end - s.begin
    memset(s.across, 0, (n + <size_t>1) * sizeof(size_t))
    s.held = 0
    for b in range(n):
        last = s.last[b] - s.begin if s.last[b] != NONE else b
        if is_held(s, s.begin + b):
            stay += s.bytes[b]
            if s.last[b] != NONE:
                s.held += s.bytes[b]
        else:                                   # unsigned sums may pass below 0 in between
            s.across[b] += s.bytes[b]
            s.across[last + 1] -= s.bytes[b]
    for b in range(n):
        now += s.across[b]
        s.besides[b].gradients = now + stay
        s.besides[b].call = bytes_of_call(&s.facts, &batches_of(s.g)[s.begin + b], &s.besides[b].copies)
    s.others = bytes_of_pass(&s.facts)          # with as many columns as are planned by now


cdef bint is_held(const Search* s, uint32_t b) noexcept nogil:
    """Whether the program refers to a node of a batch that may have a gradient."""
    cdef const Batch* batch = &batches_of(s.g)[b]
    cdef uint32_t j, node
    for j in range(batch.count):
        node = order_of(s.g)[batch.first + j]
        if held_of(s.g)[node] and nodes_of(s.g)[node].nargs:
            return True
    return False


cdef bint drop_regions(Search* s) noexcept nogil:
    """Plan the stretches of regions.  False: there are none."""
    if s.deepest == 0:
        return False
    if not find_stretches(s, s.begin, s.end, 1, NONE):
        undo(s)
        return False
    set_levels(s)
    return n_stretches(s.g) > s.before


cdef void forget_stretches(Search* s) noexcept nogil:
    """Forget the stretches that were planned, but not the levels of batches."""
    array_rewind(&s.g.stretches, s.before * sizeof(Stretch))


cdef void undo(Search* s) noexcept nogil:
    cdef uint32_t b
    forget_stretches(s)
    for b in range(s.begin, s.end):
        batches_of(s.g)[b].level = 0


cdef void drop_enough(Search* s, size_t most, uint32_t most_depth, size_t* taken) noexcept nogil:
    """Plan as many stretches as needed so that the plan takes no more than `most` bytes: those that take least time
    again for what they free.

    If stretches of all batches do not suffice, there are stretches within them, and so on: each depth takes one more
    forward pass.

    Args:
        most_depth: of stretches.
        taken: the bytes that it takes without any; set to those that it takes with them, if these are still too many,
            else to 0.
    """
    cdef size_t bytes
    cdef uint32_t depth, best = 0
    cdef bint found
    most -= min(most - 1, s.held)               # what the program refers to may be asked for
    s.g.assumed.keeps_least = False
    for depth in range(1, most_depth + 1):
        found = drop_all(s, depth)
        bytes = bytes_at_a_time(s)
        if found and bytes <= most:
            taken[0] = 0
            if depth == 1:
                drop_quickest(s, most)
            return
        if bytes < taken[0]:
            taken[0] = bytes
            best = depth
        elif depth > 1:
            break                               # going deeper gains nothing more
    s.g.assumed.keeps_least = True
    if best:
        drop_all(s, best)
    else:
        undo(s)


cdef void drop_quickest(Search* s, size_t most) noexcept nogil:
    """Keep the stretches that take the longest time again for the bytes that they free; all of them are of depth 1.

    Without this choice, sequence to sequence within a half of its memory takes 1.19 times the time.

    Args:
        most: the bytes that the plan may take, which are enough if all stretches are dropped.
    """
    cdef size_t top = s.g.scratch.top
    cdef bint one_by_one = is_worth_choosing(s)
    cdef uint32_t n, b
    cdef Choice* choices
    for b in range(s.begin, s.end):
        s.besides[b - s.begin].cost = cost_of_batch(s, b)
    choices = choose(s, one_by_one, most, &n)
    if choices == NULL:
        pass
    elif one_by_one:
        keep_batches(s, choices, n)
    else:
        drop_chosen(s, choices, n)
    arena_rewind(&s.g.scratch, top)


cdef bint is_worth_choosing(const Search* s) noexcept nogil:
    """Whether nodes take so much longer than plans that it pays to choose batch by batch."""
    return total_bytes(s) > LEAST_OF_NODE * <size_t>s.facts.span


cdef Choice* choose(Search* s, bint one_by_one, size_t most, uint32_t* n) noexcept nogil:
    """Choose which stretches are dropped, if the plan may take some bytes.

    Args:
        one_by_one: choose among their batches instead.
        n: set to the number of choices.

    Returns:
        The choices, by position in the plan; NULL: there is no memory.
    """
    cdef uint32_t n_all = n_stretches(s.g) - s.before, i
    cdef Passage* passages = <Passage*>arena_alloc(&s.g.scratch, n_all * sizeof(Passage))
    cdef Choice* choices
    cdef Peak peak
    n[0] = s.end - s.begin if one_by_one else n_all
    choices = <Choice*>arena_alloc(&s.g.scratch, n[0] * sizeof(Choice))
    if choices == NULL or passages == NULL:
        return NULL
    find_peak(s, &peak, passages)
    if one_by_one:
        n[0] = weigh_batches(s, choices)
    else:
        for i in range(n[0]):
            weigh(s, s.before + i, &choices[i])
        choices[n[0] - 1].cost = 0              # backward begins with it, before it is dropped
    for i in range(n[0]):
        passages[s.within[choices[i].first - s.begin] - s.before].n_dropped += 1
    qsort(choices, n[0], sizeof(Choice), costlier)
    for i in range(n[0]):
        choices[i].drops = not (choices[i].cost and may_keep(s, &choices[i], passages, n_all, most, &peak))
    qsort(choices, n[0], sizeof(Choice), earlier)
    return choices


cdef bint may_keep(const Search* s, const Choice* x, Passage* passages, uint32_t n, size_t most,
                   Peak* peak) noexcept nogil:
    """Whether the plan takes no more than `most` bytes if a choice is not dropped either; then count it as kept."""
    cdef Passage* of = &passages[s.within[x.first - s.begin] - s.before]
    cdef Passage before = of[0]
    cdef size_t kept = peak.kept + x.bytes, backward = peak.backward
    cdef uint32_t i
    of.bytes -= min(x.bytes, of.bytes)
    of.n_dropped -= 1
    if of.n_dropped == 0:                       # then it is no stretch any more
        kept += of.calls
    if before.bytes == backward:                # it may not take the most any more
        backward = 0
        for i in range(n):
            backward = max(backward, passages[i].bytes)
    if kept + max(peak.forward, backward + peak.in_calls) > most:
        of[0] = before
        return False
    peak.kept = kept
    peak.backward = backward
    return True


cdef uint32_t weigh_batches(Search* s, Choice* choices) noexcept nogil:
    """Find what each batch frees, and how long it takes again, with what only serves to compute it; returns how many.

    A batch that saves numbers for backward runs again in a stretch, even if that frees none of its values.
    """
    cdef Graph* g = s.g
    cdef const Batch* batch
    cdef size_t top = g.scratch.top
    cdef uint32_t* readers = <uint32_t*>arena_alloc(&g.scratch, (s.end - s.begin) * sizeof(uint32_t))
    cdef uint32_t b, i, k, n = 0
    cdef bint frees
    if readers != NULL:
        memset(readers, 0, (s.end - s.begin) * sizeof(uint32_t))
        for b in range(s.begin, s.end):
            for k in range(n_read(s, b)):
                i = read_by(s, b, k)
                if i != NONE:
                    readers[i - s.begin] += 1
    for b in range(s.begin, s.end):
        batch = &batches_of(g)[b]
        frees = batch.level and s.kept[b - s.begin]
        if batch.form == VIEWS or s.within[b - s.begin] == NONE or not (frees or saves(g, batch)):
            continue
        choices[n].first = b
        choices[n].end = b + 1
        choices[n].bytes = s.bytes[b - s.begin] if frees else 0
        choices[n].cost = 0
        if s.within[b - s.begin] + 1 < n_stretches(g):      # backward begins with the last one
            choices[n].cost = s.besides[b - s.begin].cost
            for k in range(n_read(s, b)):
                i = read_by(s, b, k)
                if readers != NULL and i != NONE and batches_of(g)[i].level and not s.kept[i - s.begin]:
                    choices[n].cost += s.besides[i - s.begin].cost / readers[i - s.begin]
        n += 1
    arena_rewind(&g.scratch, top)
    return n


cdef void keep_batches(Search* s, const Choice* choices, uint32_t n) noexcept nogil:
    """Plan the stretches again that have batches which are dropped, and keep the other batches."""
    cdef Graph* g = s.g
    cdef size_t top = g.scratch.top
    cdef uint32_t n_all = n_stretches(g) - s.before, i, k = 0
    cdef Choice* all = <Choice*>arena_alloc(&g.scratch, n_all * sizeof(Choice))
    if all == NULL:
        return
    for i in range(n_all):
        all[i].first = stretches_of(g)[s.before + i].first
        all[i].end = stretches_of(g)[s.before + i].end
        all[i].drops = False
        while k < n and choices[k].first < all[i].end:
            all[i].drops = all[i].drops or choices[k].drops
            k += 1
    drop_chosen(s, all, n_all)
    for k in range(n):
        if choices[k].bytes and not choices[k].drops:
            batches_of(g)[choices[k].first].level = 0
    arena_rewind(&g.scratch, top)


cdef void drop_chosen(Search* s, const Choice* choices, uint32_t n) noexcept nogil:
    """Plan the stretches that are chosen."""
    cdef uint32_t i
    forget_stretches(s)
    memset(s.within, 0xFF, (s.end - s.begin) * sizeof(uint32_t))
    for i in range(n):
        if choices[i].drops and not add_stretch(s, choices[i].first, choices[i].end, 1):
            undo(s)
            return
    set_levels(s)


cdef void weigh(const Search* s, uint32_t number, Choice* x) noexcept nogil:
    """Find what a stretch frees, and how long it takes again."""
    cdef const Stretch* of = &stretches_of(s.g)[number]
    cdef const Batch* batch
    cdef uint32_t b
    x.first = of.first
    x.end = of.end
    x.bytes = 0
    x.cost = 0
    for b in range(of.first, of.end):
        batch = &batches_of(s.g)[b]
        if batch.level:
            if s.kept[b - s.begin]:             # else it will be transient: its readers are in the stretch too
                x.bytes += s.bytes[b - s.begin]
            x.cost += s.besides[b - s.begin].cost
        elif saves(s.g, batch):
            x.cost += s.besides[b - s.begin].cost


cdef inline bint saves(const Graph* g, const Batch* batch) noexcept nogil:
    """Whether a batch saves numbers for backward, so that it runs again although it is kept."""
    return op_at(nodes_of(g)[order_of(g)[batch.first]].op).needs[CPU].saved != NULL


cdef double cost_of_batch(const Search* s, uint32_t b) noexcept nogil:
    """About how long a batch takes, in multiplications."""
    cdef const Graph* g = s.g
    cdef const Batch* batch = &batches_of(g)[b]
    cdef const Node* x
    cdef const Dim* a
    cdef const Op* op
    cdef double cost = COST_OF_BATCH, elements
    cdef uint32_t j, k
    if s.is_chain:                              # all batches are small
        return cost
    op = op_at(nodes_of(g)[order_of(g)[batch.first]].op)
    for j in range(batch.count):
        x = &nodes_of(g)[order_of(g)[batch.first + j]]
        elements = total_of(&x.dim)
        cost += COST_OF_NODE + COST_OF_NUMBER * elements
        for k in range(x.nargs):
            a = &nodes_of(g)[args_of(g, x)[k]].dim
            if a.nd > 1 and total_of(a) and (rule_of(op, k) == SHARE or op.role == PRODUCT and k == 0):
                # A matrix of r x c, or filters for r channels: each result is a sum of c products.
                cost += elements * size_of(a) / a.d[0 if a.nd == 2 else a.nd - 1]
            else:
                cost += COST_OF_NUMBER * total_of(a)
    return cost


cdef int costlier(const void* a, const void* b) noexcept nogil:
    """The order of stretches by the time that they take for each byte, the longest first."""
    cdef const Choice* x = <const Choice*>a
    cdef const Choice* y = <const Choice*>b
    cdef double d = x.cost * y.bytes - y.cost * x.bytes
    return -1 if d > 0 else 1 if d < 0 else earlier(a, b)


cdef int earlier(const void* a, const void* b) noexcept nogil:
    return -1 if (<const Choice*>a).first < (<const Choice*>b).first else 1


cdef void drop_divided(Search* s, size_t most, size_t taken, uint32_t* n_batches, const uint32_t* targets,
                       uint32_t n_targets) noexcept nogil:
    """Plan stretches of a plan that is divided into as many parts as needed, where those of the whole keep too much.

    Stretches within stretches come last: more parts take less time.

    Args:
        taken: the bytes that the whole takes with as many stretches as it can have.
        n_batches: set to the number of batches of the divided plan.
    """
    cdef Undivided large, best
    cdef size_t bytes
    cdef uint32_t parts = 1
    if not keep_undivided(s.g, n_batches[0], &best):
        return
    large = best
    find_large(s, &large)
    if (not drop_in_parts(s, large, &best, &parts, most, 1, &taken, n_batches, targets, n_targets)
            and not drop_in_parts(s, large, &best, &parts, most, MOST_DEPTH, &taken, n_batches, targets, n_targets)):
        drop_parts(s, &best, parts, most, MOST_DEPTH, &bytes, n_batches, targets, n_targets)


cdef bint drop_in_parts(Search* s, Undivided plan, Undivided* best, uint32_t* best_parts, size_t most,
                        uint32_t most_depth, size_t* taken, uint32_t* n_batches, const uint32_t* targets,
                        uint32_t n_targets) noexcept nogil:
    """Try more and more parts, first only of what is around the large batches, then of the whole plan; whether some
    suffice.

    Args:
        plan: of which only what is around the large batches is divided.
        best, best_parts: set to what takes least, and `taken` to its bytes.
    """
    cdef size_t top = s.g.scratch.top, bytes
    cdef uint32_t parts
    while True:
        parts = 1
        while parts < MOST_DIVIDED:
            parts += (parts + 1) // 2
            drop_parts(s, &plan, parts, most, most_depth, &bytes, n_batches, targets, n_targets)
            if bytes == 0:
                return True
            if n_batches[0] == plan.n_batches:
                break                           # all nodes depend on each other
            if bytes < taken[0]:
                taken[0] = bytes
                best[0] = plan
                best_parts[0] = parts
            arena_rewind(&s.g.scratch, top)
        if plan.first == 0 and plan.end == plan.n_batches:
            return False
        plan.first = 0
        plan.end = plan.n_batches


cdef size_t total_bytes(const Search* s) noexcept nogil:
    cdef size_t sum = 0
    cdef uint32_t b
    for b in range(s.begin, s.end):
        sum += s.bytes[b - s.begin]
    return sum


cdef void find_large(const Search* s, Undivided* plan) noexcept nogil:
    """Have only the batches divided from the first large one to the last reader of one."""
    cdef size_t largest = 0
    cdef uint32_t b
    for b in range(s.end - s.begin):
        largest = max(largest, s.bytes[b])
    plan.first = plan.n_batches
    plan.end = 0
    for b in range(s.end - s.begin):
        if s.bytes[b] > largest // LARGE:
            plan.first = min(plan.first, b)
            plan.end = max(plan.end, b + 1 if s.last[b] == NONE else s.last[b] - s.begin + 1)
    if plan.end == 0:                           # there are no bytes
        plan.first = 0
        plan.end = plan.n_batches


cdef void drop_parts(Search* s, const Undivided* plan, uint32_t parts, size_t most, uint32_t most_depth,
                     size_t* taken, uint32_t* n_batches, const uint32_t* targets, uint32_t n_targets) noexcept nogil:
    """Plan stretches of a plan in a number of parts; `taken` as in `drop_enough`."""
    n_batches[0] = divide(s.g, plan, parts)
    begin_search(s, n_batches[0])
    undo(s)                                     # the undivided plan has the levels of an earlier try
    taken[0] = SIZE_MAX
    s.g.assumed.columns = MOST_COLUMNS          # products with fewer columns have their factors collected
    if open_facts(&s.facts, s.g, s.begin, n_batches[0]) and open_search(s, targets, n_targets):
        s.others = limit_factors(s.g, s.others, most)
        drop_enough(s, most, most_depth, taken)


cdef bint drop_all(Search* s, uint32_t depth) noexcept nogil:
    """Plan stretches of all batches, of a depth.  False: there are none."""
    s.deepest = depth
    s.all = True
    forget_stretches(s)
    memset(s.within, 0xFF, (s.end - s.begin) * sizeof(uint32_t))
    return drop_regions(s)


cdef bint open_search(Search* s, const uint32_t* targets, uint32_t n_targets) noexcept nogil:
    """Find the region of each planned node, and the last reader of each batch; False: there is no memory."""
    s.within = <uint32_t*>arena_alloc(&s.g.scratch, (s.end - s.begin) * sizeof(uint32_t))
    if s.within == NULL or not find_regions(s):
        return False
    memset(s.within, 0xFF, (s.end - s.begin) * sizeof(uint32_t))
    return find_uses(s, targets, n_targets)


cdef bint find_regions(Search* s) noexcept nogil:
    """Find the region of each planned node, and how deep regions are.  False: there is no memory."""
    cdef Graph* g = s.g
    cdef uint32_t n = n_regions(g), i
    s.region = NULL
    if n == 0:
        return True
    s.around = <uint32_t*>arena_alloc(&g.scratch, n * sizeof(uint32_t))
    s.depth = <uint32_t*>arena_alloc(&g.scratch, n * sizeof(uint32_t))
    s.region = <uint32_t*>arena_alloc(&g.scratch, s.facts.n_nodes * sizeof(uint32_t))
    if s.around == NULL or s.depth == NULL or s.region == NULL:
        return False
    nest_regions(s)
    for i in range(s.facts.n_nodes):
        s.region[i] = region_of(s, s.facts.order[i])
        if s.region[i] != NONE:
            s.deepest = max(s.deepest, s.depth[s.region[i]])
    return True


cdef bint find_uses(Search* s, const uint32_t* targets, uint32_t n) noexcept nogil:
    """Find the last reader of each batch.  False: there is no memory."""
    cdef Graph* g = s.g
    cdef size_t n_batches = s.end - s.begin
    cdef uint32_t b, i, k
    s.bytes = <size_t*>arena_alloc(&g.scratch, n_batches * sizeof(size_t))
    s.across = <size_t*>arena_alloc(&g.scratch, (n_batches + 1) * sizeof(size_t))
    s.last = <uint32_t*>arena_alloc(&g.scratch, n_batches * sizeof(uint32_t))
    s.cuts = <uint8_t*>arena_alloc(&g.scratch, n_batches)
    s.trial = <uint8_t*>arena_alloc(&g.scratch, n_batches)
    s.kept = <uint8_t*>arena_alloc(&g.scratch, n_batches)
    if s.limited:
        s.besides = <Besides*>arena_alloc(&g.scratch, n_batches * sizeof(Besides))
        if s.besides == NULL:
            return False
    if s.bytes == NULL or s.across == NULL or s.last == NULL or s.cuts == NULL or s.trial == NULL or s.kept == NULL:
        return False
    memset(s.kept, True, n_batches)
    if s.most_along:
        find_kept(g, <uint32_t>n_batches, targets, n, s.most_along, s.kept)
    if not list_reads(s):
        return False
    for b in range(s.begin, s.end):
        s.bytes[b - s.begin] = bytes_of(g, &batches_of(g)[b])
        s.last[b - s.begin] = b
        for k in range(n_read(s, b)):           # batches before it
            i = read_by(s, b, k)
            if i != NONE:
                s.last[i - s.begin] = b
    s.is_chain = s.reads == NULL and not is_worth_choosing(s)
    for i in range(n):
        b = batch_of(&s.facts, targets[i])
        if b != NONE:
            s.last[b - s.begin] = NONE
    if s.limited:
        measure(s)
    return True


cdef inline uint32_t n_read(const Search* s, uint32_t b) noexcept nogil:
    """How many times to call `read_by` for a batch."""
    if s.reads == NULL:
        return nodes_of(s.g)[order_of(s.g)[batches_of(s.g)[b].first]].nargs
    return s.reads[b + 1 - s.begin] - s.reads[b - s.begin]


cdef inline uint32_t read_by(const Search* s, uint32_t b, uint32_t k) noexcept nogil:
    """A batch that a batch reads, or NONE."""
    cdef const Node* x
    if s.reads == NULL:
        x = &nodes_of(s.g)[order_of(s.g)[batches_of(s.g)[b].first]]
        return batch_of(&s.facts, args_of(s.g, x)[k])
    return s.read[s.reads[b - s.begin] + k]


cdef bint list_reads(Search* s) noexcept nogil:
    """List the batches that each batch reads, unless all have one node.  False: there is no memory."""
    cdef Graph* g = s.g
    cdef uint32_t n_batches = s.end - s.begin, b, i, n
    cdef uint32_t* reader                       # by batch: the batch for which it was listed last
    s.reads = NULL
    if s.facts.n_nodes == n_batches:
        return True
    reader = <uint32_t*>arena_alloc(&g.scratch, n_batches * sizeof(uint32_t))
    s.reads = <uint32_t*>arena_alloc(&g.scratch, (n_batches + <size_t>1) * sizeof(uint32_t))
    if reader == NULL or s.reads == NULL:
        return False
    s.read = NULL
    for i in range(2):                          # count them, then write them
        memset(reader, 0xFF, n_batches * sizeof(uint32_t))
        n = 0
        for b in range(s.begin, s.end):
            s.reads[b - s.begin] = n
            n += list_reads_of(s, b, reader, n)
        s.reads[n_batches] = n
        if i == 0:
            s.read = <uint32_t*>arena_alloc(&g.scratch, n * sizeof(uint32_t))
            if s.read == NULL:
                return False
    return True


cdef uint32_t list_reads_of(Search* s, uint32_t b, uint32_t* reader, uint32_t at) noexcept nogil:
    """List what one batch reads, from a position of the list on; returns how many."""
    cdef Graph* g = s.g
    cdef const Batch* batch = &batches_of(g)[b]
    cdef const Node* x
    cdef uint32_t i, j, k, n = 0
    for j in range(batch.count):
        x = &nodes_of(g)[order_of(g)[batch.first + j]]
        for k in range(x.nargs):
            i = batch_of(&s.facts, args_of(g, x)[k])
            if i == NONE or reader[i - s.begin] == b:
                continue
            reader[i - s.begin] = b
            if s.read != NULL:
                s.read[at + n] = i
            n += 1
    return n


# ---- regions ---------------------------------------------------------------------------

cdef void nest_regions(Search* s) noexcept nogil:
    cdef const Region* regions = regions_of(s.g)
    cdef uint32_t i, outer = NONE
    for i in range(n_regions(s.g)):
        while outer != NONE and regions[outer].end <= regions[i].first:
            outer = s.around[outer]
        s.around[i] = outer
        s.depth[i] = 1 if outer == NONE else s.depth[outer] + 1
        outer = i


cdef uint32_t region_of(const Search* s, uint32_t node) noexcept nogil:
    """The innermost region of a node, or NONE."""
    cdef const Region* regions = regions_of(s.g)
    cdef uint32_t low = 0, high = n_regions(s.g), middle
    while low < high:
        middle = (low + high) // 2
        if regions[middle].first <= node:
            low = middle + 1
        else:
            high = middle
    low -= 1                                    # perhaps to NONE
    while low != NONE and regions[low].end <= node:
        low = s.around[low]
    return low


cdef inline uint32_t region_at(const Search* s, uint32_t position, uint32_t depth) noexcept nogil:
    """The region of a depth that the node at a position of graph.order is in, or NONE."""
    cdef uint32_t r = s.region[position - s.facts.first] if s.region != NULL else NONE
    while r != NONE and s.depth[r] > depth:
        r = s.around[r]
    return NONE if r == NONE or s.depth[r] < depth else r


# ---- stretches -------------------------------------------------------------------------

cdef bint is_inside(const Search* s, uint32_t b, uint32_t depth) noexcept nogil:
    """Whether all nodes of a batch are in regions of a depth; or, if memory is short, whether it may be dropped."""
    cdef const Batch* batch = &batches_of(s.g)[b]
    cdef uint32_t j
    if s.all:
        return True
    for j in range(batch.count):
        if region_at(s, batch.first + j, depth) == NONE:
            return False
    return True


cdef inline bint runs_on(const Search* s, uint32_t b) noexcept nogil:
    """Whether a batch may run together with the one before it."""
    return b > s.begin and batches_of(s.g)[b].form == TILES and batches_of(s.g)[b - 1].form == TILES


cdef bint find_stretches(Search* s, uint32_t begin, uint32_t end, uint32_t depth, uint32_t outer) noexcept nogil:
    """Find the stretches of a depth among some batches.  False: there is no memory for them.

    Args:
        outer: the stretch around them, or NONE.
    """
    cdef uint32_t b = begin, first, after
    while b < end:
        first = b
        b += 1
        if not is_inside(s, first, depth) or (first > begin and runs_on(s, first)):
            continue
        while b < end and is_inside(s, b, depth):
            b += 1
        after = b
        while after > first and after < end and runs_on(s, after):
            after -= 1
        if after > first and not cut(s, first, after, depth, outer):
            return False
    return True


cdef bint cut(Search* s, uint32_t first, uint32_t end, uint32_t depth, uint32_t outer) noexcept nogil:
    """Make stretches of batches that are all in regions."""
    cdef uint32_t b
    choose_cuts(s, first, end, depth)
    if outer != NONE and not is_cut(s, first, end) and is_whole(&stretches_of(s.g)[outer], first, end):
        return True                             # it would drop what the stretch around it drops
    while first < end:
        b = first + 1
        while b < end and not s.cuts[b - s.begin]:
            b += 1
        if not add_stretch(s, first, b, depth):
            return False
        first = b
    return True


cdef bint is_cut(const Search* s, uint32_t first, uint32_t end) noexcept nogil:
    cdef uint32_t b
    for b in range(first, end):
        if s.cuts[b - s.begin]:
            return True
    return False


cdef inline bint is_whole(const Stretch* x, uint32_t first, uint32_t end) noexcept nogil:
    return x.first == first and x.end == end


cdef bint add_stretch(Search* s, uint32_t first, uint32_t end, uint32_t depth) noexcept nogil:
    cdef uint32_t b, number = n_stretches(s.g)
    if not append_stretch(s.g, first, end, depth):
        return False
    for b in range(first, end):
        s.within[b - s.begin] = number
    return depth >= s.deepest or depth >= MOST_DEPTH or find_stretches(s, first, end, depth + 1, number)


# ---- cuts ------------------------------------------------------------------------------

cdef void choose_cuts(Search* s, uint32_t first, uint32_t end, uint32_t depth) noexcept nogil:
    """Choose where stretches of some batches begin: try stretches of smaller and smaller shares of the bytes."""
    cdef size_t total = 0, least, cost, n = 1
    cdef double more
    cdef uint32_t b, worse = 0
    for b in range(first, end):
        total += s.bytes[b - s.begin]
        s.cuts[b - s.begin] = False
    if total < LEAST_TO_CUT:
        return
    measure_across(s, first, end)
    if s.is_chain and s.all:                    # as many as are best where all batches are alike
        more = s.deepest - depth
        try_cuts(s, first, end, <size_t>(total / pow(<double>total / s.usual, 1 / (more + 2))))
        memcpy(s.cuts + (first - s.begin), s.trial + (first - s.begin), end - first)
        return
    least = inside_of(s, total, depth)
    n = max(<size_t>(sqrt(<double>total / s.usual) / 4), <size_t>1)     # the best number is about four times that
    while n < end - first and worse < 3:
        n = n + max(n // 2, <size_t>1)
        try_cuts(s, first, end, total // n)
        cost = cost_of(s, first, end, depth)
        worse += 1
        if cost < least:
            least = cost
            worse = 0
            memcpy(s.cuts + (first - s.begin), s.trial + (first - s.begin), end - first)


cdef void measure_across(Search* s, uint32_t first, uint32_t end) noexcept nogil:
    """Find how many bytes a stretch that begins at a batch would make kept that are not kept anyway."""
    cdef size_t* across = s.across
    cdef size_t sum = 0
    cdef uint32_t b, last
    memset(across + (first - s.begin), 0, (end - first + <size_t>1) * sizeof(size_t))
    for b in range(first, end):
        last = s.last[b - s.begin]
        if last < end:                          # unsigned sums may pass below 0 in between
            across[b + 1 - s.begin] += s.bytes[b - s.begin]
            across[last + 1 - s.begin] -= s.bytes[b - s.begin]
    for b in range(first + 1, end):
        across[b - s.begin] += across[b - 1 - s.begin]
        sum += across[b - s.begin]
    s.usual = sum // (end - first) + 1


cdef void try_cuts(Search* s, uint32_t first, uint32_t end, size_t most) noexcept nogil:
    """Cut before a stretch has more than `most` bytes, where the least is read across, in its second half."""
    cdef size_t taken = 0
    cdef uint32_t b = first, best = 0, begin = first
    memset(s.trial + (first - s.begin), 0, end - first)
    while b < end:
        if taken >= most // 2 and b > begin and not runs_on(s, b):
            if best == 0 or s.across[b - s.begin] <= s.across[best - s.begin]:
                best = b
        if taken > most and best:
            s.trial[best - s.begin] = True
            b = begin = best
            best = 0
            taken = 0
        if s.last[b - s.begin] < end:
            taken += s.bytes[b - s.begin]
        b += 1


cdef size_t cost_of(const Search* s, uint32_t first, uint32_t end, uint32_t depth) noexcept nogil:
    """Bytes that are kept with the cuts that are tried, and those of the largest stretch."""
    cdef size_t kept = 0, inside = 0, largest = 0
    cdef uint32_t i, b, following = end
    for i in range(end - first):
        b = end - 1 - i
        if s.last[b - s.begin] >= end:
            pass
        elif s.last[b - s.begin] >= following:
            kept += s.bytes[b - s.begin]
        else:
            inside += s.bytes[b - s.begin]
        if s.trial[b - s.begin]:
            largest = max(largest, inside)
            inside = 0
            following = b
    return kept + inside_of(s, max(largest, inside), depth)


cdef size_t inside_of(const Search* s, size_t bytes, uint32_t depth) noexcept nogil:
    """What a stretch of some bytes takes, if there are as many stretches within it as memory needs.

    A stretch of n bytes that is cut k times, with u bytes read across a cut, takes k u + n / k, which is least for
    k = sqrt(n / u), and so on.
    """
    cdef double more = s.deepest - depth if s.all and s.deepest > depth else 0
    if more == 0 or bytes <= s.usual:
        return bytes
    return <size_t>((more + 1) * pow(bytes * pow(s.usual, more), 1 / (more + 1)))


# ---- levels ----------------------------------------------------------------------------

cdef uint32_t common_depth(const Search* s, uint32_t a, uint32_t b) noexcept nogil:
    """The depth of the innermost stretch that has both batches; 0: none has."""
    cdef const Stretch* all = stretches_of(s.g)
    cdef uint32_t x = s.within[a - s.begin]
    if x == NONE:
        return 0
    # Stretches that contain a batch follow each other, the innermost last, with others between them.
    while True:
        if all[x].first <= b < all[x].end:
            return all[x].depth
        if all[x].depth == 1:
            return 0
        x = stretch_around(s, x)


cdef uint32_t stretch_around(const Search* s, uint32_t x) noexcept nogil:
    cdef const Stretch* all = stretches_of(s.g)
    cdef uint32_t depth = all[x].depth
    while all[x].depth >= depth:
        x -= 1
    return x


cdef inline void lower(Batch* batch, uint32_t level) noexcept nogil:
    if batch.level > level:
        batch.level = <uint8_t>level


cdef void set_levels(Search* s) noexcept nogil:
    cdef Graph* g = s.g
    cdef Batch* batches = batches_of(g)
    cdef uint32_t b, number, last
    for b in range(s.begin, s.end):
        number = s.within[b - s.begin]
        last = s.last[b - s.begin]
        if number == NONE or last == NONE:
            batches[b].level = 0
        elif s.deepest > 1:
            batches[b].level = <uint8_t>stretches_of(g)[number].depth
        else:                                   # all that reads it is in its stretch if the last reader is
            batches[b].level = s.within[last - s.begin] == number
        if batches[b].form == VIEWS and s.deepest == 1:
            keep_viewed(s, b)
    if s.deepest > 1:
        lower_levels(s)


cdef void lower_levels(Search* s) noexcept nogil:
    """Lower the level of each batch that something reads outside its innermost stretch."""
    cdef Batch* batches = batches_of(s.g)
    cdef uint32_t b, i, k
    for b in range(s.begin, s.end):
        for k in range(n_read(s, b)):
            i = read_by(s, b, k)
            if i != NONE and batches[i].level and s.within[i - s.begin] != s.within[b - s.begin]:
                lower(&batches[i], common_depth(s, i, b))
    for b in range(s.begin, s.end):
        if batches[b].form == VIEWS:
            keep_viewed(s, b)


cdef void keep_viewed(Search* s, uint32_t b) noexcept nogil:
    """Keep the argument of a view as long as the view."""
    cdef Batch* batches = batches_of(s.g)
    cdef uint32_t j, of
    for j in range(batches[b].count):
        of = batch_of(&s.facts, args_of(s.g, &nodes_of(s.g)[order_of(s.g)[batches[b].first + j]])[0])
        if of != NONE:
            lower(&batches[of], batches[b].level)


# ---- memory ------------------------------------------------------------------------------

cdef size_t bytes_at_a_time(Search* s) noexcept nogil:
    """The bytes that the plan takes at a time."""
    cdef Peak peak
    find_peak(s, &peak, NULL)
    return peak.kept + max(peak.forward, peak.backward + peak.in_calls)


cdef void find_peak(Search* s, Peak* peak, Passage* passages) noexcept nogil:
    """Find what the plan takes at a time.

    Where gradients and values that are computed again take turns, free memory falls into pieces.  So there is room for
    the largest of a stretch once more, but for the last one, with which backward begins: without it, one plan in five
    runs out of memory.

    Args:
        passages: set to what backward over each of its stretches takes, which are of depth 1; or NULL.
    """
    cdef const Batch* batches = batches_of(s.g)
    cdef const Besides* x
    cdef Passing p
    cdef size_t backward, dropped = 0           # bytes of values that will be dropped, and are there
    cdef uint32_t b, i
    begin_passing(&p, s.g, s.before)
    memset(peak, 0, sizeof(Peak))
    memset(s.across, 0, (s.end - s.begin + <size_t>1) * sizeof(size_t))     # by batch: bytes that end before it
    for b in range(s.begin, s.end):
        i = b - s.begin
        x = &s.besides[i]
        dropped -= s.across[i]
        if batches[b].level == 0 and not is_transient(s, b):
            peak.kept += s.bytes[i]
        else:
            dropped += block_bytes(s.bytes[i])
            s.across[s.last[i] + 1 - s.begin] += block_bytes(s.bytes[i])
        peak.forward = max(peak.forward, dropped + x.copies)
        pass_batch(&p, b, stays_in_stretch(s, b))
        p.gradients = max(p.gradients, x.gradients + x.copies)
        p.largest = max(p.largest, s.bytes[i])
        if p.inner == NONE:
            peak.kept += x.call
        else:
            p.calls += x.call
        peak.in_calls = max(peak.in_calls, p.calls)
        backward = p.bytes + p.gradients
        if p.inner != NONE and p.inner + 1 < n_stretches(s.g):
            backward += p.largest
        if passages != NULL and p.inner != NONE:
            passages[p.inner - s.before] = Passage(backward, p.calls, 0)
        peak.backward = max(peak.backward, backward)
    peak.in_calls += s.others


# Backward over stretches, as a walk over their batches in order: what is there at the end of an innermost stretch,
# which is where backward over it begins.
cdef struct Passing:
    Graph* g
    uint32_t[9] around                          # MOST_DEPTH + 1: the stretch of each depth
    size_t[9] of_depth                          # bytes of its values so far
    uint32_t next_stretch
    uint32_t inner                              # the innermost stretch, or NONE
    size_t bytes                                # of values
    size_t gradients, calls, largest            # for the caller, since the innermost stretch has begun


cdef void begin_passing(Passing* p, Graph* g, uint32_t first) noexcept nogil:
    """Begin before a plan whose first stretch has this number."""
    memset(p, 0, sizeof(Passing))
    p.g = g
    p.next_stretch = first
    p.inner = NONE
    memset(p.around, 0xFF, sizeof(p.around))


cdef void pass_batch(Passing* p, uint32_t b, bint stays) noexcept nogil:
    """Go on to the next batch; `stays`: its values, computed again, stay until backward has passed them."""
    cdef const Stretch* s = stretches_of(p.g)
    cdef uint32_t before = p.inner, depth
    p.inner = enter_stretches(p.g, b, &p.next_stretch, p.around)
    p.bytes = 0
    if p.inner != before:
        p.gradients = p.calls = p.largest = 0
    for depth in range(1, s[p.inner].depth + 1 if p.inner != NONE else 1):
        if s[p.around[depth]].first == b:
            p.of_depth[depth] = 0
        if stays and depth == batches_of(p.g)[b].level:
            p.of_depth[depth] += block_bytes(bytes_of(p.g, &batches_of(p.g)[b]))
        p.bytes += p.of_depth[depth]


cdef size_t most_in_stretches(Graph* g, uint32_t begin, uint32_t end, uint32_t first) noexcept nogil:
    """The most bytes that values of the stretches of a plan take at a time.

    Args:
        begin, end: the batches of the plan.
        first: the number of its first stretch.
    """
    cdef Passing p
    cdef size_t most = 0
    cdef uint32_t b
    begin_passing(&p, g, first)
    for b in range(begin, end):
        pass_batch(&p, b, True)
        most = max(most, p.bytes)
    return most


cdef inline bint stays_in_stretch(const Search* s, uint32_t b) noexcept nogil:
    """Whether the values of a batch of a stretch stay there until backward has passed it: else it will be transient."""
    cdef const Batch* batch = &batches_of(s.g)[b]
    if batch.form == VIEWS or batch.level == 0:
        return False
    return s.kept[b - s.begin] or batch.level != stretches_of(s.g)[s.within[b - s.begin]].depth


cdef inline bint is_transient(const Search* s, uint32_t b) noexcept nogil:
    """Whether a batch outside stretches will be transient, judged by its last reader only."""
    cdef uint32_t last = s.last[b - s.begin]
    return (not s.kept[b - s.begin] and s.within[b - s.begin] == NONE
            and last != NONE and s.within[last - s.begin] == NONE)


cdef void keep_inside(Search* s) noexcept nogil:
    """Note the last readers of what stretches drop; outside stretches, keep what these read."""
    cdef Batch* batch
    cdef uint32_t b, i, k
    for b in range(s.begin, s.end):
        batch = &batches_of(s.g)[b]
        if batch.level:
            batch.last = s.last[b - s.begin]
            # What several stretches read stays for all of them, also if backward does not read it.
            if not s.kept[b - s.begin] and batch.level == stretches_of(s.g)[s.within[b - s.begin]].depth:
                batch.level = <uint8_t>TRANSIENT
        if s.within[b - s.begin] == NONE:
            continue
        s.kept[b - s.begin] = True
        for k in range(n_read(s, b)):
            i = read_by(s, b, k)
            if i != NONE:
                s.kept[i - s.begin] = True


cdef void read_through_views(Search* s) noexcept nogil:
    """What is read of a view is read of its argument; so it is of a copy, which a device makes as late as it can."""
    cdef Batch* batches = batches_of(s.g)
    cdef uint32_t b = s.end, k, i, last
    while b > s.begin:
        b -= 1
        if batches[b].form != VIEWS and batches[b].form != COPIES:
            continue
        last = batches[b].last if batches[b].level else min(s.last[b - s.begin], s.end - 1)
        for k in range(n_read(s, b)):
            i = read_by(s, b, k)
            if i != NONE and batches[i].level:
                batches[i].last = max(batches[i].last, last)


# ---- places --------------------------------------------------------------------------------

cdef bint lay_out_plan(Graph* g, uint32_t n_batches, uint32_t first, uint8_t* kept, Places* places) noexcept nogil:
    """Note in each batch where its stretch begins, and find places for what is dropped: in the block, or in the part
    of it for what stays after the pass.

    Args:
        first: the first stretch of the plan.
        kept: whether the values of each batch are not transient outside stretches; NULL: none is.

    Returns:
        False: there is no memory.
    """
    cdef Batch* batch = batches_of(g) + g.n_batches
    cdef uint32_t[9] around                     # MOST_DEPTH + 1: the stretch of each depth around a batch
    cdef uint32_t next_stretch = first, b, inner, before = NONE
    find_resident(g, first)
    if kept == NULL:
        kept = <uint8_t*>arena_alloc(&g.scratch, n_batches)
        if kept == NULL:
            return False
        memset(kept, True, n_batches)
    memset(around, 0xFF, sizeof(around))
    for b in range(n_batches):
        inner = enter_stretches(g, g.n_batches + b, &next_stretch, around)
        batch[b].planned = batch[b].level
        batch[b].lifetime = 0                   # backward in stretches uses no memory of values
        if inner != before:
            batch[b].lifetime |= CUT
        before = inner
        if inner != NONE:
            batch[b].lifetime |= IN_STRETCH
        if batch[b].level == 0:
            continue
        if batch[b].level != TRANSIENT and stretches_of(g)[around[batch[b].level]].resident:
            batch[b].lifetime |= RESIDENT
            batch[b].y = <float*>places.stays
            places.stays += block_bytes(bytes_of(g, &batch[b]))
        else:
            kept[b] = False
    if places.stays:                            # in backward, values of other stretches take its place
        places.least = most_in_stretches(g, g.n_batches, g.n_batches + n_batches, first)
    return lay_out_dropped(g, n_batches, kept, places)


cdef void find_resident(Graph* g, uint32_t first) noexcept nogil:
    """Find the stretches of a plan that stay after the pass: the last one, and the last one within it, and so on."""
    cdef Stretch* s = stretches_of(g)
    cdef uint32_t i = n_stretches(g), depth
    # By depth (MOST_DEPTH + 1): whether another one of the depth follows in the same one around it.
    cdef uint8_t[9] follows
    cdef uint8_t[9] resident
    memset(follows, False, sizeof(follows))
    while i > first:
        i -= 1
        depth = s[i].depth
        s[i].resident = not follows[depth]
        follows[depth] = True
        memset(follows + depth + 1, False, MOST_DEPTH - depth)
    for i in range(first, n_stretches(g)):
        depth = s[i].depth
        s[i].resident = s[i].resident and (depth == 1 or resident[depth - 1])
        resident[depth] = s[i].resident


cdef uint32_t enter_stretches(const Graph* g, uint32_t b, uint32_t* next_stretch, uint32_t* around) noexcept nogil:
    cdef const Stretch* s = stretches_of(g)
    cdef uint32_t depth, inner = NONE
    while next_stretch[0] < n_stretches(g) and s[next_stretch[0]].first <= b:
        around[s[next_stretch[0]].depth] = next_stretch[0]
        next_stretch[0] += 1
    for depth in range(1, MOST_DEPTH + 1):
        if around[depth] != NONE and s[around[depth]].end <= b:
            around[depth] = NONE
        if around[depth] != NONE:
            inner = around[depth]
    return inner
