"""Stretches of a chain of small nodes, by a rule."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Batch, Graph
from dynet_cy.schedule.facts cimport PlanFacts

# How the next batches of a plan divide into stretches.
cdef enum Ruled:
    SEARCHED                        # there is no rule for them, or memory for it
    DROPPED                         # into those that are planned now
    FITTING                         # they need none

# Plan the stretches of the planned batches, whose targets are kept, if each has one small node, in the order in which
# nodes were made, and stretches of depth 1 suffice.  `most` is what they may take, `bytes` what their values take.
cdef Ruled plan_chain(const PlanFacts* facts, const uint32_t* targets, uint32_t n, size_t most,
                      size_t bytes) noexcept nogil

# Append a stretch of batches to those that are planned.  False: there is no memory.
cdef bint append_stretch(Graph* g, uint32_t first, uint32_t end, uint32_t depth) noexcept nogil
