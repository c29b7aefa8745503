"""Orders nodes within batches, so that a later batch finds its arguments side by side.

Results of a batch are adjacent in memory, in the order of its nodes.  A batch that uses them reads them in place if it
uses them in that order, without gaps; otherwise they are copied first.  On a device that is a launch, and so is adding
up the gradients on the way back.  Nodes of a batch do not depend on each other, so their order is free.

It is chosen from the last batch to the first.  When a batch is reached, its order is known, and so are the places at
which it uses its arguments: they move to the front of the batches that compute them.  So the values that the next
batch uses come first in a batch, in the order of their use, then those that a later batch uses, and those of the same
later batch are adjacent.  In chains of different lengths, such as recurrent networks over sentences, the chains that go
on are then the first nodes of each batch.  Cost: a few nanoseconds per argument.

If no batch uses two nodes of a batch, such as the inputs of a recurrent network that reads a single sentence, their
order does not matter to later batches.  They then take the order in which their arguments lie.

Chen et al., "ED-Batch: Efficient Automatic Batching of Dynamic Neural Networks via Learned Finite State Machines"
(ICML 2023), order values by PQ-trees for the same purpose.  These serve several uses of a value, where this order
serves the first one.
"""

from libc.stdint cimport uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memset

from dynet_cy.graph.structs cimport (
    COPIES, EACH, NO_BATCH, NO_NODE, SHARED, Batch, Node, args_of, batches_of, nodes_of, order_of, state_of,
)
from dynet_cy.memory.arena cimport arena_alloc, arena_rewind
from dynet_cy.memory.storage cimport Param


# The nodes of a planned batch as a linked list.
cdef struct Link:
    uint32_t batch                  # number of the planned batch, or NO_BATCH
    uint32_t before                 # the nodes before and after this one in its batch, or NO_NODE
    uint32_t after

# How the nodes of a planned batch are used.
cdef struct Uses:
    uint32_t batch                  # the last batch that was seen to use a node of it, and this node
    uint32_t node
    bint together                   # some batch uses two of its nodes


cdef void order_nodes(Graph* g, uint32_t n) noexcept nogil:
    cdef const uint32_t* ids = order_of(g) + g.n_order
    cdef const Batch* batch = batches_of(g) + g.n_batches
    cdef size_t top = g.scratch.top
    cdef Link* links
    cdef Uses* uses
    cdef uint32_t* first
    cdef uint32_t b, j, count = 0, lowest = NO_NODE, highest = 0
    for b in range(n):
        count += batch[b].count
    if count == n:                              # all batches have one node
        return
    for j in range(count):
        lowest = min(lowest, ids[j])
        highest = max(highest, ids[j])
    links = <Link*>arena_alloc(&g.scratch, (highest - lowest + <size_t>1) * sizeof(Link))
    first = <uint32_t*>arena_alloc(&g.scratch, n * sizeof(uint32_t))
    uses = <Uses*>arena_alloc(&g.scratch, n * sizeof(Uses))
    if links != NULL and first != NULL and uses != NULL:
        memset(links, 0xFF, (highest - lowest + <size_t>1) * sizeof(Link))
        memset(uses, 0, n * sizeof(Uses))
        for b in range(n):
            list_nodes(g, &batch[b], b, links - lowest, first)
        order_weights(g, n, links - lowest, first, lowest, highest)
        b = n
        while b:
            b -= 1
            if batch[b].count > 1:
                write_order(g, &batch[b], links - lowest, first[b])
            move_arguments(g, &batch[b], b, links - lowest, first, uses, lowest, highest)
        order_by_arguments(g, n, links - lowest, uses, lowest, highest)
    arena_rewind(&g.scratch, top)


cdef void list_nodes(const Graph* g, const Batch* batch, uint32_t number, Link* links,
                     uint32_t* first) noexcept nogil:
    """List the nodes of a batch in their present order."""
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef uint32_t j
    first[number] = ids[0]
    for j in range(batch.count):
        links[ids[j]].batch = number
        links[ids[j]].before = ids[j - 1] if j else NO_NODE
        links[ids[j]].after = ids[j + 1] if j + 1 < batch.count else NO_NODE


# ---- neighbours that multiply by different weights ------------------------------------------
#
# Two batches that follow each other and do not depend on each other, such as those of the two directions of a recurrent
# network, can be one product on a device, if weights, factors and results of the second lie behind those of the first.

cdef void order_weights(Graph* g, uint32_t n, Link* links, uint32_t* first, uint32_t lowest,
                        uint32_t highest) noexcept nogil:
    """Bring such batches of one size into the order in which their weights lie."""
    cdef Batch* batch = batches_of(g) + g.n_batches
    cdef uint32_t b, k
    for b in range(1, n):
        k = b
        while k and may_change_places(g, &batch[k - 1], k - 1, links, lowest, highest):
            change_places(g, &batch[k - 1], links, first + (k - 1))
            k -= 1


cdef inline const float* weights_of(const Graph* g, const Batch* batch) noexcept nogil:
    """Where the first parameter that a batch uses is on the device; NULL: it uses none."""
    cdef const Node* x = &nodes_of(g)[order_of(g)[batch.first]]
    cdef const Node* a
    cdef uint32_t i
    for i in range(x.nargs):
        a = &nodes_of(g)[args_of(g, x)[i]]
        if a.val == NULL and a.nargs == 0 and a.object != NULL and a.batch == NO_BATCH:
            return (<const Param*>a.object).device_value
    return NULL


cdef bint may_change_places(const Graph* g, const Batch* batch, uint32_t number, const Link* links, uint32_t lowest,
                            uint32_t highest) noexcept nogil:
    """Whether a batch and the one after it are such batches, and in the wrong order."""
    cdef const Batch* other = batch + 1
    cdef const uint32_t* ids = order_of(g)
    cdef const Node* x = &nodes_of(g)[ids[batch.first]]
    cdef const Node* y = &nodes_of(g)[ids[other.first]]
    cdef const float* weights
    cdef uint32_t i, j, arg
    if (batch.count != other.count or batch.form != other.form or batch.form == EACH or batch.cell or other.cell
            or x.op != y.op or batch.first + batch.count != other.first):
        return False
    weights = weights_of(g, other)
    if weights == NULL or weights >= weights_of(g, batch):
        return False
    for j in range(other.count):
        y = &nodes_of(g)[ids[other.first + j]]
        for i in range(y.nargs):
            arg = args_of(g, y)[i]
            if lowest <= arg <= highest and links[arg].batch == number:
                return False
    return True


cdef void change_places(Graph* g, Batch* batch, Link* links, uint32_t* first) noexcept nogil:
    """Swap a batch and the one after it, which have equally many nodes."""
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef uint32_t j, id, of_first = batch.first, n = batch.count, number = links[ids[0]].batch
    cdef Batch other = batch[0]
    batch[0] = batch[1]
    batch[0].first = of_first
    batch[1] = other
    batch[1].first = of_first + n
    for j in range(n):
        id = ids[j]
        ids[j] = ids[n + j]
        ids[n + j] = id
        links[ids[j]].batch = number
        links[id].batch = number + 1
    id = first[0]
    first[0] = first[1]
    first[1] = id


# ---- the order of nodes ---------------------------------------------------------------------

cdef void write_order(Graph* g, const Batch* batch, const Link* links, uint32_t node) noexcept nogil:
    """Write the list of a batch, which begins with this node, into the plan."""
    cdef uint32_t* to = order_of(g) + batch.first
    while node != NO_NODE:
        to[0] = node
        to += 1
        node = links[node].after


cdef void move_arguments(const Graph* g, const Batch* batch, uint32_t number, Link* links, uint32_t* first,
                         Uses* uses, uint32_t lowest, uint32_t highest) noexcept nogil:
    """Move the arguments of a batch to the front of the lists of their batches, so that they are adjacent."""
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef uint32_t i = nodes_of(g)[ids[0]].nargs, j, arg
    while i:
        i -= 1
        if state_of(g)[args_of(g, &nodes_of(g)[ids[0]])[i]] & SHARED:       # a parameter of all
            continue
        j = batch.count
        while j:
            j -= 1
            if i >= nodes_of(g)[ids[j]].nargs:
                continue
            arg = args_of(g, &nodes_of(g)[ids[j]])[i]
            if lowest <= arg <= highest and links[arg].batch != NO_BATCH:
                move_to_front(&first[links[arg].batch], links, arg)
                if batch.form != COPIES:            # it copies one by one, from any place
                    note_use(&uses[links[arg].batch], number, arg)


cdef inline void move_to_front(uint32_t* first, Link* links, uint32_t node) noexcept nogil:
    cdef Link* x = &links[node]
    if first[0] == node:
        return
    links[x.before].after = x.after
    if x.after != NO_NODE:
        links[x.after].before = x.before
    links[first[0]].before = node
    x.after = first[0]
    x.before = NO_NODE
    first[0] = node


cdef inline void note_use(Uses* uses, uint32_t batch, uint32_t node) noexcept nogil:
    uses.together |= uses.batch == batch + 1 and uses.node != node
    uses.batch = batch + 1                      # 0: none so far
    uses.node = node


# ---- batches whose nodes are used one by one --------------------------------------------------

cdef void order_by_arguments(Graph* g, uint32_t n, Link* links, const Uses* uses, uint32_t lowest,
                             uint32_t highest) noexcept nogil:
    """Bring their nodes into the order of their arguments, from the first batch to the last."""
    cdef const Batch* batch = batches_of(g) + g.n_batches
    cdef uint32_t* ids
    cdef uint32_t b, j
    for b in range(n):
        ids = order_of(g) + batch[b].first
        if batch[b].count > 1 and not uses[b].together and batch[b].form != EACH:
            sort_nodes(g, ids, batch[b].count, links, lowest, highest)
        for j in range(batch[b].count):
            links[ids[j]].before = batch[b].first + j      # lists are not needed any more


cdef void sort_nodes(Graph* g, uint32_t* ids, uint32_t n, const Link* links, uint32_t lowest,
                     uint32_t highest) noexcept nogil:
    """Sort nodes by where the first argument that is computed in the plan, the same of each, stands in it."""
    cdef size_t top = g.scratch.top
    cdef uint64_t* keys = <uint64_t*>arena_alloc(&g.scratch, n * sizeof(uint64_t))
    cdef uint32_t i = 0, j, arg
    cdef const Node* x = &nodes_of(g)[ids[0]]
    cdef bint known = keys != NULL
    while i < x.nargs and not is_planned(args_of(g, x)[i], links, lowest, highest):
        i += 1
    for j in range(n if known else 0):
        x = &nodes_of(g)[ids[j]]
        known = known and i < x.nargs and is_planned(args_of(g, x)[i], links, lowest, highest)
        if known:
            arg = args_of(g, x)[i]
            keys[j] = <uint64_t>links[arg].before << 32 | ids[j]
    if known:
        qsort(keys, n, sizeof(uint64_t), by_key)
        for j in range(n):
            ids[j] = <uint32_t>keys[j]
    arena_rewind(&g.scratch, top)


cdef inline bint is_planned(uint32_t node, const Link* links, uint32_t lowest, uint32_t highest) noexcept nogil:
    return lowest <= node <= highest and links[node].batch != NO_BATCH


cdef int by_key(const void* a, const void* b) noexcept nogil:
    cdef uint64_t x = (<const uint64_t*>a)[0]
    cdef uint64_t y = (<const uint64_t*>b)[0]
    return (x > y) - (x < y)
