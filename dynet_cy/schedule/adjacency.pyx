"""The order of nodes within the batches of a plan, so that a later batch finds its arguments side by side.

Results of a batch are adjacent in memory, in the order of its nodes.  A batch that uses them reads them in place if it
uses them in that order, without gaps; otherwise they are copied first.  On a device that is a launch, and so is adding
up the gradients on the way back.  Nodes of a batch do not depend on each other, so their order is free.

It is chosen from the last batch to the first.  When a batch is reached, its order is known, and so are the places at
which it uses its arguments: they move to the front of the batches that compute them.  So the values that the next
batch uses come first in a batch, in the order of their use, then those that a later batch uses, and those of the same
later batch are adjacent.  In chains of different lengths, such as recurrent networks over sentences, the chains that go
on are then the first nodes of each batch.  Cost: a few nanoseconds per argument.

Chen et al., "ED-Batch: Efficient Automatic Batching of Dynamic Neural Networks via Learned Finite State Machines"
(ICML 2023), order values by PQ-trees for the same purpose.  These serve several uses of a value, where this order
serves the first one.
"""

from libc.string cimport memset

from dynet_cy.graph.structs cimport (
    EACH, NO_BATCH, NO_NODE, SHARED, Batch, Node, args_of, batches_of, nodes_of, order_of, state_of,
)
from dynet_cy.memory.arena cimport arena_alloc, arena_rewind
from dynet_cy.memory.storage cimport Param


# The nodes of a planned batch as a linked list.
cdef struct Place:
    uint32_t batch                  # number of the planned batch, or NO_BATCH
    uint32_t before                 # the nodes before and after this one in its batch, or NO_NODE
    uint32_t after


cdef void order_nodes(Graph* g, uint32_t n) noexcept nogil:
    cdef const uint32_t* ids = order_of(g) + g.n_order
    cdef const Batch* batch = batches_of(g) + g.n_batches
    cdef size_t top = g.scratch.top
    cdef Place* places
    cdef uint32_t* first
    cdef uint32_t b, j, count = 0, lowest = NO_NODE, highest = 0
    for b in range(n):
        count += batch[b].count
    if count == n:                              # all batches have one node
        return
    for j in range(count):
        lowest = min(lowest, ids[j])
        highest = max(highest, ids[j])
    places = <Place*>arena_alloc(&g.scratch, (highest - lowest + <size_t>1) * sizeof(Place))
    first = <uint32_t*>arena_alloc(&g.scratch, n * sizeof(uint32_t))
    if places != NULL and first != NULL:
        memset(places, 0xFF, (highest - lowest + <size_t>1) * sizeof(Place))
        for b in range(n):
            list_nodes(g, &batch[b], b, places - lowest, first)
        order_weights(g, n, places - lowest, first, lowest, highest)
        b = n
        while b:
            b -= 1
            if batch[b].count > 1:
                write_order(g, &batch[b], places - lowest, first[b])
            move_arguments(g, &batch[b], places - lowest, first, lowest, highest)
    arena_rewind(&g.scratch, top)


cdef void list_nodes(const Graph* g, const Batch* batch, uint32_t number, Place* places,
                     uint32_t* first) noexcept nogil:
    """List the nodes of a batch in their present order."""
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef uint32_t j
    first[number] = ids[0]
    for j in range(batch.count):
        places[ids[j]].batch = number
        places[ids[j]].before = ids[j - 1] if j else NO_NODE
        places[ids[j]].after = ids[j + 1] if j + 1 < batch.count else NO_NODE


# ---- neighbours that multiply by different weights ------------------------------------------
#
# Two batches that follow each other and do not depend on each other, such as those of the two directions of a recurrent
# network, can be one product on a device, if weights, factors and results of the second lie behind those of the first.

cdef void order_weights(Graph* g, uint32_t n, Place* places, uint32_t* first, uint32_t lowest,
                        uint32_t highest) noexcept nogil:
    """Bring such batches of one size into the order in which their weights lie."""
    cdef Batch* batch = batches_of(g) + g.n_batches
    cdef uint32_t b, k
    for b in range(1, n):
        k = b
        while k and may_change_places(g, &batch[k - 1], k - 1, places, lowest, highest):
            change_places(g, &batch[k - 1], places, first + (k - 1))
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


cdef bint may_change_places(const Graph* g, const Batch* batch, uint32_t number, const Place* places, uint32_t lowest,
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
            if lowest <= arg <= highest and places[arg].batch == number:
                return False
    return True


cdef void change_places(Graph* g, Batch* batch, Place* places, uint32_t* first) noexcept nogil:
    """Swap a batch and the one after it, which have equally many nodes."""
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef uint32_t j, id, of_first = batch.first, n = batch.count, number = places[ids[0]].batch
    cdef Batch other = batch[0]
    batch[0] = batch[1]
    batch[0].first = of_first
    batch[1] = other
    batch[1].first = of_first + n
    for j in range(n):
        id = ids[j]
        ids[j] = ids[n + j]
        ids[n + j] = id
        places[ids[j]].batch = number
        places[id].batch = number + 1
    id = first[0]
    first[0] = first[1]
    first[1] = id


# ---- the order of nodes ---------------------------------------------------------------------

cdef void write_order(Graph* g, const Batch* batch, const Place* places, uint32_t node) noexcept nogil:
    """Write the list of a batch, which begins with this node, into the plan."""
    cdef uint32_t* to = order_of(g) + batch.first
    while node != NO_NODE:
        to[0] = node
        to += 1
        node = places[node].after


cdef void move_arguments(const Graph* g, const Batch* batch, Place* places, uint32_t* first, uint32_t lowest,
                         uint32_t highest) noexcept nogil:
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
            if lowest <= arg <= highest and places[arg].batch != NO_BATCH:
                move_to_front(&first[places[arg].batch], places, arg)


cdef inline void move_to_front(uint32_t* first, Place* places, uint32_t node) noexcept nogil:
    cdef Place* x = &places[node]
    if first[0] == node:
        return
    places[x.before].after = x.after
    if x.after != NO_NODE:
        places[x.after].before = x.before
    places[first[0]].before = node
    x.after = first[0]
    x.before = NO_NODE
    first[0] = node
