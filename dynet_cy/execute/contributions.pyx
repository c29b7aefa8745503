# Used from Cython only.
"""Contributions to gradients of nodes and parameters.  The first contribution to a node's gradient assigns it."""

from libc.stdint cimport uint8_t
from libc.string cimport memcpy

from dynet_cy.core.tensor cimport size_of
from dynet_cy.execute.arguments cimport uses_in
from dynet_cy.execute.background cimport MOST_IN_BACKGROUND, Addition, add_in_background, finish_background, is_made
from dynet_cy.execute.journal cimport note_before
from dynet_cy.execute.walk cimport place_of, settle, stops, take, take_table
from dynet_cy.graph.structs cimport (
    LIVE, NEEDS_GRAD, TRAINABLE, Graph, args_of, nodes_of, order_of, state_of,
)
from dynet_cy.kernels.kernels cimport K
from dynet_cy.memory.arena cimport arena_alloc, arena_rewind
from dynet_cy.memory.storage cimport note_gradient, pthread_mutex_t


cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_lock(pthread_mutex_t* m)
    int pthread_mutex_unlock(pthread_mutex_t* m)


cdef inline void begin_parameter(Walk* w, Param* p) noexcept nogil:
    """Lock the gradient of a parameter for a contribution, and record it in the journal."""
    pthread_mutex_lock(&p.lock)
    if w.journal != NULL:
        note_before(w.journal, p)


cdef inline void begin_addition(Walk* w, Param* p) noexcept nogil:
    """`begin_parameter` for a contribution that is made now: those that another thread computes come before it."""
    cdef const Collected* x
    if w.background != NULL:
        x = collected_of(w, p)
        if x != NULL and x.added != NULL and not is_made(x.added):
            finish_background(w.background)
    begin_parameter(w, p)


cdef inline void end_parameter(Param* p) noexcept nogil:
    note_gradient(p)
    pthread_mutex_unlock(&p.lock)


# ---- numbers -----------------------------------------------------------------------

cdef inline int add_numbers(Walk* w, uint32_t node, float* to, const float* source, size_t n, float scale,
                            bint accumulate) noexcept nogil:
    if not w.at_once:
        return w.device.add(w, node, to, source, n, scale, accumulate)
    if scale != 1:
        if accumulate:
            K.axpy(n, scale, source, to)
        else:
            K.scale(n, scale, source, to)
    elif accumulate:
        K.add(n, source, to)
    else:
        memcpy(to, source, n * sizeof(float))
    return 0


cdef inline int add_contribution(Walk* w, uint32_t node, const Node* a, uint8_t* state, const float* source, size_t n,
                                 float scale) noexcept nogil:
    """Add n numbers, times scale, to the gradient of a node, if it needs one: the first contribution assigns."""
    cdef bint live = (state[0] & LIVE) != 0
    if a.val == NULL:
        return contribute_to_parameter(w, node, source, n, scale) if state[0] & TRAINABLE else 0
    if not state[0] & NEEDS_GRAD:
        return 0
    state[0] |= LIVE
    return add_numbers(w, node, gradient_at(w.g, a.val), source, n, scale, live)


cdef int contribute_to_parameter(Walk* w, uint32_t node, const float* source, size_t n, float scale) noexcept nogil:
    cdef Param* p = <Param*>nodes_of(w.g)[node].object
    cdef int failed
    begin_addition(w, p)
    failed = add_numbers(w, node, p.grad, source, n, scale, True)
    end_parameter(p)
    return failed


cdef int contribute(Walk* w, uint32_t node, const float* source, size_t n, float scale) noexcept nogil:
    return add_contribution(w, node, &nodes_of(w.g)[node], &state_of(w.g)[node], source, n, scale)


cdef int hand_out(Walk* w, const Batch* batch, uint32_t i, const float* source) noexcept nogil:
    """Add gradients that are side by side, one for each node, to those of the nodes' arguments i."""
    cdef Graph* g = w.g
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Node* nodes = nodes_of(g)
    cdef const Node* a
    cdef uint8_t* state = state_of(g)
    cdef uint32_t j, arg
    cdef size_t n
    for j in range(batch.count):
        arg = args_of(g, &nodes[ids[j]])[i]
        a = &nodes[arg]
        n = total_of(&a.dim)
        for _ in range(uses_in(batch, a, &nodes[ids[j]])):
            if add_contribution(w, arg, a, &state[arg], source, n, 1):
                return -1
            source += n
    return 0


cdef int spread(Walk* w, const Batch* batch, const Call* c, float scale) noexcept nogil:
    """Add dy, times a number, to the gradients of all arguments that have the batch size of the result."""
    cdef Graph* g = w.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* node
    cdef const float* source = c.dy.v
    cdef uint32_t i, j
    for j in range(batch.count):
        node = &nodes_of(g)[ids[j]]
        for i in range(c.n):
            if c.x[i].dim.bd == c.y.dim.bd and contribute(w, args_of(g, node)[i], source, total_of(&node.dim), scale):
                return -1
        source += total_of(&node.dim)
    return settle(w)


cdef int contribute_nothing(Walk* w, const Batch* batch, uint32_t i) noexcept nogil:
    cdef Graph* g = w.g
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Node* nodes = nodes_of(g)
    cdef const Node* a
    cdef uint8_t* state = state_of(g)
    cdef uint32_t j, arg
    for j in range(batch.count):
        arg = args_of(g, &nodes[ids[j]])[i]
        a = &nodes[arg]
        if a.val == NULL:
            if state[arg] & TRAINABLE:
                begin_parameter(w, <Param*>a.object)
                end_parameter(<Param*>a.object)
        elif state[arg] & NEEDS_GRAD and not state[arg] & LIVE:
            if zero_gradient(w, a):
                return -1
            state[arg] |= LIVE
    return settle(w)


# ---- contributions collected over a pass ---------------------------------------------

cdef Collected* collected_of(const Walk* w, const Param* p) noexcept nogil:
    """The collected contributions to a parameter; NULL: none so far."""
    cdef Collected* x = w.collected
    while x != NULL and x.p != p:
        x = x.next
    return x


cdef int multiply_one(Walk* w, Collected* x) noexcept nogil:
    """Add the collected contributions to the gradient of a parameter."""
    cdef int failed
    if x.product.n == 0:
        return 0
    if w.background != NULL and x.sums == NULL and add_later(w, x, &x.product):
        x.added.left = <float*>x.product.left           # until it is made; see `room_for_factors`
        x.added.right = <float*>x.product.right
        x.product.left = NULL
        x.product.n = 0
        return 0
    begin_addition(w, x.p)
    failed = w.device.multiply(w, x)
    end_parameter(x.p)
    x.product.n = 0
    return failed


cdef bint add_later(Walk* w, Collected* x, const Factors* f) noexcept nogil:
    """Let another thread add a product to the gradient of a parameter.

    False: it is large, or there is no memory for that.  Then no other thread is busy in the background.
    """
    cdef Addition* a = NULL
    if f.rows * f.cols * f.n <= MOST_IN_BACKGROUND:
        a = <Addition*>arena_alloc(&w.g.grads, sizeof(Addition))
    if a == NULL:
        finish_background(w.background)
        return False
    begin_parameter(w, x.p)
    add_in_background(w.background, a, x.p, f, x.added)
    end_parameter(x.p)
    x.added = a
    return True


cdef int multiply_collected(Walk* w) noexcept nogil:
    """Add all collected contributions to the gradients of their parameters."""
    cdef size_t top = w.g.scratch.top
    cdef Collected* x = w.collected
    while x != NULL:
        if multiply_one(w, x) or stops(w, x.p.size * sizeof(float)):
            return -1
        arena_rewind(&w.g.scratch, top)
        x = x.next
    return 0


# ---- arguments of a call -------------------------------------------------------------

cdef int leaf_backward(Walk* w, const Batch* batch, const Op* op, Call* c, Param* p) noexcept nogil:
    """Compute the gradient of rows of a table; the op records which rows these are."""
    cdef int failed
    begin_addition(w, p)
    failed = one_backward(w, batch, op, c, 0)
    p.has_gradient = 1
    pthread_mutex_unlock(&p.lock)
    return failed


cdef int parameter_backward(Walk* w, const Batch* batch, const Op* op, const Needs* needs, Call* c, uint32_t i,
                            Param* p) noexcept nogil:
    """Compute the gradient of an argument that is a parameter; it is in the storage."""
    cdef Factors factors
    cdef Collected* sums
    cdef int done
    if needs.factors != NULL:
        factors.n = 0
        needs.factors(c, i, &factors)
        if factors.n:
            c.first = 0
            done = w.device.collect(w, p, &factors)
            if done:
                return 0 if done == 1 else -1
    sums = w.device.sums(w, p) if w.device.sums != NULL else NULL
    if sums != NULL:
        c.dx.v = sums.sums
        done = backward_into(w, batch, op, needs, c, i, sums.product.n != 0)
        sums.product.n = 1
        return done
    if settle(w):
        return -1
    begin_addition(w, p)
    c.dx.v = p.grad if w.at_once else p.device_grad
    c.accumulate = True
    done = one_backward(w, batch, op, c, i)
    end_parameter(p)
    return done


cdef int list_backward(Walk* w, const Batch* batch, const Op* op, const Needs* needs, Call* c,
                       uint32_t i) noexcept nogil:
    """Compute the gradient of an argument that is read as a list: it is written through a list of pointers too."""
    cdef Graph* g = w.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef uint8_t* state = state_of(g)
    cdef float** dx = <float**>take_table(w, batch.bd * sizeof(float*))
    # For each node, its argument if that has no gradient yet, otherwise NULL.
    cdef Node** empty = <Node**>take(w, batch.count * sizeof(Node*))
    cdef uint32_t j, arg
    cdef size_t n = 0, stride
    cdef bint adds = not needs.assigns
    cdef float* at
    cdef Node* a
    if dx == NULL or empty == NULL:
        return -1
    for j in range(batch.count):
        arg = args_of(g, &nodes[ids[j]])[i]
        a = &nodes[arg]
        at = place_of(w, gradient_at(g, a.val))
        stride = size_of(&a.dim) if a.dim.bd > 1 else 0
        for _ in range(nodes[ids[j]].dim.bd):
            dx[n] = at
            at += stride
            n += 1
        empty[j] = NULL
        # Several batch elements share it, or it has a gradient, perhaps from an earlier node of this batch.
        if a.dim.bd != nodes[ids[j]].dim.bd or state[arg] & LIVE:
            adds = True
        if not state[arg] & LIVE:
            # Even an argument that needs no gradient has memory for one.
            empty[j] = a
            state[arg] |= LIVE if state[arg] & NEEDS_GRAD else 0
    if adds:
        for j in range(batch.count):
            if empty[j] != NULL and zero_gradient(w, empty[j]):
                return -1
        if settle(w):
            return -1
    c.dx.list = <float**>place_of(w, dx)
    c.accumulate = adds
    return one_backward(w, batch, op, c, i)
