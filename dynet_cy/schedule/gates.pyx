"""Sums of products of activations: which of them, and how they are changed.

The products of a sum are added in the order in which the program adds them, so that its bits are those of the single
ops.  Long vectors stay as they are: threads divide the calls of single ops, and one of them fills the caches anyway.
Graphs that only go forward, those without automatic batching, and those that use a GPU stay too.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport same_shape, total_of
from dynet_cy.graph.structs cimport (
    NO_NODE, SHARED, WANTED, Graph, Node, Taken, args_of, nodes_of, state_of,
)
from dynet_cy.memory.arena cimport arena_alloc, arena_rewind, array_push, array_rewind
from dynet_cy.ops.registry cimport MAX_OPS
from dynet_cy.schedule.changes cimport in_gates
from dynet_cy.schedule.counting cimport add_counts
from dynet_cy.schedule.views cimport LONG


cdef enum:
    MOST = 4096                     # numbers of a vector
    MOST_PARTS = 4 * MOST_PRODUCTS  # sums, products, and two activations of each product

cdef uint32_t mul_op = NO_NODE
cdef uint32_t add_op = NO_NODE
cdef uint32_t gates_op = NO_NODE
cdef uint8_t[MAX_OPS] functions
memset(functions, 0, sizeof(functions))

# A sum that may be changed: what it adds up, from the last term to the first.
cdef struct Sum:
    uint32_t root
    uint32_t addend                             # its first term, if that is no product; or NO_NODE
    uint32_t n                                  # products
    uint32_t[2 * MOST_PRODUCTS] factors         # two of each product, or what their activations are of
    uint32_t[2 * MOST_PRODUCTS] activations     # their functions, or 0
    uint32_t n_parts
    Taken[MOST_PARTS] parts

cdef struct Work:
    Graph* g
    uint32_t lowest                             # no node below it is changed, or counted
    uint32_t first                              # the same for nodes that stay as they were made
    uint32_t* users                             # how often nodes use a node; of targets two more


cdef void set_gate_ops(uint32_t mul, uint32_t add, uint32_t gates) noexcept nogil:
    global mul_op, add_op, gates_op
    mul_op = mul
    add_op = add
    gates_op = gates


cdef void set_activation(uint32_t op, uint32_t function) noexcept nogil:
    functions[op] = <uint8_t>function


cdef bint is_gate(const Graph* g, const Node* product) noexcept nogil:
    cdef const Node* nodes = nodes_of(g)
    cdef const uint32_t* args = args_of(g, product)
    return ((functions[nodes[args[0]].op] or functions[nodes[args[1]].op])
            and LONG <= total_of(&product.dim) <= MOST)


cdef uint32_t take_in_gates(Graph* g, const uint32_t* targets, uint32_t n, int strategy, uint32_t lowest,
                            uint32_t highest) noexcept nogil:
    cdef size_t top = g.scratch.top
    cdef Work w
    cdef uint32_t taken = 0
    if (not in_gates.on or not strategy or g.forward_only or g.device or g.multi_device
            or not g.multiplies_activations & FOUND):
        return 0
    w.g = g
    w.lowest = lowest
    w.first = max(lowest, g.n_kept)
    w.users = <uint32_t*>arena_alloc(&g.scratch, (g.n_nodes - lowest) * sizeof(uint32_t))
    if w.users != NULL:
        count_users(&w, targets, n)
        taken = change_sums(&w, highest)
    arena_rewind(&g.scratch, top)
    return taken


cdef void count_users(Work* w, const uint32_t* targets, uint32_t n) noexcept nogil:
    cdef Graph* g = w.g
    cdef const Node* nodes = nodes_of(g)
    cdef const uint32_t* args
    cdef uint32_t i, k
    memset(w.users, 0, (g.n_nodes - w.lowest) * sizeof(uint32_t))
    for i in range(n):
        if targets[i] >= w.lowest:
            w.users[targets[i] - w.lowest] += 2
    for i in range(w.lowest, g.n_nodes):
        args = args_of(g, &nodes[i])
        for k in range(nodes[i].nargs):
            if args[k] >= w.lowest:
                w.users[args[k] - w.lowest] += 1


cdef uint32_t change_sums(Work* w, uint32_t highest) noexcept nogil:
    """Change sums that no other one takes in; returns how many nodes they have taken in."""
    cdef uint32_t i = highest + 1, changed = 0, taken = 0
    cdef Sum sum
    while i > w.first:                          # sums before their terms
        i -= 1
        if is_sum(w, i) and find_terms(w, i, &sum):
            if not change(w, &sum):
                break                           # there is no memory: the others stay as they are
            changed += 1
            taken += sum.n_parts
    add_counts(&in_gates.changed_and_taken, changed, taken)
    return taken


# ---- which -----------------------------------------------------------------------------

cdef inline bint is_sum(const Work* w, uint32_t i) noexcept nogil:
    """Whether a node that is wanted is a sum or a product of vectors that are neither short nor long."""
    cdef const Node* x = &nodes_of(w.g)[i]
    return ((x.op == mul_op or x.op == add_op) and state_of(w.g)[i] & WANTED
            and LONG <= total_of(&x.dim) <= MOST)


cdef inline bint fits(const Work* w, uint32_t i, const Node* y) noexcept nogil:
    """Whether a node may be a term or a factor of y: it has y's shape, and is not one number or vector for many."""
    cdef const Node* x = &nodes_of(w.g)[i]
    return not state_of(w.g)[i] & SHARED and x.dim.bd == y.dim.bd and same_shape(&x.dim, &y.dim)


cdef inline bint may_go(const Work* w, uint32_t i, const Node* y) noexcept nogil:
    """Whether nothing else needs a term or a factor of y."""
    return i >= w.first and state_of(w.g)[i] & WANTED and w.users[i - w.lowest] == 1 and fits(w, i, y)


cdef inline bint is_product(const Work* w, uint32_t i, const Node* y) noexcept nogil:
    cdef const Node* x = &nodes_of(w.g)[i]
    return x.op == mul_op and fits(w, args_of(w.g, x)[0], y) and fits(w, args_of(w.g, x)[1], y)


cdef inline void note_part(Sum* sum, uint32_t part, uint32_t factor) noexcept nogil:
    cdef Taken* taken = &sum.parts[sum.n_parts]
    taken.part = part
    taken.sum = sum.root
    taken.factor = factor
    sum.n_parts += 1


cdef bint find_terms(Work* w, uint32_t root, Sum* sum) noexcept nogil:
    """Find what a sum adds up; whether it can take in anything."""
    cdef const Node* nodes = nodes_of(w.g)
    cdef const Node* y = &nodes[root]
    cdef const uint32_t* args
    cdef uint32_t i = root, product, rest
    cdef bint takes_a, takes_b
    sum.root = root
    sum.addend = NO_NODE
    sum.n = sum.n_parts = 0
    while True:                                 # i: the sum of the terms that are not found yet
        if sum.n < MOST_PRODUCTS and is_product(w, i, y):
            if i != root:
                note_part(sum, i, NO_NODE)
            add_product(w, i, y, sum)
            break
        args = args_of(w.g, &nodes[i])
        if sum.n < MOST_PRODUCTS and nodes[i].op == add_op:
            takes_a = may_go(w, args[0], y) and is_product(w, args[0], y)
            takes_b = may_go(w, args[1], y) and is_product(w, args[1], y)
        else:
            takes_a = takes_b = False
        product = args[takes_b]
        rest = args[not takes_b]
        if not (takes_a or takes_b) or not fits(w, rest, y):
            sum.addend = i
            break
        if i != root:
            note_part(sum, i, NO_NODE)
        note_part(sum, product, NO_NODE)
        add_product(w, product, y, sum)
        i = rest
        if not may_go(w, i, y) or (nodes[i].op != add_op and nodes[i].op != mul_op):
            sum.addend = i
            break
    return sum.n_parts != 0


cdef void add_product(const Work* w, uint32_t product, const Node* y, Sum* sum) noexcept nogil:
    cdef const Node* nodes = nodes_of(w.g)
    cdef const uint32_t* args = args_of(w.g, &nodes[product])
    cdef const Node* a
    cdef uint32_t i, at
    for i in range(2):
        a = &nodes[args[i]]
        at = 2 * sum.n + i
        sum.factors[at] = args[i]
        sum.activations[at] = 0
        if (functions[a.op] and may_go(w, args[i], y) and fits(w, args_of(w.g, a)[0], y)
                and not a.attrs[0].u and not a.attrs[1].u):
            sum.factors[at] = args_of(w.g, a)[0]
            sum.activations[at] = functions[a.op]
            note_part(sum, args[i], args[1 - i])
    sum.n += 1


# ---- how -------------------------------------------------------------------------------

cdef bint change(const Work* w, const Sum* sum) noexcept nogil:
    """Let a sum be one op, and its parts unwanted; False if there is no memory."""
    cdef Graph* g = w.g
    cdef Node* y
    cdef uint32_t i, k, n = 2 * sum.n + (sum.addend != NO_NODE)
    cdef uint32_t* args = <uint32_t*>array_push(&g.args, n * sizeof(uint32_t))
    cdef Taken* taken = <Taken*>array_push(&g.taken, sum.n_parts * sizeof(Taken))
    if args == NULL or taken == NULL:
        if args != NULL:
            array_rewind(&g.args, g.args.top - n * sizeof(uint32_t))
        if taken != NULL:
            array_rewind(&g.taken, g.taken.top - sum.n_parts * sizeof(Taken))
        return False
    y = &nodes_of(g)[sum.root]
    y.op = <uint16_t>gates_op
    y.nargs = n
    y.args = <uint32_t>(args - <uint32_t*>g.args.base)
    if sum.addend != NO_NODE:
        args[0] = sum.addend
        args += 1
    for i in range(sum.n):
        k = 2 * (sum.n - 1 - i)
        args[2 * i] = sum.factors[k]
        args[2 * i + 1] = sum.factors[k + 1]
        y.attrs[i].u = sum.activations[k] | sum.activations[k + 1] << 8
    for i in range(sum.n_parts):
        taken[i] = sum.parts[i]
        state_of(g)[sum.parts[i].part] &= <uint8_t>~WANTED
    return True
