"""Which device a node runs on."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Extra, Graph
from dynet_cy.ops.registry cimport Op

cdef int place_node(Graph* g, const Op* op, const uint32_t* args, uint32_t n, const Extra* extra) except -1
cdef void let_move(Graph* g) noexcept
# 1 + the number of the device of that name, 0 for "": the `device` of an Extra.
cdef int asked_device(object name, str where) except -1


cdef inline int placed(Graph* g, const Op* op, const uint32_t* args, uint32_t n, const Extra* extra) except -1:
    """Where a node is to run, for graphs on several devices."""
    if g.multi_device or (extra != NULL and extra.device and extra.device - 1 != g.device):
        return place_node(g, op, args, n, extra)
    return 0
