"""Data that threads share without the GIL: settings, locks, and signals that arrive while the engine computes."""

from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t


# ==== atomic ======================================================================================
#
# Words of the process that threads read while another one sets them: settings and counts.
#
# Every read and every assignment of a variable of these types is atomic, so a thread sees the number before or the
# number after. A read costs what a plain one costs. `x += 1` is a read and then an assignment: use `add_to`.

cdef extern from *:
    """
    #include <stdatomic.h>
    typedef _Atomic int dy_setting;
    typedef _Atomic uint64_t dy_number;

    /* Both return the number before. */
    static inline int dy_change(dy_setting *x, int by) {
        return atomic_fetch_add_explicit(x, by, memory_order_relaxed);
    }
    static inline uint64_t dy_add_to(dy_number *x, uint64_t n) {
        return atomic_fetch_add_explicit(x, n, memory_order_relaxed);
    }
    """
    ctypedef bint Flag "dy_setting"
    ctypedef int Setting "dy_setting"
    ctypedef uint64_t Number "dy_number"
    int change "dy_change"(Setting* x, int by) noexcept nogil
    uint64_t add_to "dy_add_to"(Number* x, uint64_t n) noexcept nogil


# ==== unlocked ====================================================================================
#
# Locks in place of the GIL, for free-threaded Python; with a GIL they do nothing, as it protects the same data.

cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #define DY_GIL 0
    typedef PyMutex dy_gil;
    static inline void dy_acquire_gil(dy_gil *m) { PyMutex_Lock(m); }
    static inline void dy_release_gil(dy_gil *m) { PyMutex_Unlock(m); }
    /* As the fast path of PyMutex_Lock: its first bit is the lock. */
    static inline int dy_try_acquire_gil(dy_gil *m) {
        uint8_t none = 0;
        return __atomic_compare_exchange_n(&m->_bits, &none, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
    }

    #if PY_VERSION_HEX >= 0x030E0000
    static inline void dy_let_be_revived(PyObject *x) { PyUnstable_EnableTryIncRef(x); }
    static inline int dy_try_incref(PyObject *x) { return PyUnstable_TryIncRef(x); }
    #else
    /* As Python 3.13 does it, which has these two among its internals only. */
    static inline void dy_let_be_revived(PyObject *x) {
        Py_ssize_t shared = __atomic_load_n(&x->ob_ref_shared, __ATOMIC_RELAXED);
        while (!(shared & _Py_REF_SHARED_FLAG_MASK) &&
               !__atomic_compare_exchange_n(&x->ob_ref_shared, &shared, shared | _Py_REF_MAYBE_WEAKREF, 0,
                                            __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
        }
    }
    static inline int dy_try_incref(PyObject *x) {
        uint32_t local = __atomic_load_n(&x->ob_ref_local, __ATOMIC_RELAXED);
        if (__atomic_load_n(&x->ob_tid, __ATOMIC_RELAXED) == _Py_ThreadId()) {
            __atomic_store_n(&x->ob_ref_local, local + 1, __ATOMIC_RELAXED);
            return 1;
        }
        Py_ssize_t shared = __atomic_load_n(&x->ob_ref_shared, __ATOMIC_RELAXED);
        do {
            if (shared == 0 || shared == _Py_REF_MERGED)
                return 0;
        } while (!__atomic_compare_exchange_n(&x->ob_ref_shared, &shared, shared + (1 << _Py_REF_SHARED_SHIFT), 0,
                                              __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
        return 1;
    }
    #endif

    #else
    #define DY_GIL 1
    typedef char dy_gil;
    static inline void dy_acquire_gil(dy_gil *m) { (void)m; }
    static inline void dy_release_gil(dy_gil *m) { (void)m; }
    static inline int dy_try_acquire_gil(dy_gil *m) { (void)m; return 1; }
    static inline void dy_let_be_revived(PyObject *x) { (void)x; }
    static inline int dy_try_incref(PyObject *x) { Py_INCREF(x); return 1; }
    #endif

    static inline PyObject *dy_revived(void *x) {
        if (x && dy_try_incref((PyObject *)x)) return (PyObject *)x;
        Py_INCREF(Py_None);
        return Py_None;
    }
    """
    bint HAS_GIL "DY_GIL"

    # All zero means unlocked. Code that holds it must not call Python.
    ctypedef struct Unlocked "dy_gil":
        pass
    void acquire_lock "dy_acquire_gil"(Unlocked* m) nogil
    bint try_acquire_lock "dy_try_acquire_gil"(Unlocked* m) nogil
    void release_lock "dy_release_gil"(Unlocked* m) nogil

    # An object at x as a reference, or None: x is NULL, or the last reference has just been dropped, perhaps in another
    # thread, which waits in its destructor.  `let_be_revived` must have been called when the object was made.
    void let_be_revived "dy_let_be_revived"(object x)
    object revived "dy_revived"(void* x)


# ==== dynet rules =================================================================================
#
# Whether the process runs a program written for DyNet: `import dynet` gives dynet_cy there, see `dynet_cy.compat`.
#
# A few rules of DyNet's contradict what today's programs expect, such as one implicit graph for all threads. The rules
# hold in such a process only.

cdef bint follows_dynet() noexcept nogil


# ==== interrupts ==================================================================================
#
# Signals that arrive while the engine computes: their Python handlers run between pieces of work.
#
# A pass, or other work that may take long, begins with `begin_interrupts`, and calls `interrupted` after each piece,
# without the GIL. The clock is read after at most 16 pieces, signals are looked for every 50 ms, and only by the thread
# that runs handlers, so neither costs anything that can be measured. An exception of a handler is kept until the pass
# has ended; `raise_interrupt` then raises it.

cdef extern from *:
    """
    #include <stdint.h>
    #include <time.h>

    /* Milliseconds.  The coarse clock has a resolution of 1 to 10 and costs a quarter of the exact one. */
    static inline int64_t dy_coarse_ms(void) {
        struct timespec t;
    #ifdef CLOCK_MONOTONIC_COARSE
        clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    #else
        clock_gettime(CLOCK_MONOTONIC, &t);
    #endif
        return t.tv_sec * INT64_C(1000) + t.tv_nsec / 1000000;
    }
    """
    int64_t coarse_ms "dy_coarse_ms"() noexcept nogil

cdef extern from *:
    """
    #include <pthread.h>
    #include <stdint.h>
    /* The number that Python has for this thread: pthread_t is a number on some systems and a pointer on others. */
    static inline uintptr_t dy_this_thread(void) { return (uintptr_t)pthread_self(); }
    """
    uintptr_t dy_this_thread() noexcept nogil

cdef enum:
    MOST_PIECES = 16                # between two looks at the clock
    LARGE = 1 << 16                 # bytes of results after which the clock is looked at in any case

cdef struct Interrupts:
    uint32_t left                   # pieces until the clock is looked at
    uint32_t stride                 # pieces between two looks
    int64_t seen                    # what it said
    int64_t due                     # when signals are looked for
    void* raised                    # the exception of a handler; owned


cdef inline void begin_interrupts(Interrupts* s) noexcept nogil:
    s.left = s.stride = 1
    s.seen = s.due = 0
    s.raised = NULL


cdef inline bint interrupted(Interrupts* s, size_t bytes) noexcept nogil:
    """Run signal handlers from time to time; True if one has raised an exception.

    Called after a piece of work with `bytes` of results, at a point where Python may run: no lock is held.
    """
    s.left -= 1
    if s.left and bytes < LARGE:
        return False
    return look_at_clock(s)


# Whether the calling thread is the one that runs signal handlers.
cdef bint runs_handlers() noexcept nogil
cdef bint look_at_clock(Interrupts* s) noexcept nogil
# Raise the exception of a handler, if there is one.
cdef int raise_interrupt(Interrupts* s) except -1
# How many exceptions of handlers this thread has raised.
cdef uint64_t raised_here() noexcept nogil
