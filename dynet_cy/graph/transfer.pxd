"""Copies of values from one device to another."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Attr
from dynet_cy.graph.structs cimport Node
from dynet_cy.ops.registry cimport TRANSFERS, Op, op_at

# Its nodes have no forward and backward: executors of graphs on several devices copy, both ways.
cdef Op* TO_DEVICE


cdef inline bint is_transfer(const Node* x) noexcept nogil:
    return op_at(x.op).role == TRANSFERS


cdef inline int source_of(const Node* x) noexcept nogil:
    """The device of the argument; the device of the node is the destination."""
    return x.attrs[0].i
