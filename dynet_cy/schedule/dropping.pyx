"""Stretches of a plan, whose values are dropped when they have run: which batches they are, and what is kept of them.

`checkpoint` marks regions of a graph: the nodes that one call of it made. A plan may run nodes of several regions as one
batch, such as the same layer of several sentences. So what is dropped are stretches of a plan, which are consecutive
batches all of whose nodes are in regions. A stretch ends before a batch that has no region in common with it: two layers
in a row are two stretches. A batch of the form TILES is never parted from its neighbours, since the order of sums
depends on them. Regions within regions make stretches within stretches in the same way.

A batch of a stretch is kept if a batch outside reads one of its values, or the program has asked for one. If stretches are
nested, it is kept until the innermost stretch ends that has all batches that read it: that is its level. A batch is kept
as a whole, so that its values are side by side, as in every plan.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport total_of
from dynet_cy.graph.structs cimport (
    MOST_DEPTH, NO_STRETCH, TILES, VIEWS, Batch, Graph, Node, Region, Room, Stretch, args_of, batches_of, n_regions,
    n_stretches, nodes_of, order_of, regions_of, stretches_of,
)
from dynet_cy.memory.arena cimport ALIGN, arena_alloc, arena_rewind, array_push, array_rewind

cdef uint32_t NONE = 0xFFFFFFFFu

# What the plan of stretches needs to know, in the scratch arena.
cdef struct Search:
    Graph* g
    uint32_t begin, end             # the planned batches
    uint32_t first                  # where their nodes begin in graph.order
    uint32_t* around                # by region: the region around it, or NONE
    uint32_t* depth                 # by region: 1, or one more than that of the region around it
    uint32_t* stamp                 # by region: the last stretch that had a node of it
    uint32_t* region                # by position in the plan: the innermost region of a node, or NONE
    uint32_t* within                # by batch: the innermost stretch of it, or NO_STRETCH
    uint32_t* batch                 # by node, from `lowest` on: its planned batch, or NONE
    uint32_t lowest, highest
    uint32_t deepest                # depth of the regions of planned nodes


cdef uint32_t plan_stretches(Graph* g, uint32_t n_batches, const uint32_t* targets, uint32_t n) noexcept nogil:
    cdef size_t top = g.scratch.top, before = g.stretches.top
    cdef uint32_t last = g.last_stretch, first = NO_STRETCH
    cdef Search s
    memset(&s, 0, sizeof(Search))
    s.g = g
    s.begin = g.n_batches
    s.end = s.begin + n_batches
    if n_batches and g.regions.top and open_search(&s):
        if not find_stretches(&s, s.begin, s.end, 1, NO_STRETCH, &first):
            array_rewind(&g.stretches, before)
            g.last_stretch = last
            if last != NO_STRETCH:
                stretches_of(g)[last].next = NO_STRETCH
            first = NO_STRETCH
        if first != NO_STRETCH:
            set_levels(&s, targets, n)
            measure_rooms(&s)
    arena_rewind(&g.scratch, top)
    return first


cdef bint open_search(Search* s) noexcept nogil:
    """Find the region of each planned node; False: there is none, or no memory."""
    cdef Graph* g = s.g
    cdef const Batch* batches = batches_of(g)
    cdef const uint32_t* ids
    cdef uint32_t n_nodes, i, b
    cdef uint32_t n = n_regions(g)
    s.first = batches[s.begin].first
    n_nodes = batches[s.end - 1].first + batches[s.end - 1].count - s.first
    ids = order_of(g) + s.first
    s.around = <uint32_t*>arena_alloc(&g.scratch, n * sizeof(uint32_t))
    s.depth = <uint32_t*>arena_alloc(&g.scratch, n * sizeof(uint32_t))
    s.stamp = <uint32_t*>arena_alloc(&g.scratch, n * sizeof(uint32_t))
    s.region = <uint32_t*>arena_alloc(&g.scratch, n_nodes * sizeof(uint32_t))
    s.within = <uint32_t*>arena_alloc(&g.scratch, (s.end - s.begin) * sizeof(uint32_t))
    if s.around == NULL or s.depth == NULL or s.stamp == NULL or s.region == NULL or s.within == NULL:
        return False
    memset(s.stamp, 0xFF, n * sizeof(uint32_t))
    memset(s.within, 0xFF, (s.end - s.begin) * sizeof(uint32_t))
    nest_regions(s)
    s.lowest = s.highest = ids[0]
    for i in range(n_nodes):
        s.region[i] = region_of(s, ids[i])
        if s.region[i] != NONE:
            s.deepest = max(s.deepest, s.depth[s.region[i]])
        s.lowest = min(s.lowest, ids[i])
        s.highest = max(s.highest, ids[i])
    if s.deepest == 0:
        return False
    s.batch = <uint32_t*>arena_alloc(&g.scratch, (s.highest - s.lowest + <size_t>1) * sizeof(uint32_t))
    if s.batch == NULL:
        return False
    memset(s.batch, 0xFF, (s.highest - s.lowest + <size_t>1) * sizeof(uint32_t))
    for b in range(s.begin, s.end):
        for i in range(batches[b].count):
            s.batch[order_of(g)[batches[b].first + i] - s.lowest] = b
    return True


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
    cdef uint32_t r = s.region[position - s.first]
    while r != NONE and s.depth[r] > depth:
        r = s.around[r]
    return NONE if r == NONE or s.depth[r] < depth else r


# ---- stretches -------------------------------------------------------------------------

cdef bint is_inside(const Search* s, uint32_t b, uint32_t depth) noexcept nogil:
    """Whether all nodes of a batch are in regions of a depth."""
    cdef const Batch* batch = &batches_of(s.g)[b]
    cdef uint32_t j
    for j in range(batch.count):
        if region_at(s, batch.first + j, depth) == NONE:
            return False
    return True


cdef bint is_related(const Search* s, uint32_t b, uint32_t depth, uint32_t stretch) noexcept nogil:
    """Whether a batch has a node of a region that a stretch has nodes of."""
    cdef const Batch* batch = &batches_of(s.g)[b]
    cdef uint32_t j
    for j in range(batch.count):
        if s.stamp[region_at(s, batch.first + j, depth)] == stretch:
            return True
    return False


cdef void take_batch(Search* s, uint32_t b, uint32_t depth, uint32_t stretch) noexcept nogil:
    cdef const Batch* batch = &batches_of(s.g)[b]
    cdef uint32_t j
    for j in range(batch.count):
        s.stamp[region_at(s, batch.first + j, depth)] = stretch
    s.within[b - s.begin] = stretch


cdef inline bint runs_on(const Search* s, uint32_t b) noexcept nogil:
    """Whether a batch may run together with the one before it."""
    return b > s.begin and batches_of(s.g)[b].form == TILES and batches_of(s.g)[b - 1].form == TILES


cdef bint find_stretches(Search* s, uint32_t begin, uint32_t end, uint32_t depth, uint32_t outer,
                         uint32_t* found) noexcept nogil:
    """Find the stretches of a depth among some batches.  False: there is no memory for them.

    Args:
        outer: the stretch around them, or NO_STRETCH.
        found: set to the first of them.
    """
    cdef uint32_t b = begin, first, after, number, before = NO_STRETCH
    cdef Stretch* x
    if outer == NO_STRETCH:
        before = s.g.last_stretch
    while b < end:
        first = b
        b += 1
        if not is_inside(s, first, depth) or (first > begin and runs_on(s, first)):
            continue
        x = <Stretch*>array_push(&s.g.stretches, sizeof(Stretch))
        if x == NULL:
            return False
        number = n_stretches(s.g) - 1
        take_batch(s, first, depth, number)
        while b < end and is_inside(s, b, depth) and (runs_on(s, b) or is_related(s, b, depth, number)):
            take_batch(s, b, depth, number)
            b += 1
        after = b
        while after > first and after < end and runs_on(s, after):
            after -= 1
            s.within[after - s.begin] = outer
        if after == first:
            array_rewind(&s.g.stretches, number * sizeof(Stretch))
            continue
        memset(x, 0, sizeof(Stretch))
        x.first = first
        x.end = after
        x.depth = depth
        x.before = before
        x.next = x.child = x.last = NO_STRETCH
        if before != NO_STRETCH:
            stretches_of(s.g)[before].next = number
        if found[0] == NO_STRETCH:
            found[0] = number
        if outer == NO_STRETCH:
            s.g.last_stretch = number
        else:
            stretches_of(s.g)[outer].last = number
        before = number
        if depth < s.deepest and depth < MOST_DEPTH:
            first = NO_STRETCH
            if not find_stretches(s, x.first, after, depth + 1, number, &first):
                return False
            stretches_of(s.g)[number].child = first
    return True


# ---- levels ----------------------------------------------------------------------------

cdef uint32_t common_depth(const Search* s, uint32_t a, uint32_t b) noexcept nogil:
    """The depth of the innermost stretch that has both batches; 0: none has."""
    cdef const Stretch* all = stretches_of(s.g)
    cdef uint32_t x = s.within[a - s.begin]
    if x == NO_STRETCH:
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


cdef void set_levels(Search* s, const uint32_t* targets, uint32_t n) noexcept nogil:
    cdef Graph* g = s.g
    cdef Batch* batches = batches_of(g)
    cdef const Node* x
    cdef uint32_t b, i, j, k, arg
    for b in range(s.begin, s.end):
        if s.within[b - s.begin] != NO_STRETCH:
            batches[b].level = <uint8_t>stretches_of(g)[s.within[b - s.begin]].depth
    for i in range(n):
        if s.lowest <= targets[i] <= s.highest and s.batch[targets[i] - s.lowest] != NONE:
            batches[s.batch[targets[i] - s.lowest]].level = 0
    for b in range(s.begin, s.end):
        for j in range(batches[b].count):
            x = &nodes_of(g)[order_of(g)[batches[b].first + j]]
            for k in range(x.nargs):
                arg = args_of(g, x)[k]
                if not s.lowest <= arg <= s.highest:
                    continue
                i = s.batch[arg - s.lowest]
                if i != NONE and batches[i].level and s.within[i - s.begin] != s.within[b - s.begin]:
                    lower(&batches[i], common_depth(s, i, b))
    for b in range(s.begin, s.end):
        if batches[b].form == VIEWS:
            keep_viewed(s, b)
    for b in range(s.begin, s.end):
        batches[b].planned = batches[b].level


cdef void keep_viewed(Search* s, uint32_t b) noexcept nogil:
    """What views are parts of is kept as long as they are."""
    cdef Batch* batches = batches_of(s.g)
    cdef uint32_t j, arg, of
    for j in range(batches[b].count):
        arg = args_of(s.g, &nodes_of(s.g)[order_of(s.g)[batches[b].first + j]])[0]
        of = s.batch[arg - s.lowest] if s.lowest <= arg <= s.highest else NONE
        if of != NONE:
            lower(&batches[of], batches[b].level)


# ---- rooms -----------------------------------------------------------------------------

cdef void measure_rooms(Search* s) noexcept nogil:
    """Note how large the rooms of each depth must be."""
    cdef Graph* g = s.g
    cdef const Batch* batches = batches_of(g)
    cdef const Stretch* x
    cdef Room* room
    cdef size_t bytes
    cdef uint32_t number, b
    for number in range(n_stretches(g)):
        x = &stretches_of(g)[number]
        if x.first < s.begin:
            continue
        bytes = 0
        for b in range(x.first, x.end):
            if batches[b].level == x.depth:
                bytes += bytes_of(g, &batches[b]) + 2 * ALIGN       # alignment, and a gap
        room = &g.rooms[x.depth - 1]
        room.needed = max(room.needed, bytes)


cdef size_t bytes_of(const Graph* g, const Batch* batch) noexcept nogil:
    cdef size_t n = 0
    cdef uint32_t j
    for j in range(batch.count):
        n += total_of(&nodes_of(g)[order_of(g)[batch.first + j]].dim)
    return n * sizeof(float)
