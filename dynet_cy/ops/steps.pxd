"""Steps of recurrent networks, for builders to make without Python in between."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Graph

# Adds the nodes of one layer for one input: h and c are those before, and become those after.  The weights are nodes.
ctypedef int (*Step)(Graph* g, const uint32_t* weights, uint32_t x, uint32_t* h, uint32_t* c) except -1

cdef int lstm_step(Graph* g, const uint32_t* weights, uint32_t x, uint32_t* h, uint32_t* c) except -1
cdef int simple_step(Graph* g, const uint32_t* weights, uint32_t x, uint32_t* h, uint32_t* c) except -1
cdef int gru_step(Graph* g, const uint32_t* weights, uint32_t x, uint32_t* h, uint32_t* c) except -1
