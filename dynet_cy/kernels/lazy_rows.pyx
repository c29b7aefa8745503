"""Deferred updates of rows of lookup tables; see lazy_rows.pxd."""

from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport size_of
from dynet_cy.core.threads cimport RELEASE, Unlocked, acquire_lock, fence, release_lock
from dynet_cy.kernels.kernels cimport DY_STILL, K, dy_idle, dy_optim
from dynet_cy.memory.arena cimport Arena, arena_at
from dynet_cy.memory.storage cimport MOST_DEFERRED, Lazy, Param, value_changed


cdef extern from "dynet_cy/lazy.h" nogil:
    # derived: functions of kind_of_rule, begin_lazy = dy_lazy_begin, weight_of = dy_lazy_weight,
    #     add_update = dy_lazy_add, count_update = dy_lazy_added, combined_step = dy_lazy_step
    int kind_of_rule "dy_kind_of_rule"(int rule)
    void begin_lazy "dy_lazy_begin"(Lazy* lazy, int rule, float b1, float b2, float eps)
    double weight_of "dy_lazy_weight"(int rule, float lr, float step_scale)
    void add_update "dy_lazy_add"(Lazy* lazy, uint32_t s, double weight, double eps_scale, double kept)
    void count_update "dy_lazy_added"(Lazy* lazy, float lr, float eps_scale)
    void combined_step "dy_lazy_step"(const Lazy* lazy, uint32_t had, dy_idle* h, float* weights, float* fades)
    # end of functions


cdef extern from *:
    """
    typedef struct { float weights[DY_MOST_DEFERRED], fades[DY_MOST_DEFERRED]; } dy_terms;
    """
    # The terms of the updates that a row is missing.
    ctypedef struct Terms "dy_terms":
        float* weights
        float* fades

cdef enum:
    LEAST = 1 << 12                 # numbers
    LEAST_ROWS = 4
    # States are copied, to be brought up to date, in blocks of this many numbers: a multiple of any vector.
    BLOCK = 256

cdef Unlocked catching_up
cdef LazyOnDevices the_devices


cdef LazyOnDevices* lazy_on_devices() noexcept nogil:
    return &the_devices


cdef bint moves_all(int rule) noexcept nogil:
    return kind_of_rule(rule) != DY_STILL


cdef int open_lazy(Param* p) except -1:
    cdef size_t least = the_devices.least if p.device else LEAST
    cdef Lazy* lazy
    if p.lazy != NULL or p.rows == 0 or p.size < least or p.in_place:
        return 0
    lazy = <Lazy*>malloc(sizeof(Lazy))
    if lazy == NULL:
        raise MemoryError("the updates that rows of a table have had")
    lazy.n = 0
    lazy.rule = -1
    lazy.shared = lazy.read = lazy.moving = 0
    lazy.had = NULL
    try:
        if p.device:
            the_devices.open(p, lazy)
        else:
            lazy.close = close_lazy
            lazy.had = <uint32_t*>malloc(p.rows * sizeof(uint32_t))
            if lazy.had == NULL:
                raise MemoryError("the updates that rows of a table have had")
            memset(lazy.had, 0, p.rows * sizeof(uint32_t))
    except BaseException:
        free(lazy)
        raise
    p.lazy = lazy
    return 0


cdef void close_lazy(Lazy* lazy) noexcept nogil:
    free(lazy.had)
    free(lazy)


cdef bint may_defer_rows(const Param* p, uint32_t n) noexcept nogil:
    return p.lazy != NULL and not p.in_place and n <= p.rows // LEAST_ROWS


cdef bint can_defer(Param* p, int rule, const dy_optim* h, const Arena** states) noexcept nogil:
    cdef Lazy* lazy = p.lazy
    cdef bint same
    cdef int k
    if not may_defer_rows(p, p.n_touched):
        return False
    if lazy.n == 0:
        begin_lazy(lazy, rule, h.b1, h.b2, h.eps)
        lazy.shared = 0
        for k in range(3):
            lazy.states[k] = states[k]
        return True
    same = lazy.rule == rule and lazy.b1 == h.b1 and lazy.b2 == h.b2 and lazy.eps == h.eps
    for k in range(3):
        same = same and lazy.states[k] == states[k]
    return same and lazy.n < MOST_DEFERRED


cdef void defer_update(Param* p, const dy_optim* h) noexcept nogil:
    cdef double weight = weight_of(p.lazy.rule, h.lr, h.step_scale)
    cdef uint32_t s
    for s in range(p.lazy.n + 1):
        add_update(p.lazy, s, weight, h.eps_scale, 1)
    count_update(p.lazy, h.lr, h.eps_scale)


cdef void clear_deferred(Param* p) noexcept nogil:
    if p.lazy != NULL and not p.lazy.shared:
        clear_deferred_shared(p)


cdef void clear_deferred_shared(Param* p) noexcept nogil:
    if p.lazy != NULL and p.lazy.n:
        p.lazy.n = 0
        p.lazy.read = 0
        memset(p.lazy.had, 0, p.rows * sizeof(uint32_t))


# ---- rows ------------------------------------------------------------------------

cdef void find_states(const Param* p, size_t row, float** states) noexcept nogil:
    cdef size_t n = size_of(&p.dim)
    cdef int k
    for k in range(3):
        states[k] = NULL
        if p.lazy.states[k] != NULL:
            states[k] = <float*>arena_at(p.lazy.states[k], (p.offset + row * n) * sizeof(float))


cdef void move_row(const Param* p, size_t row, float* y, bint keeps) noexcept nogil:
    """Compute the current values of a row with deferred updates; with `keeps`, write the states too."""
    cdef const Lazy* lazy = p.lazy
    cdef size_t n = size_of(&p.dim)
    cdef float* states[3]
    cdef dy_idle h
    cdef Terms terms
    find_states(p, row, states)
    combined_step(lazy, lazy.had[row], &h, terms.weights, terms.fades)
    h.keeps = keeps
    K.idle[lazy.rule](n, &h, p.value + row * n, y, states[0], states[1], states[2])


cdef void move_states(const Param* p, size_t row, int only, float* y) noexcept nogil:
    """Compute the current states of a row with deferred updates, and write them, or only number `only`, to y."""
    cdef const Lazy* lazy = p.lazy
    cdef size_t n = size_of(&p.dim), at = 0, m
    cdef float* states[3]
    cdef float* now[3]
    cdef float[BLOCK] value
    cdef float[3][BLOCK] copies
    cdef dy_idle h
    cdef Terms terms
    cdef int k
    find_states(p, row, states)
    combined_step(lazy, lazy.had[row], &h, terms.weights, terms.fades)
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
        K.idle[lazy.rule](m, &h, value, value, now[0], now[1], now[2])
        if y != NULL:
            memcpy(y + at, copies[only], m * sizeof(float))
        at += m


cdef void read_lazy_row(const Param* p, size_t row, float* y) noexcept nogil:
    cdef size_t n = size_of(&p.dim)
    if is_row_behind(p, <uint32_t>row):
        move_row(p, row, y, False)
    else:
        memcpy(y, p.value + row * n, n * sizeof(float))


cdef void catch_up(Param* p, size_t first, size_t end) noexcept nogil:
    cdef size_t row, n = size_of(&p.dim)
    if p.lazy == NULL or p.lazy.n == 0:
        return
    if p.lazy.shared:
        catch_up_all(p)
        return
    for row in range(first, end):
        if is_row_behind(p, <uint32_t>row):
            move_row(p, row, p.value + row * n, True)
            p.lazy.had[row] = p.lazy.n


cdef void catch_up_part(Param* p, size_t at, size_t n) noexcept nogil:
    cdef size_t row = size_of(&p.dim)
    if p.lazy != NULL and p.lazy.n and n:
        catch_up(p, at // row, (at + n + row - 1) // row)


cdef void catch_up_all(Param* p) noexcept nogil:
    if p.lazy == NULL or p.lazy.n == 0:
        return
    acquire_lock(&catching_up)          # only one of several threads that read the table does this
    if p.lazy.shared:
        read_all(p)
    elif p.lazy.n:
        catch_up(p, 0, p.rows)
        fence(RELEASE)
        clear_deferred(p)
        value_changed(p)
    release_lock(&catching_up)


# ---- states that processes share -------------------------------------------------

cdef void read_all(Param* p) noexcept nogil:
    """Bring the values of all rows up to date, not the states."""
    cdef size_t row, n = size_of(&p.dim)
    # In the middle of an update the states of some rows are newer than `had` says.  The next update does this again.
    if p.lazy.n == 0 or p.lazy.read or p.lazy.moving:
        return
    for row in range(p.rows):
        if is_row_behind(p, <uint32_t>row):
            move_row(p, row, p.value + row * n, False)
    fence(RELEASE)
    p.lazy.read = 1
    value_changed(p)


cdef void catch_up_shared(Param* p, size_t first, size_t end) noexcept nogil:
    cdef size_t row, n = size_of(&p.dim)
    for row in range(first, end):
        if p.lazy.had[row] == p.lazy.n:
            continue
        if p.lazy.read:
            move_states(p, row, 0, NULL)
        else:
            move_row(p, row, p.value + row * n, True)
        mark_current(p, <uint32_t>row)


cdef int lazy_state(const Param* p, const Arena* states) noexcept nogil:
    cdef int k
    if p.lazy != NULL and p.lazy.n and not p.device:
        for k in range(3):
            if p.lazy.states[k] == states:
                return k
    return -1


cdef void read_lazy_state(const Param* p, int k, size_t row, float* y) noexcept nogil:
    cdef size_t n = size_of(&p.dim)
    if p.lazy.had[row] < p.lazy.n:
        move_states(p, row, k, y)
    else:
        memcpy(y, arena_at(p.lazy.states[k], (p.offset + row * n) * sizeof(float)), n * sizeof(float))

# ---- wherever a table lives ------------------------------------------------------

cdef int all_current(Param* p) except -1:
    if p.lazy == NULL or p.lazy.n == 0:
        return 0
    if p.device == 0:
        catch_up_all(p)
        return 0
    the_devices.catch_up(p, 0, p.rows)
    p.lazy.n = 0
    value_changed(p)
    return 0


cdef int part_current(Param* p, size_t at, size_t n) except -1:
    cdef size_t row = size_of(&p.dim)
    if p.lazy == NULL or p.lazy.n == 0 or n == 0:
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
        read_lazy_row(p, first + k, y + k * n)
    return 0
