"""A record of the gradients that a backward pass has changed, and how they are restored; see journal.pxd."""

from libc.stdint cimport UINT64_MAX
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport size_of
from dynet_cy.memory.storage cimport forget_gradient, pthread_mutex_t, touch


cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_trylock(pthread_mutex_t* m)
    int pthread_mutex_unlock(pthread_mutex_t* m)


cdef extern from *:
    """
    static uint64_t dy_passes;
    #define DY_NEXT_PASS() __atomic_add_fetch(&dy_passes, 1, __ATOMIC_RELAXED)
    """
    uint64_t next_pass "DY_NEXT_PASS"() nogil


cdef void begin_journal(Journal* j, bint copies) noexcept nogil:
    memset(j, 0, sizeof(Journal))
    j.number = next_pass()
    j.copies = copies


cdef void end_journal(Journal* j) noexcept nogil:
    cdef uint32_t i
    for i in range(j.n):
        free(j.before[i].numbers)
        free(j.before[i].rows)
    free(j.before)
    j.before = NULL
    j.n = j.room = 0


cdef void note_first(Journal* j, Param* p) noexcept nogil:
    cdef Before* b
    # A pass that began later has added to the gradient.  The number UINT64_MAX tells it that this pass has, too.
    cdef bint later = p.has_gradient and p.pass_number > j.number
    p.pass_number = UINT64_MAX if later else j.number
    if later or (p.has_gradient and not j.copies):
        j.irrevocable = True
    if j.irrevocable:
        return
    b = add_record(j, p)
    if b == NULL or (p.has_gradient and copy(b, p)):
        j.irrevocable = True


cdef Before* add_record(Journal* j, Param* p) noexcept nogil:
    cdef Before* b
    cdef uint32_t room
    if j.n == j.room:
        room = 2 * j.room + 8
        b = <Before*>realloc(j.before, room * sizeof(Before))
        if b == NULL:
            return NULL
        j.before = b
        j.room = room
    b = &j.before[j.n]
    j.n += 1
    memset(b, 0, sizeof(Before))
    b.p = p
    return b


cdef int copy(Before* b, const Param* p) noexcept nogil:
    """Copy the gradient of p; -1 if there is no memory."""
    cdef size_t n = size_of(&p.dim)
    cdef uint32_t i
    if not p.rows:
        b.numbers = <float*>malloc(p.size * sizeof(float))
        if b.numbers == NULL:
            return -1
        memcpy(b.numbers, p.grad, p.size * sizeof(float))
        return 0
    b.numbers = <float*>malloc((p.n_touched * n + 1) * sizeof(float))
    b.rows = <uint32_t*>malloc((p.n_touched + 1) * sizeof(uint32_t))
    if b.numbers == NULL or b.rows == NULL:
        return -1
    b.n_rows = p.n_touched
    memcpy(b.rows, p.touched, p.n_touched * sizeof(uint32_t))
    for i in range(p.n_touched):
        memcpy(b.numbers + i * n, p.grad + p.touched[i] * n, n * sizeof(float))
    return 0


cdef bint take_back(Journal* j) noexcept nogil:
    cdef uint32_t i, held = 0
    cdef bint all_own = not j.irrevocable
    cdef Param* p
    while all_own and held < j.n:
        p = j.before[held].p
        # Do not wait for the lock: the thread that holds it may be waiting for one that this thread holds.
        if pthread_mutex_trylock(&p.lock):
            all_own = False
            break
        held += 1
        all_own = p.pass_number == j.number
    if all_own:
        for i in range(j.n):
            put_back(&j.before[i])
    for i in range(held):
        pthread_mutex_unlock(&j.before[i].p.lock)
    return all_own


cdef void put_back(const Before* b) noexcept nogil:
    cdef Param* p = b.p
    cdef size_t n = size_of(&p.dim)
    cdef uint32_t i
    if p.rows:
        for i in range(p.n_touched):
            memset(p.grad + p.touched[i] * n, 0, n * sizeof(float))
    else:
        memset(p.grad, 0, p.size * sizeof(float))
    forget_gradient(p)
    p.pass_number = 0
    if b.numbers == NULL:
        return
    p.has_gradient = True
    if not p.rows:
        memcpy(p.grad, b.numbers, p.size * sizeof(float))
    for i in range(b.n_rows):
        touch(p, b.rows[i])
        memcpy(p.grad + b.rows[i] * n, b.numbers + i * n, n * sizeof(float))
