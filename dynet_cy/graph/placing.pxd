"""Which device a node runs on."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Extra, Graph
from dynet_cy.ops.registry cimport Op

cdef int place_node(Graph* g, const Op* op, const uint32_t* args, uint32_t n, const Extra* extra) except -1
cdef void let_move(Graph* g) noexcept
# The `device` of an Extra: 1 + the number of the named device, or 0 for "".
cdef int asked_device(object name, str where) except -1


cdef inline int placed(Graph* g, const Op* op, const uint32_t* args, uint32_t n, const Extra* extra) except -1:
    """The device of a node, on multi-device graphs."""
    if g.multi_device or (extra != NULL and extra.device and extra.device - 1 != g.device):
        return place_node(g, op, args, n, extra)
    return 0
