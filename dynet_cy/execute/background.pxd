"""Weight gradients that another thread computes while the backward pass goes on; see background.pyx."""

from libc.stdint cimport uint8_t

from dynet_cy.kernels.product cimport WeightGradient
from dynet_cy.memory.arena cimport Arena
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport Factors

# A product that is added to the gradient of a parameter.
cdef struct Addition:
    Addition* next                  # in the order in which they are made
    Addition* before                # of the same parameter
    Param* p
    WeightGradient product
    size_t at                       # parts that have been computed
    float* left                     # its factors, if they were copied for it; NULL: others own the memory
    float* right
    uint8_t done

# Those of one pass.
cdef struct Background:
    Addition first                  # stands before all others
    Addition* made                  # the last one that is done; whoever computes may change it
    Addition* last
    size_t waking                   # multiplications for which no thread has been woken

# Multiplications; a larger product is quicker if all threads compute it together.
cdef enum:
    MOST_IN_BACKGROUND = 300000000

# Whether another thread may compute weight gradients of the pass; then `end_background` must follow.
cdef bint begin_background(Background* b) noexcept nogil
# Let dY X' be added to the gradient of p; `a` is in memory that lasts as long as the pass.
cdef void add_in_background(Background* b, Addition* a, Param* p, const Factors* f, Addition* before) noexcept nogil
# Make all additions.  The calling thread must hold no lock of a parameter.
cdef void finish_background(Background* b) noexcept nogil
cdef void end_background(Background* b) noexcept nogil


cdef extern from *:
    uint8_t is_done "__atomic_load_n"(const uint8_t* p, int order) nogil
    int ACQUIRE "__ATOMIC_ACQUIRE"


cdef inline bint is_made(const Addition* a) noexcept nogil:
    """Whether an addition, and so all earlier ones, is in the gradient, and its factors are no longer needed."""
    return is_done(&a.done, ACQUIRE)
