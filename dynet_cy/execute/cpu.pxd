"""What executors of other devices share with that of the CPU."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from dynet_cy.core.tensor cimport Call, Tensor, total_of
from dynet_cy.core.interrupts cimport Interrupts
from dynet_cy.execute.anomaly cimport Finding
from dynet_cy.execute.journal cimport Journal, Waiting
from dynet_cy.graph.graph cimport (
    COLUMNS, COMPUTED, LIVE, NEEDS_GRAD, SHARED, TRAINABLE, WANTED, Batch, Graph, Node, args_of, batches_of, nodes_of,
    order_of, state_of, take_values,
)
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport LIST, SHARE, Op, rule_of

# Calls with more arguments than this keep their tensors in the scratch arena.
cdef enum:
    FEW = 8

# What went wrong in a nogil function, for the error raised after it.
cdef struct Failure:
    size_t needed
    bint half                       # a part of the gradients could not be taken back
    Finding finding                 # of numbers that are not finite
    void* raised                    # the exception of an op that runs Python; owned
    Interrupts interrupts


# Let passes of this thread end at that time, as `now` of execute/profile has it, when a batch has run: what is left is
# not computed.  0 for whole passes.  A pass on a device is always whole.
cdef void end_passes_at(uint64_t nanoseconds) noexcept


cdef inline bint is_shared(const uint8_t* state, const Op* op, uint32_t i, uint32_t arg) noexcept nogil:
    return state[arg] & SHARED or rule_of(op, i) == SHARE


cdef inline bint may_list(const Batch* batch, const Op* op, uint32_t i) noexcept nogil:
    """Whether argument i of a batch may be a list of places."""
    return rule_of(op, i) == LIST and batch.form != COLUMNS         # a matrix has no list


cdef inline bint side_by_side(const Graph* g, const Batch* batch, uint32_t i, bint listable) noexcept nogil:
    """Whether argument i of the nodes of a batch lies as the op wants it already.

    What may be listed may have one batch element for several of its node: it must be listed then.
    """
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Node* nodes = nodes_of(g)
    cdef const Node* a = &nodes[args_of(g, &nodes[ids[0]])[i]]
    cdef const float* at = a.val
    cdef uint32_t j
    for j in range(batch.count):
        a = &nodes[args_of(g, &nodes[ids[j]])[i]]
        if a.val != at or (listable and a.dim.bd < nodes[ids[j]].dim.bd):
            return False
        at += total_of(&a.dim)
    return True


cdef inline bint make_room(Graph* g, Batch* batch) noexcept nogil:
    """Find room for the values of a batch, side by side; False if there is none, and `batch.bytes` are too many."""
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
    """Let each node of a batch have its part of the values."""
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
    """Note that the next planned batch has run."""
    cdef const Batch* batch = &batches_of(g)[g.n_batches]
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef uint8_t* state = state_of(g)
    cdef uint32_t j
    for j in range(batch.count):
        state[ids[j]] = (state[ids[j]] | COMPUTED) & <uint8_t>~WANTED
    g.n_order += batch.count
    g.n_batches += 1


cdef inline bint wants_gradient(const Graph* g, const Batch* batch, uint32_t i, bint one, uint32_t* n_need,
                                uint32_t* n_live) noexcept nogil:
    """Whether argument i of a batch wants a gradient: of how many nodes, and for how many there is one already.

    With `one`, the nodes have one argument together, which is not counted.
    """
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Node* nodes = nodes_of(g)
    cdef const uint8_t* state = state_of(g)
    cdef uint32_t j, arg = args_of(g, &nodes[ids[0]])[i]
    n_need[0] = n_live[0] = 0
    if one:
        return state[arg] & NEEDS_GRAD and (nodes[arg].val != NULL or state[arg] & TRAINABLE)
    for j in range(batch.count):
        arg = args_of(g, &nodes[ids[j]])[i]
        n_need[0] += (state[arg] & NEEDS_GRAD) != 0
        n_live[0] += (state[arg] & LIVE) != 0
    return n_need[0] != 0


cdef void* take(Graph* g, size_t n, Failure* failure) noexcept nogil
cdef int set_call(Graph* g, Batch* batch, Tensor* few, Call* c, Failure* failure) noexcept nogil
cdef void set_one(Graph* g, const Batch* batch, uint32_t j, Batch* one) noexcept nogil
cdef void mark_gradients(Graph* g, uint32_t target, bint full) noexcept nogil
cdef int list_batches(Graph* g, uint32_t first) except -1

cdef void begin_failure(Failure* failure) noexcept nogil

# One planned batch, and one batch that has run.
cdef int run_batch(Graph* g, Batch* batch, Failure* failure) noexcept nogil
cdef int run_batch_backward(Graph* g, Batch* batch, Journal* journal, Failure* failure) noexcept nogil
cdef int check_collected(Graph* g, const Waiting* waiting, Failure* failure) noexcept nogil
cdef int raise_failure(Graph* g, str what, const Failure* failure) except -1
cdef void add_to_parameter(Param* p, Journal* journal) noexcept nogil
