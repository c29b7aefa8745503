"""Which device a node runs on: that of its graph, unless another one was requested for it or its arguments."""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memset

from dynet_cy.graph.messages cimport explain
from dynet_cy.graph.structs cimport (
    MOVABLE, NO_BATCH, SENT, Extra, Graph, Node, args_of, nodes_of, state_of,
)
from dynet_cy.graph.table cimport Table, graph_table, hold, let_go
from dynet_cy.memory.arena cimport array_push, out_of_memory
from dynet_cy.ops.registry cimport Op

from dynet_cy.devices import check_device

cdef Table* table = graph_table()


cdef int asked_device(object name, str where) except -1:
    return 0 if name == "" else 1 + check_device(name, where)


cdef int place_node(Graph* g, const Op* op, const uint32_t* args, uint32_t n, const Extra* extra) except -1:
    """The device of a new node: the one that was requested, or that of its arguments.

    Inputs without a device of their own follow the other arguments.
    """
    cdef uint8_t* devices
    cdef bint asked = extra != NULL and extra.device
    cdef int device = -1
    cdef uint32_t i
    if not g.multi_device:
        mix(g)
    devices = <uint8_t*>g.devices.base
    if n == 0 and not asked:
        return g.device | (MOVABLE if extra != NULL and extra.val != NULL else 0)
    for i in range(n if not asked else 0):
        if not devices[args[i]] & MOVABLE:
            if device >= 0 and devices[args[i]] != device:
                raise ValueError(explain(
                    op, "the arguments are on different devices; to_device brings one to another", args, n, g))
            device = devices[args[i]]
    if device < 0:
        device = g.device
    for i in range(n):
        if devices[args[i]] & MOVABLE:
            devices[args[i]] = <uint8_t>device
    return extra.device - 1 if asked else device


cdef int mix(Graph* g) except -1:
    """Make a graph a multi-device one; its nodes so far are on the device of the graph."""
    cdef uint8_t* devices
    hold(table, g.slot)
    devices = <uint8_t*>array_push(&g.devices, g.n_nodes)
    let_go(table, g.slot)
    if devices == NULL:
        out_of_memory("the devices of a graph")
    memset(devices, g.device, g.n_nodes)
    let_move(g)
    g.multi_device = True
    return 0


cdef void let_move(Graph* g) noexcept:
    """Make inputs that no node uses, and for which no device was requested, movable again."""
    cdef uint8_t* devices = <uint8_t*>g.devices.base
    cdef Node* x
    cdef uint32_t i, k
    for i in range(g.n_nodes):
        x = &nodes_of(g)[i]
        if x.nargs == 0 and x.val != NULL and x.batch == NO_BATCH and x.attrs[0].u == 0:
            devices[i] |= <uint8_t>MOVABLE
        for k in range(x.nargs):
            devices[args_of(g, x)[k]] &= <uint8_t>~MOVABLE
    for i in range(g.n_nodes):
        if devices[i] & MOVABLE and devices[i] != (g.device | MOVABLE):
            devices[i] = <uint8_t>(g.device | MOVABLE)
            state_of(g)[i] &= <uint8_t>~SENT
