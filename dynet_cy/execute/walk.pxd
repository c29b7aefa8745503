"""The walk over batches, forward and backward: the rules, for all devices.

The walk decides where the values, the gradients and the working memory of a batch are, which arguments have to be laid
side by side or listed, and how each contribution to a gradient is added.  Then it calls the functions of a Device:
those of the CPU do the work at once, those of a GPU append commands to a pass, which runs later.

The walk uses host pointers into the arenas of the graph.  A GPU mirrors these arenas: `place` translates a host pointer
to the device pointer, which is what calls and lists contain.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from dynet_cy.core.interrupts cimport Interrupts, interrupted
from dynet_cy.core.tensor cimport Call, total_of
from dynet_cy.execute.anomaly cimport Finding
from dynet_cy.execute.background cimport Addition, Background, finish_background
from dynet_cy.execute.journal cimport Journal, take_back
from dynet_cy.graph.structs cimport (
    COMPUTED, WANTED, Batch, Graph, Node, batches_of, nodes_of, order_of, state_of, take_values,
)
from dynet_cy.memory.arena cimport Arena, arena_alloc
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport Factors, Op


# What went wrong in a nogil function, for the error that is raised after it.
cdef struct Failure:
    size_t needed                   # bytes that could not be allocated
    bint partial                    # backward: some gradients have been changed and could not be restored
    Finding finding                 # of numbers that are not finite
    void* raised                    # the exception of an op that runs Python; owned
    Interrupts interrupts

# The gradient of one parameter, collected over many calls.
cdef struct Collected:
    Collected* next                 # of the next parameter
    Param* p
    float* sums                     # of a small one: its gradient in this pass; NULL: it is a product
    Addition* added                 # the last one that another thread computes
    Factors product                 # `n` counts the columns collected so far; with `sums`, 0 until something is added
    void* parts                     # for GPUs: a linked list of the factors of each call, its first and last element
    void* last

# A pass over batches of a graph.
cdef struct Walk:
    Graph* g
    const Device* device
    int kind                        # of the device
    bint at_once                    # on the CPU; otherwise calls are listed, and ops get translated pointers
    Arena* tables                   # items and lists that ops read
    Journal* journal                # which gradients of parameters backward has changed; NULL: it cannot be undone
    Collected* collected            # gradients that are products, and those of small parameters
    Collected* summed               # the element for the small parameter that was added to last
    Background* background          # weight gradients that another thread computes; NULL: none does
    size_t lasting                  # what lies below in the scratch arena lasts as long as the pass
    uint32_t number                 # of the batch, or NO_BATCH
    uint32_t n_live                 # nodes of the call that have a gradient to pass on
    uint32_t n_live_in_batch
    float* dy                       # gradients of the results of a joined batch; NULL: at the offsets of the results
    bint whole                      # exceptions of signal handlers do not end it
    uint64_t seed                   # of random ops
    uint64_t end                    # forward: start no batch from this time on, on the clock of `now`; 0: no limit
    int (*after)(Walk* w, const Batch* batch) noexcept nogil    # called after each batch of backward, unless NULL
    void* hooked                    # data of `after`
    bint pending                    # copies are listed but not made yet: what they read must not be overwritten
    Failure failure

# The functions that a walk calls.  They return 0, or -1 after a failure, which they store in the walk.
# Pointers are those that ops on the device get, unless a comment says otherwise.
cdef struct Device:
    int kind                        # selects the `needs` of ops: CPU or GPU

    # On the CPU, the functions from here up to `settle` are NULL: either the walk does the work itself, because it is
    # done for each node, or there is nothing to do.
    float* (*place)(Walk* w, const void* p) noexcept nogil      # the device pointer for p, in an arena of the graph
    void (*took)(Walk* w) noexcept nogil                        # working memory was taken
    int (*send_arguments)(Walk* w, const Batch* batch) noexcept nogil
    int (*translate)(Walk* w, const Batch* batch, Call* c) noexcept nogil   # from host to device pointers

    int (*forward)(Walk* w, const Batch* batch, const Op* op, const Call* c) noexcept nogil
    int (*begin_backward)(Walk* w, const Batch* batch, const Op* op, const Call* c) noexcept nogil
    int (*backward)(Walk* w, const Batch* batch, const Op* op, const Call* c, uint32_t i) noexcept nogil

    # `copy`, `add` and `zero` may be deferred until `settle`, and then run in any order.  `to` is a host pointer: into
    # an arena of the graph, or for `add` to the gradient of `node`, which may be a parameter.
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


cdef void begin_walk(Walk* w, Graph* g, const Device* device) noexcept nogil
cdef int raise_failure(Graph* g, str what, const Failure* failure) except -1
cdef int raise_of_op(const Failure* failure) except -1


cdef inline void* take(Walk* w, size_t n) noexcept nogil:
    """Allocate working memory in the scratch arena of the graph; NULL if there is none left."""
    cdef void* p = arena_alloc(&w.g.scratch, n)
    if p == NULL:
        w.failure.needed = n
    elif not w.at_once:
        w.device.took(w)
    return p


cdef inline bint stops(Walk* w, size_t bytes) noexcept nogil:
    """Whether the pass ends here because a signal handler has raised an exception.

    Backward ends only if its changes can be undone.  Passes on a GPU are only listed at this time, and do not end.
    """
    if not w.at_once or not interrupted(&w.failure.interrupts, bytes) or w.whole:
        return False
    if w.background != NULL:
        finish_background(w.background)
    return w.journal == NULL or take_back(w.journal)


cdef inline int settle(Walk* w) noexcept nogil:
    """Make pending copies run before the commands that follow."""
    return w.device.settle(w) if w.pending else 0


cdef inline bint op_raised(const Op* op, Failure* failure) noexcept nogil:
    """Whether the function of an op that has just run has raised an exception."""
    if op.raised == NULL:
        return False
    failure.raised = op.raised()
    return failure.raised != NULL


cdef inline void* take_table(Walk* w, size_t n) noexcept nogil:
    """Allocate a table that ops read (items, lists).  Pending copies are a table too, so they are settled first."""
    cdef void* p = NULL
    if settle(w):
        return NULL
    p = arena_alloc(w.tables, n)
    if p == NULL:
        w.failure.needed = n
    return p


cdef inline float* place_of(Walk* w, const void* p) noexcept nogil:
    """The pointer that ops get for p, a pointer into an arena of the graph."""
    return <float*>p if w.at_once else w.device.place(w, p)


# ---- forward
# Compute the next n planned batches at once, and count them as run: -1 after a failure, 1 if time was up.
cdef int run_planned_at_once(Walk* w, uint32_t n) noexcept nogil
# Allocate the values of a planned batch, and compute them, or list the call that will.  Its nodes must have no values
# yet.
cdef int run_forward(Walk* w, Batch* batch) noexcept nogil


cdef inline bint make_room(Graph* g, Batch* batch) noexcept nogil:
    """Allocate the values of a batch, side by side; False if there is no memory for `batch.bytes` bytes."""
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Node* nodes = nodes_of(g)
    cdef uint32_t j
    batch.bd = 0
    batch.bytes = 0
    for j in range(batch.count):
        batch.bd += nodes[ids[j]].dim.bd
        batch.bytes += total_of(&nodes[ids[j]].dim) * sizeof(float)
    batch.live = batch.count
    batch.y = <float*>take_values(g, batch.bytes)
    return batch.y != NULL


cdef inline void hand_out_values(Graph* g, const Batch* batch, uint32_t number) noexcept nogil:
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
        state[ids[j]] = (state[ids[j]] | COMPUTED) & <uint8_t>~WANTED
    g.n_order += batch.count
    g.n_batches += 1


# ---- backward: mark nodes, begin with the target, and go over batches
cdef int open_backward(Walk* w, uint32_t target, bint full) noexcept nogil
cdef int begin_at(Walk* w, uint32_t target) noexcept nogil
cdef int run_backward(Walk* w, uint32_t first, uint32_t last) noexcept nogil
cdef int go_back(Walk* w, Batch* batch, uint32_t number) noexcept nogil
