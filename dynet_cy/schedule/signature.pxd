"""Signatures: which nodes may run as one call.

Two nodes have the same signature when their keys are equal, word for word; the
hash only finds the key.  A key holds the op, its attributes, and for each
argument either its shape or, if all nodes of a batch share it, its node number.

Nodes of ragged ops that differ only in sizes have related signatures, of one
`kin`.  They wait in one queue, so that sentences of different lengths stay in step.
"""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Graph, Node


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
    uint32_t deepest                # depth of the node that was made last
    bint rising                     # each of its nodes is deeper than the one before
    bint by_node                    # its nodes share an argument that is not a parameter

cdef int signatures_open(Graph* g, Signatures* s, uint32_t most) noexcept nogil
cdef int signature_of(Graph* g, Signatures* s, uint32_t node, uint32_t depth,
                      uint32_t* out) noexcept nogil
cdef uint32_t queue_of(const Signatures* s, uint32_t signature) noexcept nogil

# What the nodes of one queue have in common, as words, and the most words it can take.
cdef size_t most_words(const Node* x) noexcept nogil
cdef uint32_t write_queue(Graph* g, uint32_t node, uint32_t* w) noexcept nogil
