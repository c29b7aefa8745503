"""Signatures: which nodes may run as one call.

Two nodes have the same signature when their keys are equal, word for word; the
hash only finds the key.  A key holds the op, its attributes, and for each
argument either its shape or, if all nodes of a batch share it, its node number.

Nodes of ragged ops that differ only in sizes have related signatures, of one
`kin`.  They wait in one queue, so that sentences of different lengths stay in step.

A parameter is shared by all nodes of a signature.  But where it stands in place of a value, such as the state of an
empty stack, its nodes run together with those that have a value there, and the parameter is copied beside the values.
"""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Graph, Node
from dynet_cy.ops.registry cimport BATCH, SHARE, Op, rule_index, rule_of


cdef struct Signatures:
    uint32_t n
    uint32_t* table                 # open addressing: number of a signature + 1, or 0
    uint32_t table_size             # a power of two
    Key* keys

cdef struct Key:
    uint32_t* words
    uint32_t n_words
    uint32_t hash
    uint32_t form                   # of a batch of such nodes
    uint32_t kin                    # the signature that ignores sizes too; the signature itself if there is none
    uint32_t of_values              # that of nodes with values in place of its parameters; the signature itself: none
    uint32_t n_nodes                # how many nodes have it
    uint32_t deepest                # depth of the node that was made last
    bint rising                     # each of its nodes is deeper than the one before
    bint by_node                    # its nodes share an argument that is not a parameter

cdef int signatures_open(Graph* g, Signatures* s, uint32_t most) noexcept nogil
cdef int signature_of(Graph* g, Signatures* s, uint32_t node, uint32_t depth,
                      uint32_t* out) noexcept nogil

cdef inline bint may_be_value(const Op* op, uint32_t i) noexcept nogil:
    """Whether a parameter that is argument i may be one of several values, instead of one argument for all nodes."""
    return op.batching == BATCH and rule_of(op, i) != SHARE and not op.one_column[rule_index(i)]


# When all nodes have a signature: decide which ones run with that `of_values`.
cdef void settle_values(Signatures* s) noexcept nogil


cdef inline uint32_t queue_of(const Signatures* s, uint32_t signature) noexcept nogil:
    """Number of the signature in whose queue the nodes of a signature wait.  Call it when all nodes have a signature.

    Nodes that share an argument, and several of which may be ready at once, gain more
    from running as one call than from staying in step with nodes of other sizes.
    """
    cdef const Key* key = &s.keys[signature]
    return signature if key.by_node and not key.rising else key.kin


# Whether an argument of a node is a parameter in place of a value.
cdef bint has_parameter_value(const Graph* g, const Node* x) noexcept nogil

# What the nodes of one queue have in common, as words, and the most words it can take.
cdef size_t most_words(const Node* x) noexcept nogil
cdef uint32_t write_queue(Graph* g, uint32_t node, uint32_t* w) noexcept nogil
