"""What a backward pass has added to the gradients of parameters, so that it can be taken back, and has yet to add.

A gradient that was zero before the pass becomes zero again.  One that was not must have been copied first, which is
done only where values are checked, and in passes that are expected to be long enough to be interrupted; the others
are finished instead.
"""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport Factors


cdef struct Before:
    Param* p
    float* numbers                  # the gradient before the pass, or of a table its rows; NULL: it was zero
    uint32_t* rows
    uint32_t n_rows

# The factors of one parameter's gradient that wait, in the gradient arena.
cdef struct Waiting:
    Waiting* next
    Param* p
    Factors product

cdef struct Journal:
    uint64_t number                 # of the pass, later ones have higher ones
    bint copies                     # gradients that are not zero are copied
    bint irrevocable                # gradients hold those of other passes too, so nothing can be taken back
    Before* before
    uint32_t n, room
    Waiting* waiting

cdef void begin_journal(Journal* j, bint copies) noexcept nogil
cdef void end_journal(Journal* j) noexcept nogil


cdef inline void note_before(Journal* j, Param* p) noexcept nogil:
    """The pass is about to add to the gradient of p, whose lock is held."""
    if p.pass_number != j.number:
        note_first(j, p)


cdef void note_first(Journal* j, Param* p) noexcept nogil
# Let gradients be those before the pass; False, and nothing is changed, if that can't be done.
cdef bint take_back(Journal* j) noexcept nogil
