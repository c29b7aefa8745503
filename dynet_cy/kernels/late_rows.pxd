"""Rows of lookup tables that have not had all updates yet.

Rules such as momentum and Adam move every row of a table in each update, even rows whose gradient is zero.  For those
rows, an update is only noted, and a row gets its missing updates when it is next updated.  Reading a row before that
computes its current value but stores nothing, so results do not depend on who has read a row, and threads can read.

The effect of many updates without gradients has a closed form for most rules.  Adam's divisor, sqrt(v) + eps, decays
too.  There it is a sum over the updates of a smooth function of sqrt(v).  Two terms approximate it, as in
Gaussian quadrature (Golub and Welsch 1969, Calculation of Gauss quadrature rules): they have the same moments as all
the updates.  If that would be less accurate than float32, each update is a term of its own.  A rule without such a
form, like Lion, says so in optim.def; its updates are made one by one when the row is needed.

Processes that share the states of a rule have values of their own.  There, a process alone may bring its values up to
date, which only reads the states, but not the states: each row of these belongs to one process, which does it in the
next update (`catch_up_shared`).

The numbers are in include/dynet_cy/late.h, for the CPU and for GPUs.  What is done to rows in the memory of a GPU is in
dynet_cy/gpu/late.
"""

from libc.stdint cimport uint32_t

from dynet_cy.kernels.kernels cimport dy_optim
from dynet_cy.memory.arena cimport Arena
from dynet_cy.memory.storage cimport Late, Param

# Whether a rule changes numbers, or their states, whose gradient is zero.
cdef bint moves_all(int rule) noexcept nogil
# Allow rows of this entry to be late from now on, if it is a table that is large enough.
cdef int open_late(Param* p) except -1
# Whether that is faster with n rows that have a gradient, and nobody reads the others in place.
cdef bint rows_may_be_late(const Param* p, uint32_t n) noexcept nogil
# Whether an update with this rule, its constants and its state is to be noted after those already noted.
cdef bint can_be_late(Param* p, int rule, const dy_optim* h, const Arena** states) noexcept nogil

# For tables of the CPU.
# Note an update for all rows that have not been marked with `mark_moved`.
cdef void note_late(Param* p, const dy_optim* h) noexcept nogil
# Note that all rows have had all updates, unless their states are shared.
cdef void none_late(Param* p) noexcept nogil
# Apply all noted updates to the rows first, ..., end - 1.  If the states are shared: to the values of all rows.
cdef void catch_up(Param* p, size_t first, size_t end) noexcept nogil
# The same for the rows that contain the n numbers from `at` on.
cdef void catch_up_part(Param* p, size_t at, size_t n) noexcept nogil
cdef void catch_up_all(Param* p) noexcept nogil
# The current numbers of a row, without the factor.
cdef void read_late(const Param* p, size_t row, float* y) noexcept nogil
# Which of the states of a late table is in this memory; -1: none, or nothing is late.
cdef int late_state(const Param* p, const Arena* states) noexcept nogil
# The current numbers of that state of a row.
cdef void read_late_state(const Param* p, int k, size_t row, float* y) noexcept nogil

# In an update of all processes that share the states:
# Apply all noted updates to the rows first, ..., end - 1, and to their states.  No other process may do so.
cdef void catch_up_shared(Param* p, size_t first, size_t end) noexcept nogil
# Note that all rows and their states have had all updates, or that the states have been set.
cdef void none_late_shared(Param* p) noexcept nogil


# Whether the states of a table have not had all updates, and are those of this rule.
cdef inline bint is_behind(const Param* p, const Arena* const* states) noexcept nogil:
    return p.late != NULL and p.late.n > 0 and p.late.states[0] == states[0]


# For tables anywhere: the same as `catch_up_all` and `catch_up_part`, and the current numbers of some rows.
cdef int all_current(Param* p) except -1
cdef int part_current(Param* p, size_t at, size_t n) except -1
cdef int read_current(const Param* p, size_t first, size_t rows, float* y) except -1


# What is done to tables of GPUs; filled by dynet_cy/gpu/late.
cdef struct LateOnDevices:
    size_t least                    # numbers in a table whose rows may be late
    int (*open)(Param* p, Late* late) except -1
    int (*catch_up)(Param* p, size_t first, size_t end) except -1
    int (*read)(const Param* p, size_t first, size_t rows, float* y) except -1

cdef LateOnDevices* late_on_devices() noexcept nogil


cdef inline bint is_late(const Param* p, uint32_t row) noexcept nogil:
    return p.late != NULL and p.late.had[row] < p.late.n and not p.late.read


# Mark a row as having had the update that is noted next.
cdef inline void mark_moved(Param* p, uint32_t row) noexcept nogil:
    p.late.had[row] = p.late.n + 1


# Mark a row as having had all updates that have been noted.
cdef inline void mark_current(Param* p, uint32_t row) noexcept nogil:
    p.late.had[row] = p.late.n
