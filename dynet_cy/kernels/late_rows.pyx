"""Rows of lookup tables that have not had all updates yet: see late_rows.pxd."""

from libc.math cimport sqrt
from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport size_of
from dynet_cy.core.unlocked cimport Unlocked, drop, take
from dynet_cy.kernels.kernels cimport DY_FADING, DY_STEADY, DY_STILL, K, dy_idle, dy_optim
from dynet_cy.memory.arena cimport Arena, arena_at
from dynet_cy.memory.storage cimport MOST_LATE, Late, Param, value_changed


cdef extern from *:
    """
    typedef struct { float weights[DY_MOST_LATE], fades[DY_MOST_LATE]; } dy_terms;
    static const int dy_kinds_of_rules[] = {
    #define OPTIM(name, states, rule, kind, idle) kind,
    #include "dynet_cy/optim.def"
    #undef OPTIM
    };
    """
    const int* kinds_of_rules "dy_kinds_of_rules"
    # The terms of the updates that a row is missing.
    ctypedef struct Terms "dy_terms":
        float* weights
        float* fades

cdef extern from *:
    void fence "__atomic_thread_fence"(int order) nogil
    int RELEASE "__ATOMIC_RELEASE"

cdef Unlocked catching_up

# If q is the ratio of the rates at which divisor and step decay, two terms have a relative error of 4 q^4: the
# remainder of Gauss-Laguerre quadrature.
cdef double MOST_FADING = 0.01
# A step that has decayed to less than this share of the first one is negligible.
cdef double LEAST_STEP = 2.0 ** -40

# States are copied, to be brought up to date, in blocks of this many numbers: a multiple of any vector.
cdef enum:
    BLOCK = 256


cdef bint moves_all(int rule) noexcept nogil:
    return kinds_of_rules[rule] != DY_STILL


cdef int open_late(Param* p) except -1:
    cdef Late* late
    if p.late != NULL:
        return 0
    late = <Late*>malloc(sizeof(Late))
    if late != NULL:
        late.had = <uint32_t*>malloc(p.rows * sizeof(uint32_t))
        if late.had != NULL:
            late.rule = -1
            late.n = 0
            late.shared = late.read = late.moving = 0
            memset(late.had, 0, p.rows * sizeof(uint32_t))
            p.late = late
            return 0
        free(late)
    raise MemoryError("the updates that rows of a table have had")


cdef bint can_be_late(Param* p, int rule, const dy_optim* h, const Arena** states) noexcept nogil:
    cdef Late* late = p.late
    cdef bint same
    cdef int k
    if late == NULL:
        return False
    same = late.rule == rule and late.b1 == h.b1 and late.b2 == h.b2 and late.eps == h.eps
    if late.n:
        for k in range(3):
            same = same and late.states[k] == states[k]
        return same and late.n < MOST_LATE
    if not same:
        set_rule(late, rule, h)
    for k in range(3):
        late.states[k] = states[k]
    late.shared = 0
    late.each = (1 - late.fades[1]) > MOST_FADING * (1 - late.b1_powers[1])
    return True


cdef void set_rule(Late* late, int rule, const dy_optim* h) noexcept nogil:
    cdef uint32_t j
    late.rule, late.b1, late.b2, late.eps = rule, h.b1, h.b2, h.eps
    late.fades[0] = late.b1_powers[0] = 1
    late.fades[1] = sqrt(<double>h.b2)
    for j in range(1, MOST_LATE + 1):
        late.fades[j] = late.fades[j - 1] * late.fades[1]
        late.b1_powers[j] = late.b1_powers[j - 1] * h.b1


cdef void note_late(Param* p, const dy_optim* h) noexcept nogil:
    cdef Late* late = p.late
    cdef int kind = kinds_of_rules[late.rule], k, moments = 4 if kind == DY_FADING else 1
    cdef double weight = h.step_scale
    cdef double speeds[4]
    cdef uint32_t s = late.n
    if kind != DY_STEADY:
        weight *= h.lr
    if not weight >= 0:
        late.each = 1
    late.weights[s] = weight
    for k in range(4):
        late.moments[s + 1][k] = 0
        speeds[k] = late.b1 * (late.fades[k] if k < moments else 0)
    while True:
        for k in range(moments):
            late.moments[s][k] = speeds[k] * (late.weights[s] + late.moments[s + 1][k])
        if s == 0:
            break
        s -= 1
    late.n += 1


cdef void none_late(Param* p) noexcept nogil:
    if p.late != NULL and not p.late.shared:
        none_late_shared(p)


cdef void none_late_shared(Param* p) noexcept nogil:
    if p.late != NULL and p.late.n:
        p.late.n = 0
        p.late.read = 0
        memset(p.late.had, 0, p.rows * sizeof(uint32_t))


# ---- rows ------------------------------------------------------------------------

cdef void one_step(const Late* late, uint32_t had, dy_idle* h, Terms* terms) noexcept nogil:
    """Combine the updates after the first `had` into one step."""
    cdef uint32_t j, n = late.n - had
    h.b1_power = <float>late.b1_powers[n]
    h.b2_power = <float>(late.fades[n] * late.fades[n])
    h.b1 = late.b1
    h.b2 = late.b2
    h.eps = late.eps
    h.sum = <float>late.moments[had][0]
    h.n = 0
    if kinds_of_rules[late.rule] != DY_FADING:
        return
    h.weights = terms.weights
    h.fades = terms.fades
    if not late.each:
        h.n = two_terms(late.moments[had], terms)
        return
    for j in range(1, n + 1):
        terms.weights[j - 1] = <float>(late.weights[had + j - 1] * late.b1_powers[j])
        terms.fades[j - 1] = <float>late.fades[j]
        h.n = j
        if late.b1_powers[j] < LEAST_STEP:
            break


cdef uint32_t two_terms(const double* moments, Terms* terms) noexcept nogil:
    """The terms with these moments: the nodes are the roots of the orthogonal polynomial of degree 2."""
    cdef double total = moments[0], mean, variance, skew, middle, half
    if total == 0:
        return 0
    mean = moments[1] / total
    variance = moments[2] / total - mean * mean
    terms.weights[0] = <float>total
    terms.fades[0] = <float>mean
    if not variance > 1e-13:                    # one update, or the others are negligible
        return 1
    skew = moments[3] / total - 3 * mean * variance - mean * mean * mean
    middle = skew / (2 * variance)
    half = sqrt(middle * middle + variance)
    terms.fades[0] = <float>(mean + middle - half)
    terms.fades[1] = <float>(mean + middle + half)
    terms.weights[0] = <float>(total * (half + middle) / (2 * half))
    terms.weights[1] = <float>(total * (half - middle) / (2 * half))
    return 2


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
    one_step(late, late.had[row], &h, &terms)
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
    one_step(late, late.had[row], &h, &terms)
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
    if p.late != NULL and p.late.n:
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
