"""Backward over batches of several passes as over those of one.

A program that looks at values computes its graph in many passes, of few nodes each.  When backward begins, all of them
are known: batches of different passes that multiply by the same matrix can go backward as one call, where none of them
needs what another hands back.
"""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Graph


# Batches that go backward together, or one alone.
cdef struct Step:
    uint32_t first, count           # of `numbers`
    uint32_t form                   # of their call

cdef struct BackwardPlan:
    uint32_t* numbers               # of all batches
    Step* steps
    uint32_t n_steps

# Plan backward over the batches up to the last; False where none can be joined, or there is no room: then the way is
# simply back.  What is planned lies in the scratch arena.
cdef bint plan_backward(Graph* g, uint32_t last, BackwardPlan* plan) noexcept nogil
