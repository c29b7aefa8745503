"""Memory of passes under a limit: how much they may take, and how much their calls will take.

The plan of a pass says how many bytes its values and their gradients take at a time (schedule/dropping). What calls
keep for their backward, and the factors of weights' gradients, is found here, from shapes. What remains is not known
before a pass runs, such as how memory falls into pieces, so a margin is left for it. If a pass runs out of memory all
the same, the margin grows, and the pass is planned and run again, with fewer values that are kept. Each graph begins
with the same margin: what a graph adds up, and in which order, does not depend on what the process has done before.
"""

from libc.math cimport INFINITY
from libc.stdint cimport SIZE_MAX, uint8_t, uint32_t
from libc.string cimport memset

from dynet_cy.core.engine cimport add_tunable
from dynet_cy.core.tensor cimport Call, Tensor, cols_of
from dynet_cy.core.threads cimport RELAXED, Number, atomic_load
from dynet_cy.graph.structs cimport (
    COLUMNS, EACH, FLATTENED, GRAPH_ARENAS, SHARED, STACKED, Assumed, Laid, Node, args_of, end_of_room, state_of,
)
from dynet_cy.kernels.pool cimport pool_threads
from dynet_cy.memory.arena cimport Arena, Memory, arena_alloc, arena_rewind
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport CPU, GPU, LIST, Needs, Op, Saved, goes_over, op_at, rule_of
from dynet_cy.schedule.facts cimport argument, is_copied

# What passes are assumed to take at first, of what is known of them.
cdef Number percent = 107
add_tunable("schedule.budget.percent", &percent)

cdef double WORK_ON_DEVICE = 1.2    # times that: working memory of calls that are listed, and run later
cdef double LENT_TO_THREADS = 1.1   # or gradients and factors that wait until another thread has read them
cdef double GROWTH = 1.25
cdef double MOST = 40
cdef double SPARE = 0.97            # the share of the memory that plans count on
# Packed parameters give way where memory is short, and then sums round differently.  So memory is left for them, unless
# they would take more than this share of it.
cdef double SHARE_PACKED = 0.5

cdef enum:
    LEAST_PACKED = 8192             # elements of matrices that products pack
    LEAST_COLUMNS = 32              # of factors: fewer gain little
    SHARE_OF_FACTORS = 16           # where values are dropped: to compute them again takes longer than narrow products
    MOST_OF_FACTORS = 4             # the same for that least number: else none are collected
    FEW = 8                         # arguments


cdef size_t unused_bytes(const Arena* a, size_t top) noexcept nogil:
    """Bytes of an arena that count against the limit, above the offset `top`."""
    cdef size_t n = 0
    cdef uint32_t i
    for i in range(a.n):
        n += a.segments[i].charged
        if i <= a.now and top > a.segments[i].begin:
            n -= min(a.segments[i].charged, top - a.segments[i].begin)
    return n


cdef double left_of(const Memory* of) noexcept nogil:
    """Bytes that may still be allocated within one limit; infinite if there is none."""
    cdef size_t limit = atomic_load(&of.limit, RELAXED)
    return <double>limit - atomic_load(&of.used, RELAXED) if limit else INFINITY


cdef bint is_crowded(const Graph* g) noexcept nogil:
    return min(left_of(&g.memory), left_of(g.memory.around)) < g.values.top


cdef double memory_left(const Graph* g) noexcept nogil:
    cdef double unused = 0, of_process, of_graph
    cdef size_t packed
    cdef int i
    if not is_limited(g) or g.forward_only or g.immediate:
        return INFINITY
    for i in range(GRAPH_ARENAS):
        if &g.arenas[i] != &g.grads:
            unused += unused_bytes(&g.arenas[i], g.arenas[i].top)
    unused += unused_bytes(&g.grads, end_of_room(g) if g.room.bytes else 0)     # the next pass begins there
    of_process = SPARE * (left_of(g.memory.around) + unused)
    packed = 0 if g.device else bytes_to_pack(g)
    if packed <= SHARE_PACKED * of_process:
        of_process -= packed
    of_graph = SPARE * (left_of(&g.memory) + unused)
    return max(min(of_graph, of_process), 0)        # packed ones do not count for the graph's limit


cdef double memory_to_plan(Graph* g) noexcept nogil:
    g.assumed.columns = MOST_COLUMNS
    return memory_left(g) + g.room.bytes        # what stays of earlier passes goes if memory is short


cdef inline size_t bytes_of_column(const Graph* g, uint32_t node) noexcept nogil:
    """The bytes of one column of the factors of a weight's gradient; 0: it has no factors, or is no weight."""
    cdef const Param* p = <const Param*>nodes_of(g)[node].object
    if not state_of(g)[node] & SHARED or p.size < LEAST_COLLECTED or p.dim.nd != 2 or not p.updated:
        return 0
    return (p.dim.d[0] + p.dim.d[1]) * sizeof(float)


cdef inline double margin_of(const Graph* g) noexcept nogil:
    return g.assumed.margin * (WORK_ON_DEVICE if g.device or g.multi_device else
                               LENT_TO_THREADS if pool_threads() > 1 else 1)


cdef size_t bytes_to_use(const Graph* g, double left) noexcept nogil:
    return SIZE_MAX if left == INFINITY else <size_t>max(left / margin_of(g), 1)


cdef size_t bytes_missing(const Graph* g, size_t bytes, size_t most) noexcept nogil:
    return <size_t>((bytes - most) * margin_of(g) / SPARE)


cdef size_t bytes_to_pack(const Graph* g) noexcept nogil:
    """The most bytes that products of a graph may take for packed parameters.

    Of parameters that products have read before, those are packed that need it.  Others are not expected to be.
    """
    cdef const Param* p
    cdef size_t n = 0
    cdef uint32_t i
    for i in range(g.n_nodes):
        if state_of(g)[i] & SHARED:
            p = <const Param*>nodes_of(g)[i].object
            if p.size >= LEAST_PACKED and not p.device and not p.pack.of[0].asked and not p.pack.of[1].asked:
                n += 2 * p.size * sizeof(float)
    return n


cdef void assume_at_first(Graph* g) noexcept nogil:
    g.assumed = Assumed(percent / 100.0, MOST_COLUMNS, False)


cdef bint ran_short(const Graph* g) noexcept nogil:
    return g.assumed.margin > percent / 100.0


cdef bint save_more(Graph* g) noexcept nogil:
    """Keep less by the next plans, in the end as little as they can.

    Those that keep so little run once more, since no other thread takes part in backward then.
    """
    cdef bint least = g.assumed.keeps_least
    g.assumed.keeps_least = False               # the next pass may fail before it is planned
    if least and ran_short(g) or g.assumed.margin > MOST:
        return False
    g.assumed.margin *= GROWTH
    return True


# ---- calls -----------------------------------------------------------------------------

cdef size_t bytes_of_call(const PlanFacts* facts, const Batch* batch, size_t* copies) noexcept nogil:
    cdef const Graph* g = facts.g
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Node* x = &nodes_of(g)[ids[0]]
    cdef const Op* op = op_at(x.op)
    cdef bint on_device = g.device or g.multi_device
    cdef const Needs* needs = &op.needs[GPU if on_device else CPU]
    cdef uint32_t i, j, bd = 0
    cdef size_t kept = 0, copied, all_copied = 0
    cdef bint prepares = not on_device and op.prepare != NULL and not op.prepares_over
    copies[0] = 0
    if on_device and needs.factors != NULL:     # they stay where they are until they are multiplied
        kept += bytes_of(g, batch)
    if batch.count == 1 or batch.form == EACH:
        for j in range(batch.count if needs.saved != NULL else 0):
            kept += bytes_saved(g, needs.saved, ids[j], nodes_of(g)[ids[j]].dim.bd) + sizeof(float*)
        for j in range(batch.count if prepares else 0):
            copies[0] = max(copies[0], bytes_saved(g, op.prepared, ids[j], nodes_of(g)[ids[j]].dim.bd))
        return kept
    if batch.form != STACKED and batch.form != FLATTENED and batch.form != COLUMNS:
        return kept
    for j in range(batch.count):
        bd += nodes_of(g)[ids[j]].dim.bd
    kept += x.nargs * sizeof(Laid) + (0 if on_device else bd * x.item_count * sizeof(uint32_t))
    kept += bytes_saved(g, needs.saved, ids[0], bd) if needs.saved != NULL else 0
    copies[0] += bytes_saved(g, op.prepared, ids[0], bd) if prepares else 0
    for i in range(x.nargs):
        if rule_of(op, i) == LIST and batch.form != COLUMNS:
            kept += bd * sizeof(float*)
        elif is_copied(facts, batch, op, i, SIZE_MAX):
            copied = 0
            for j in range(batch.count):
                copied += total_of(&nodes_of(g)[argument(g, batch, j, i)].dim) * sizeof(float)
            all_copied += copied
            copies[0] += copied if goes_over(op, i) else 2 * copied     # with the gradients
    if on_device or all_copied < LEAST_AGAIN:
        copies[0] -= all_copied
        kept += all_copied
    return kept


cdef size_t bytes_saved(const Graph* g, Saved saved, uint32_t node, uint32_t bd) noexcept nogil:
    """The bytes that one call for nodes like this one saves or prepares, with `bd` batch elements in all."""
    cdef Node* x = &nodes_of(g)[node]
    cdef const Node* a
    cdef Tensor[FEW] args
    cdef Call c
    cdef uint32_t i
    if x.nargs > FEW:                           # gates of many inputs: their noise
        return total_of(&x.dim) * sizeof(float)
    memset(&c, 0, sizeof(Call))
    memset(args, 0, sizeof(args))
    for i in range(x.nargs):
        a = &nodes_of(g)[args_of(g, x)[i]]
        args[i].dim = a.dim
        if a.dim.bd == x.dim.bd and not state_of(g)[args_of(g, x)[i]] & SHARED:
            args[i].dim.bd = bd
    c.n = x.nargs
    c.x = args
    c.y.dim = x.dim
    c.y.dim.bd = bd
    c.attrs = x.attrs
    c.object = x.object
    return saved(&c) * sizeof(float)


cdef size_t bytes_of_pass(const PlanFacts* facts) noexcept nogil:
    cdef Graph* g = facts.g
    cdef size_t top = g.scratch.top, n = 0
    cdef uint8_t* seen
    cdef const Node* x
    cdef const Op* op
    cdef uint32_t b, i, arg, enough = min(<uint32_t>ENOUGH_COLUMNS, g.assumed.columns)
    if g.device or g.multi_device:              # for factors see `bytes_of_call`
        return bytes_of_tables(facts)
    seen = <uint8_t*>arena_alloc(&g.scratch, g.n_nodes)
    if seen == NULL:
        return 0
    memset(seen, 0, g.n_nodes)
    for b in range(facts.n_batches):
        x = &nodes_of(g)[order_of(g)[facts.batches[b].first]]
        op = op_at(x.op)
        if op.needs[CPU].factors == NULL or columns_of(g, &facts.batches[b]) >= enough:
            continue
        for i in range(x.nargs):
            arg = args_of(g, x)[i]
            if not seen[arg]:
                seen[arg] = True
                n += bytes_of_column(g, arg)
    arena_rewind(&g.scratch, top)
    return n * g.assumed.columns


cdef size_t bytes_of_tables(const PlanFacts* facts) noexcept nogil:
    """The bytes of the items of all nodes on a device, which forward and backward write apart."""
    cdef const Node* x
    cdef size_t n = 0
    cdef uint32_t i
    for i in range(facts.n_nodes):
        x = &nodes_of(facts.g)[facts.order[i]]
        n += x.dim.bd * <size_t>x.item_count * sizeof(uint32_t)
    return 2 * n


cdef size_t columns_of(const Graph* g, const Batch* batch) noexcept nogil:
    """How many columns the product of a batch has, or of its first node if each has a call."""
    cdef const Node* x
    cdef size_t n = 0
    cdef uint32_t j, nodes = 1 if batch.form == EACH else batch.count
    for j in range(nodes):
        x = &nodes_of(g)[order_of(g)[batch.first + j]]
        n += cols_of(&x.dim) * x.dim.bd
    return n


cdef size_t limit_factors(Graph* g, size_t bytes, size_t most) noexcept nogil:
    if g.device or g.multi_device:
        return bytes
    while g.assumed.columns > LEAST_COLUMNS and bytes > most // SHARE_OF_FACTORS:
        g.assumed.columns //= 2
        bytes //= 2
    if bytes > most // MOST_OF_FACTORS:
        g.assumed.columns = bytes = 0
    return bytes
