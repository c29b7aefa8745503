"""Stretches of a chain of small nodes, by a rule: each batch has one node, in the order of creation.

A search for the best stretches (schedule/dropping) would take longer than such nodes do, and more memory than it saves.
If all nodes of a chain are alike, T bytes in all, of which u are read across a cut, k stretches keep k u + T / k bytes,
which is least for k = sqrt(T / u). So that is their number. Each is cut where least is read across. As many of them
stay as there is memory for, first those with most nodes for their bytes. Without this rule, a chain within a half of
its memory takes 1.20 times the time, and within a quarter twice the memory.
"""

from libc.math cimport sqrt
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport qsort
from libc.string cimport memset

from dynet_cy.graph.structs cimport ONE, Batch, Graph, Node, Stretch, args_of, batches_of, held_of, nodes_of
from dynet_cy.memory.arena cimport ALIGN, arena_alloc, arena_rewind, array_push, array_rewind
from dynet_cy.schedule.budget cimport bytes_missing, bytes_of, bytes_of_pass, limit_factors
from dynet_cy.schedule.facts cimport NONE, PlanFacts

cdef enum:
    MOST_OF_NODE = 1024             # bytes on average: for longer ones a search pays
    LEAST_OF_CHAIN = 1 << 12        # bytes in all: less is not cut

# A node.
cdef struct Link:
    uint32_t bytes
    uint32_t last                   # the last one that reads it; NONE: the program may
    uint32_t across                 # bytes that it and later ones read of earlier ones

cdef struct Chain:
    Link* links                     # by position in the plan, and one more
    uint32_t n
    size_t usual                    # the average of `across`
    size_t gradients                # bytes that they take at a time
    size_t factors                  # bytes of the factors of weights' gradients
    size_t held                     # bytes of what may be dropped although the program refers to it

# A stretch that may be dropped.
cdef struct Piece:
    uint32_t first, end             # its nodes, by position
    size_t frees                    # bytes of the values that only its nodes read
    uint32_t n_freed                # of how many nodes
    bint drops


cdef Ruled plan_chain(const PlanFacts* facts, const uint32_t* targets, uint32_t n, size_t most,
                      size_t bytes) noexcept nogil:
    cdef Graph* g = facts.g
    cdef size_t top = g.scratch.top
    cdef Ruled found = SEARCHED
    cdef Chain c
    # Fewer bytes than 2^31: so sums are below 2^32.
    if (g.device == 0 and not g.multi_device and facts.batch == NULL and LEAST_OF_CHAIN <= bytes < <size_t>1 << 31
            and bytes <= MOST_OF_NODE * <size_t>facts.n_batches and open_chain(&c, facts, targets, n)):
        found = plan_pieces(&c, g, most, bytes)
    arena_rewind(&g.scratch, top)
    return found


cdef bint open_chain(Chain* c, const PlanFacts* facts, const uint32_t* targets, uint32_t n_targets) noexcept nogil:
    """Find who reads each node, and what is read across each; False: some are views, or there is no memory."""
    cdef Graph* g = facts.g
    cdef const Node* nodes = nodes_of(g) + facts.lowest
    cdef const uint8_t* held = held_of(g) + facts.lowest
    cdef const uint32_t* args
    cdef size_t stays = 0
    cdef uint32_t n = facts.n_batches, i, k, at
    c.n = n
    c.held = 0
    c.links = <Link*>arena_alloc(&g.scratch, (n + <size_t>1) * sizeof(Link))
    if c.links == NULL:
        return False
    for i in range(n):
        if facts.batches[i].form != ONE:
            return False
        c.links[i].bytes = <uint32_t>bytes_of(g, &facts.batches[i])
        c.links[i].last = i
        c.links[i].across = 0
        args = args_of(g, &nodes[i])
        for k in range(nodes[i].nargs):
            at = args[k] - facts.lowest             # unsigned: a lower number is beyond the chain
            if at < n:
                c.links[at].last = i
        if held[i] and nodes[i].nargs:              # its gradient stays
            stays += c.links[i].bytes
            c.held += c.links[i].bytes
    c.links[n].across = 0
    for i in range(n_targets):
        at = targets[i] - facts.lowest
        if at < n and c.links[at].last != NONE:
            c.links[at].last = NONE
            c.held -= c.links[at].bytes if held[at] and nodes[at].nargs else 0
    measure_across(c)
    c.gradients += stays
    c.factors = bytes_of_pass(facts)
    return True


cdef void measure_across(Chain* c) noexcept nogil:
    """Find what is read across each node, and the most bytes that gradients take at a time: those of a node from the
    backward of its last reader to its own."""
    cdef Link* x
    cdef uint32_t i, now = 0                        # sums may pass below 0 in between
    cdef size_t sum = 0
    c.gradients = 0
    for i in range(c.n):
        x = &c.links[i]
        now += x.across                             # all earlier ones have added to it
        x.across = now
        sum += now
        c.gradients = max(c.gradients, now + x.bytes)
        if x.last != NONE:
            c.links[i + 1].across += x.bytes
            c.links[x.last + 1].across -= x.bytes
    c.usual = sum // c.n + 1


cdef Ruled plan_pieces(Chain* c, Graph* g, size_t most, size_t bytes) noexcept nogil:
    """Divide a chain, and have as many of its parts dropped as memory needs."""
    cdef size_t all = bytes + c.gradients + c.factors, taken
    cdef Piece* pieces
    cdef uint32_t n
    if all <= most:
        return FITTING
    g.missing = max(g.missing, bytes_missing(g, all, most))
    c.factors = limit_factors(g, c.factors, most)
    most -= min(most - 1, c.held)               # what the program refers to may be asked for
    pieces = cut(c, g, bytes, &n, &taken)
    if pieces == NULL or taken > most:
        return SEARCHED
    keep_some(pieces, n, most - taken)
    return DROPPED if drop(c, g, pieces, n) else SEARCHED


cdef Piece* cut(const Chain* c, Graph* g, size_t bytes, uint32_t* n, size_t* taken) noexcept nogil:
    """Cut a chain; NULL: there is no memory.

    Args:
        n: set to the number of pieces.
        taken: set to the bytes that the chain takes if all of them are dropped.
    """
    cdef size_t most = <size_t>(bytes / sqrt(<double>bytes / c.usual)), kept = 0, largest = 0
    cdef Piece* pieces = <Piece*>arena_alloc(&g.scratch, (bytes // (most // 2) + 1) * sizeof(Piece))
    cdef Piece* x
    cdef uint32_t i, end = 0
    n[0] = 0
    while pieces != NULL and end < c.n:
        x = &pieces[n[0]]
        n[0] += 1
        x.first = end
        x.end = end = end_of_piece(c, end, most)
        x.frees = x.n_freed = 0
        x.drops = True
        for i in range(x.first, end):
            if c.links[i].last < end:
                x.frees += c.links[i].bytes
                x.n_freed += 1
            else:
                kept += c.links[i].bytes
        largest = max(largest, room_of(x))
    taken[0] = kept + largest + c.gradients + c.factors
    return pieces


cdef uint32_t end_of_piece(const Chain* c, uint32_t first, size_t most) noexcept nogil:
    """Where a piece ends: before it has more than some bytes, where least is read across, in its second half."""
    cdef size_t taken = 0
    cdef uint32_t i, best = first
    for i in range(first, c.n):
        if taken >= most // 2 and i > first and (best == first or c.links[i].across <= c.links[best].across):
            best = i
        if taken > most and best > first:
            return best
        if c.links[i].last != NONE:
            taken += c.links[i].bytes
    return c.n


cdef inline size_t room_of(const Piece* x) noexcept nogil:
    """The memory in which the values of a piece lie: with alignment, and gaps."""
    return x.frees + x.n_freed * <size_t>2 * ALIGN


cdef void keep_some(Piece* pieces, uint32_t n, size_t spare) noexcept nogil:
    """Have pieces not dropped that free `spare` bytes or less: first those that take longest again for what they free.

    The last one takes nothing again, as backward begins with it.
    """
    cdef uint32_t i
    qsort(pieces, n - 1, sizeof(Piece), longer)
    for i in range(n - 1):
        if pieces[i].frees <= spare:
            spare -= pieces[i].frees
            pieces[i].drops = False
    qsort(pieces, n - 1, sizeof(Piece), earlier)


cdef int longer(const void* a, const void* b) noexcept nogil:
    """The order of pieces by their nodes for each byte, the most first."""
    cdef const Piece* x = <const Piece*>a
    cdef const Piece* y = <const Piece*>b
    cdef size_t of_x = x.n_freed * y.frees, of_y = y.n_freed * x.frees
    return -1 if of_x > of_y else 1 if of_x < of_y else earlier(a, b)


cdef int earlier(const void* a, const void* b) noexcept nogil:
    return -1 if (<const Piece*>a).first < (<const Piece*>b).first else 1


cdef bint drop(const Chain* c, Graph* g, const Piece* pieces, uint32_t n) noexcept nogil:
    """Plan the stretches that are dropped; False: there is no memory."""
    cdef Batch* batches = batches_of(g) + g.n_batches
    cdef size_t top = g.stretches.top
    cdef uint32_t i, b
    for i in range(n):
        if pieces[i].drops and not append_stretch(g, g.n_batches + pieces[i].first, g.n_batches + pieces[i].end, 1):
            array_rewind(&g.stretches, top)
            return False
    for i in range(n):
        for b in range(pieces[i].first, pieces[i].end):
            batches[b].level = pieces[i].drops and c.links[b].last < pieces[i].end
            batches[b].last = g.n_batches + c.links[b].last
    return True


cdef bint append_stretch(Graph* g, uint32_t first, uint32_t end, uint32_t depth) noexcept nogil:
    cdef Stretch* x = <Stretch*>array_push(&g.stretches, sizeof(Stretch))
    if x == NULL:
        return False
    memset(x, 0, sizeof(Stretch))
    x.first = first
    x.end = end
    x.depth = depth
    return True
