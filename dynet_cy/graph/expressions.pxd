"""Expressions: the number of a node and the version of its graph, which is checked on each use."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.core.tensor cimport Dim
from dynet_cy.core.unlocked cimport HAS_GIL
from dynet_cy.graph.graph cimport ComputationGraph
from dynet_cy.graph.structs cimport Graph


cdef class Expression:
    cdef uint64_t version
    cdef uint32_t slot
    cdef uint32_t index

    # The number of the node in the current graph; an error if it belongs to another one.
    cdef uint32_t enter(self) except? 0xFFFFFFFF
    cdef Graph* graph(self) except NULL
    cdef Expression own(self)


cdef class ForwardExpression(Expression):
    pass


cdef inline uint32_t number_in(Graph* g, Expression x) except? 0xFFFFFFFF:
    """The number of an expression in the current graph `g`."""
    return x.index if x.version == g.version else x.enter()


# An expression whose `index` only this thread changes.  A parameter is an expression of every graph that uses it.
# Without a GIL, threads use these at the same time, so it then has a separate expression in each graph.
cdef inline Expression owned(Expression x):
    return x if HAS_GIL else x.own()


# Without a GIL it is a copy, since nodes may move: it holds until this thread has asked for some thirty others.
cdef const Dim* dim_of(Expression x) except NULL
# The graph of an expression, which no other thread may use until this one has called `release`.
cdef ComputationGraph claimed(Expression x)
# Renumber the needed nodes of a forward-only graph, if enough have been dropped.
cdef int compact_if_due(Graph* g) except -1

# Operators on expressions, which modules of ops fill in.
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
