"""The forward walk over the batches of a plan, for all devices; forms that run in pieces or as views."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from dynet_cy.core.tensor cimport Call, Dim, Packed, Tensor, size_of, total_of
from dynet_cy.core.threads cimport RELAXED, Interrupts, atomic_load
from dynet_cy.execute.accumulation cimport Addition, Background, Journal
from dynet_cy.execute.gradient_memory cimport Lending, gradient_for
from dynet_cy.graph.structs cimport (
    COLUMNS, EACH, FLATTENED, NO_BATCH, ONE, STACKED, TILES, VIEWS, Batch, Draws, Graph, Node, args_of, batches_of,
    begin_gradients, claim_kept, claim_values, items_of, nodes_of, order_of, state_of, value_arrives, value_of,
)
from dynet_cy.memory.arena cimport Arena, arena_alloc
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport Factors, Op
from dynet_cy.watch.instruments cimport Finding


# ==== pieces ======================================================================================
#
# Elementwise batches whose arguments are not adjacent in memory, run in pieces that are.

cdef enum:
    MOST_TOGETHER = 32              # batches


cdef inline uint32_t neighbours(const Batch* batch, uint32_t n) noexcept nogil:
    """How many of n batches, from the first on, which is one of them, run together in tiles."""
    cdef uint32_t k = 1
    while k < n and k < MOST_TOGETHER and batch[k].form == TILES:
        k += 1
    return k


cdef inline uint32_t neighbours_before(const Batch* batch, const Batch* first) noexcept nogil:
    """How many batches, from this one, which is one of them, back to `first`, run together in tiles."""
    cdef uint32_t k = 1
    while batch > first and k < MOST_TOGETHER and (batch - 1).form == TILES:
        batch -= 1
        k += 1
    return k


# ==== views =======================================================================================
#
# Batches of views (schedule/plan): the places of their values, and the completion of their gradients in backward.

# Complete the gradients of the arguments, which contain those of the views, and return how many views are live.
cdef uint32_t views_backward(Graph* g, const Batch* batch) noexcept nogil
# Copy views whose argument has other users among the nodes up to `target`, so that their gradients do not mix.  Returns
# 0, or the size of the working memory that could not be allocated.
cdef size_t part_views(Walk* w, uint32_t target) noexcept nogil


# ==== walk ========================================================================================
#
# The walk over the batches of a plan: the rules, for all devices.  Forward is in this module, backward in `gradients`.
#
# The walk decides where the values, the gradients and the working memory of a batch are, which arguments have to be
# laid side by side or listed, and how each contribution to a gradient is added. The walk calls the functions of a
# Device: those of the CPU do the work at once, those of a GPU append commands to a pass, which runs later.
#
# The walk uses host pointers into the arenas of the graph. A GPU mirrors these arenas: `place` translates a host
# pointer to the device pointer, which is what calls and lists contain.

# The failure of a nogil function, for the error that is raised after it.
cdef struct Failure:
    size_t needed                   # bytes that could not be allocated
    bint partial                    # backward: some gradients have been changed and could not be restored
    Finding finding                 # of numbers that are not finite
    const Param* changed            # a parameter whose change prevents that a value is computed again
    void* raised                    # the exception of an op that runs Python; owned
    Interrupts interrupts

# The gradient of one parameter, collected over many calls.
cdef struct Collected:
    Collected* next                 # of the next parameter
    Collected* below[2]             # in the tree in which it is found
    Param* p
    # the sum of a small parameter's gradient in this pass; NULL: the gradient is a product
    float* sums
    Addition* added                 # the last product that another thread computes
    Factors product                 # `n` counts the columns collected so far; with `sums`, 0 until something is added
    void* parts                     # for GPUs: a linked list of the factors of each call, its first and last element
    void* last

# The gradients of parameters that a backward pass collects.
cdef struct Collecting:
    Collected* first                # gradients that are products, and those of small parameters: a list,
    Collected* tree                 # and the same as a tree in which `collected_of` finds them
    Collected* last                 # the element for the small parameter that was added to last
    size_t left                     # CPU: the bytes that factors may still take
    size_t most_lent                # the bytes of gradients that may wait for another thread
    uint32_t columns                # and how many columns those of one matrix have at most
    Background* background          # weight gradients that another thread computes; NULL: no thread does
    char* notes                     # free memory for `Collected` and `Addition`, which lasts as long as the pass
    size_t notes_left               # its bytes
    const Addition* reader          # the last of them that reads gradients of the batch that runs; NULL: none does

# Commands that a pass on a device lists.
cdef struct Listing:
    bint pending                    # copies are listed but not made yet, and the next command needs them
    bint held                       # additions are listed but not made yet, whose sources are in working memory
    uint32_t added                  # the additions that were listed; they read gradients later
    uint32_t turn                   # number of the group of additions that is being listed
    # By number of a batch, the last group that adds to its gradients, and after these the one for inputs; NULL: none.
    uint32_t* owed
    uint32_t section                # calls with equal numbers run in any order, except those of one member;
    uint32_t member                 # 0: they run one after the other
    uint32_t sections

# The copies of arguments that `arrange` makes.
cdef struct Copies:
    size_t begin                    # where they begin in the scratch arena
    bint lasting                    # one of them may not be made again: it contains the value of a parameter
    bint own                        # backward: those of the batch that runs are for this one call only

cdef struct Walk

# What is called after each batch of backward, unless it is NULL.
cdef struct Hook:
    int (*after)(Walk* w, const Batch* batch) noexcept nogil
    void* data

# A pass over batches of a graph.
cdef struct Walk:
    Graph* g
    const Device* device
    int kind                        # of the device
    bint at_once                    # on the CPU; otherwise calls are listed, and ops get translated pointers
    bint going_back                 # it is a backward pass
    bint again                      # what runs forward has run before
    bint whole                      # exceptions of signal handlers do not end it
    uint64_t end                    # forward: start no batch from this time on, on the clock of `now`; 0: no limit
    uint32_t first                  # forward: the batch with which the plan begins
    uint32_t number                 # of the batch, or NO_BATCH
    uint32_t n_live                 # nodes of the call that have a gradient to pass on
    uint32_t n_live_in_batch
    float* dy                       # gradients of the results of a joined batch; NULL: at the offsets of the results
    Arena* tables                   # items and lists that ops read
    size_t lasting                  # memory below this offset of the scratch arena lasts as long as the pass
    Copies copies
    Draws draws
    Listing listing
    Collecting collecting
    Journal* journal                # the record of changed gradients of parameters; NULL: the pass cannot be undone
    Lending lending
    bint (*relieve)(Walk* w) noexcept nogil     # memory of gradients is short: gives some back, if it can; or NULL
    Hook hook
    Failure failure

# How batches of a form run: `n` that follow each other, more than one only of the form TILES.
cdef struct Form:
    int (*forward)(Walk* w, Batch* batch, uint32_t n) noexcept nogil        # their results have memory
    int (*backward)(Walk* w, Batch* batch, uint32_t n) noexcept nogil

# Runs batches from `first` to before `end`; if values are computed again, `purpose` says what for.
ctypedef int (*Part)(Walk* w, uint32_t first, uint32_t end, uint32_t purpose) noexcept nogil

# The functions that a walk calls.  They return 0, or -1 after a failure, which they store in the walk.
# Pointers are those that ops on the device get, unless a comment says otherwise.
cdef struct Device:
    int kind                        # selects the `needs` of ops: CPU or GPU
    const Form* forms               # how batches run, by their form

    # On the CPU, the functions from here up to `settle` are NULL: either the walk does the work itself, because it is
    # done for each node, or there is nothing to do.
    float* (*place)(Walk* w, const void* p) noexcept nogil      # the device pointer for p, in an arena of the graph
    int (*send_arguments)(Walk* w, const Batch* batch) noexcept nogil
    int (*translate)(Walk* w, const Batch* batch, Call* c) noexcept nogil   # from host to device pointers

    int (*forward)(Walk* w, const Batch* batch, const Op* op, const Call* c) noexcept nogil
    int (*begin_backward)(Walk* w, const Batch* batch, const Op* op, const Call* c) noexcept nogil
    int (*backward)(Walk* w, const Batch* batch, const Op* op, const Call* c, uint32_t i) noexcept nogil

    # `copy`, `add` and `zero` may be deferred until `settle`, and then run in any order; `add` even until the gradient
    # is read or written (`settle_gradients`).  `to` is a host pointer: into an arena of the graph, or for `add` to the
    # gradient of `node`, which may be a parameter.
    int (*copy)(Walk* w, float* to, const float* source, size_t n) noexcept nogil   # `source` is a host pointer too
    int (*add)(Walk* w, uint32_t node, float* to, const float* source, size_t n, float scale,
               bint accumulate) noexcept nogil
    int (*settle)(Walk* w) noexcept nogil

    int (*zero)(Walk* w, float* to, size_t n) noexcept nogil
    int (*fill)(Walk* w, float* to, size_t n, float x) noexcept nogil       # n numbers become x
    # Collect the factors of the gradient of p: 1, or 0 if it is better to multiply them at once.
    int (*collect)(Walk* w, Param* p, const Factors* f) noexcept nogil
    # The sums for the gradient of a small parameter, so that it is locked and recorded once per pass; else NULL.
    Collected* (*sums)(Walk* w, Param* p) noexcept nogil
    # Add the collected sums, or the product of the collected factors, to the gradient.
    int (*multiply)(Walk* w, Collected* x) noexcept nogil
    # Values and working memory will be used for others: do all that is pending or collected and reads them.
    int (*finish)(Walk* w) noexcept nogil
    # Let the next n planned batches run one by one, also those that would run together.
    void (*take_apart)(Walk* w, uint32_t n) noexcept nogil
    # Of several devices: call a function for the batches from `first` to before `end`, in parts that run on one device,
    # with a walk over it; the last part first if it goes back.  NULL: it is one device.
    int (*divide)(Walk* w, uint32_t first, uint32_t end, Part run, uint32_t purpose, bint back) noexcept nogil
    # Of one or several devices: the walk over the batches on one device; NULL after a failure.
    Walk* (*on)(Walk* w, int device) noexcept nogil
    # The passes of the device over the next n planned batches; run what is listed.
    void (*finish_plan)(Walk* w, uint32_t n) noexcept nogil
    int (*flush)(Walk* w) noexcept nogil
    # Backward from a target is about to run its batches.
    int (*announce)(Walk* w, uint32_t target) noexcept nogil


cdef void begin_walk(Walk* w, Graph* g, const Device* device) noexcept nogil
cdef int raise_failure(Graph* g, str what, const Failure* failure) except -1
cdef int raise_of_op(const Failure* failure) except -1


cdef inline void* allocate(Walk* w, size_t n) noexcept nogil:
    """Allocate working memory in the scratch arena of the graph; NULL if there is none left."""
    cdef void* p = arena_alloc(&w.g.scratch, n)
    if p == NULL:
        w.failure.needed = max(n, <size_t>1)                # 0 is no failure
    return p


cdef inline float* claim(Walk* w, const Node* x) noexcept nogil:
    """The gradient of a node, which gets memory for one if it has none; NULL if there is none left."""
    cdef float* p = gradient_for(w.g, &w.lending, x)
    if p == NULL and w.relieve != NULL and w.relieve(w):
        p = gradient_for(w.g, &w.lending, x)
    if p == NULL:
        w.failure.needed = total_of(&x.dim) * sizeof(float)
    return p


cdef inline int settle(Walk* w) noexcept nogil:
    """Make pending copies run before the commands that follow."""
    return w.device.settle(w) if w.listing.pending else 0


cdef inline size_t owed_place(const Walk* w, uint32_t batch) noexcept nogil:
    return w.g.batches.top // sizeof(Batch) if batch == NO_BATCH else batch


cdef inline int settle_gradients(Walk* w, uint32_t batch) noexcept nogil:
    """Make pending additions to the gradients of a batch (NO_BATCH: of inputs) run before the commands that follow."""
    cdef const Listing* x = &w.listing
    return w.device.settle(w) if x.owed != NULL and x.owed[owed_place(w, batch)] == x.turn else 0


cdef inline bint op_raised(const Op* op, Failure* failure) noexcept nogil:
    """Whether the function of an op that has just run has raised an exception."""
    if op.raised == NULL:
        return False
    failure.raised = op.raised()
    return failure.raised != NULL


cdef inline void* allocate_table(Walk* w, size_t n) noexcept nogil:
    """Allocate a table that ops read (items, lists).  Pending copies are a table too, so they are settled first."""
    cdef void* p = NULL
    if settle(w):
        return NULL
    p = arena_alloc(w.tables, n)
    if p == NULL:
        w.failure.needed = max(n, <size_t>1)                # 0 is no failure
    return p


cdef inline Walk* walk_on(Walk* w, int device) noexcept nogil:
    """The walk over the batches on one device, which may be `w`; NULL after a failure."""
    return w.device.on(w, device) if w.device.on != NULL else w


cdef inline float* place_of(Walk* w, const void* p) noexcept nogil:
    """The pointer that ops get for p, a pointer into an arena of the graph."""
    return <float*>p if w.at_once else w.device.place(w, p)


# ---- pieces: run n batches backward, `batch` being the first of them, and count the nodes that have a gradient to pass
# on.  `last`: the argument of a single batch whose gradients are written over those of the results, after the others;
# UINT32_MAX: none is
cdef int pieces_backward(Walk* w, const Batch* batch, uint32_t n, uint32_t last) noexcept nogil


cdef inline uint32_t in_turn(uint32_t k, uint32_t last, uint32_t n) noexcept nogil:
    """The k-th of n arguments if `last` comes last; n or more: they stay in order."""
    if k < last:
        return k
    return last if k == n - 1 else k + 1


# Let the calls that are listed from now on run in any order, except those of one `member`, until `section` is 0.
cdef int open_section(Walk* w) noexcept nogil

# ---- arguments and calls
# Bring the arguments and items of a batch into the form that its call needs: shared by all nodes, read in place,
# listed, or gathered first.
cdef int arrange(Walk* w, Batch* batch, const Op* op) noexcept nogil
# Give the memory of copied arguments back, if it is much: backward makes the copies again.
cdef void give_copies_back(Walk* w, Batch* batch) noexcept nogil
# The same as `arrange` for the items only.
cdef int lay_items(Walk* w, Batch* batch) noexcept nogil
# Copy argument i of the nodes of a batch to batch.x[i].v, side by side.
cdef int gather(Walk* w, const Batch* batch, uint32_t i) noexcept nogil
# Set the call of a batch: its arguments and result, in the form of the batch.
cdef int set_call(Walk* w, const Batch* batch, Tensor* few, Call* c) noexcept nogil

# Calls with more arguments than this keep their tensors in the scratch arena.
cdef enum:
    FEW = 8


cdef inline uint32_t uses_in(const Batch* batch, const Node* a, const Node* y) noexcept nogil:
    """The number of copies of an argument that a node needs: one, or one for each batch element if its batch size is
    1."""
    return y.dim.bd if batch.form == STACKED and a.dim.bd == 1 else 1


cdef inline void set_tensor(Tensor* t, const Dim* dim, uint32_t bd, float* v) noexcept nogil:
    t.dim = dim[0]
    t.dim.bd = bd
    t.v = v
    t.bstride = size_of(dim) if bd > 1 else 0
    t.list = NULL
    t.pack = NULL


cdef inline void set_shared(Tensor* t, const Node* a) noexcept nogil:
    """Set an argument that is a single node, perhaps a parameter."""
    set_tensor(t, &a.dim, a.dim.bd, value_of(a))
    if a.val == NULL:
        t.pack = <Packed*>&(<Param*>a.object).pack


cdef inline int begin_call(Walk* w, const Batch* batch, Node* node, Tensor* few, Call* c) noexcept nogil:
    """Set the fields of a call except its arguments and its result."""
    c.x = few
    if node.nargs > FEW:
        c.x = <Tensor*>allocate(w, node.nargs * sizeof(Tensor))
        if c.x == NULL:
            return -1
    c.n = node.nargs
    c.accumulate = 0
    c.before = 0
    c.attrs = node.attrs
    c.items = NULL
    c.item_count = node.item_count
    c.object = node.object
    c.on = NULL
    c.seed = w.draws.seed
    c.stream = w.draws.stream
    c.saved = batch.saved
    c.work = NULL
    return 0


cdef inline int set_call_of_one(Walk* w, const Batch* batch, Node* node, Tensor* few, Call* c) noexcept nogil:
    """Set the call of a batch of one node, which reads all of its arguments in place."""
    cdef Graph* g = w.g
    cdef Node* nodes = nodes_of(g)
    cdef const uint32_t* args = args_of(g, node)
    cdef uint32_t i
    if begin_call(w, batch, node, few, c):
        return -1
    for i in range(node.nargs):
        set_shared(<Tensor*>&c.x[i], &nodes[args[i]])
    set_tensor(&c.y, &node.dim, node.dim.bd, batch.y)
    c.items = items_of(g, node)
    return 0


cdef inline bint is_empty(const Walk* w, const Dim* dim) noexcept nogil:
    """Whether a tensor of a call has no elements.  Ops with an empty result are not called forward, and not backward
    for an argument if it or the result is empty. So kernels need not handle sizes of 0 there."""
    return atomic_load(&w.g.has_empty, RELAXED) and total_of(dim) == 0


cdef inline void clear_call(Batch* batch) noexcept nogil:
    """A batch has no arguments, items and saved values of its own yet."""
    batch.x = NULL
    batch.items = NULL
    batch.saved = NULL
    batch.saved_of = NULL


cdef inline void set_one(const Graph* g, const Batch* batch, uint32_t j, Batch* one) noexcept nogil:
    """Make a batch of node j of an EACH batch; the caller sets its y."""
    one.first = batch.first + j
    one.count = 1
    one.bd = nodes_of(g)[order_of(g)[one.first]].dim.bd
    one.form = ONE
    one.level = batch.level
    one.lifetime = batch.lifetime
    one.cell = 0
    one.x = NULL
    one.items = NULL


# ---- forward
# Run a batch that has run before, in the memory of its values.
cdef int run_again(Walk* w, Batch* batch, uint32_t n) noexcept nogil
# After a batch: fill the dropped values that no later batch reads with NaN.
cdef int poison_dropped(Walk* w) noexcept nogil
# Compute the next n planned batches at once, and count them as run: -1 after a failure, 1 if time was up.
cdef int run_planned_at_once(Walk* w, uint32_t n) noexcept nogil
# Before the next n planned batches run, among which some values do not live as long as the graph: fail if one of them
# is not there when it is read.
cdef int verify_plan(Walk* w, uint32_t n) noexcept nogil
# Allocate the values of a planned batch, and compute them, or list the call that will.  The nodes of the batch must
# have no values yet.
cdef int run_forward(Walk* w, Batch* batch) noexcept nogil
# The functions of forms, forward: one call, or a call for each node; and those that only the CPU has.
cdef int forward_call(Walk* w, Batch* batch, uint32_t n) noexcept nogil
cdef int forward_each(Walk* w, Batch* batch, uint32_t n) noexcept nogil
cdef int forward_pieces(Walk* w, Batch* batch, uint32_t n) noexcept nogil
cdef int forward_views(Walk* w, Batch* batch, uint32_t n) noexcept nogil


# The most elements along an axis of a call: `MOST_ALONG`, or fewer in tests.
cdef size_t most_along


cdef inline bint is_too_long(const Batch* batch, uint64_t bd) noexcept nogil:
    """Whether a tensor of all nodes would be too long along an axis, so that each needs a call of its own."""
    if batch.form == STACKED:
        return bd > most_along
    return batch.bytes > most_along * sizeof(float) and (batch.form == FLATTENED or batch.form == COLUMNS)


cdef inline float* claim_batch(Graph* g, const Batch* batch) noexcept nogil:
    return <float*>(claim_kept(g, batch) if g.has_dropped else claim_values(g, batch.bytes))


# The memory to which a batch of views may be copied later; NULL: there is none.
cdef float* reserve_for_views(Graph* g, const Batch* batch) noexcept nogil


cdef inline bint allocate_values(Graph* g, Batch* batch) noexcept nogil:
    """Allocate the values of a batch, side by side; False if there is no memory for `batch.bytes` bytes."""
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Node* nodes = nodes_of(g)
    cdef uint64_t bd = 0
    cdef uint32_t j
    begin_gradients(batch)
    batch.bytes = 0
    for j in range(batch.count):
        bd += nodes[ids[j]].dim.bd
        batch.bytes += total_of(&nodes[ids[j]].dim) * sizeof(float)
    batch.bd = <uint32_t>bd
    if is_too_long(batch, bd):
        batch.form = EACH
    batch.live = batch.count
    batch.y = reserve_for_views(g, batch) if batch.form == VIEWS else claim_batch(g, batch)
    return batch.y != NULL


cdef inline void assign_values(Graph* g, const Batch* batch, uint32_t number) noexcept nogil:
    """Give each node of a batch its part of the values."""
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef Node* node
    cdef float* y = batch.y
    cdef uint32_t j
    for j in range(batch.count):
        node = &nodes_of(g)[ids[j]]
        node.val = y
        node.batch = number
        y += total_of(&node.dim)


cdef inline void count_as_run(Graph* g) noexcept nogil:
    """Mark the next planned batch as run."""
    cdef const Batch* batch = &batches_of(g)[g.n_batches]
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef uint8_t* state = state_of(g)
    cdef uint32_t j
    for j in range(batch.count):
        value_arrives(&state[ids[j]])
    g.n_order += batch.count
    g.n_batches += 1
