"""Expressions: numbers of nodes, with the renewal of the graph that they belong to, checked on each use."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.core.tensor cimport Dim
from dynet_cy.graph.structs cimport Graph


cdef class Expression:
    cdef uint64_t version
    cdef uint32_t slot
    cdef uint32_t index

    # Bring `version`, `slot` and `index` to a node of the current graph, or raise.
    cdef int enter(self) except -1
    cdef Graph* graph(self) except NULL


cdef class ForwardExpression(Expression):
    pass


cdef inline uint32_t number_in(Graph* g, Expression x) except? 0xFFFFFFFF:
    """The number of an expression in the current graph `g`."""
    if x.version != g.version:
        x.enter()
    return x.index


cdef const Dim* dim_of(Expression x) except NULL
# Renumber the needed nodes of a forward-only graph, if it is time.
cdef int compact_if_due(Graph* g) except -1

# Operators on expressions: filled by the family of each.
ctypedef object (*OperatorHook)(object a, object b)

cdef enum:
    OPERATOR_ADD
    OPERATOR_SUB
    OPERATOR_MUL
    OPERATOR_DIV
    OPERATOR_POW
    OPERATOR_NEG
    OPERATOR_MATMUL
    OPERATOR_LESS
    OPERATOR_LESS_EQUAL
    OPERATOR_GREATER
    OPERATOR_GREATER_EQUAL
    OPERATOR_COUNT

cdef int set_operator(int which, OperatorHook hook) except -1
