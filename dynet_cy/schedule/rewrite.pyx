"""Rewrites: sums of products that run as one op, instead of an op for each product and each sum; see rewrite.pxd."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from dynet_cy.core.engine cimport add_count, add_tunable
from dynet_cy.core.tensor cimport rows_of, same_shape, size_of, total_of
from dynet_cy.core.threads cimport add_to
from dynet_cy.graph.structs cimport (
    SHARED, WANTED, Absorbed, args_of, device_of, drop_unneeded, holder_in, nodes_of, state_of, uses_of,
)
from dynet_cy.memory.arena cimport arena_alloc, arena_rewind, array_push, array_rewind
from dynet_cy.ops.registry cimport ADDS, MULTIPLIES, PRODUCT, op_at
from dynet_cy.schedule.facts cimport NONE

# **Sums of products**, `W*x + U*h + b`, become an affine map. The op copies the other term and adds each product to it,
# so that no product is written separately and read again, and backward multiplies by the gradient of the sum instead of
# a copy of it for each term. Only products of parameters are absorbed, since those of other matrices batch better by
# themselves. In `W*x + U*h + b` of a recurrent network, where x does not depend on h, all `W*x` run at once. Within the
# sum they would run step by step, which is slower, also with 32 sequences side by side. So a product that does not
# depend on others of its matrix stays out of a sum with one that does: the other one is added to it.
#
# **Sums of activations**, such as `cmult(logistic(a), tanh(b)) + cmult(logistic(f), c)`, are the gates of recurrent
# cells. One op computes such a sum block by block: the results of the activations and products stay in the first-level
# cache, and neither they nor their gradients take memory. Backward computes the activations once more, which takes less
# time than to write them and read them again. The products are added in the order in which the program adds them, so
# the bits are those of the single ops. Long vectors do not change: threads divide the calls of single ops, and one
# of them fills the caches anyway.

cdef extern from "wanted.h" nogil:
    # derived: functions of next_wanted
    uint32_t next_wanted "dy_next_wanted"(const uint8_t* state, uint32_t i, uint32_t end)
    # end of functions


# ---- the table -------------------------------------------------------------------------

cdef const Op* ops = op_at(0)       # all ops; the table never moves
memset(rewrites_at, 0, sizeof(rewrites_at))


cdef int add_rewrite(str name, const Pattern* pattern, const Op* becomes) except -1:
    cdef Row* row = &rewrites_at[pattern.role]
    if row.pattern != NULL:
        raise RuntimeError(f"{name}: another rewrite looks for the same role")
    row.pattern = pattern
    row.becomes = becomes
    row.on = True
    add_tunable(f"schedule.rewrite.{name}.on", &row.on, 1)
    add_count(f"schedule.rewrite.{name}.changed", &row.changed)
    add_count(f"schedule.rewrite.{name}.absorbed", &row.absorbed)
    return 0


cdef uint32_t rewrites_of(const Graph* g, int strategy) noexcept nogil:
    cdef const Row* row
    cdef uint32_t role, found = 0
    for role in range(<uint32_t>MOST_ROLES):
        row = &rewrites_at[role]
        if row.on and (row.pattern.allowed == NULL or row.pattern.allowed(g, strategy)):
            found |= <uint32_t>1 << role
    return found


cdef uint32_t rewrite(Graph* g, const uint32_t* targets, uint32_t n, int strategy, uint32_t found, uint32_t lowest,
                      uint32_t highest) noexcept nogil:
    cdef size_t top = g.scratch.top
    cdef Search s
    cdef Row* row
    cdef uint32_t i, changed, absorbed, in_all = 0
    s.g = g
    s.strategy = strategy
    s.lowest = lowest
    s.highest = highest
    s.first = max(lowest, g.n_kept)
    s.users = count_users(g, lowest, g.n_nodes, False)
    if s.users != NULL:
        for i in range(n):
            if targets[i] >= lowest:
                s.users[targets[i] - lowest] += 2
        for i in range(<uint32_t>MOST_ROLES):
            if found >> i & 1:
                row = &rewrites_at[i]
                absorbed = 0
                changed = row.pattern.change(&s, row.becomes, &absorbed)
                add_to(&row.changed, changed)
                add_to(&row.absorbed, absorbed)
                in_all += absorbed
    arena_rewind(&g.scratch, top)
    return in_all


cdef uint32_t* count_users(Graph* g, uint32_t lowest, uint32_t end, bint wanted) noexcept nogil:
    cdef const uint8_t* state = state_of(g)
    cdef size_t bytes = (end - lowest) * sizeof(uint32_t)
    cdef uint32_t* users = <uint32_t*>arena_alloc(&g.scratch, bytes)
    cdef const Node* x
    cdef const uint32_t* args
    cdef uint32_t i, k
    if users == NULL:
        return NULL
    memset(users, 0, bytes)
    i = next_wanted(state, lowest, end) if wanted else lowest
    while i < end:
        x = &nodes_of(g)[i]
        args = args_of(g, x)
        for k in range(x.nargs):
            if args[k] >= lowest:
                users[args[k] - lowest] += 1
        i = next_wanted(state, i + 1, end) if wanted else i + 1
    return users


# ---- what patterns share ---------------------------------------------------------------

cdef inline uint8_t role_of(const Node* x) noexcept nogil:
    return ops[x.op].role


cdef inline bint may_absorb(const Search* s, uint32_t part, const Node* y) noexcept nogil:
    """Whether y, a sum or product, may absorb an argument: only it needs the argument, which is as large."""
    cdef Graph* g = s.g
    cdef const Node* x = &nodes_of(g)[part]
    return (part >= s.first and state_of(g)[part] & WANTED and s.users[part - s.lowest] == 1
            and x.dim.bd == y.dim.bd and same_shape(&x.dim, &y.dim)
            and device_of(g, part) == device_of(g, <uint32_t>(y - nodes_of(g)))
            and not (g.forward_only and holder_in(&uses_of(g)[part]) != NULL))


cdef bint has_memory(Graph* g, size_t n_args, size_t n_absorbed) noexcept nogil:
    """Make sure that so many arguments and records can be added."""
    if array_push(&g.args, n_args * sizeof(uint32_t)) == NULL:
        return False
    array_rewind(&g.args, g.args.top - n_args * sizeof(uint32_t))
    if not g.forward_only:
        if array_push(&g.absorbed, n_absorbed * sizeof(Absorbed)) == NULL:
            return False
        array_rewind(&g.absorbed, g.absorbed.top - n_absorbed * sizeof(Absorbed))
    return True


cdef inline void absorb(Graph* g, uint32_t part, uint32_t sum, uint32_t factor) noexcept nogil:
    """Record which sum has absorbed a node, and that the plan does not need the node.  `has_memory` comes first."""
    cdef Absorbed* record
    state_of(g)[part] &= <uint8_t>~WANTED
    if not g.forward_only:                      # without backward no gradients are requested
        record = <Absorbed*>array_push(&g.absorbed, sizeof(Absorbed))
        record.part = part
        record.sum = sum
        record.factor = factor


cdef void become(Graph* g, uint32_t sum, const Op* op, uint32_t* args, uint32_t n) noexcept nogil:
    """Let a sum be a node of another op, with n arguments, the last that were added to `g.args`."""
    cdef Node* y = &nodes_of(g)[sum]
    cdef const uint32_t* before = args_of(g, y)
    cdef uint32_t k, n_before = y.nargs
    y.op = <uint16_t>op.id
    y.nargs = n
    y.args = <uint32_t>(args - <uint32_t*>g.args.base)
    if g.forward_only:
        for k in range(n):
            uses_of(g)[args[k]].consumers += 1
        for k in range(n_before):
            uses_of(g)[before[k]].consumers -= 1
            drop_unneeded(g, before[k])


# ---- sums of products: which -----------------------------------------------------------

cdef enum:
    OTHER
    FACTORS                         # a product of a parameter
    SUM                             # a sum of some

# A node of the search, by its number minus `lowest`.
cdef struct Term:
    uint64_t behind                 # the matrices of products that it depends on, as bits, which they share beyond 64
    uint32_t into                   # the sum that absorbs it, or NONE
    uint32_t addend                 # of a sum: the term that is no product of it, or NONE
    uint32_t first, last            # its products
    uint32_t next                   # of a product: the next one of its sum
    uint8_t kind
    bint chained                    # a product of its matrix depends on another one

cdef struct Terms:
    const Search* s
    Term* all
    uint64_t chained                # matrices, as in `behind`


cdef bint adds_a_product(const Graph* g, const Node* x, int strategy) noexcept nogil:
    """Whether a sum adds a product to something.

    The search takes 5 ns a node, more than is gained in batches of short vectors.
    """
    cdef const uint32_t* args = args_of(g, x)
    cdef const Node* a = &nodes_of(g)[args[0]]
    cdef const Node* b = &nodes_of(g)[args[1]]
    return ((role_of(a) == PRODUCT or role_of(b) == PRODUCT)
            and (strategy == 0 or size_of(&a.dim) >= LONG or size_of(&b.dim) >= LONG))


cdef inline Term* term_of(const Terms* w, uint32_t node) noexcept nogil:
    return &w.all[node - w.s.lowest]


cdef inline bint is_of_parameter(const Graph* g, const Node* x) noexcept nogil:
    """Whether a node is the product of a parameter and as many batch elements as the result has."""
    cdef const uint32_t* args = args_of(g, x)
    return (role_of(x) == PRODUCT and state_of(g)[args[0]] & SHARED
            and nodes_of(g)[args[1]].dim.bd == x.dim.bd)


cdef uint32_t change_sums_of_products(const Search* s, const Op* becomes, uint32_t* absorbed) noexcept nogil:
    cdef Terms w
    cdef size_t bytes = (s.highest - s.lowest + 1) * sizeof(Term)
    w.s = s
    w.chained = 0
    w.all = <Term*>arena_alloc(&s.g.scratch, bytes)
    if w.all == NULL:
        return 0
    memset(w.all, 0, bytes)
    if s.strategy:
        find_chains(&w)
    return change_sums(&w, becomes, absorbed) if find_terms(&w) else 0


cdef void find_chains(Terms* w) noexcept nogil:
    """Find the matrices with products that depend on others of theirs."""
    cdef const Search* s = w.s
    cdef const Node* x
    cdef const uint32_t* args
    cdef uint64_t behind, own
    cdef uint32_t i, k
    i = next_wanted(state_of(s.g), s.lowest, s.highest + 1)
    while i <= s.highest:
        x = &nodes_of(s.g)[i]
        args = args_of(s.g, x)
        behind = 0
        for k in range(x.nargs):
            if args[k] >= s.lowest:
                behind |= term_of(w, args[k]).behind
        if is_of_parameter(s.g, x):
            own = <uint64_t>1 << (args[0] & 63)
            w.chained |= behind & own
            behind |= own
        term_of(w, i).behind = behind
        i = next_wanted(state_of(s.g), i + 1, s.highest + 1)


cdef bint find_terms(Terms* w) noexcept nogil:
    """Find sums that can absorb products; whether there is one."""
    cdef Graph* g = w.s.g
    cdef const Node* x
    cdef Term* t
    cdef uint32_t i = next_wanted(state_of(g), w.s.first, w.s.highest + 1)
    cdef bint found = False
    while i <= w.s.highest:
        x = &nodes_of(g)[i]
        t = term_of(w, i)
        if role_of(x) == ADDS:
            found |= find_sum(w, t, i)
        elif is_of_parameter(g, x):
            begin_term(t, FACTORS)
            t.first = t.last = i
            t.chained = w.chained >> (args_of(g, x)[0] & 63) & 1
        i = next_wanted(state_of(g), i + 1, w.s.highest + 1)
    return found


cdef inline void begin_term(Term* t, uint8_t kind) noexcept nogil:
    t.kind = kind
    t.into = t.addend = t.first = t.last = t.next = NONE


cdef bint find_sum(Terms* w, Term* t, uint32_t i) noexcept nogil:
    """Find what a sum of two absorbs; whether it absorbs anything."""
    cdef const Node* y = &nodes_of(w.s.g)[i]
    cdef uint32_t a = args_of(w.s.g, y)[0], b = args_of(w.s.g, y)[1]
    cdef bint takes_a = may_go(w, a, y), takes_b = may_go(w, b, y)
    if takes_a and takes_b and term_of(w, a).chained != term_of(w, b).chained:
        takes_a, takes_b = term_of(w, a).chained, term_of(w, b).chained
    if takes_a and takes_b:
        if term_of(w, a).addend != NONE and term_of(w, b).addend != NONE:
            return False
        begin_term(t, SUM)
        join(w, t, i, a)
        join(w, t, i, b)
        return True
    if takes_b:
        a, b = b, a
    if not (takes_a or takes_b) or not may_add(w, b, y, term_of(w, a)):
        return False
    begin_term(t, SUM)
    join(w, t, i, a)
    t.addend = b
    return True


cdef inline bint may_go(const Terms* w, uint32_t part, const Node* y) noexcept nogil:
    """Whether y may absorb one of its arguments: a product or a sum of some."""
    return may_absorb(w.s, part, y) and term_of(w, part).kind != OTHER


cdef inline bint may_add(const Terms* w, uint32_t addend, const Node* y, const Term* part) noexcept nogil:
    """Whether the products of a part of y can be added to the other argument of y.

    Products that may all run at once should not wait for it.
    """
    cdef const Node* a = &nodes_of(w.s.g)[addend]
    return (part.addend == NONE
            and rows_of(&a.dim) == rows_of(&y.dim) and (a.dim.bd == y.dim.bd or a.dim.bd == 1)
            and (size_of(&a.dim) == size_of(&y.dim) or size_of(&a.dim) == rows_of(&y.dim))
            and (part.chained or not w.s.strategy or not state_of(w.s.g)[addend] & WANTED))


cdef inline void join(const Terms* w, Term* t, uint32_t i, uint32_t part) noexcept nogil:
    """Let sum i, whose term this is, absorb one of its arguments."""
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


# ---- sums of products: how -------------------------------------------------------------

cdef uint32_t change_sums(Terms* w, const Op* becomes, uint32_t* absorbed) noexcept nogil:
    """Change sums that no other one absorbs; returns how many."""
    cdef Graph* g = w.s.g
    cdef uint32_t i, changed = 0
    cdef size_t n = 0
    cdef Term* t
    for i in range(w.s.first, w.s.highest + 1):
        n += term_of(w, i).kind != OTHER
    if not has_memory(g, 2 * n, n):
        return 0
    i = w.s.highest + 1
    while i > w.s.first:                        # sums before their terms
        i -= 1
        t = term_of(w, i)
        if t.kind == OTHER:
            continue
        if t.into != NONE:
            if term_of(w, t.into).into != NONE:
                t.into = term_of(w, t.into).into
            absorb(g, i, t.into, NO_NODE)
            absorbed[0] += 1
        elif t.kind == SUM:
            make_affine(w, i, t, becomes)
            changed += 1
    return changed


cdef void make_affine(const Terms* w, uint32_t i, const Term* t, const Op* becomes) noexcept nogil:
    """Let a sum be an affine map: of its addend, or else of its first product, and all other products."""
    cdef Graph* g = w.s.g
    cdef uint32_t p = t.first, n = 1
    cdef uint32_t* args = <uint32_t*>array_push(&g.args, sizeof(uint32_t))
    args[0] = t.addend
    if t.addend == NONE:
        args[0] = p
        term_of(w, p).into = NONE
        p = term_of(w, p).next
    while p != NONE:
        array_push(&g.args, 2 * sizeof(uint32_t))
        args[n] = args_of(g, &nodes_of(g)[p])[0]
        args[n + 1] = args_of(g, &nodes_of(g)[p])[1]
        n += 2
        p = term_of(w, p).next
    become(g, i, becomes, args, n)


# ---- sums of activations: which --------------------------------------------------------

cdef enum:
    MOST_LONG = 4096                # numbers of a vector
    MOST_PARTS = 4 * MOST_PRODUCTS  # sums, products, and two activations of each product

# A sum that may be changed: what it adds up, from the last term to the first.
cdef struct Gates:
    uint32_t addend                             # its first term, if that is no product; or NO_NODE
    uint32_t n                                  # products
    uint32_t[2 * MOST_PRODUCTS] factors         # two of each product, or what their activations are of
    uint32_t[2 * MOST_PRODUCTS] activations     # their numbers, or 0
    uint32_t n_parts
    uint32_t[MOST_PARTS] parts                  # nodes to absorb, and for each its factor, as in `Absorbed`
    uint32_t[MOST_PARTS] part_factors


cdef bint may_have_gates(const Graph* g, int strategy) noexcept nogil:
    return strategy != 0 and not g.forward_only and not g.device and not g.multi_device


cdef inline bint is_middling(const Node* x) noexcept nogil:
    """Whether a vector is neither short nor long."""
    return LONG <= total_of(&x.dim) <= MOST_LONG


cdef bint multiplies_activations(const Graph* g, const Node* x, int strategy) noexcept nogil:
    cdef const uint32_t* args = args_of(g, x)
    return ((ops[nodes_of(g)[args[0]].op].activation or ops[nodes_of(g)[args[1]].op].activation)
            and is_middling(x))


cdef uint32_t change_sums_of_activations(const Search* s, const Op* becomes, uint32_t* absorbed) noexcept nogil:
    cdef Graph* g = s.g
    cdef const Node* x
    cdef Gates sum
    cdef uint32_t i = s.highest + 1, changed = 0
    while i > s.first:                          # sums before their terms
        i -= 1
        x = &nodes_of(g)[i]
        if (state_of(g)[i] & WANTED and (role_of(x) == MULTIPLIES or role_of(x) == ADDS) and is_middling(x)
                and find_gates(s, i, &sum)):
            if not make_gates(g, i, &sum, becomes):
                break                           # there is no memory: the others do not change
            changed += 1
            absorbed[0] += sum.n_parts
    return changed


cdef inline bint fits(const Search* s, uint32_t i, const Node* y) noexcept nogil:
    """Whether a node may be a term or a factor of y: it has y's shape, and is not one number or vector for many."""
    cdef const Node* x = &nodes_of(s.g)[i]
    return not state_of(s.g)[i] & SHARED and x.dim.bd == y.dim.bd and same_shape(&x.dim, &y.dim)


cdef inline bint is_product(const Search* s, uint32_t i, const Node* y) noexcept nogil:
    cdef const Node* x = &nodes_of(s.g)[i]
    return role_of(x) == MULTIPLIES and fits(s, args_of(s.g, x)[0], y) and fits(s, args_of(s.g, x)[1], y)


cdef inline void add_part(Gates* sum, uint32_t part, uint32_t factor) noexcept nogil:
    sum.parts[sum.n_parts] = part
    sum.part_factors[sum.n_parts] = factor
    sum.n_parts += 1


cdef bint find_gates(const Search* s, uint32_t root, Gates* sum) noexcept nogil:
    """Find what a sum adds up; whether it can absorb anything."""
    cdef const Node* nodes = nodes_of(s.g)
    cdef const Node* y = &nodes[root]
    cdef const uint32_t* args
    cdef uint32_t i = root, product, rest
    cdef bint takes_a, takes_b
    sum.addend = NO_NODE
    sum.n = sum.n_parts = 0
    while True:                                 # i: the sum of the terms that are not found yet
        if sum.n < MOST_PRODUCTS and is_product(s, i, y):
            if i != root:
                add_part(sum, i, NO_NODE)
            add_product(s, i, y, sum)
            break
        args = args_of(s.g, &nodes[i])
        takes_a = takes_b = False
        if sum.n < MOST_PRODUCTS and role_of(&nodes[i]) == ADDS:
            takes_a = may_absorb(s, args[0], y) and is_product(s, args[0], y)
            takes_b = may_absorb(s, args[1], y) and is_product(s, args[1], y)
        product = args[takes_b]
        rest = args[not takes_b]
        if not (takes_a or takes_b) or not fits(s, rest, y):
            sum.addend = i
            break
        if i != root:
            add_part(sum, i, NO_NODE)
        add_part(sum, product, NO_NODE)
        add_product(s, product, y, sum)
        i = rest
        if not may_absorb(s, i, y) or (role_of(&nodes[i]) != ADDS and role_of(&nodes[i]) != MULTIPLIES):
            sum.addend = i
            break
    return sum.n_parts != 0


cdef void add_product(const Search* s, uint32_t product, const Node* y, Gates* sum) noexcept nogil:
    cdef const Node* nodes = nodes_of(s.g)
    cdef const uint32_t* args = args_of(s.g, &nodes[product])
    cdef const Node* a
    cdef uint32_t i, at
    for i in range(2):
        a = &nodes[args[i]]
        at = 2 * sum.n + i
        sum.factors[at] = args[i]
        sum.activations[at] = 0
        if (ops[a.op].activation and may_absorb(s, args[i], y) and fits(s, args_of(s.g, a)[0], y)
                and not a.attrs[0].u and not a.attrs[1].u):
            sum.factors[at] = args_of(s.g, a)[0]
            sum.activations[at] = ops[a.op].activation
            add_part(sum, args[i], args[1 - i])
    sum.n += 1


# ---- sums of activations: how ----------------------------------------------------------

cdef bint make_gates(Graph* g, uint32_t root, const Gates* sum, const Op* becomes) noexcept nogil:
    """Let a sum be one op, and its parts absorbed; False if there is no memory."""
    cdef uint32_t i, k, at = sum.addend != NO_NODE, n = at + 2 * sum.n
    cdef uint32_t* args
    cdef Node* y
    if not has_memory(g, n, sum.n_parts):
        return False
    args = <uint32_t*>array_push(&g.args, n * sizeof(uint32_t))
    y = &nodes_of(g)[root]
    if at:
        args[0] = sum.addend
    for i in range(sum.n):
        k = 2 * (sum.n - 1 - i)
        args[at + 2 * i] = sum.factors[k]
        args[at + 2 * i + 1] = sum.factors[k + 1]
        y.attrs[i].u = sum.activations[k] | sum.activations[k + 1] << 8
    become(g, root, becomes, args, n)
    for i in range(sum.n_parts):
        absorb(g, sum.parts[i], root, sum.part_factors[i])
    return True


# ---- the patterns ----------------------------------------------------------------------

cdef Pattern of_products, of_activations

of_products.role = ADDS
of_products.allowed = NULL
of_products.shows = adds_a_product
of_products.change = change_sums_of_products
sums_of_products = &of_products

of_activations.role = MULTIPLIES
of_activations.allowed = may_have_gates
of_activations.shows = multiplies_activations
of_activations.change = change_sums_of_activations
sums_of_activations = &of_activations
