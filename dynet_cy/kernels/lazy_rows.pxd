"""Deferred updates of rows of lookup tables.

Rules such as momentum and Adam move every row of a table in each update, even rows whose gradient is zero. For rows
without a gradient, an update is deferred: it is only recorded, and the row gets its missing updates when it is next
updated. Reading a row before that computes its current value but stores nothing, so results do not depend on which rows
were read, and several threads can read.

The effect of many updates without gradients has a closed form for most rules.  Adam's divisor, sqrt(v) + eps, decays
too.  For Adam, the effect is a sum over the updates of a smooth function of sqrt(v). Two terms approximate the sum, as
in Gaussian quadrature (Golub and Welsch 1969, Calculation of Gauss quadrature rules): they have the same moments as all
the updates.  If two terms would be less accurate than float32, each update is a term of its own.  A rule without such a
form, like Lion, says so in optim.def; its updates are made one by one when the row is needed.

Processes that share the states of a rule have values of their own. Such a process may bring its own values up to date,
since that only reads the states. It may not do so with the states: each row of the states belongs to one process, which
brings it up to date in the next update (`catch_up_shared`).

The formulas are in include/dynet_cy/lazy.h, for the CPU and for GPUs. The functions for rows in the memory of a GPU are
in dynet_cy/gpu/lazy.
"""

from libc.stdint cimport uint32_t

from dynet_cy.kernels.kernels cimport dy_optim
from dynet_cy.memory.arena cimport Arena
from dynet_cy.memory.storage cimport Lazy, Param

# Whether a rule changes numbers, or their states, whose gradient is zero.
cdef bint moves_all(int rule) noexcept nogil
# Allow updates of this entry to be deferred from now on, if it is a table that is large enough.
cdef int open_lazy(Param* p) except -1
# Whether deferring is allowed and faster: n rows have a gradient, and the other rows are not read in place.
cdef bint may_defer_rows(const Param* p, uint32_t n) noexcept nogil
# Whether an update with this rule, its constants and its state is deferred, after those that already are.
cdef bint can_defer(Param* p, int rule, const dy_optim* h, const Arena** states) noexcept nogil

# For tables of the CPU.
# Defer an update of all rows that have not been marked with `mark_moved`.
cdef void defer_update(Param* p, const dy_optim* h) noexcept nogil
# Note that all rows have had all updates, unless their states are shared.
cdef void clear_deferred(Param* p) noexcept nogil
# Apply all deferred updates to the rows first, ..., end - 1. If the states are shared: to the values of all rows.
cdef void catch_up(Param* p, size_t first, size_t end) noexcept nogil
# The same for the rows that contain the n numbers from `at` on.
cdef void catch_up_part(Param* p, size_t at, size_t n) noexcept nogil
cdef void catch_up_all(Param* p) noexcept nogil
# The current numbers of a row, without the factor.
cdef void read_lazy_row(const Param* p, size_t row, float* y) noexcept nogil
# The number of the table's state that is in this memory; -1: none, or no update is deferred.
cdef int lazy_state(const Param* p, const Arena* states) noexcept nogil
# The current numbers of that state of a row.
cdef void read_lazy_state(const Param* p, int k, size_t row, float* y) noexcept nogil

# In an update of all processes that share the states:
# Apply all deferred updates to the rows first, ..., end - 1, and to their states. No other process may apply them.
cdef void catch_up_shared(Param* p, size_t first, size_t end) noexcept nogil
# Note that all rows and their states have had all updates, or that the states have been set.
cdef void clear_deferred_shared(Param* p) noexcept nogil


# Whether the states of a table have not had all updates, and are those of this rule.
cdef inline bint are_states_behind(const Param* p, const Arena* const* states) noexcept nogil:
    return p.lazy != NULL and p.lazy.n > 0 and p.lazy.states[0] == states[0]


# For tables anywhere: the same as `catch_up_all` and `catch_up_part`, and the current numbers of some rows.
cdef int all_current(Param* p) except -1
cdef int part_current(Param* p, size_t at, size_t n) except -1
cdef int read_current(const Param* p, size_t first, size_t rows, float* y) except -1


# The functions for tables of GPUs; filled in by dynet_cy/gpu/lazy.
cdef struct LazyOnDevices:
    size_t least                    # the least size of a table whose updates may be deferred, in numbers
    int (*open)(Param* p, Lazy* lazy) except -1
    int (*catch_up)(Param* p, size_t first, size_t end) except -1
    int (*read)(const Param* p, size_t first, size_t rows, float* y) except -1

cdef LazyOnDevices* lazy_on_devices() noexcept nogil


cdef inline bint is_row_behind(const Param* p, uint32_t row) noexcept nogil:
    return p.lazy != NULL and p.lazy.had[row] < p.lazy.n and not p.lazy.read


# Mark a row as having had the update that is recorded next.
cdef inline void mark_moved(Param* p, uint32_t row) noexcept nogil:
    p.lazy.had[row] = p.lazy.n + 1


# Mark a row as having had all recorded updates.
cdef inline void mark_current(Param* p, uint32_t row) noexcept nogil:
    p.lazy.had[row] = p.lazy.n
