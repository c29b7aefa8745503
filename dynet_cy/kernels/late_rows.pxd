"""Rows of lookup tables that have not had all updates yet.

Momentum, Adam and their like move every row of a table in each update, also those whose gradient is zero.  Such an
update only notes what it would do to them, and a row has it when it is next updated.  Whoever reads a row before
computes what it is by then, and stores nothing: so numbers do not depend on who has read them, and threads can read.

What many updates without gradients do is a closed form for all rules but Adam, whose divisor, sqrt(v) + eps, fades too.
There the sum over the updates is one of a smooth function of sqrt(v), so two terms do for it, as in Gauss's
quadrature (Golub and Welsch 1969, Calculation of Gauss quadrature rules): they have the moments of all the
updates.  Where that is less exact than float32 is, the updates are terms by themselves.
"""

from libc.stdint cimport uint32_t

from dynet_cy.kernels.kernels cimport dy_optim
from dynet_cy.memory.arena cimport Arena
from dynet_cy.memory.storage cimport Param

# Whether a rule changes numbers, or their states, whose gradient is zero.
cdef bint moves_all(int rule) noexcept nogil
# Let rows of this table be late from now on.
cdef int open_late(Param* p) except -1
# Whether an update of that rule, its constants and its state can be noted after those that have been.
cdef bint can_be_late(Param* p, int rule, const dy_optim* h, const Arena** states) noexcept nogil
# Note an update, for all rows that have not been marked as having had it.
cdef void note_late(Param* p, const dy_optim* h) noexcept nogil
# All rows have had all updates.
cdef void none_late(Param* p) noexcept nogil
# Let rows first, ..., end - 1 have all updates that have been noted.
cdef void catch_up(Param* p, size_t first, size_t end) noexcept nogil
# The rows in which n numbers from `at` on lie.
cdef void catch_up_part(Param* p, size_t at, size_t n) noexcept nogil
cdef void catch_up_all(Param* p) noexcept nogil
# What the numbers of a row are by now, without the factor.
cdef void read_late(const Param* p, size_t row, float* y) noexcept nogil


cdef inline bint is_late(const Param* p, uint32_t row) noexcept nogil:
    return p.late != NULL and p.late.had[row] < p.late.n


# Mark a row as having had the update that is noted next.
cdef inline void mark_moved(Param* p, uint32_t row) noexcept nogil:
    p.late.had[row] = p.late.n + 1
