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
from dynet_cy.schedule.facts cimport PlanFacts, batch_of, nodes_in, open_facts_of


# The nodes of a planned batch as a linked list.
cdef struct Link:
    uint32_t before                 # the nodes before and after this one in its batch, or NO_NODE
    uint32_t after

# How the nodes of a planned batch are used.
cdef struct Uses:
    uint32_t batch                  # the last batch that was seen to use a node of it, and this node
    uint32_t node
    bint together                   # some batch uses two of its nodes

# In the scratch arena.
cdef struct Order:
    PlanFacts facts                 # of batches that are counted from 0
    Link* links                     # by node, from 0 on
    uint32_t* first                 # by batch: the first node of its list
    Uses* uses                      # by batch


cdef void order_nodes(Graph* g, uint32_t n) noexcept nogil:
    cdef const Batch* batch = batches_of(g) + g.n_batches
    cdef size_t top = g.scratch.top
    cdef Order of
    cdef uint32_t b, most = 1
    for b in range(n):
        most = max(most, batch[b].count)
    if most > 1 and open_order(&of, g, n):
        order_weights(&of)
        b = n
        while b:
            b -= 1
            if batch[b].count > 1:
                write_order(&of, b)
            move_arguments(&of, b)
        order_by_arguments(&of)
    arena_rewind(&g.scratch, top)


cdef bint open_order(Order* of, Graph* g, uint32_t n) noexcept nogil:
    """List the nodes of each batch in their present order. False: there is no memory."""
    cdef const Batch* batch = batches_of(g) + g.n_batches
    cdef const uint32_t* ids
    cdef uint32_t b, j
    if not open_facts_of(&of.facts, g, 0, batch, n, order_of(g) + batch[0].first):
        return False
    of.links = <Link*>arena_alloc(&g.scratch, of.facts.span * sizeof(Link))
    of.first = <uint32_t*>arena_alloc(&g.scratch, n * sizeof(uint32_t))
    of.uses = <Uses*>arena_alloc(&g.scratch, n * sizeof(Uses))
    if of.links == NULL or of.first == NULL or of.uses == NULL:
        return False
    of.links -= of.facts.lowest
    memset(of.uses, 0, n * sizeof(Uses))
    for b in range(n):
        ids = nodes_in(&of.facts, &batch[b])
        of.first[b] = ids[0]
        for j in range(batch[b].count):
            of.links[ids[j]].before = ids[j - 1] if j else NO_NODE
            of.links[ids[j]].after = ids[j + 1] if j + 1 < batch[b].count else NO_NODE
    return True


# ---- neighbours that multiply by different weights ------------------------------------------
#
# Two batches that follow each other and do not depend on each other, such as those of the two directions of a recurrent
# network, can be one product on a device, if weights, factors and results of the second lie behind those of the first.

cdef void order_weights(Order* of) noexcept nogil:
    """Bring such batches of one size into the order in which their weights lie."""
    cdef uint32_t b, k
    for b in range(1, of.facts.n_batches):
        k = b
        while k and may_change_places(of, k - 1):
            change_places(of, k - 1)
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


cdef bint may_change_places(const Order* of, uint32_t number) noexcept nogil:
    """Whether a batch and the one after it are such batches, and in the wrong order."""
    cdef const Graph* g = of.facts.g
    cdef const Batch* batch = &of.facts.batches[number]
    cdef const Batch* other = batch + 1
    cdef const uint32_t* ids = order_of(g)
    cdef const Node* x = &nodes_of(g)[ids[batch.first]]
    cdef const Node* y = &nodes_of(g)[ids[other.first]]
    cdef const float* weights
    cdef uint32_t i, j
    if (batch.count != other.count or batch.form != other.form or batch.form == EACH or batch.cell or other.cell
            or x.op != y.op or batch.first + batch.count != other.first):
        return False
    weights = weights_of(g, other)
    if weights == NULL or weights >= weights_of(g, batch):
        return False
    for j in range(other.count):
        y = &nodes_of(g)[ids[other.first + j]]
        for i in range(y.nargs):
            if batch_of(&of.facts, args_of(g, y)[i]) == number:
                return False
    return True


cdef void change_places(Order* of, uint32_t number) noexcept nogil:
    """Swap a batch and the one after it, which have equally many nodes."""
    cdef Graph* g = of.facts.g
    cdef Batch* batch = batches_of(g) + g.n_batches + number
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef uint32_t* of_nodes = of.facts.batch - of.facts.lowest
    cdef uint32_t j, id, of_first = batch.first, n = batch.count
    cdef Batch other = batch[0]
    batch[0] = batch[1]
    batch[0].first = of_first
    batch[1] = other
    batch[1].first = of_first + n
    for j in range(n):
        id = ids[j]
        ids[j] = ids[n + j]
        ids[n + j] = id
        of_nodes[ids[j]] = number
        of_nodes[id] = number + 1
    id = of.first[number]
    of.first[number] = of.first[number + 1]
    of.first[number + 1] = id


# ---- the order of nodes ---------------------------------------------------------------------

cdef void write_order(const Order* of, uint32_t number) noexcept nogil:
    """Write the list of a batch into the plan."""
    cdef uint32_t* to = order_of(of.facts.g) + of.facts.batches[number].first
    cdef uint32_t node = of.first[number]
    while node != NO_NODE:
        to[0] = node
        to += 1
        node = of.links[node].after


cdef void move_arguments(Order* of, uint32_t number) noexcept nogil:
    """Move the arguments of a batch to the front of the lists of their batches, so that they are adjacent."""
    cdef const Graph* g = of.facts.g
    cdef const Batch* batch = &of.facts.batches[number]
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef uint32_t i = nodes_of(g)[ids[0]].nargs, j, arg, b
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
            b = batch_of(&of.facts, arg)
            if b != NO_BATCH:
                move_to_front(&of.first[b], of.links, arg)
                if batch.form != COPIES:            # it copies one by one, from any place
                    note_use(&of.uses[b], number, arg)


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

cdef void order_by_arguments(Order* of) noexcept nogil:
    """Bring their nodes into the order of their arguments, from the first batch to the last."""
    cdef const Batch* batch = of.facts.batches
    cdef uint32_t* ids
    cdef uint32_t b, j
    for b in range(of.facts.n_batches):
        ids = order_of(of.facts.g) + batch[b].first
        if batch[b].count > 1 and not of.uses[b].together and batch[b].form != EACH:
            sort_nodes(of, ids, batch[b].count)
        for j in range(batch[b].count):
            of.links[ids[j]].before = batch[b].first + j       # lists are not needed any more


cdef void sort_nodes(const Order* of, uint32_t* ids, uint32_t n) noexcept nogil:
    """Sort nodes by where the first argument that is computed in the plan, the same of each, stands in it."""
    cdef Graph* g = of.facts.g
    cdef size_t top = g.scratch.top
    cdef uint64_t* keys = <uint64_t*>arena_alloc(&g.scratch, n * sizeof(uint64_t))
    cdef uint32_t i = 0, j, arg
    cdef const Node* x = &nodes_of(g)[ids[0]]
    cdef bint known = keys != NULL
    while i < x.nargs and batch_of(&of.facts, args_of(g, x)[i]) == NO_BATCH:
        i += 1
    for j in range(n if known else 0):
        x = &nodes_of(g)[ids[j]]
        known = known and i < x.nargs and batch_of(&of.facts, args_of(g, x)[i]) != NO_BATCH
        if known:
            arg = args_of(g, x)[i]
            keys[j] = <uint64_t>of.links[arg].before << 32 | ids[j]
    if known:
        qsort(keys, n, sizeof(uint64_t), by_key)
        for j in range(n):
            ids[j] = <uint32_t>keys[j]
    arena_rewind(&g.scratch, top)


cdef int by_key(const void* a, const void* b) noexcept nogil:
    cdef uint64_t x = (<const uint64_t*>a)[0]
    cdef uint64_t y = (<const uint64_t*>b)[0]
    return (x > y) - (x < y)
