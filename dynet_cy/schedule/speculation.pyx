"""Chooses similar values to compute early, in the same pass as the requested one.

A loop that requests one value after another would run a pass for each, although the values could be computed together.
When a value is requested, its group is found: nodes made since the previous request (a window at the end of the graph)
that have the same signature, are not computed, and do not depend on each other or on the requested node, nor it on
them.

Nothing is computed speculatively.  At first a group is only observed: how many of its nodes are requested later?  Such
requests are counted for each kind of node (its op, its attributes, and the ops of its arguments).  Once at least 19 of
20 were requested, the rest of a group is computed together with the first one.  The number of nodes that ran early and
were not requested (so far) is at all times at most a twentieth of those that ran for values that were requested, so the
cost for a program that does not need them is bounded.  A kind that is rarely requested is checked only in one of 16
requests.

If there is too little memory, or one of the other values is not finite, the requested one is computed alone.

After: branch prediction by saturating counters (Smith 1981, "A study of branch prediction strategies"), with a budget.
"""

from typing import NamedTuple

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memset

from dynet_cy.core.tensor cimport same_shape
from dynet_cy.core.threads cimport Flag
from dynet_cy.graph.expressions cimport ComputationGraph
from dynet_cy.graph.structs cimport (
    COMPUTED, DROPPED, SHARED, WANTED, Graph, Node, Speculation, args_of, holder_in, is_dropped, nodes_of,
    speculation_hooks, state_of, uses_of,
)
from dynet_cy.memory.arena cimport arena_alloc, arena_rewind, array_rewind
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport op_at
from dynet_cy.schedule.plan cimport mark_wanted, most_words, write_queue


cdef enum:
    GROUPS = 4                      # a program may alternate between several kinds
    KINDS = 32
    MOST_BESIDE = 1024              # nodes of a group
    ENOUGH = 8                      # requests before a kind is trusted
    SHARE = 20                      # at most one of this many nodes may be computed in vain
    MANY = 512                      # older counts weigh less
    PAUSE = 15                      # requests between two checks of a kind that is not trusted

cdef enum:                          # the state of a node of a group
    WAITS
    EARLY                           # computed with another one, and not requested yet
    DONE                            # requested, or no longer in the window

# Counts of nodes of a kind that were requested, and that were not, after another node of their group.
cdef struct Kind:
    uint64_t key
    uint32_t asked
    uint32_t left
    uint32_t pause

cdef struct Group:
    uint64_t key                    # of its kind
    uint32_t* nodes                 # in ascending order
    uint8_t* states
    uint32_t n
    uint32_t capacity
    uint32_t at                     # index of the node that is probably requested next
    uint32_t pending                # nodes in state WAITS or EARLY
    uint32_t early
    uint64_t owed                   # nodes that ran for the early ones

cdef struct Requests:
    Group[GROUPS] groups
    Kind[KINDS] kinds
    uint32_t n_kinds
    uint32_t oldest_kind            # the one that is forgotten next
    uint32_t* targets
    uint32_t first                  # the window: the first node of it,
    uint32_t end                    # and its end when it was last looked at
    uint32_t n_order                # of the graph, at the last request
    uint32_t oldest                 # the group that is given up next
    uint32_t pending                # of all groups
    bint waiting                    # the last requested node was in a group
    uint64_t ran                    # nodes that have run
    uint64_t unused                 # of these, for values that have not been requested
    uint64_t early                  # of these, for values that had not been requested when they ran
    uint64_t looks                  # budget of nodes to look at: not many more than were made or run

cdef Flag on = True
cdef Flag tracked = False           # find groups even if it is off


cdef inline Requests* requests_of(const Graph* g) noexcept nogil:
    return <Requests*>g.speculation


cdef inline uint64_t mixed(uint64_t h, uint64_t w) noexcept nogil:
    h = (h ^ w) * 0xD6E8FEB86659FD93u
    return h ^ h >> 32


cdef uint64_t key_of(const Graph* g, const Node* x) noexcept nogil:
    """The kind of a node; equal nodes of different graphs have the same kind."""
    cdef const uint32_t* args = args_of(g, x)
    cdef const Node* a
    cdef uint64_t h = mixed(x.nargs, x.op)
    cdef uint32_t i
    for i in range(min(x.nargs, <uint32_t>4)):
        a = nodes_of(g) + args[i]
        h = mixed(h, (<uint64_t>1 << 32) + (<Param*>a.object).id if state_of(g)[args[i]] & SHARED else a.op)
    return h


cdef inline Kind* kind_of(Requests* s, uint64_t key) noexcept nogil:
    cdef Kind* kind
    cdef uint32_t i
    for i in range(s.n_kinds):
        if s.kinds[i].key == key:
            return &s.kinds[i]
    kind = &s.kinds[s.n_kinds if s.n_kinds < KINDS else s.oldest_kind]
    if s.n_kinds < KINDS:
        s.n_kinds += 1
    else:
        s.oldest_kind = (s.oldest_kind + 1) % KINDS
    memset(kind, 0, sizeof(Kind))
    kind.key = key
    return kind


cdef inline bint is_trusted(const Kind* kind) noexcept nogil:
    return kind.asked >= ENOUGH and kind.left * (SHARE - 1) <= kind.asked


cdef void count(Requests* s, uint64_t key, uint32_t asked, uint32_t left) noexcept nogil:
    cdef Kind* kind = kind_of(s, key)
    kind.asked += asked
    kind.left += left
    if kind.asked + kind.left > MANY:
        kind.asked //= 2
        kind.left //= 2
    if left and not is_trusted(kind):
        kind.pause = PAUSE


# ---- groups --------------------------------------------------------------------

cdef inline bint can_wait(const Graph* g, uint32_t node) noexcept nogil:
    """Whether a node has not been computed, and may still be requested."""
    if state_of(g)[node] & (COMPUTED | DROPPED) or is_dropped(g, node):
        return False
    return not g.forward_only or holder_in(&uses_of(g)[node]) != NULL


cdef void leave(Graph* g, Requests* s, Group* group, uint32_t k, bint asked) noexcept nogil:
    """Note that node k of a group was requested, or can no longer be."""
    cdef uint64_t share
    if group.states[k] == EARLY:
        share = group.owed // group.early
        group.owed -= share
        group.early -= 1
        g.early -= 1
        if asked:
            s.unused -= share
    group.states[k] = DONE
    group.pending -= 1
    s.pending -= 1


cdef void give_up(Graph* g, Requests* s, Group* group) noexcept nogil:
    """Drop a group.  Nodes not requested count as unused, except those that other values needed."""
    cdef uint32_t k, left = 0
    for k in range(group.n):
        if group.states[k] != DONE:
            left += group.states[k] == EARLY or not state_of(g)[group.nodes[k]] & COMPUTED
            leave(g, s, group, k, False)
    if left:
        count(s, group.key, 0, left)
    group.n = 0


cdef uint32_t find(Group* group, uint32_t node) noexcept nogil:
    """The index of a node in a group; the size of the group if it is not there."""
    cdef uint32_t low = 0, high = group.n, middle
    if group.at < group.n and group.nodes[group.at] == node:
        return group.at
    while low < high:
        middle = (low + high) // 2
        if group.nodes[middle] < node:
            low = middle + 1
        else:
            high = middle
    return low if low < group.n and group.nodes[low] == node else group.n


cdef Group* note_request(Graph* g, Requests* s, uint32_t node) noexcept nogil:
    """The group that contains the node now requested; NULL if there is none."""
    cdef Group* group
    cdef uint32_t k
    cdef int b
    if s.pending == 0:
        return NULL
    for b in range(GROUPS):
        group = &s.groups[b]
        if group.pending == 0 or node < group.nodes[0] or node > group.nodes[group.n - 1]:
            continue
        k = find(group, node)
        if k < group.n:
            group.at = k + 1
            if group.states[k] != DONE:
                leave(g, s, group, k, True)
                count(s, group.key, 1, 0)
            return group
    return NULL


cdef Group* empty_group(Graph* g, Requests* s, uint64_t key, uint32_t capacity) noexcept nogil:
    """A group to fill: the previous one of this kind, a finished one, or the oldest; NULL if there is no memory."""
    cdef Group* group = NULL
    cdef int b
    cdef uint32_t* nodes
    cdef uint8_t* states
    for b in range(GROUPS):
        if s.groups[b].n and s.groups[b].key == key:
            group = &s.groups[b]
    for b in range(GROUPS):
        if group == NULL and s.groups[b].pending == 0:
            group = &s.groups[b]
    if group == NULL:
        group = &s.groups[s.oldest]
        s.oldest = (s.oldest + 1) % GROUPS
    give_up(g, s, group)
    if capacity > group.capacity:
        nodes = <uint32_t*>realloc(group.nodes, capacity * sizeof(uint32_t))
        if nodes == NULL:
            return NULL
        group.nodes = nodes
        states = <uint8_t*>realloc(group.states, capacity)
        if states == NULL:
            return NULL
        group.states = states
        group.capacity = capacity
    group.key = key
    return group


# ---- finding the group of a node -------------------------------------------------

cdef struct Marked:
    uint32_t lowest
    uint32_t highest
    uint32_t count


cdef int mark(Graph* g, const uint32_t* targets, uint32_t n, Marked* m) noexcept nogil:
    """Mark the nodes that the targets need; nothing may be marked before."""
    cdef size_t top = g.order.top
    cdef uint32_t none = 0              # rewrites
    cdef int failed = mark_wanted(g, targets, n, &m.lowest, &m.highest, &m.count, 0, &none)
    array_rewind(&g.order, top)
    return failed


cdef void unmark(Graph* g, const Marked* m) noexcept nogil:
    cdef uint32_t i
    for i in range(m.lowest, m.highest + 1):
        state_of(g)[i] &= <uint8_t>~WANTED


cdef inline bint looks_alike(const Graph* g, const Node* x, const Node* y) noexcept nogil:
    """Whether signatures may be equal: a quick check."""
    cdef uint32_t i
    if x.op != y.op or x.nargs != y.nargs or x.dim.nd != y.dim.nd:
        return False
    for i in range(min(x.nargs, <uint32_t>2)):      # parameters come first
        if state_of(g)[args_of(g, x)[i]] & SHARED and args_of(g, x)[i] != args_of(g, y)[i]:
            return False
    return op_at(x.op).ragged or (same_shape(&x.dim, &y.dim) and x.dim.bd == y.dim.bd)


cdef uint32_t find_alike(Graph* g, uint32_t node, uint32_t first, uint32_t* found) noexcept nogil:
    """Find the unmarked nodes from `first` on that have the signature of `node`."""
    cdef const Node* x = nodes_of(g) + node
    cdef size_t top = g.scratch.top
    cdef size_t most = most_words(x) * sizeof(uint32_t)
    cdef uint32_t* own = <uint32_t*>arena_alloc(&g.scratch, most)
    cdef uint32_t* other = <uint32_t*>arena_alloc(&g.scratch, most)
    cdef uint32_t i, n_words, n = 0
    if own != NULL and other != NULL:
        n_words = write_queue(g, node, own)
        for i in range(first, g.n_nodes):
            if n == MOST_BESIDE:
                break
            if (looks_alike(g, x, nodes_of(g) + i) and not state_of(g)[i] & WANTED and can_wait(g, i)
                    and write_queue(g, i, other) == n_words
                    and memcmp(own, other, n_words * sizeof(uint32_t)) == 0):
                found[n] = i
                n += 1
    arena_rewind(&g.scratch, top)
    return n


cdef uint32_t keep_group(Graph* g, uint32_t node, const Marked* m, uint32_t* found, uint32_t n) noexcept nogil:
    """Keep of the marked nodes `found`, in ascending order, those that depend neither on `node` nor on each other."""
    cdef size_t top = g.scratch.top
    cdef uint32_t low = min(node, found[0])
    cdef uint8_t* behind = <uint8_t*>arena_alloc(&g.scratch, m.highest - low + 1)
    cdef const Node* x
    cdef const uint32_t* args
    cdef uint32_t i, k, next = 0, kept = 0
    cdef bint needs
    if behind == NULL:
        return 0
    for i in range(low, m.highest + 1):
        needs = False
        if state_of(g)[i] & WANTED:
            x = nodes_of(g) + i
            args = args_of(g, x)
            for k in range(x.nargs):
                needs = needs or (args[k] >= low and behind[args[k] - low])
        if next < n and found[next] == i:
            if not needs:
                found[kept] = i
                kept += 1
            needs = True
            next += 1
        behind[i - low] = needs or i == node
    arena_rewind(&g.scratch, top)
    return kept


cdef Group* gather(Graph* g, Requests* s, uint32_t node) noexcept nogil:
    """Find the group of a requested node; NULL if it has none."""
    cdef const Node* x = nodes_of(g) + node
    cdef size_t top = g.scratch.top
    cdef uint32_t* found
    cdef uint32_t i, n = 0
    cdef Kind* kind
    cdef Group* group = NULL
    cdef Marked m
    if node == s.end and node + 1 == g.n_nodes:     # nothing else was made
        s.first = node
        s.end = g.n_nodes
        return NULL
    if node >= s.end:
        s.first = min(s.end, g.n_nodes)
    elif node < s.first:
        return NULL
    s.looks += g.n_nodes - min(s.end, g.n_nodes)
    s.end = g.n_nodes
    if g.n_nodes - s.first > s.looks:
        return NULL
    s.looks -= g.n_nodes - s.first
    i = s.first
    while i < g.n_nodes and (i == node or not looks_alike(g, x, nodes_of(g) + i) or not can_wait(g, i)):
        i += 1
    if i == g.n_nodes:
        return NULL
    kind = kind_of(s, key_of(g, x))
    if kind.pause:
        kind.pause -= 1
        return NULL
    found = <uint32_t*>arena_alloc(&g.scratch, (min(g.n_nodes - i, <uint32_t>MOST_BESIDE) + 1) * sizeof(uint32_t))
    if found == NULL:
        return NULL
    found[0] = node
    if mark(g, found, 1, &m) == 0:
        n = find_alike(g, node, i, found + 1)
    unmark(g, &m)
    if n:
        if mark(g, found, 1 + n, &m) == 0:
            n = keep_group(g, node, &m, found + 1, n)
        else:
            n = 0
        unmark(g, &m)
    if n:
        group = empty_group(g, s, kind.key, n)
    if group != NULL:
        for i in range(n):
            group.nodes[i] = found[1 + i]
            group.states[i] = WAITS
        group.n = group.pending = n
        s.pending += n
        group.at = group.early = 0
        group.owed = 0
    arena_rewind(&g.scratch, top)
    return group


# ---- choosing what to compute ----------------------------------------------------

cdef uint32_t affordable(Graph* g, const Requests* s, const uint32_t* targets, uint32_t n,
                         uint32_t* extra) noexcept nogil:
    """How many targets after the first one fit into the budget, and how many further nodes they need."""
    cdef uint64_t used = s.ran - s.unused
    cdef uint64_t budget = used // SHARE - s.unused if used // SHARE > s.unused else 0
    cdef uint32_t own
    cdef int failed
    cdef Marked m
    failed = mark(g, targets, 1, &m)
    unmark(g, &m)
    own = m.count
    while n and budget and not failed:
        failed = mark(g, targets, 1 + n, &m)
        unmark(g, &m)
        extra[0] = m.count - own
        if extra[0] <= budget and not failed:
            return n
        n = min(n - 1, <uint32_t>(n * budget // max(extra[0], <uint32_t>1)))
    extra[0] = 0
    return 0


cdef uint32_t choose(Graph* g, Requests* s, Group* group, uint32_t node) noexcept nogil:
    """Write the targets of a pass: a node, and the nodes of its group to be computed with it."""
    cdef uint32_t* targets = <uint32_t*>realloc(s.targets, (group.n + 1) * sizeof(uint32_t))
    cdef uint32_t k, j, extra = 0, n = 0
    if targets == NULL:
        return 1
    s.targets = targets
    targets[0] = node
    for j in range(group.n):
        k = (group.at + j) % group.n                # begin after the last requested one
        if group.states[k] == WAITS and can_wait(g, group.nodes[k]):
            n += 1
            targets[n] = group.nodes[k]
    n = affordable(g, s, targets, n, &extra)
    for k in range(n):
        j = find(group, targets[1 + k])
        group.states[j] = EARLY
    group.early += n
    group.owed += extra
    g.early += n
    s.unused += extra
    s.early += extra
    return 1 + n


cdef uint32_t note_ran(Graph* g, Requests* s) noexcept nogil:
    """Count the nodes that have run since the last call; fewer if some of them have been forgotten since."""
    cdef uint32_t n = g.n_order - s.n_order if g.n_order >= s.n_order else 0
    s.ran += n
    s.n_order = g.n_order
    return n


cdef uint32_t ask(Graph* g, const uint32_t* target, const uint32_t** targets) noexcept nogil:
    cdef Requests* s = requests_of(g)
    cdef Group* group
    cdef uint32_t n
    targets[0] = target
    if not (on or tracked):
        return 1
    if s == NULL:
        s = <Requests*>calloc(1, sizeof(Requests))
        g.speculation = s
        if s == NULL:
            return 1
    s.looks += 4 * <uint64_t>note_ran(g, s)
    group = note_request(g, s, target[0])
    s.waiting = group != NULL
    if group == NULL:
        group = gather(g, s, target[0])
    if group == NULL or group.pending == 0 or not on or not is_trusted(kind_of(s, group.key)):
        return 1
    n = choose(g, s, group, target[0])
    if n > 1:
        targets[0] = s.targets
    return n


cdef void asked(Graph* g, uint32_t node) noexcept nogil:
    note_request(g, requests_of(g), node)


cdef void failed(Graph* g) noexcept nogil:
    cdef Requests* s = requests_of(g)
    cdef Group* group
    cdef uint32_t k
    cdef int b
    for b in range(GROUPS):
        group = &s.groups[b]
        for k in range(group.n):
            if group.states[k] == EARLY and not state_of(g)[group.nodes[k]] & COMPUTED:
                leave(g, s, group, k, False)


cdef void cut(Graph* g, uint32_t n_nodes, bint forget) noexcept nogil:
    cdef Requests* s = requests_of(g)
    cdef Group* group
    cdef int b
    for b in range(GROUPS):
        group = &s.groups[b]
        if group.n and group.nodes[group.n - 1] >= n_nodes:
            give_up(g, s, group)
    s.end = min(s.end, n_nodes)
    s.first = min(s.first, n_nodes)
    note_ran(g, s)
    if n_nodes == 0:
        s.n_order = 0
    if forget:
        s.first = s.end = g.n_nodes
        s.n_order = g.n_order
        s.ran = s.unused = s.early = s.looks = 0
        s.oldest = s.n_kinds = s.oldest_kind = 0


cdef void renumber(Graph* g, const uint32_t* numbers) noexcept nogil:
    cdef Requests* s = requests_of(g)
    cdef Group* group
    cdef uint32_t i, k, n
    cdef int b
    for b in range(GROUPS):
        group = &s.groups[b]
        n = 0
        for k in range(group.n):
            if numbers[group.nodes[k]] == <uint32_t>-1:
                if group.states[k] != DONE:         # it cannot be requested any more
                    leave(g, s, group, k, False)
                    count(s, group.key, 0, 1)
                continue
            group.nodes[n] = numbers[group.nodes[k]]
            group.states[n] = group.states[k]
            n += 1
        group.n = n
        group.at = 0
    note_ran(g, s)
    s.n_order = 0                                   # a renumbered graph starts a new list of what has run
    s.first = s.end = 0
    for i in range(g.n_nodes):
        s.end += numbers[i] != <uint32_t>-1


cdef bint was_waiting(const Graph* g) noexcept nogil:
    return g.speculation != NULL and requests_of(g).waiting


cdef void drop_speculation(Graph* g) noexcept nogil:
    cdef Requests* s = requests_of(g)
    cdef int b
    if s == NULL:
        return
    for b in range(GROUPS):
        free(s.groups[b].nodes)
        free(s.groups[b].states)
    free(s.targets)
    free(s)
    g.speculation = NULL


cdef void track_requests(bint is_to_be) noexcept:
    global tracked
    tracked = is_to_be


cdef Speculation* hooks = speculation_hooks()
hooks.ask = ask
hooks.asked = asked
hooks.failed = failed
hooks.cut = cut
hooks.renumber = renumber


# ---- setting and counts ------------------------------------------------------------

def switch(is_to_be):
    """Set whether values of the same group as the requested one may be computed early, together with it."""
    global on
    on = is_to_be


def is_on():
    """Whether values of the same group as the requested one may be computed early."""
    return on


class Counts(NamedTuple):
    """Numbers of nodes that ran since the graph was made, or since its random state was saved or restored.

    Attributes:
        ran: nodes that had run at the last request for a value.
        early: of these, those that ran for values that had not been requested.
        unused: of these, those for values that have still not been requested.
    """

    ran: int
    early: int
    unused: int


def counts(ComputationGraph graph not None):
    """How many nodes of a graph ran early, as Counts."""
    cdef Requests* s = requests_of(&graph.g)
    return Counts(0, 0, 0) if s == NULL else Counts(s.ran, s.early, s.unused)
