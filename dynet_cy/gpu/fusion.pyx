"""Fusion of consecutive elementwise batches on a device: one launch of a kernel compiled for them.

The gates of a cell that a program writes out, such as `cmult(logistic(x), tanh(y)) + z`, are a batch for each op,
between two products.  If such batches consist of equal pieces, one for each cell, then a thread can compute all ops
for one number of one cell: the pieces are the instances of a signature (below).  A run is such a sequence of
batches.  Results that are part of a vector (`pick_range`) belong to it too: these are read where they are.

When a plan is made, `find_fusions` looks for runs, and orders the nodes of each of their batches: first one node of
each instance, then another one of each.  So the results of a node of all instances are side by side, and a table has
to list only the addresses of arguments that are computed elsewhere.  Nothing is gathered.  The last batch of a run
(its form is FUSION) makes the launch; the batches before it (IN_FUSION) only get memory.

Backward is one launch too: the gradients of results within a run stay in registers, and contributions to the
gradients of arguments are written or added where they belong, in a fixed order.  If several instances contribute to
the same gradient, each writes to working memory, and moves add them.  All values are stored as without runs.  So the
batches may also run one by one: if there is no kernel for them (yet), while numbers are checked, or if all gradients
are asked for.
"""

from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcmp, memcpy, memset

from dynet_cy.core.engine cimport add_tunable
from dynet_cy.core.mutex cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock
from dynet_cy.core.tensor cimport total_of
from dynet_cy.core.threads cimport Number
from dynet_cy.execute.gradients cimport contribute
from dynet_cy.execute.walk cimport Form, Walk, allocate, claim, settle, settle_gradients
from dynet_cy.gpu.addresses cimport BatchAddress, gradient_there, is_live, there
from dynet_cy.gpu.commands cimport (
    CELLS, Command, Pass, add_command, allocate_lines, backward_alone, device_forms, first_of, forward_alone,
    make_table, note_done, on_device, set_lines, waiting_forward,
)
from dynet_cy.gpu.driver cimport Gpu
from dynet_cy.gpu.registry cimport NO_MODULE, gpu_op_named, kernel_at, load_code, number_of
from dynet_cy.graph.structs cimport (
    FLATTENED, FUSION, IN_FUSION, LIVE, NEEDS_GRAD, NO_BATCH, NO_NODE, ONE, SHARED, STACKED, Batch, Node, args_of,
    batches_of, items_of, nodes_of, order_of, state_of,
)
from dynet_cy.kernels.kernels cimport DY_BINARY_COUNT, DY_UNARY_COUNT
from dynet_cy.memory.arena cimport arena_alloc, arena_rewind
from dynet_cy.ops.elementwise cimport BINARY, UNARY
from dynet_cy.ops.registry cimport MAX_OPS, Op, reads, reads_result
from dynet_cy.schedule.facts cimport PlanFacts, batch_of, list_positions, open_facts

from dynet_cy.gpu.compiler import text_cubin
from dynet_cy.gpu.driver import architecture
from dynet_cy.gpu.fused_source import FusedNode, source_of

# What a node of a signature is: a row of a .def file, a part of another value, a sum.
cdef enum:
    UNARY_ROW = 1
    BINARY_ROW
    COPY
    SUM

cdef enum:
    MOST_NODES = 24
    MOST_TERMS = 4                  # arguments of a sum
    MOST_WORDS = MOST_NODES * (MOST_TERMS + 1)
    OUTSIDE = 0xFFFFFFFF            # an argument that is not one of the nodes

# The nodes of one instance, each as a word, made by `node_word`, and a word for each argument: the number of a node, or
# OUTSIDE.  `grads`, backward only: bits of the nodes that may have a gradient from elsewhere, or are asked for it.
cdef struct Signature:
    uint32_t n_words
    uint32_t[MOST_WORDS] words
    bint backward
    uint32_t grads

cdef struct Fused:
    Signature signature
    int kernel                      # its number; -1: it has not been compiled
    int few                         # that of the kernel for small tables
    uint64_t devices                # bits of the devices that have loaded it
    uint64_t saved                  # launches that it has saved, or would have


cdef inline uint32_t node_word(uint32_t kind, uint32_t row, uint32_t n_args) noexcept nogil:
    return kind | row << 8 | n_args << 24

cdef enum:
    MOST_BATCHES = 16               # of a run
    MOST_OUTSIDE = 32               # arguments from elsewhere of an instance
    MOST_RANGES = 64                # parts of a vector that may be arguments
    MOST_LEFT_OUT = 2               # batches that are left out, so that the others can be a run

# What an op is in a signature, 0 if it cannot be part of one, and its row.
cdef uint8_t[MAX_OPS] kinds
cdef uint16_t[MAX_OPS] rows
memset(kinds, 0, sizeof(kinds))
cdef int which
for which in range(DY_UNARY_COUNT):
    kinds[UNARY[which].id] = UNARY_ROW
    rows[UNARY[which].id] = <uint16_t>which
for which in range(DY_BINARY_COUNT):
    if BINARY[which] != NULL:
        kinds[BINARY[which].id] = BINARY_ROW
        rows[BINARY[which].id] = <uint16_t>which
kinds[number_of(gpu_op_named(b"pick_range"))] = COPY
kinds[number_of(gpu_op_named(b"esum"))] = SUM


# ---- finding runs ----------------------------------------------------------------------

# Planned batches that might be a run.
cdef struct Piece:
    Graph* g
    const Batch* batch
    uint32_t n                      # batches
    uint32_t at                     # where their nodes begin in graph.order
    uint32_t n_nodes
    PlanFacts facts
    const uint32_t* position        # by node, from `facts.lowest` on: its position in graph.order, or NO_NODE
    # Of all batches that might be a run: where their nodes begin in graph.order, and for each node the positions of its
    # arguments, MOST_TERMS of them.  They are looked up once, since nodes are anywhere in memory.
    uint32_t whole
    uint32_t* arguments


cdef bint fits(const Graph* g, const Node* x) noexcept nogil:
    """Whether a node may be part of a run: its arguments have as many numbers, or it is a part of one."""
    cdef const uint32_t* args = args_of(g, x)
    cdef const Node* a
    cdef size_t n = total_of(&x.dim)
    cdef uint32_t i
    if n == 0 or x.nargs > MOST_TERMS:
        return False
    for i in range(x.nargs):
        a = &nodes_of(g)[args[i]]
        if state_of(g)[args[i]] & SHARED:       # a parameter: contributions to its gradient are summed elsewhere
            return False
        if kinds[x.op] == COPY:
            if a.dim.bd != 1 or a.dim.nd == 0 or x.attrs[0].u + 1 != <uint32_t>a.dim.nd:
                return False
        elif total_of(&a.dim) != n or a.dim.bd != x.dim.bd:
            return False
    return True


cdef bint may_be_in_run(const Graph* g, const Batch* batch) noexcept nogil:
    cdef uint32_t j
    if (batch.cell or not kinds[first_of(g, batch).op]
            or not (batch.form == ONE or batch.form == STACKED or batch.form == FLATTENED)):
        return False
    for j in range(batch.count):
        if not fits(g, &nodes_of(g)[order_of(g)[batch.first + j]]):
            return False
    return True


cdef void find_fusions(Graph* g, uint32_t begin, uint32_t n) noexcept nogil:
    cdef size_t top = g.scratch.top
    cdef Piece piece
    cdef uint32_t b = begin, end = begin + n, first
    cdef const Batch* batch = batches_of(g)
    if g.regions.top or not may_fuse():         # values may be dropped and computed again
        return
    piece.position = NULL
    while b < end:
        first = b
        while (b < end and b - first < MOST_BATCHES and may_be_in_run(g, &batch[b])
               and (b == first or batch[b].first == batch[b - 1].first + batch[b - 1].count)):
            b += 1
        if b - first >= 2:
            if piece.position == NULL and not open_piece(g, begin, n, &piece):
                break
            piece.batch = &batch[first]
            piece.n = b - first
            divide(&piece)
        b = max(b, first + 1)
    arena_rewind(&g.scratch, top)


cdef bint open_piece(Graph* g, uint32_t begin, uint32_t n, Piece* piece) noexcept nogil:
    """False if there is no memory."""
    piece.g = g
    piece.position = list_positions(&piece.facts) if open_facts(&piece.facts, g, begin, n) else NULL
    return piece.position != NULL


cdef inline const uint32_t* arguments_of(const Piece* x, uint32_t p) noexcept nogil:
    """The positions in graph.order of the arguments of node p of a piece."""
    return x.arguments + (x.at - x.whole + p) * <size_t>MOST_TERMS


cdef inline uint32_t place_in(const Piece* x, uint32_t position) noexcept nogil:
    """The place among the nodes of a piece of what stands at a position in graph.order, or NO_NODE."""
    return position - x.at if x.at <= position < x.at + x.n_nodes else <uint32_t>NO_NODE


cdef void set_piece(Piece* x, const Batch* batch, uint32_t n) noexcept nogil:
    x.batch = batch
    x.n = n
    x.at = batch.first
    x.n_nodes = batch[n - 1].first + batch[n - 1].count - batch.first


cdef void divide(const Piece* whole) noexcept nogil:
    """Find runs among batches, which end where no batch uses results of those before."""
    cdef Piece x = whole[0]
    cdef size_t top = x.g.scratch.top
    cdef uint32_t k = whole.n, end = whole.n, lowest = NO_NODE
    set_piece(&x, whole.batch, whole.n)
    x.whole = x.at
    x.arguments = <uint32_t*>arena_alloc(&x.g.scratch, x.n_nodes * <size_t>MOST_TERMS * sizeof(uint32_t))
    while k and x.arguments != NULL:
        k -= 1
        set_piece(&x, whole.batch, whole.n)
        lowest = min(lowest, list_arguments(&x, &whole.batch[k]))
        if k == 0 or lowest == NO_NODE or lowest >= whole.batch[k].first - x.at:
            fuse_most(&x, whole.batch + k, end - k)
            end = k
            lowest = NO_NODE
    arena_rewind(&x.g.scratch, top)


cdef uint32_t list_arguments(Piece* x, const Batch* batch) noexcept nogil:
    """Look up the positions of the arguments of a batch; the lowest place of one in the piece, or NO_NODE."""
    cdef const Graph* g = x.g
    cdef const Node* node
    cdef const uint32_t* args
    cdef uint32_t* to = x.arguments + (batch.first - x.whole) * <size_t>MOST_TERMS
    cdef uint32_t i, j, lowest = NO_NODE
    for j in range(batch.count):
        node = &nodes_of(g)[order_of(g)[batch.first + j]]
        args = args_of(g, node)
        for i in range(<uint32_t>MOST_TERMS):
            to[i] = NO_NODE
            if i < node.nargs and batch_of(&x.facts, args[i]) != NO_BATCH:
                to[i] = x.position[args[i] - x.facts.lowest]
                lowest = min(lowest, place_in(x, to[i]))    # NO_NODE is the largest number
        to += MOST_TERMS
    return lowest


cdef void fuse_most(Piece* x, const Batch* batch, uint32_t n) noexcept nogil:
    """Make a run of batches, or of as many as can be one."""
    cdef uint32_t k
    for k in range(min(n - 1, <uint32_t>MOST_LEFT_OUT + 1)):    # from the first one on, or up to the last one
        if fuse(x, batch, n - k) or (k and fuse(x, batch + k, n - k)):
            return


cdef inline uint32_t root(uint32_t* parents, uint32_t p) noexcept nogil:
    while parents[p] != p:
        parents[p] = parents[parents[p]]
        p = parents[p]
    return p


cdef bint fuse(Piece* x, const Batch* batch, uint32_t n) noexcept nogil:
    """Make a run of n batches, if they consist of equal instances."""
    cdef Graph* g = x.g
    cdef size_t top = g.scratch.top
    cdef uint32_t* parents
    cdef uint32_t* instances        # by root
    cdef uint32_t* places           # of the nodes of each instance
    cdef uint32_t* slots            # the number of each node in its instance
    cdef uint32_t m, k = 0
    cdef bint fused = False
    set_piece(x, batch, n)
    parents = <uint32_t*>arena_alloc(&g.scratch, 4 * <size_t>x.n_nodes * sizeof(uint32_t))
    if parents != NULL:
        instances = parents + x.n_nodes
        places = instances + x.n_nodes
        slots = places + x.n_nodes
        join(x, parents)
        m = number_instances(x, parents, instances)
        if list_instances(x, parents, instances, m, places, slots, &k) and are_equal(x, places, slots, m, k):
            write_run(x, places, parents, m, k)
            fused = True
    arena_rewind(&g.scratch, top)
    return fused


cdef void join(const Piece* x, uint32_t* parents) noexcept nogil:
    """Join each node with its arguments: those of an instance have the same root."""
    cdef const uint32_t* positions
    cdef uint32_t p, q, i
    for p in range(x.n_nodes):
        parents[p] = p
        positions = arguments_of(x, p)
        for i in range(<uint32_t>MOST_TERMS):
            q = place_in(x, positions[i])
            if q != NO_NODE:
                parents[root(parents, q)] = p


cdef uint32_t number_instances(const Piece* x, uint32_t* parents, uint32_t* instances) noexcept nogil:
    """Number the instances in the order of the last batch; the number of instances with a node in it."""
    cdef const Batch* last = x.batch + x.n - 1
    cdef uint32_t j, r, m = 0
    memset(instances, 0xFF, x.n_nodes * sizeof(uint32_t))
    for j in range(last.count):
        r = root(parents, last.first - x.at + j)
        if instances[r] == NO_NODE:
            instances[r] = m
            m += 1
    return m


cdef bint list_instances(const Piece* x, uint32_t* parents, const uint32_t* instances, uint32_t m, uint32_t* places,
                         uint32_t* slots, uint32_t* k) noexcept nogil:
    """List the k nodes of each instance: by batch, then in the order in which they were made.  False: they have
    different numbers of nodes, or too many."""
    cdef const Batch* batch
    cdef const uint32_t* ids = order_of(x.g) + x.at
    cdef uint32_t b, j, i, p, parts, at
    cdef uint32_t* filled = slots               # by instance, until slots are known
    cdef uint32_t* to
    for b in range(x.n):
        if x.batch[b].count % m:
            return False
        k[0] += x.batch[b].count // m
    if k[0] > MOST_NODES:
        return False
    at = 0
    for b in range(x.n):
        batch = &x.batch[b]
        parts = batch.count // m
        memset(filled, 0, m * sizeof(uint32_t))
        for j in range(batch.count):
            i = instances[root(parents, batch.first - x.at + j)]
            if i == NO_NODE or filled[i] == parts:
                return False
            to = places + i * k[0] + at
            p = filled[i]
            while p and ids[to[p - 1]] > ids[batch.first - x.at + j]:
                to[p] = to[p - 1]
                p -= 1
            to[p] = batch.first - x.at + j
            filled[i] += 1
        at += parts
    for i in range(m):
        for p in range(k[0]):
            slots[places[i * k[0] + p]] = p
    return True


cdef bint are_equal(const Piece* x, const uint32_t* places, const uint32_t* slots, uint32_t m,
                    uint32_t k) noexcept nogil:
    """Whether all instances have the signature and the sizes of the first one."""
    cdef const Graph* g = x.g
    cdef const uint32_t* ids = order_of(g) + x.at
    cdef const Node* node
    cdef const Node* model
    cdef size_t size = total_of(&nodes_of(g)[ids[places[0]]].dim)
    cdef uint32_t i, s, a, p, q, outside = 0
    for i in range(m):
        for s in range(k):
            node = &nodes_of(g)[ids[places[i * k + s]]]
            model = &nodes_of(g)[ids[places[s]]]
            if node.nargs != model.nargs or node.op != model.op or total_of(&node.dim) != size:
                return False
            for a in range(node.nargs):
                p = place_in(x, arguments_of(x, places[i * k + s])[a])
                q = place_in(x, arguments_of(x, places[s])[a])
                if (p == NO_NODE) != (q == NO_NODE) or (p != NO_NODE and slots[p] != slots[q]):
                    return False
                outside += i == 0 and p == NO_NODE
                if p != NO_NODE and kinds[node.op] == COPY:     # of a part, at another place
                    return False
    return outside <= MOST_OUTSIDE


cdef void write_run(const Piece* x, const uint32_t* places, uint32_t* ids, uint32_t m, uint32_t k) noexcept nogil:
    """Order the nodes of each batch of a run, first one of each instance, then another one of each; `ids`: memory."""
    cdef Batch* batch = <Batch*>x.batch
    cdef uint32_t* to = order_of(x.g) + x.at
    cdef uint32_t b, s, i, at = 0
    memcpy(ids, to, x.n_nodes * sizeof(uint32_t))
    for b in range(x.n):
        batch[b].parts = batch[b].count // m
        batch[b].form = FUSION if b + 1 == x.n else IN_FUSION
        for s in range(batch[b].parts):
            for i in range(m):
                to[i] = ids[places[i * k + at + s]]
            to += m
        at += batch[b].parts


# ---- a run that is executed --------------------------------------------------------------

cdef struct Run:
    Batch* batch                    # the first one
    uint32_t number                 # its number
    uint32_t n                      # batches
    uint32_t m                      # instances
    uint32_t k                      # nodes of an instance
    size_t size                     # numbers of a node
    uint32_t[MOST_NODES] batch_of   # by node: its batch within the run, and which one there
    uint32_t[MOST_NODES] part
    uint32_t n_outside
    uint8_t[MOST_OUTSIDE] node      # of each argument from elsewhere: the node, and which argument
    uint8_t[MOST_OUTSIDE] argument
    Signature signature


cdef inline uint32_t node_at(const Graph* g, const Run* r, uint32_t s, uint32_t i) noexcept nogil:
    """Node s of instance i."""
    return order_of(g)[r.batch[r.batch_of[s]].first + r.part[s] * r.m + i]


cdef inline uint32_t outside_at(const Graph* g, const Run* r, uint32_t e, uint32_t i) noexcept nogil:
    """Argument e from elsewhere of instance i."""
    return args_of(g, &nodes_of(g)[node_at(g, r, r.node[e], i)])[r.argument[e]]


cdef inline size_t offset_of(const Graph* g, const Run* r, uint32_t e, uint32_t i) noexcept nogil:
    """Where in its argument the numbers begin that an instance reads."""
    cdef const Node* x = &nodes_of(g)[node_at(g, r, r.node[e], i)]
    if kinds[x.op] != COPY:
        return 0
    return items_of(g, x)[0] * (total_of(&x.dim) // x.attrs[1].u)


cdef void open_run(const Graph* g, Batch* last, Run* r) noexcept nogil:
    """The run that a batch completes."""
    cdef const Node* x
    cdef const Node* a
    cdef uint32_t b, s, i
    cdef uint32_t[MOST_BATCHES] first_slot
    cdef Signature* signature = &r.signature
    r.batch = last
    while r.batch > batches_of(g) and (r.batch - 1).form == IN_FUSION:
        r.batch -= 1
    r.number = <uint32_t>(r.batch - batches_of(g))
    r.n = <uint32_t>(last - r.batch) + 1
    r.m = last.count // last.parts
    r.size = total_of(&first_of(g, last).dim)
    r.k = r.n_outside = signature.n_words = signature.grads = 0
    signature.backward = False
    for b in range(r.n):
        first_slot[b] = r.k
        for s in range(r.batch[b].parts):
            r.batch_of[r.k] = b
            r.part[r.k] = s
            r.k += 1
    for s in range(r.k):
        x = &nodes_of(g)[node_at(g, r, s, 0)]
        signature.words[signature.n_words] = node_word(kinds[x.op], rows[x.op], x.nargs)
        signature.n_words += 1
        for i in range(x.nargs):
            a = &nodes_of(g)[args_of(g, x)[i]]
            b = a.batch - r.number
            if a.val != NULL and a.batch != NO_BATCH and a.batch >= r.number and b < r.n:
                signature.words[signature.n_words] = (
                    first_slot[b] + <uint32_t>((a.val - r.batch[b].y) // (r.size * r.m)))
            else:
                signature.words[signature.n_words] = OUTSIDE
                r.node[r.n_outside] = <uint8_t>s
                r.argument[r.n_outside] = <uint8_t>i
                r.n_outside += 1
            signature.n_words += 1


cdef void write_head(Pass* s, const Run* r, uint64_t* table) noexcept nogil:
    """Where the values of each node are, and its constants."""
    cdef const Node* x
    cdef uint32_t k, c
    for k in range(r.k):
        x = &nodes_of(s.walk.g)[node_at(s.walk.g, r, k, 0)]
        table[2 * k] = <uintptr_t>(on_device(s, r.batch[r.batch_of[k]].y) + r.part[k] * r.size * r.m)
        table[2 * k + 1] = 0
        if kinds[x.op] == UNARY_ROW:
            for c in range(2):
                table[2 * k + 1] |= <uint64_t>x.attrs[c].u << 32 * c


cdef int add_launch(Pass* s, const Run* r, const Fused* kernel, uint64_t* table, size_t words) noexcept nogil:
    cdef Command* c = add_command(s, CELLS)
    if c == NULL:
        return -1
    set_lines(s, c, table, words * sizeof(uint64_t))
    c.i = <uint32_t>(kernel.few if c.cols else kernel.kernel)
    c.rows = r.m
    c.n = r.size
    return 0


# ---- forward ---------------------------------------------------------------------------

cdef int fusion_forward(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    cdef Graph* g = w.g
    cdef Pass* s = <Pass*>w
    cdef Run r
    cdef const Fused* kernel
    cdef BatchAddress[MOST_OUTSIDE] place
    cdef uint64_t* table
    cdef uint64_t* line
    cdef uint32_t e, i
    cdef size_t words
    if waiting_forward(w, batch, 1):
        return -1
    if w.again:
        return 0
    open_run(g, batch, &r)
    if fused_kernel(s, &r.signature, r.n - 1, &kernel):
        return -1
    if kernel == NULL:
        return alone_forward(w, &r)
    words = 2 * r.k + <size_t>r.m * r.n_outside
    table = <uint64_t*>allocate_lines(s, words * sizeof(uint64_t))
    if table == NULL or settle(w):
        return -1
    s.values_needed = max(s.values_needed, g.values.top)
    write_head(s, &r, table)
    for e in range(r.n_outside):
        place[e].batch = NO_BATCH
    line = table + 2 * r.k
    for i in range(r.m):
        for e in range(r.n_outside):
            line[e] = <uintptr_t>(there(s, &place[e], &nodes_of(g)[outside_at(g, &r, e, i)]) + offset_of(g, &r, e, i))
        line += r.n_outside
    return add_launch(s, &r, kernel, table, words)


cdef int alone_forward(Walk* w, const Run* r) noexcept nogil:
    """Compute the batches of a run one by one."""
    cdef uint32_t b
    for b in range(r.n):
        if forward_alone(w, &r.batch[b]):
            return -1
    return 0


# ---- backward ----------------------------------------------------------------------------

# What the instances of a run do with the gradient of an argument from elsewhere.
cdef struct Contribution:
    uint64_t parts                  # bits: which parts of it some contribute to
    uint64_t written                # those that an instance before has written
    uint32_t run                    # 1 + the number of the first batch of the run
    uint32_t instance               # the one that contributes, or SEVERAL
    bint adds                       # it has a gradient already, or zeros

cdef uint32_t SEVERAL = 0xFFFFFFFF


cdef int fusion_backward(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    cdef Graph* g = w.g
    cdef Pass* s = <Pass*>w
    cdef Run r
    cdef const Fused* kernel
    cdef uint32_t k, i, n_live = 0
    if g.whole_gradients:
        return backward_alone(w, batch)
    if make_table(s, &s.contributions, g.n_nodes * sizeof(Contribution)):
        return -1
    open_run(g, batch, &r)
    r.signature.backward = True
    for k in range(r.k):
        for i in range(r.m):
            n_live += is_live(g, node_at(g, &r, k, i))
            if is_live(g, node_at(g, &r, k, i)) or (r.batch[r.batch_of[k]].keeps and is_used_within(&r, k)):
                r.signature.grads |= <uint32_t>1 << k
    w.n_live = n_live
    w.n_live_in_batch += n_live
    if n_live:
        if not list_contributions(s, &r):
            return backward_alone(w, batch)
        if fused_kernel(s, &r.signature, 2 * r.n - 1, &kernel):
            return -1
        if kernel == NULL:
            return backward_alone(w, batch)
    if note_done(s, r.number, r.n):
        return -1
    return list_backward(s, &r, kernel) if n_live else 0


cdef bint is_used_within(const Run* r, uint32_t k) noexcept nogil:
    """Whether a node of an instance is an argument of another one."""
    cdef uint32_t at = 0, i
    while at < r.signature.n_words:
        for i in range(r.signature.words[at] >> 24):
            if r.signature.words[at + 1 + i] == k:
                return True
        at += 1 + (r.signature.words[at] >> 24)
    return False


cdef bint list_contributions(Pass* s, const Run* r) noexcept nogil:
    """Note which instances contribute to which parts of the gradients of arguments; False: parts overlap, or several
    instances contribute to one, other than to a whole gradient."""
    cdef Graph* g = s.walk.g
    cdef Contribution* x
    cdef uint32_t i, e, id
    cdef size_t total, offset
    for i in range(r.m):
        for e in range(r.n_outside):
            id = outside_at(g, r, e, i)
            if not state_of(g)[id] & NEEDS_GRAD:
                continue
            x = &(<Contribution*>s.contributions)[id]
            total = total_of(&nodes_of(g)[id].dim)
            offset = offset_of(g, r, e, i)
            if nodes_of(g)[id].val == NULL or offset % r.size or total % r.size or total > MOST_RANGES * r.size:
                return False
            if x.run != r.number + 1:
                x.run = r.number + 1
                x.instance = i
                x.parts = x.written = 0
                x.adds = (state_of(g)[id] & LIVE) != 0
            if x.instance != i:
                if total != r.size:
                    return False
                x.instance = SEVERAL
            x.parts |= <uint64_t>1 << (offset // r.size)
    return True


cdef int settle_run(Walk* w, const Run* r) noexcept nogil:
    """Let the gradients of a run and of its arguments be there: pending additions run before, and zeros where only
    parts are written."""
    cdef Graph* g = w.g
    cdef Contribution* all = <Contribution*>(<Pass*>w).contributions
    cdef Contribution* x
    cdef const Node* a
    cdef uint64_t every
    cdef uint32_t b, i, e, id
    cdef float* to
    if settle(w):
        return -1
    for b in range(r.n):
        if settle_gradients(w, r.number + b):
            return -1
    for i in range(r.m):
        for e in range(r.n_outside):
            id = outside_at(g, r, e, i)
            if not state_of(g)[id] & NEEDS_GRAD:
                continue
            a = &nodes_of(g)[id]
            if settle_gradients(w, a.batch):
                return -1
            x = &all[id]
            every = ~<uint64_t>0 >> (64 - total_of(&a.dim) // r.size)
            if x.instance != SEVERAL and not x.adds and x.parts != every:
                to = claim(w, a)
                if to == NULL or w.device.zero(w, to, total_of(&a.dim)):
                    return -1
                x.adds = True
                state_of(g)[id] |= LIVE
    return settle(w)


cdef int list_backward(Pass* s, Run* r, const Fused* kernel) noexcept nogil:
    """List the launch of a run backward, and mark the gradients that it computes."""
    cdef Walk* w = &s.walk
    cdef Graph* g = w.g
    cdef BatchAddress[MOST_OUTSIDE] values
    cdef BatchAddress[MOST_OUTSIDE] place
    cdef BatchAddress[MOST_NODES] own
    cdef uint8_t[MOST_OUTSIDE] turns
    cdef uint32_t i, e, k, id, grads = 0, width
    cdef uint64_t* table
    cdef uint64_t* line
    cdef size_t words
    for k in range(r.k):
        grads += kernel.signature.grads >> k & 1
        own[k].batch = NO_BATCH
    for e in range(r.n_outside):
        values[e].batch = place[e].batch = NO_BATCH
    width = 2 * r.n_outside + grads
    words = 2 * r.k + <size_t>r.m * width
    if settle_run(w, r):
        return -1
    table = <uint64_t*>allocate_lines(s, words * sizeof(uint64_t))
    if table == NULL:
        return -1
    write_head(s, r, table)
    line = table + 2 * r.k
    order_of_writing(r, turns)
    for i in range(r.m):
        for e in range(r.n_outside):
            id = outside_at(g, r, e, i)
            line[e] = <uintptr_t>(there(s, &values[e], &nodes_of(g)[id]) + offset_of(g, r, e, i))
        for k in range(r.n_outside):
            e = turns[k]
            if write_gradient(s, r, i, e, &place[e], line + r.n_outside + e):
                return -1
        line += 2 * r.n_outside
        for k in range(r.k):
            if kernel.signature.grads >> k & 1:
                if own_gradient(s, r, node_at(g, r, k, i), k, &own[k], line):
                    return -1
                line += 1
    return add_launch(s, r, kernel, table, words)


cdef void order_of_writing(const Run* r, uint8_t* turns) noexcept nogil:
    """The order in which a kernel writes the gradients of arguments: the last node first, of one node the first
    argument first."""
    cdef uint32_t e = r.n_outside, end, i, n = 0
    while e:
        end = e
        while e and r.node[e - 1] == r.node[end - 1]:
            e -= 1
        for i in range(e, end):
            turns[n] = <uint8_t>i
            n += 1


cdef int write_gradient(Pass* s, const Run* r, uint32_t i, uint32_t e, BatchAddress* place,
                        uint64_t* word) noexcept nogil:
    """Where an instance writes its contribution to the gradient of argument e."""
    cdef Walk* w = &s.walk
    cdef uint32_t id = outside_at(w.g, r, e, i)
    cdef const Node* a = &nodes_of(w.g)[id]
    cdef Contribution* x = &(<Contribution*>s.contributions)[id]
    cdef size_t offset = offset_of(w.g, r, e, i)
    cdef uint64_t part = <uint64_t>1 << (offset // r.size)
    cdef float* to
    word[0] = 0
    if not state_of(w.g)[id] & NEEDS_GRAD:
        return 0
    if x.instance == SEVERAL:
        to = <float*>allocate(w, r.size * sizeof(float))
        if to == NULL:
            return -1
        to = on_device(s, to)
        w.listing.held = True
        word[0] = <uintptr_t>to
        return contribute(w, id, to, r.size, 1)
    to = gradient_there(s, place, a)
    if to == NULL:
        return -1
    word[0] = <uintptr_t>(to + offset) | (x.adds or (x.written & part) != 0)
    x.written |= part
    state_of(w.g)[id] |= LIVE
    return 0


cdef int own_gradient(Pass* s, const Run* r, uint32_t id, uint32_t k, BatchAddress* place,
                      uint64_t* word) noexcept nogil:
    """Where the gradient of a node of a run is that comes from elsewhere; whether all of it is stored there."""
    cdef Graph* g = s.walk.g
    cdef bint live = is_live(g, id)
    cdef bint kept = (r.batch[r.batch_of[k]].keeps and is_used_within(r, k)
                      and (state_of(g)[id] & NEEDS_GRAD) != 0)
    cdef float* at
    word[0] = 0
    if not live and not kept:
        return 0
    at = gradient_there(s, place, &nodes_of(g)[id])
    if at == NULL:
        return -1
    word[0] = <uintptr_t>at | live | kept << 1
    if kept:
        state_of(g)[id] |= LIVE
    return 0


cdef Form* forms = device_forms()
forms[FUSION].forward = fusion_forward
forms[FUSION].backward = fusion_backward


# ==== kernels =====================================================================================
#
# A kernel is found by its signature: the ops of one instance, and which arguments are results of others.  Sizes,
# addresses and constants are not part of it, so the cells of a program have one or two signatures, whatever their sizes
# are.  Compiling takes a second or more, so it begins when a signature would have saved some launches (64), and there
# are no more than a number of kernels in a process (64).  Whatever has no kernel runs one op after another.  Code is
# cached on disk like that of all kernels.

cdef enum:
    MOST_KERNELS = 256

cdef Number most_kernels = 64       # signatures that are compiled; 0: those that have been are not used either
cdef Number least_saved = 64        # launches that a kernel would have saved when it is compiled
add_tunable("gpu.fusion.most_kernels", &most_kernels, MOST_KERNELS)
add_tunable("gpu.fusion.least_saved", &least_saved)

cdef Fused[MOST_KERNELS] kernels
cdef uint32_t n_kernels = 0
cdef pthread_mutex_t lock               # of both
pthread_mutex_init(&lock, NULL)

cdef Number failures = 0
_errors = []


cdef bint may_fuse() noexcept nogil:
    """Whether kernels are compiled at all: no, if that has failed, or is switched off."""
    return most_kernels != 0 and failures == 0


cdef inline bint serves(const Signature* x, const Signature* wanted) noexcept nogil:
    return (x.backward == wanted.backward and x.n_words == wanted.n_words and x.grads & wanted.grads == wanted.grads
            and memcmp(x.words, wanted.words, wanted.n_words * sizeof(uint32_t)) == 0)


cdef Fused* find(const Signature* wanted, uint32_t saves) noexcept nogil:
    """Find the kernel for a signature that has been compiled, or is to be compiled now; NULL: there is none."""
    global n_kernels
    cdef Fused* x = NULL
    cdef uint32_t i
    for i in range(n_kernels if most_kernels else 0):
        if serves(&kernels[i].signature, wanted):
            if kernels[i].kernel >= 0:
                return &kernels[i]
            if kernels[i].signature.grads == wanted.grads:
                x = &kernels[i]
    if failures:
        return NULL
    if x == NULL:
        if n_kernels >= most_kernels:
            return NULL
        x = &kernels[n_kernels]
        n_kernels += 1
        memset(x, 0, sizeof(Fused))
        x.signature = wanted[0]
        x.kernel = x.few = -1
    x.saved += saves
    return x if x.saved >= <uint64_t>least_saved else NULL


cdef int fused_kernel(Pass* s, const Signature* signature, uint32_t saves, const Fused** found) noexcept nogil:
    """Find the kernel for a signature, or one with more `grads`; NULL: there is none yet.

    Args:
        saves: the launches that it saves now.

    Returns -1 for an exception of a signal handler, which is in the failure of the walk.
    """
    cdef Gpu* gpu = s.d.gpu
    cdef uint64_t device = <uint64_t>1 << gpu.number
    cdef Fused* x
    cdef bint ready
    found[0] = NULL
    pthread_mutex_lock(&lock)
    x = find(signature, saves)
    ready = x != NULL and x.devices & device
    pthread_mutex_unlock(&lock)
    if x == NULL:
        return 0
    if not ready:
        s.walk.failure.raised = make(gpu, x)
        if s.walk.failure.raised != NULL:
            return -1
    if x.kernel >= 0:
        found[0] = x
    return 0


cdef void* make(Gpu* gpu, Fused* x) noexcept with gil:
    """Compile and load a kernel; returns the exception of a signal handler, owned, or NULL."""
    global failures
    cdef int kernel = x.kernel, few = x.few
    cdef bint failed = False
    try:
        code = text_cubin(source(&x.signature), "of several elementwise ops", architecture(gpu.number))
        if kernel < 0:
            kernel = kernel_at(NO_MODULE, b"fused")
            few = kernel_at(NO_MODULE, b"few_fused")
        load_code(gpu, code, [(kernel, b"fused"), (few, b"few_fused")], "several elementwise ops")
    except Exception as e:                      # no compiler, for example: the ops run one after another
        failed = True
        failures += 1
        _errors.append(str(e))
    except BaseException as e:
        Py_INCREF(e)
        return <void*>e
    pthread_mutex_lock(&lock)
    if not failed:
        x.kernel = kernel
        x.few = few
    x.devices |= 0 if failed else <uint64_t>1 << gpu.number
    pthread_mutex_unlock(&lock)
    return NULL


cdef str source(const Signature* x):
    cdef uint32_t k = 0, i, kind, row
    cdef const Op* op
    nodes, kinds = [], {UNARY_ROW: "unary", BINARY_ROW: "binary", COPY: "copy", SUM: "sum"}
    while k < x.n_words:
        kind = x.words[k] & 0xFF
        row = x.words[k] >> 8 & 0xFFFF
        name = b""
        op = NULL
        if kind == UNARY_ROW:
            op = UNARY[row]
        elif kind == BINARY_ROW:
            op = BINARY[row]
        args = tuple([None if x.words[k + 1 + i] == <uint32_t>OUTSIDE else x.words[k + 1 + i]
                      for i in range(x.words[k] >> 24)])
        read = [op != NULL and reads(op, i) for i in range(len(args))]
        if op != NULL:
            name = op.name
        nodes.append(FusedNode(kinds[kind], name.decode(), args, tuple(read), op != NULL and reads_result(op)))
        k += 1 + len(args)
    grads = [i for i in range(len(nodes)) if x.grads >> i & 1]
    return source_of(nodes, grads if x.backward else None)


def describe() -> list[dict[str, Any]]:
    """The signatures that this process has met, as a list of dictionaries.

    Each has the source of its kernel (`source`), whether it has been compiled (`compiled`), and the launches that it
    has saved or would have (`saved`).
    """
    cdef uint32_t i
    return [{"source": source(&kernels[i].signature), "compiled": kernels[i].kernel >= 0,
             "saved": kernels[i].saved} for i in range(n_kernels)]


def errors() -> list[str]:
    """Why a kernel could not be compiled or loaded.

    After such an error no others are tried, and elementwise ops run one after another, until `forget_errors`.
    """
    return list(_errors)


def forget_errors() -> None:
    """Try to compile kernels again."""
    global failures
    failures = 0
    _errors.clear()
