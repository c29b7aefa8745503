"""Device addresses of values and gradients, for tables that kernels read."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport size_of
from dynet_cy.execute.walk cimport claim
from dynet_cy.gpu.commands cimport Pass, on_device
from dynet_cy.graph.structs cimport LIVE, NEEDS_GRAD, NO_BATCH, VIEWS, Graph, Node, batches_of, state_of
from dynet_cy.memory.storage cimport Param


# Where the values of a batch begin, or its gradients, on the host and on the device.
cdef struct BatchAddress:
    uint32_t batch
    const float* here
    float* there


cdef inline float* there(Pass* s, BatchAddress* place, const Node* x) noexcept nogil:
    """The device address of the value of a node; `place` is that of its batch, or becomes it."""
    if x.val == NULL:
        return (<Param*>x.object).device_value
    if x.batch == NO_BATCH or batches_of(s.walk.g)[x.batch].form == VIEWS:
        return on_device(s, x.val)
    if place.batch != x.batch:
        place.batch = x.batch
        place.here = batches_of(s.walk.g)[x.batch].y
        place.there = on_device(s, place.here)
    return place.there + (x.val - place.here)


cdef inline float* gradient_there(Pass* s, BatchAddress* place, const Node* x) noexcept nogil:
    """The device address of the gradient of a node; `place` is that of its batch, or becomes it.  NULL: there is no
    memory."""
    cdef float* here
    cdef bint apart = x.batch == NO_BATCH or batches_of(s.walk.g)[x.batch].form == VIEWS
    if apart or place.batch != x.batch:
        here = claim(&s.walk, x)
        if here == NULL or apart:
            return on_device(s, here) if here != NULL else NULL
        place.batch = x.batch
        place.here = batches_of(s.walk.g)[x.batch].y
        place.there = on_device(s, batches_of(s.walk.g)[x.batch].dy)
    return place.there + (x.val - place.here)


cdef inline size_t stride_of(const Node* x) noexcept nogil:
    return size_of(&x.dim) if x.dim.bd > 1 else 0


cdef inline bint is_live(const Graph* g, uint32_t node) noexcept nogil:
    return (state_of(g)[node] & (LIVE | NEEDS_GRAD)) == (LIVE | NEEDS_GRAD)
