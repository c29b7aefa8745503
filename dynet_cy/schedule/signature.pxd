"""Signatures: which nodes may run as one call.

Two nodes have the same signature when their keys are equal, word for word; the
hash only finds the key.  A key holds the op, its parameters, and for each
argument either its shape or, where a batched call has one for all, itself.
"""

from libc.stdint cimport uint32_t

from dynet_cy.graph.graph cimport Graph


cdef struct Signatures:
    uint32_t n
    uint32_t* table                 # open addressing: number of a signature + 1, or 0
    uint32_t table_size             # a power of two
    Key* keys

cdef struct Key:
    uint32_t* words
    uint32_t n_words
    uint32_t hash
    uint32_t flat

cdef int signatures_open(Graph* g, Signatures* s, uint32_t most) noexcept nogil
cdef int signature_of(Graph* g, Signatures* s, uint32_t node, uint32_t* out) noexcept nogil
