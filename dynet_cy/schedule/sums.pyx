"""Sums of products, `W*x + U*h + b`, as affine maps: which of them, and how they are changed.

Only products of parameters are taken in, since those of other matrices batch better by themselves, and only nodes made
after the last checkpoint are changed, since what a checkpoint knows stays as it was.

In `W*x + U*h + b` of a recurrent network, where x does not depend on h, all `W*x` run at once.  Within the sum they
would run step by step, which is slower, also with 32 sequences side by side.  So a product that does not depend on
others of its matrix stays out of a sum with one that does: it is what the other one is added to.
"""

from libc.stdint cimport uint8_t, uint16_t, uint64_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport rows_of, same_shape, size_of
from dynet_cy.graph.structs cimport (
    NO_NODE, SHARED, WANTED, Node, Taken, args_of, device_of, drop_unneeded, holder_in, nodes_of, state_of, uses_of,
)
from dynet_cy.memory.arena cimport arena_alloc, arena_rewind, array_push, array_rewind
from dynet_cy.schedule.changes cimport in_sums
from dynet_cy.schedule.counting cimport add_counts


cdef enum:
    OTHER
    PRODUCT
    SUM

cdef uint32_t NONE = 0xFFFFFFFFu

cdef uint32_t product_op = NONE
cdef uint32_t add_op = NONE
cdef uint32_t affine_op = NONE

# What is known of a node, by its number less `lowest`.
cdef struct Term:
    uint64_t behind                 # the matrices of products that it depends on, as bits, which they share beyond 64
    uint32_t users                  # arguments of nodes that are this one; of targets one more than there are
    uint32_t into                   # the sum that takes it in, or NONE
    uint32_t addend                 # of a sum: the term that is no product of it, or NONE
    uint32_t first, last            # its products
    uint32_t next                   # of a product: the next one of its sum
    uint8_t kind
    bint chained                    # a product of its matrix depends on another one

cdef struct Work:
    Graph* g
    int strategy
    uint32_t lowest, highest
    Term* terms
    uint64_t chained                # matrices, as in `behind`


cdef void set_sum_ops(uint32_t product, uint32_t add, uint32_t affine) noexcept nogil:
    global product_op, add_op, affine_op
    product_op = product
    add_op = add
    affine_op = affine


cdef uint32_t take_in_products(Graph* g, const uint32_t* targets, uint32_t n, int strategy, uint32_t lowest,
                               uint32_t highest) noexcept nogil:
    cdef size_t top = g.scratch.top
    cdef Work w
    cdef uint32_t taken = 0
    if not in_sums.on or not g.adds_products:
        return 0
    w.g = g
    w.strategy = strategy
    w.lowest = lowest
    w.highest = highest
    w.chained = 0
    w.terms = <Term*>arena_alloc(&g.scratch, (highest - lowest + 1) * sizeof(Term))
    if w.terms != NULL:
        memset(w.terms, 0, (highest - lowest + 1) * sizeof(Term))
        if find_terms(&w, targets, n):
            taken = change_sums(&w)
    arena_rewind(&g.scratch, top)
    return taken


# ---- which -----------------------------------------------------------------------------

cdef inline Term* term_of(const Work* w, uint32_t node) noexcept nogil:
    return &w.terms[node - w.lowest]


cdef inline bint is_product(const Work* w, const Node* x) noexcept nogil:
    """Whether a node is the product of a parameter and as many batch elements as the result has."""
    cdef const uint32_t* args = args_of(w.g, x)
    return (x.op == product_op and x.nargs == 2 and state_of(w.g)[args[0]] & SHARED
            and nodes_of(w.g)[args[1]].dim.bd == x.dim.bd)


cdef bint find_terms(Work* w, const uint32_t* targets, uint32_t n) noexcept nogil:
    """Find sums that can take in products; whether there is one."""
    cdef Graph* g = w.g
    cdef const Node* nodes = nodes_of(g)
    cdef const uint8_t* state = state_of(g)
    cdef uint32_t i
    cdef bint found = False
    for i in range(n):
        if w.lowest <= targets[i] <= w.highest:
            term_of(w, targets[i]).users += 2
    for i in range(w.lowest, g.n_nodes):
        look_at(w, i)
    for i in range(max(w.lowest, g.n_kept), w.highest + 1):
        if state[i] & WANTED and (nodes[i].op == add_op or nodes[i].op == product_op):
            found |= find_term(w, i)
    return found


cdef inline void look_at(Work* w, uint32_t i) noexcept nogil:
    """Count a node as a user of its arguments; note whether it is a product that depends on another of its matrix."""
    cdef const Node* x = &nodes_of(w.g)[i]
    cdef const uint32_t* args = args_of(w.g, x)
    cdef uint64_t behind = 0, own
    cdef uint32_t k
    for k in range(x.nargs):
        if w.lowest <= args[k] <= w.highest:
            term_of(w, args[k]).users += 1
            behind |= term_of(w, args[k]).behind
    if not w.strategy or i > w.highest or not state_of(w.g)[i] & WANTED:
        return
    if is_product(w, x):
        own = <uint64_t>1 << (args[0] & 63)
        w.chained |= behind & own
        behind |= own
    term_of(w, i).behind = behind


cdef inline bint may_go(const Work* w, uint32_t part, uint32_t i) noexcept nogil:
    """Whether sum i may take in one of its arguments: a product or a sum of some, which nothing else needs."""
    cdef Graph* g = w.g
    cdef const Node* x = &nodes_of(g)[part]
    return (part >= w.lowest and state_of(g)[part] & WANTED and term_of(w, part).kind != OTHER
            and term_of(w, part).users == 1 and x.dim.bd == nodes_of(g)[i].dim.bd
            and same_shape(&x.dim, &nodes_of(g)[i].dim) and device_of(g, part) == device_of(g, i)
            and not (g.forward_only and holder_in(&uses_of(g)[part]) != NULL))


cdef inline bint may_add(const Work* w, uint32_t addend, uint32_t i) noexcept nogil:
    """Whether the products of sum i can be added to its other argument."""
    cdef const Node* a = &nodes_of(w.g)[addend]
    cdef const Node* y = &nodes_of(w.g)[i]
    return (rows_of(&a.dim) == rows_of(&y.dim) and (a.dim.bd == y.dim.bd or a.dim.bd == 1)
            and (size_of(&a.dim) == size_of(&y.dim) or size_of(&a.dim) == rows_of(&y.dim)))


cdef bint find_term(Work* w, uint32_t i) noexcept nogil:
    """Note whether a node is a product, or a sum of some; whether it is such a sum."""
    cdef Term* t = term_of(w, i)
    cdef const Node* x = &nodes_of(w.g)[i]
    cdef uint32_t a = args_of(w.g, x)[0], b = args_of(w.g, x)[1]
    cdef bint takes_a, takes_b
    t.into = t.addend = t.first = t.last = t.next = NONE
    if x.op == product_op:
        if is_product(w, x):
            t.kind = PRODUCT
            t.first = t.last = i
            t.chained = w.chained >> (a & 63) & 1
        return False
    takes_a, takes_b = may_go(w, a, i), may_go(w, b, i)
    if takes_a and takes_b and term_of(w, a).chained != term_of(w, b).chained:
        takes_a, takes_b = term_of(w, a).chained, term_of(w, b).chained
    if takes_a and takes_b:
        if term_of(w, a).addend != NONE and term_of(w, b).addend != NONE:
            return False
        take(w, t, i, a)
        take(w, t, i, b)
    elif takes_a and adds(w, b, i, term_of(w, a)):
        take(w, t, i, a)
        t.addend = b
    elif takes_b and adds(w, a, i, term_of(w, b)):
        take(w, t, i, b)
        t.addend = a
    else:
        return False
    t.kind = SUM
    return True


cdef inline bint adds(const Work* w, uint32_t addend, uint32_t i, const Term* part) noexcept nogil:
    """Whether an argument of sum i may be what the products of the other one are added to.

    Products that may all run at once should not wait for it.
    """
    return (part.addend == NONE and may_add(w, addend, i)
            and (part.chained or not w.strategy or not state_of(w.g)[addend] & WANTED))


cdef inline void take(const Work* w, Term* t, uint32_t i, uint32_t part) noexcept nogil:
    """Let sum i, whose term this is, take in one of its arguments."""
    cdef Term* p = term_of(w, part)
    p.into = i
    if t.first == NONE:
        t.first = p.first
    else:
        term_of(w, t.last).next = p.first
    t.last = p.last
    t.chained |= p.chained
    if p.addend != NONE:
        t.addend = p.addend


# ---- how -------------------------------------------------------------------------------

cdef uint32_t change_sums(Work* w) noexcept nogil:
    """Change sums that no other one takes in; returns how many nodes they have taken in."""
    cdef Graph* g = w.g
    cdef uint32_t i = w.highest + 1, changed = 0, taken = 0
    cdef Term* t
    if not has_room(w):
        return 0
    while i > max(w.lowest, g.n_kept):          # sums before their terms
        i -= 1
        t = term_of(w, i)
        if t.kind == OTHER:
            continue
        if t.into != NONE:
            drop_part(w, i, t)
            taken += 1
        elif t.kind == SUM:
            change(w, i, t)
            changed += 1
    add_counts(&in_sums.changed_and_taken, changed, taken)
    return taken


cdef bint has_room(Work* w) noexcept nogil:
    """Whether there is room for all that is written."""
    cdef Graph* g = w.g
    cdef const Term* t
    cdef uint32_t i
    cdef size_t n = 0
    for i in range(max(w.lowest, g.n_kept), w.highest + 1):
        t = term_of(w, i)
        n += t.kind != OTHER
    if array_push(&g.args, 2 * n * sizeof(uint32_t)) == NULL:
        return False
    array_rewind(&g.args, g.args.top - 2 * n * sizeof(uint32_t))
    if not g.forward_only:
        if array_push(&g.taken, n * sizeof(Taken)) == NULL:
            return False
        array_rewind(&g.taken, g.taken.top - n * sizeof(Taken))
    return True


cdef void drop_part(const Work* w, uint32_t i, Term* t) noexcept nogil:
    """Note which sum has taken in a node, and that it is not wanted."""
    cdef const Term* sum = term_of(w, t.into)
    cdef Taken* taken
    if sum.into != NONE:
        t.into = sum.into
    state_of(w.g)[i] &= <uint8_t>~WANTED
    if not w.g.forward_only:                    # without backward nobody asks for gradients
        taken = <Taken*>array_push(&w.g.taken, sizeof(Taken))
        taken.part = i
        taken.sum = t.into
        taken.factor = NO_NODE


cdef void change(const Work* w, uint32_t i, Term* t) noexcept nogil:
    """Let a sum be an affine map: of its addend, or else of its first product, and all other products."""
    cdef Graph* g = w.g
    cdef Node* y = &nodes_of(g)[i]
    cdef uint32_t[2] before
    cdef uint32_t k, p = t.first, addend = t.addend
    cdef uint32_t* args
    before[0], before[1] = args_of(g, y)[0], args_of(g, y)[1]
    if addend == NONE:
        addend = p
        term_of(w, p).into = NONE
        p = term_of(w, p).next
    y.op = <uint16_t>affine_op
    y.nargs = 1
    y.args = <uint32_t>(g.args.top // sizeof(uint32_t))
    args = <uint32_t*>array_push(&g.args, sizeof(uint32_t))
    args[0] = addend
    while p != NONE:
        args = <uint32_t*>array_push(&g.args, 2 * sizeof(uint32_t))
        args[0] = args_of(g, &nodes_of(g)[p])[0]
        args[1] = args_of(g, &nodes_of(g)[p])[1]
        y.nargs += 2
        p = term_of(w, p).next
    if g.forward_only:
        args = args_of(g, y)
        for k in range(y.nargs):
            uses_of(g)[args[k]].consumers += 1
        for k in range(2):
            uses_of(g)[before[k]].consumers -= 1
            drop_unneeded(g, before[k])
