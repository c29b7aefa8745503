"""Steps of recurrent networks, which builders add to a graph without calling Python."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Graph


cdef extern from "<stdint.h>":
    # Stands for a node that is missing: a zero state, or no mask.
    const uint32_t NOTHING "UINT32_MAX"

# Adds the nodes of one layer for one input, and replaces h and c by their new values.  Weights and masks are nodes; the
# masks drop parts of x, h and c, and NULL means no dropout.
ctypedef int (*Step)(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h,
                     uint32_t* c) except -1

cdef int simple_step(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h,
                     uint32_t* c) except -1
cdef int gru_step(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h,
                  uint32_t* c) except -1
cdef int lstm_step(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h,
                   uint32_t* c) except -1
cdef int coupled_step(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h,
                      uint32_t* c) except -1
cdef int fast_step(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h,
                   uint32_t* c) except -1
