"""Joins batches of several forward passes for backward.

A program that looks at values computes its graph in many passes with few nodes each.  When backward begins, all of them
are known: batches of different passes that multiply by the same matrix can run backward as one call, if none of them
needs a gradient that another one computes.  So can those of a single pass that reads indices, as in scheduled sampling:
each step needs the scores of the one before, but backward begins with the losses of all steps.
"""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Graph


# One batch, or several that run backward together.
cdef struct Step:
    uint32_t first, count           # of `numbers`
    uint32_t form                   # of their call

cdef struct BackwardPlan:
    uint32_t* numbers               # of all batches
    Step* steps
    uint32_t n_steps

# Plan backward over all batches up to `last` on the CPU, in the scratch arena.  False if none can be joined, or if
# there is no memory: then the batches simply run backward in reverse order.  GPUs join none: there an update of the
# dynamic parser took 44.7 ms with joined batches and 39.8 without (H100), though it has a quarter fewer launches.
cdef bint plan_backward(Graph* g, uint32_t last, BackwardPlan* plan) noexcept nogil
