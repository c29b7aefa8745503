"""Passes over a graph, forward and backward: what is the same on the CPU, on a device and on several ones."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.execute.walk cimport Walk
from dynet_cy.graph.structs cimport Graph

# How a kind of device runs passes: it begins a walk, calls the functions below, and raises the errors of the walk.
cdef struct Backend:
    int (*forward)(Graph* g, const uint32_t* targets, uint32_t n, int strategy) except -1
    int (*backward)(Graph* g, uint32_t target, bint full) except -1

cdef Backend* backend(int kind) noexcept
# Compute the values of the targets and of the nodes that they depend on.
cdef int walk_forward(Walk* w, const uint32_t* targets, uint32_t n, int strategy) noexcept nogil
# Add the gradient of target to the gradients of parameters; products of factors remain to be made.
cdef int walk_back(Walk* w, uint32_t target, bint full) noexcept nogil
# Passes of this thread end after the first batch that finishes at that time or later, on the clock of `now` in
# watch/instruments.  The rest is not computed.  0 for whole passes.  A pass on a GPU is always whole.
cdef void end_passes_at(uint64_t nanoseconds) noexcept
