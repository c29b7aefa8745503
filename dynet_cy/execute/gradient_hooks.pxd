"""Hooks of backward: called when a gradient is complete, to send it while the rest of backward runs."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Batch, Graph
from dynet_cy.memory.storage cimport Param


# Called in the thread that runs backward, without the GIL; NULL if no hook is installed.
cdef struct GradientHooks:
    # A backward pass begins that will add to the gradients of these parameters.
    void (*begin)(Param* const* coming, uint32_t n) noexcept nogil
    # The pass adds nothing more to the gradient of this parameter.
    void (*complete)(Param* p) noexcept nogil
    # Called after each batch, to make progress with transfers under way.
    void (*progress)() noexcept nogil

cdef GradientHooks* gradient_hooks() noexcept nogil

# A parameter that backward adds a gradient to, and the last batch of the pass that does so.
cdef struct Use:
    Param* p
    uint32_t batch

cdef int list_uses(Graph* g, uint32_t target, Use** uses, uint32_t* n) noexcept nogil
