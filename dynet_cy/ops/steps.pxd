"""Steps of recurrent networks, for builders to make without Python in between."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Graph


cdef extern from "<stdint.h>":
    # In the place of a node: of a state that is zero, of a mask that is not there.
    const uint32_t NOTHING "UINT32_MAX"

# Adds the nodes of one layer for one input: h and c are those before, and become those after.  The weights are nodes,
# and so are the masks, which drop parts of x, of h and of c; NULL: nothing is dropped.
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
