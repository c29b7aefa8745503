"""Divides a plan into independent parts, for less memory.

A plan that is batched runs the same operation of all examples as one batch, so the values of all examples are there
at the same time. Where that is too much even if all of them are dropped and computed again, the plan is divided: a
part of the examples runs all its batches, then the next part does. So batches have fewer nodes, and each part can be
dropped before the next one runs.

The examples are found, not given. Nodes that depend on each other are one piece. Two kinds of nodes connect pieces
that are otherwise apart: those that many pieces read, such as inputs and what depends on parameters only, which run
before all parts; and those that read many pieces, such as the sum of all losses, which run after them. A node that
would make a piece larger than a part is such a sum.

Only a range of batches may be divided, such as those of the scores of all words in a language model. Those before it
run undivided before all parts, those after it after them. Without parts, the CNN of benchmarks/workloads runs out of
memory within a half of what it takes.

Before that, large batches are cut into slices (`slice_large`). The first batches of a recurrent network are products of
all inputs, and each step reads a part of them. A slice has what some steps read, and runs right before them. So only
one slice of values is there at a time if no backward reads them, and one of gradients. Steps stay as they are, so this
takes hardly any time.

Values have the same bits in any part, as far as the products of matrices do not depend on the number of columns.  Sums
over examples, as in gradients of parameters, are added up part by part.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport total_of
from dynet_cy.graph.structs cimport (
    COLUMNS, EACH, FLATTENED, ONE, STACKED, VIEWS, Batch, Graph, Node, args_of, batches_of, nodes_of, order_of,
)
from dynet_cy.memory.arena cimport arena_alloc, arena_rewind, array_push, array_rewind
from dynet_cy.schedule.facts cimport NONE, PlanFacts, batch_of, count_readers, open_facts_of

cdef enum:
    MANY = 8                        # readers of a node that belongs to no piece
    LEAST_IN_SLICE = 128            # nodes: then products need neither packed weights nor collected factors

    # What a node is:
    ABSENT = 0                      # not in the plan
    EARLIER                         # in batches before those that are divided
    BEFORE                          # of pieces
    INSIDE
    AFTER

cdef struct Division:
    Graph* g
    const Undivided* plan
    PlanFacts facts
    uint32_t* readers               # by node, from `facts.lowest` on: how many read it
    uint32_t* above                 # of nodes inside: a node of the same piece, itself if it stands for the piece
    size_t* bytes                   # of the piece that it stands for
    uint8_t* kind
    uint32_t* part                  # 0: before all parts; last: after them


cdef bint keep_undivided(Graph* g, uint32_t n_batches, Undivided* kept) noexcept nogil:
    cdef const Batch* batches = batches_of(g) + g.n_batches
    cdef uint32_t first = batches[0].first
    kept.n_batches = kept.end = n_batches
    kept.first = 0
    kept.n_nodes = batches[n_batches - 1].first + batches[n_batches - 1].count - first
    kept.order = <uint32_t*>arena_alloc(&g.scratch, kept.n_nodes * sizeof(uint32_t))
    kept.batches = <Batch*>arena_alloc(&g.scratch, n_batches * sizeof(Batch))
    if kept.order == NULL or kept.batches == NULL:
        return False
    memcpy(kept.order, order_of(g) + first, kept.n_nodes * sizeof(uint32_t))
    memcpy(kept.batches, batches, n_batches * sizeof(Batch))
    return True


cdef uint32_t divide(Graph* g, const Undivided* kept, uint32_t parts) noexcept nogil:
    cdef size_t top = g.scratch.top
    cdef Division d
    cdef uint32_t n = 0
    memset(&d, 0, sizeof(Division))
    d.g = g
    d.plan = kept
    if open_division(&d):
        find_pieces(&d, parts)
        if give_parts(&d, parts) > 1:
            place_others(&d, parts + 1)
            n = write_plan(&d, parts + 2)
    if n == 0:
        n = write_back(g, kept)
    arena_rewind(&g.scratch, top)
    return n


cdef bint open_division(Division* d) noexcept nogil:
    cdef const Undivided* plan = d.plan
    cdef uint32_t i
    if not open_facts_of(&d.facts, d.g, 0, plan.batches, plan.n_batches, plan.order):
        return False
    d.readers = count_readers(&d.facts)
    d.above = <uint32_t*>of_nodes(d, sizeof(uint32_t))
    d.bytes = <size_t*>of_nodes(d, sizeof(size_t))
    d.kind = <uint8_t*>of_nodes(d, 1)
    d.part = <uint32_t*>of_nodes(d, sizeof(uint32_t))
    if d.readers == NULL or d.above == NULL or d.bytes == NULL or d.kind == NULL or d.part == NULL:
        return False
    for i in range(plan.n_nodes):
        d.kind[plan.order[i] - d.facts.lowest] = BEFORE
    return True


cdef void* of_nodes(const Division* d, size_t bytes) noexcept nogil:
    cdef void* p = arena_alloc(&d.g.scratch, d.facts.span * bytes)
    if p != NULL:
        memset(p, 0, d.facts.span * bytes)
    return p


cdef inline uint32_t planned(const Division* d, uint32_t node) noexcept nogil:
    """The place of a planned node in the lists; NONE if it is not in the plan."""
    return NONE if batch_of(&d.facts, node) == NONE else node - d.facts.lowest


cdef inline uint32_t batch_at(const Division* d, uint32_t i) noexcept nogil:
    return batch_of(&d.facts, d.facts.lowest + i)


cdef inline size_t bytes_at(const Division* d, uint32_t i) noexcept nogil:
    return total_of(&nodes_of(d.g)[d.facts.lowest + i].dim) * sizeof(float)


# ---- slices ----------------------------------------------------------------------------

cdef uint32_t slice_large(Graph* g, uint32_t n_batches, size_t least) noexcept nogil:
    cdef size_t top = g.scratch.top
    cdef Undivided plan
    cdef Division d
    cdef uint32_t n = n_batches
    memset(&d, 0, sizeof(Division))
    d.g = g
    d.plan = &plan
    if n_batches > 1 and keep_undivided(g, n_batches, &plan) and open_division(&d) and find_slices(&d, least):
        n = write_plan(&d, n_batches)
        if n == 0:
            n = write_back(g, &plan)
    arena_rewind(&g.scratch, top)
    return n


cdef bint find_slices(Division* d, size_t least) noexcept nogil:
    """Make the part of each node the number of the batch before which it runs, or of its own.  False: all run in their
    own, or there is no memory."""
    cdef const Undivided* plan = d.plan
    cdef const Node* x
    cdef const uint32_t* ids
    # By node: the first batch that reads it, where that runs now.
    cdef uint32_t* first = <uint32_t*>of_nodes(d, sizeof(uint32_t))
    # By batch: its section of the plan.  Slices of several batches end where one does, so that few values are
    # read across.
    cdef uint32_t* section = <uint32_t*>arena_alloc(&d.g.scratch, plan.n_batches * sizeof(uint32_t))
    cdef uint32_t b, i, j, k, arg
    cdef size_t bytes, sum = 0
    cdef bint found = False
    if first == NULL or section == NULL:
        return False
    for b in range(plan.n_batches):
        section[b] = <uint32_t>(sum // least)
        bytes = bytes_of(d, b)
        if not may_be_sliced(d, b, bytes, least):
            sum += bytes
    memset(first, 0xFF, d.facts.span * sizeof(uint32_t))
    for k in range(plan.n_batches):
        b = plan.n_batches - 1 - k
        ids = nodes_at(d, b)
        for i in range(plan.batches[b].count):
            d.part[ids[i] - d.facts.lowest] = b
        if may_be_sliced(d, b, bytes_of(d, b), least) and cut_slices(d, b, first, section):
            found = True
        for i in range(plan.batches[b].count):
            x = &nodes_of(d.g)[ids[i]]
            for j in range(x.nargs):
                arg = planned(d, args_of(d.g, x)[j])
                if arg != NONE:
                    first[arg] = min(first[arg], d.part[ids[i] - d.facts.lowest])
    return found


cdef inline const uint32_t* nodes_at(const Division* d, uint32_t b) noexcept nogil:
    """The nodes of a batch of the undivided plan."""
    return d.plan.order + d.plan.batches[b].first - d.plan.batches[0].first


cdef size_t bytes_of(const Division* d, uint32_t b) noexcept nogil:
    """The bytes of a batch of the undivided plan."""
    cdef const uint32_t* ids = nodes_at(d, b)
    cdef size_t bytes = 0
    cdef uint32_t i
    for i in range(d.plan.batches[b].count):
        bytes += bytes_at(d, ids[i] - d.facts.lowest)
    return bytes


cdef inline bint may_be_sliced(const Division* d, uint32_t b, size_t bytes, size_t least) noexcept nogil:
    cdef const Batch* batch = &d.plan.batches[b]
    return (bytes >= 2 * least and batch.count >= 2 * LEAST_IN_SLICE
            and (batch.form == STACKED or batch.form == COLUMNS or batch.form == FLATTENED or batch.form == EACH))


cdef bint cut_slices(Division* d, uint32_t b, const uint32_t* first, const uint32_t* section) noexcept nogil:
    """Have the nodes of a batch run before the first batch that reads one of their slice.  False: it has one slice."""
    cdef size_t top = d.g.scratch.top
    cdef const uint32_t* ids = nodes_at(d, b)
    cdef uint32_t count = d.plan.batches[b].count, n = d.plan.n_batches - b, i, t, begin = b, nodes = 0, slices = 0
    # By batch, from this one on: how many nodes it is the first to read; then where they run.
    cdef uint32_t* at = <uint32_t*>arena_alloc(&d.g.scratch, n * sizeof(uint32_t))
    if at == NULL:
        return False
    memset(at, 0, n * sizeof(uint32_t))
    for i in range(count):
        at[reader_of(first, ids[i] - d.facts.lowest, b) - b] += 1
    for t in range(n):
        if at[t] == 0:
            continue
        if slices == 0 or section[b + t] != section[begin] and nodes >= LEAST_IN_SLICE:
            begin = b + t
            nodes = 0
            slices += 1
        nodes += at[t]
        at[t] = begin
    if slices > 1:
        for i in range(count):
            d.part[ids[i] - d.facts.lowest] = at[reader_of(first, ids[i] - d.facts.lowest, b) - b]
    arena_rewind(&d.g.scratch, top)
    return slices > 1


cdef inline uint32_t reader_of(const uint32_t* first, uint32_t i, uint32_t b) noexcept nogil:
    """The first batch that reads a node of a batch; this one itself, if none does."""
    return b if first[i] == NONE else first[i]


# ---- pieces ----------------------------------------------------------------------------

cdef void find_pieces(Division* d, uint32_t parts) noexcept nogil:
    """Find the pieces, none of which is joined from others to more than a share of the bytes."""
    cdef size_t most = 0
    cdef uint32_t i
    for i in range(d.facts.span):
        if d.kind[i] != ABSENT and d.plan.first <= batch_at(d, i) < d.plan.end:
            most += bytes_at(d, i)
    most = most // parts + 1
    for i in range(d.facts.span):
        if d.kind[i] != ABSENT:
            d.kind[i] = classify(d, i, most)


cdef uint8_t classify(Division* d, uint32_t i, size_t most) noexcept nogil:
    """Say what a node is, after all that it depends on, and make it a part of its piece."""
    cdef const Node* x = &nodes_of(d.g)[d.facts.lowest + i]
    cdef const uint32_t* args = args_of(d.g, x)
    cdef uint32_t k, arg, of, piece = NONE
    cdef size_t joined = 0
    cdef bint alone = True                      # all it depends on is before the pieces
    if batch_at(d, i) < d.plan.first:
        return EARLIER
    if batch_at(d, i) >= d.plan.end:
        return AFTER
    d.above[i] = i
    d.bytes[i] = bytes_at(d, i)
    for k in range(x.nargs):
        arg = planned(d, args[k])
        if arg == NONE or d.kind[arg] <= BEFORE:
            continue
        if d.kind[arg] == AFTER:
            return AFTER
        alone = False
        of = piece_of(d, arg)
        if piece == NONE:
            piece = of
        elif of != piece:
            joined = d.bytes[piece] + d.bytes[of]
            if joined > most:
                return AFTER
            join(d, piece, of)
            piece = piece_of(d, of)
    if alone and (d.readers[i] > MANY or d.readers[i] > 1 and is_leaf(d, x)):
        return BEFORE
    if piece != NONE:
        join(d, piece, i)
    return INSIDE


cdef inline bint is_leaf(const Division* d, const Node* x) noexcept nogil:
    """Whether a node depends on nothing that is computed in this plan."""
    cdef uint32_t k
    for k in range(x.nargs):
        if planned(d, args_of(d.g, x)[k]) != NONE:
            return False
    return True


cdef uint32_t piece_of(Division* d, uint32_t i) noexcept nogil:
    """The node that stands for the piece of a node."""
    while d.above[i] != i:
        d.above[i] = d.above[d.above[i]]
        i = d.above[i]
    return i


cdef void join(Division* d, uint32_t a, uint32_t b) noexcept nogil:
    """Join two pieces; the older node stands for both."""
    if b < a:
        a, b = b, a
    d.above[b] = a
    d.bytes[a] += d.bytes[b]


# ---- parts -----------------------------------------------------------------------------

cdef uint32_t give_parts(Division* d, uint32_t parts) noexcept nogil:
    """Give pieces to parts of about the same size, in the order in which the program made them.  Returns how many
    parts have any."""
    cdef size_t total = 0, so_far = 0
    cdef uint32_t i, n = 0
    for i in range(d.facts.span):
        if d.kind[i] == INSIDE and d.above[i] == i:
            total += d.bytes[i]
    for i in range(d.facts.span):
        if d.kind[i] == INSIDE and d.above[i] == i:
            d.part[i] = 1 + <uint32_t>(<double>so_far / total * parts) if total else 1
            n = max(n, d.part[i])
            so_far += d.bytes[i]
    return n


cdef void place_others(Division* d, uint32_t last) noexcept nogil:
    """Place all nodes: those before pieces in the part of their readers, if these are in one part."""
    cdef const Node* x
    cdef uint32_t i, j, k, arg
    for i in range(d.facts.span):
        if d.kind[i] == INSIDE:
            d.part[i] = d.part[piece_of(d, i)]
        else:
            d.part[i] = last if d.kind[i] == AFTER else 0 if d.kind[i] == EARLIER else NONE
    for j in range(d.facts.span):
        i = d.facts.span - 1 - j
        if d.kind[i] == ABSENT:
            continue
        if d.part[i] == NONE:                   # nothing in the plan reads it
            d.part[i] = 0
        x = &nodes_of(d.g)[d.facts.lowest + i]
        for k in range(x.nargs):
            arg = planned(d, args_of(d.g, x)[k])
            if arg != NONE and d.kind[arg] == BEFORE:
                d.part[arg] = d.part[i] if d.part[arg] == NONE or d.part[arg] == d.part[i] else 0


# ---- plans -----------------------------------------------------------------------------

cdef uint32_t write_back(Graph* g, const Undivided* kept) noexcept nogil:
    """The plan as it was."""
    memcpy(order_of(g) + kept.batches[0].first, kept.order, kept.n_nodes * sizeof(uint32_t))
    array_rewind(&g.batches, (g.n_batches + kept.n_batches) * sizeof(Batch))
    memcpy(batches_of(g) + g.n_batches, kept.batches, kept.n_batches * sizeof(Batch))
    return kept.n_batches


cdef uint32_t write_plan(Division* d, uint32_t n_parts) noexcept nogil:
    """The plan part by part; 0 if there is no memory, and the plan is not complete then."""
    cdef const Undivided* plan = d.plan
    cdef uint32_t* at = <uint32_t*>arena_alloc(&d.g.scratch, (n_parts + 1) * sizeof(uint32_t))
    cdef uint32_t* order = order_of(d.g) + plan.batches[0].first
    cdef uint32_t i, k, b, of, part, n = 0, last = NONE, last_part = NONE
    cdef Batch* batch = NULL
    if at == NULL:
        return 0
    memset(at, 0, (n_parts + 1) * sizeof(uint32_t))
    for i in range(plan.n_nodes):
        at[d.part[plan.order[i] - d.facts.lowest] + 1] += 1
    for part in range(n_parts):
        at[part + 1] += at[part]
    for i in range(plan.n_nodes):               # a part keeps the order of the plan
        k = d.part[plan.order[i] - d.facts.lowest]
        order[at[k]] = plan.order[i]
        at[k] += 1
    array_rewind(&d.g.batches, d.g.n_batches * sizeof(Batch))
    for i in range(plan.n_nodes):
        k = order[i] - d.facts.lowest
        of = batch_at(d, k)
        if of != last or d.part[k] != last_part:
            batch = <Batch*>array_push(&d.g.batches, sizeof(Batch))
            if batch == NULL:
                return 0
            batch[0] = plan.batches[of]
            batch.first = plan.batches[0].first + i
            batch.count = 0
            last = of
            last_part = d.part[k]
            n += 1
        batch.count += 1
    for b in range(n):
        batch = batches_of(d.g) + d.g.n_batches + b
        if batch.count == 1 and batch.form != VIEWS:
            batch.form = ONE
    return n
