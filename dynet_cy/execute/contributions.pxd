"""Contributions to gradients of nodes and parameters.  The first contribution to a node's gradient assigns it."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, total_of
from dynet_cy.execute.walk cimport Collected, Walk
from dynet_cy.graph.structs cimport Batch, Node, gradient_at
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport Factors, Needs, Op

# Add n numbers, times scale, to the gradient of a node, if it needs one.
cdef int contribute(Walk* w, uint32_t node, const float* source, size_t n, float scale) noexcept nogil
# Add gradients that are side by side, one for each node of a batch, to those of the nodes' arguments i.
cdef int hand_out(Walk* w, const Batch* batch, uint32_t i, const float* source) noexcept nogil
# Add the gradients of the results, times a number, to those of all arguments that have the batch size of the result.
cdef int spread(Walk* w, const Batch* batch, const Call* c, float scale) noexcept nogil

# The collected contributions to a parameter; NULL: none so far.
cdef Collected* collected_of(const Walk* w, const Param* p) noexcept nogil
# Let another thread add a product, whose factors last as long as the pass, to the gradient of a parameter.
cdef bint add_later(Walk* w, Collected* x, const Factors* f) noexcept nogil
# Add the collected contributions to the gradient of a parameter, or of all parameters.
cdef int multiply_one(Walk* w, Collected* x) noexcept nogil
cdef int multiply_collected(Walk* w) noexcept nogil


cdef inline int zero_gradient(Walk* w, const Node* x) noexcept nogil:
    return w.device.zero(w, gradient_at(w.g, x.val), total_of(&x.dim))


cdef inline int one_backward(Walk* w, const Batch* batch, const Op* op, Call* c, uint32_t i) noexcept nogil:
    """Run the op's backward for one argument; `c.accumulate` says whether it adds."""
    cdef int failed = 0
    if w.at_once:
        op.backward(c, i)
    else:
        failed = w.device.backward(w, batch, op, c, i)
    c.first = 0
    return failed


cdef inline int backward_into(Walk* w, const Batch* batch, const Op* op, const Needs* needs, Call* c, uint32_t i,
                              bint accumulate) noexcept nogil:
    """Run the op's backward for one argument, adding to its gradient or else assigning it."""
    if not needs.assigns and not accumulate:
        if w.device.fill(w, c.dx.v, total_of(&c.dx.dim), 0):
            return -1
        accumulate = True
    c.accumulate = accumulate
    return one_backward(w, batch, op, c, i)


# Add zeros to the gradients of argument i of all nodes of a batch: the result or the argument has no elements.
cdef int contribute_nothing(Walk* w, const Batch* batch, uint32_t i) noexcept nogil

# Compute the gradient of rows of a table; the op records which rows these are.
cdef int leaf_backward(Walk* w, const Batch* batch, const Op* op, Call* c, Param* p) noexcept nogil
# Compute the gradient of an argument that is a parameter; it is in the storage.
cdef int parameter_backward(Walk* w, const Batch* batch, const Op* op, const Needs* needs, Call* c, uint32_t i,
                            Param* p) noexcept nogil
# Compute the gradient of an argument that is read as a list: it is written through a list of pointers too.
cdef int list_backward(Walk* w, const Batch* batch, const Op* op, const Needs* needs, Call* c,
                       uint32_t i) noexcept nogil
