"""A record of the gradients of parameters that a backward pass has changed, so that the pass can be undone.

A gradient that was zero before the pass is set to zero again.  One that was not zero must have been copied first.  That
is done only when values are checked, and in passes that are expected to be long enough to be interrupted.  Other passes
are finished instead of being undone.
"""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.memory.storage cimport Param


cdef struct Before:
    Param* p
    float* numbers                  # the gradient before the pass (of a table: its touched rows); NULL: it was zero
    uint32_t* rows
    uint32_t n_rows

cdef struct Journal:
    uint64_t number                 # of the pass; later passes have higher numbers
    bint copies                     # gradients that are not zero are copied
    bint irrevocable                # other passes have added to the same gradients, so this one cannot be undone
    Before* before
    uint32_t n, room

cdef void begin_journal(Journal* j, bint copies) noexcept nogil
cdef void end_journal(Journal* j) noexcept nogil


cdef inline void note_before(Journal* j, Param* p) noexcept nogil:
    """The pass is about to add to the gradient of p, whose lock is held."""
    if p.pass_number != j.number:
        note_first(j, p)


cdef void note_first(Journal* j, Param* p) noexcept nogil
# Restore the gradients of before the pass; False, and nothing is changed, if that is not possible.
cdef bint take_back(Journal* j) noexcept nogil
