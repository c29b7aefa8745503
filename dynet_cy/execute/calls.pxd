"""Calls: the struct that an op gets for a batch, and running the op forward."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.core.tensor cimport Call, Dim, Packed, Tensor, size_of, total_of
from dynet_cy.execute.walk cimport Walk, op_raised, place_of, take
from dynet_cy.graph.structs cimport STACKED, Batch, Graph, Node, args_of, items_of, nodes_of, order_of, value_of
from dynet_cy.memory.arena cimport arena_rewind
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport Needs, Op

cdef extern from *:
    uint64_t atomic_load "__atomic_load_n"(const uint64_t* p, int order) nogil
    int RELAXED "__ATOMIC_RELAXED"

# Calls with more arguments than this keep their tensors in the scratch arena.
cdef enum:
    FEW = 8


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
    """Set everything in a call except its arguments and its result."""
    c.x = few
    if node.nargs > FEW:
        c.x = <Tensor*>take(w, node.nargs * sizeof(Tensor))
        if c.x == NULL:
            return -1
    c.n = node.nargs
    c.accumulate = 0
    c.before = 0
    c.attrs = node.attrs
    c.items = NULL
    c.item_count = node.item_count
    c.object = node.object
    c.seed = w.seed
    c.stream = atomic_load(&w.g.stream, RELAXED)         # another thread may set the seed
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


# Set the call of a batch: its arguments and result, in the form of the batch.
cdef int set_call(Walk* w, const Batch* batch, Tensor* few, Call* c) noexcept nogil


cdef inline void set_one(const Graph* g, const Batch* batch, uint32_t j, Batch* one) noexcept nogil:
    """Make a batch of node j of an EACH batch; the caller sets its y."""
    one.first = batch.first + j
    one.count = 1
    one.bd = nodes_of(g)[order_of(g)[one.first]].dim.bd
    one.form = STACKED
    one.x = NULL
    one.items = NULL


cdef inline bint is_empty(const Walk* w, const Dim* dim) noexcept nogil:
    """Whether a tensor of a call has no elements.  No op is called forward if its result is empty, nor backward for an
    argument if that or the result is, so kernels need not expect sizes of 0 there."""
    return w.g.has_empty and total_of(dim) == 0


cdef inline int run_call(Walk* w, Batch* batch, const Op* op, Call* c) noexcept nogil:
    cdef const Needs* needs = &op.needs[w.kind]
    cdef size_t top
    if is_empty(w, &c.y.dim):
        return 0
    if needs.saved != NULL:
        batch.saved = <float*>take(w, needs.saved(c) * sizeof(float))
        c.saved = place_of(w, batch.saved)
    top = w.g.scratch.top
    if needs.work != NULL:
        c.work = place_of(w, take(w, needs.work(c, -1) * sizeof(float)))
    if w.failure.needed:
        return -1
    if w.at_once:
        op.forward(c)
        if op_raised(op, &w.failure):
            return -1
    elif w.device.forward(w, batch, op, c):
        return -1
    arena_rewind(&w.g.scratch, top)
    return 0


# Run `op.prepare`, which computes the gradients of all arguments at once.
cdef int prepare(Walk* w, const Op* op, Call* c) noexcept nogil
