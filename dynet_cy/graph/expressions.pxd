"""Graphs and expressions: an expression is the number of a node and the version of its graph, checked on each use."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from dynet_cy.core.tensor cimport Dim
from dynet_cy.core.threads cimport HAS_GIL
from dynet_cy.graph.structs cimport Graph, Node
from dynet_cy.graph.table cimport Renumber
from dynet_cy.memory.storage cimport Param, Storage


# ==== graph =======================================================================================
#
# Computation graphs: the owner of the C graph and of everything in it.

# The collector of requests for values: `fibers` implements it.
cdef class Requests:
    # Suspend the running item until an expression, or each of a list, is computed; False if no item is running.
    cdef bint wait_for(self, object wanted) except -1
    # Whether an item is running, rather than another user of its graph.
    cdef bint inside(self) except -1


cdef class ComputationGraph:
    cdef Graph g
    cdef dict keep                  # storage of its parameters -> number of changes at the last backward, or None
    cdef tuple further_gradients    # gradients that the last backward did not keep, once requested
    cdef uint32_t n_at_backward     # nodes at the last backward; 0: there was none
    cdef bint warned                # about updates of parameters
    cdef dict leaves                # (id of a parameter, trainable): number of its node
    cdef list checkpoints
    cdef list reverts               # (revert number, nodes left), rising in both
    cdef Requests requests          # the collector of requests for values, while a batched map runs; else None
    cdef uint32_t asked             # in programs of DyNet: nodes before this one have the values of their first use
    cdef uint32_t kept_to           # ... and those before this one keep them when parameters change
    cdef Storage kept               # entries with the values of changed parameters; None: there are none
    cdef list kept_of               # by entry: the storage of the parameter, and its number there

    cdef int warn_of_update(self, str what) except -1
    cdef int note_values(self) except -1
    cdef bint values_changed(self) except -1
    cdef int compact(self, Renumber renumber) except -1
    cdef int leave_checkpoint(self) except -1


cdef ComputationGraph current()
cdef ComputationGraph owner_of(const Graph* g)


# ==== computing ===================================================================================
#
# Passes for requested values, and values as floats, arrays and lists.

# Requests of items that share a graph: `fibers` implements it.
cdef class SharedRequests(Requests):
    # Let the items that were woken read their values, before the running item drops all values of the graph.
    cdef int let_read(self) except -1
    # Raise if items may have read a node that is about to change.
    cdef int check_set(self, uint32_t node, str what) except -1


# Drop all computed values before a node is changed; an error if items of a batched map share it.
cdef int forget_to_set(Graph* g, uint32_t index, str what) except -1
cdef int run_pass(Graph* g, const uint32_t* targets, uint32_t n) except -1
# The value of a computed node in host memory, fetched first if the node is on a device.
cdef float* value_here(Graph* g, Node* x) except? NULL
cdef float* parameter_here(Param* p, bint gradient) except? NULL


# ==== expressions =================================================================================
#
# Expressions: the number of a node and the version of its graph, which is checked on each use.

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


# ==== values ======================================================================================
#
# Values of several expressions, computed together.

# Compute expressions of one graph together, so that they batch with each other; `op` is for messages.
cdef list compute_all(object expressions, str op, bint recalculate)
