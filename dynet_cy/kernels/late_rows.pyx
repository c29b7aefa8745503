"""Rows of lookup tables that have not had all updates yet: see late_rows.pxd."""

from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport size_of
from dynet_cy.core.threads cimport Unlocked, drop, take
from dynet_cy.kernels.kernels cimport DY_STILL, K, dy_idle, dy_optim
from dynet_cy.memory.arena cimport Arena, arena_at
from dynet_cy.memory.storage cimport MOST_LATE, Late, Param, value_changed


cdef extern from "dynet_cy/late.h" nogil:
    int kind_of_rule "dy_kind_of_rule"(int rule)
    void begin "dy_late_begin"(Late* late, int rule, float b1, float b2, float eps)
    double weight_of "dy_late_weight"(int rule, float lr, float step_scale)
    void add "dy_late_add"(Late* late, uint32_t s, double weight, double kept)
    void added "dy_late_added"(Late* late, float lr)
    void one_step "dy_late_step"(const Late* late, uint32_t had, dy_idle* h, float* weights, float* fades)

cdef extern from *:
    """
    typedef struct { float weights[DY_MOST_LATE], fades[DY_MOST_LATE]; } dy_terms;
    """
    # The terms of the updates that a row is missing.
    ctypedef struct Terms "dy_terms":
        float* weights
        float* fades

cdef extern from *:
    void fence "__atomic_thread_fence"(int order) nogil
    int RELEASE "__ATOMIC_RELEASE"

cdef enum:
    LEAST = 1 << 12                 # numbers
    LEAST_ROWS = 4
    # States are copied, to be brought up to date, in blocks of this many numbers: a multiple of any vector.
    BLOCK = 256

cdef Unlocked catching_up
cdef LateOnDevices the_devices


cdef LateOnDevices* late_on_devices() noexcept nogil:
    return &the_devices


cdef bint moves_all(int rule) noexcept nogil:
    return kind_of_rule(rule) != DY_STILL


cdef int open_late(Param* p) except -1:
    cdef size_t least = the_devices.least if p.device else LEAST
    cdef Late* late
    if p.late != NULL or p.rows == 0 or p.size < least or p.in_place:
        return 0
    late = <Late*>malloc(sizeof(Late))
    if late == NULL:
        raise MemoryError("the updates that rows of a table have had")
    late.n = 0
    late.rule = -1
    late.shared = late.read = late.moving = 0
    late.had = NULL
    try:
        if p.device:
            the_devices.open(p, late)
        else:
            late.close = close_late
            late.had = <uint32_t*>malloc(p.rows * sizeof(uint32_t))
            if late.had == NULL:
                raise MemoryError("the updates that rows of a table have had")
            memset(late.had, 0, p.rows * sizeof(uint32_t))
    except BaseException:
        free(late)
        raise
    p.late = late
    return 0


cdef void close_late(Late* late) noexcept nogil:
    free(late.had)
    free(late)


cdef bint rows_may_be_late(const Param* p, uint32_t n) noexcept nogil:
    return p.late != NULL and not p.in_place and n <= p.rows // LEAST_ROWS


cdef bint can_be_late(Param* p, int rule, const dy_optim* h, const Arena** states) noexcept nogil:
    cdef Late* late = p.late
    cdef bint same
    cdef int k
    if not rows_may_be_late(p, p.n_touched):
        return False
    if late.n == 0:
        begin(late, rule, h.b1, h.b2, h.eps)
        late.shared = 0
        for k in range(3):
            late.states[k] = states[k]
        return True
    same = late.rule == rule and late.b1 == h.b1 and late.b2 == h.b2 and late.eps == h.eps
    for k in range(3):
        same = same and late.states[k] == states[k]
    return same and late.n < MOST_LATE


cdef void note_late(Param* p, const dy_optim* h) noexcept nogil:
    cdef double weight = weight_of(p.late.rule, h.lr, h.step_scale)
    cdef uint32_t s
    for s in range(p.late.n + 1):
        add(p.late, s, weight, 1)
    added(p.late, h.lr)


cdef void none_late(Param* p) noexcept nogil:
    if p.late != NULL and not p.late.shared:
        none_late_shared(p)


cdef void none_late_shared(Param* p) noexcept nogil:
    if p.late != NULL and p.late.n:
        p.late.n = 0
        p.late.read = 0
        memset(p.late.had, 0, p.rows * sizeof(uint32_t))


# ---- rows ------------------------------------------------------------------------

cdef void find_states(const Param* p, size_t row, float** states) noexcept nogil:
    cdef size_t n = size_of(&p.dim)
    cdef int k
    for k in range(3):
        states[k] = NULL
        if p.late.states[k] != NULL:
            states[k] = <float*>arena_at(p.late.states[k], (p.offset + row * n) * sizeof(float))


cdef void move_row(const Param* p, size_t row, float* y, bint keeps) noexcept nogil:
    """Compute the current values of a late row; if it `keeps`, write the states, too."""
    cdef const Late* late = p.late
    cdef size_t n = size_of(&p.dim)
    cdef float* states[3]
    cdef dy_idle h
    cdef Terms terms
    find_states(p, row, states)
    one_step(late, late.had[row], &h, terms.weights, terms.fades)
    h.keeps = keeps
    K.idle[late.rule](n, &h, p.value + row * n, y, states[0], states[1], states[2])


cdef void move_states(const Param* p, size_t row, int only, float* y) noexcept nogil:
    """Compute the current states of a row whose states are late, and write them, or only number `only`, to y."""
    cdef const Late* late = p.late
    cdef size_t n = size_of(&p.dim), at = 0, m
    cdef float* states[3]
    cdef float* now[3]
    cdef float[BLOCK] value
    cdef float[3][BLOCK] copies
    cdef dy_idle h
    cdef Terms terms
    cdef int k
    find_states(p, row, states)
    one_step(late, late.had[row], &h, terms.weights, terms.fades)
    h.keeps = True
    memset(value, 0, sizeof(value))             # the rule moves it, for nothing
    while at < n:
        m = min(<size_t>BLOCK, n - at)
        for k in range(3):
            now[k] = NULL
            if states[k] != NULL:
                now[k] = states[k] + at
                if y != NULL:
                    memcpy(copies[k], now[k], m * sizeof(float))
                    now[k] = copies[k]
        K.idle[late.rule](m, &h, value, value, now[0], now[1], now[2])
        if y != NULL:
            memcpy(y + at, copies[only], m * sizeof(float))
        at += m


cdef void read_late(const Param* p, size_t row, float* y) noexcept nogil:
    cdef size_t n = size_of(&p.dim)
    if is_late(p, <uint32_t>row):
        move_row(p, row, y, False)
    else:
        memcpy(y, p.value + row * n, n * sizeof(float))


cdef void catch_up(Param* p, size_t first, size_t end) noexcept nogil:
    cdef size_t row, n = size_of(&p.dim)
    if p.late == NULL or p.late.n == 0:
        return
    if p.late.shared:
        catch_up_all(p)
        return
    for row in range(first, end):
        if is_late(p, <uint32_t>row):
            move_row(p, row, p.value + row * n, True)
            p.late.had[row] = p.late.n


cdef void catch_up_part(Param* p, size_t at, size_t n) noexcept nogil:
    cdef size_t row = size_of(&p.dim)
    if p.late != NULL and p.late.n and n:
        catch_up(p, at // row, (at + n + row - 1) // row)


cdef void catch_up_all(Param* p) noexcept nogil:
    if p.late == NULL or p.late.n == 0:
        return
    take(&catching_up)                  # of several threads that read it, one does it
    if p.late.shared:
        read_all(p)
    elif p.late.n:
        catch_up(p, 0, p.rows)
        fence(RELEASE)
        none_late(p)
        value_changed(p)
    drop(&catching_up)


# ---- states that processes share -------------------------------------------------

cdef void read_all(Param* p) noexcept nogil:
    """Bring the values of all rows up to date, not the states."""
    cdef size_t row, n = size_of(&p.dim)
    # In the middle of an update the states of some rows are newer than `had` says.  The next update comes back to this.
    if p.late.n == 0 or p.late.read or p.late.moving:
        return
    for row in range(p.rows):
        if is_late(p, <uint32_t>row):
            move_row(p, row, p.value + row * n, False)
    fence(RELEASE)
    p.late.read = 1
    value_changed(p)


cdef void catch_up_shared(Param* p, size_t first, size_t end) noexcept nogil:
    cdef size_t row, n = size_of(&p.dim)
    for row in range(first, end):
        if p.late.had[row] == p.late.n:
            continue
        if p.late.read:
            move_states(p, row, 0, NULL)
        else:
            move_row(p, row, p.value + row * n, True)
        mark_current(p, <uint32_t>row)


cdef int late_state(const Param* p, const Arena* states) noexcept nogil:
    cdef int k
    if p.late != NULL and p.late.n and not p.device:
        for k in range(3):
            if p.late.states[k] == states:
                return k
    return -1


cdef void read_late_state(const Param* p, int k, size_t row, float* y) noexcept nogil:
    cdef size_t n = size_of(&p.dim)
    if p.late.had[row] < p.late.n:
        move_states(p, row, k, y)
    else:
        memcpy(y, arena_at(p.late.states[k], (p.offset + row * n) * sizeof(float)), n * sizeof(float))

# ---- wherever a table lives ------------------------------------------------------

cdef int all_current(Param* p) except -1:
    if p.late == NULL or p.late.n == 0:
        return 0
    if p.device == 0:
        catch_up_all(p)
        return 0
    the_devices.catch_up(p, 0, p.rows)
    p.late.n = 0
    value_changed(p)
    return 0


cdef int part_current(Param* p, size_t at, size_t n) except -1:
    cdef size_t row = size_of(&p.dim)
    if p.late == NULL or p.late.n == 0 or n == 0:
        return 0
    if p.device:
        return the_devices.catch_up(p, at // row, (at + n + row - 1) // row)
    catch_up_part(p, at, n)
    return 0


cdef int read_current(const Param* p, size_t first, size_t rows, float* y) except -1:
    cdef size_t k, n = size_of(&p.dim)
    if p.device:
        return the_devices.read(p, first, rows, y)
    for k in range(rows):
        read_late(p, first + k, y + k * n)
    return 0
