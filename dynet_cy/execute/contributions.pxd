"""What is added to a gradient: of a node, or of a parameter; the first contribution to that of a node assigns."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, total_of
from dynet_cy.execute.walk cimport Collected, Walk
from dynet_cy.graph.structs cimport Batch, Node, gradient_at
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport Needs, Op

# Add n numbers, times scale, to the gradient of a node, if it needs one.
cdef int contribute(Walk* w, uint32_t node, const float* source, size_t n, float scale) noexcept nogil
# Let gradients that lie side by side be contributions to those of argument i of each node.
cdef int hand_out(Walk* w, const Batch* batch, uint32_t i, const float* source) noexcept nogil
# The gradients of all arguments that lie as the results do are theirs, times a number.
cdef int spread(Walk* w, const Batch* batch, const Call* c, float scale) noexcept nogil

# What was collected for a parameter; NULL: nothing so far.
cdef Collected* collected_of(const Walk* w, const Param* p) noexcept nogil
# Add what was collected for a parameter, or for all of them, to gradients.
cdef int multiply_one(Walk* w, Collected* x) noexcept nogil
cdef int multiply_collected(Walk* w) noexcept nogil


cdef inline int zero_gradient(Walk* w, const Node* x) noexcept nogil:
    return w.device.zero(w, gradient_at(w.g, x.val), total_of(&x.dim))


cdef inline int one_backward(Walk* w, const Batch* batch, const Op* op, Call* c, uint32_t i) noexcept nogil:
    """The op's backward for one argument; `c.accumulate` says whether it adds."""
    cdef int failed = 0
    if w.at_once:
        op.backward(c, i)
    else:
        failed = w.device.backward(w, batch, op, c, i)
    c.first = 0
    return failed


cdef inline int backward_into(Walk* w, const Batch* batch, const Op* op, const Needs* needs, Call* c, uint32_t i,
                              bint accumulate) noexcept nogil:
    """The op's backward for one argument, which adds to what is there, or else assigns."""
    if not needs.assigns and not accumulate:
        if w.device.fill(w, c.dx.v, total_of(&c.dx.dim), 0):
            return -1
        accumulate = True
    c.accumulate = accumulate
    return one_backward(w, batch, op, c, i)


# The gradient of rows of a table; the op notes which rows they are.
cdef int leaf_backward(Walk* w, const Batch* batch, const Op* op, Call* c, Param* p) noexcept nogil
# That of an argument that is a parameter: it is in storage.
cdef int parameter_backward(Walk* w, const Batch* batch, const Op* op, const Needs* needs, Call* c, uint32_t i,
                            Param* p) noexcept nogil
# That of an argument that is read where it lies: goes to where its gradients lie.
cdef int list_backward(Walk* w, const Batch* batch, const Op* op, const Needs* needs, Call* c,
                       uint32_t i) noexcept nogil
