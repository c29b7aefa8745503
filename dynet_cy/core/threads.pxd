"""Data that threads share without the GIL: settings, locks, and signals that arrive while the engine computes."""

from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t


# ==== atomic ======================================================================================
#
# Words of the process that threads read while another one sets them: settings and counts.
#
# Every read and every assignment of a variable of these types is atomic, so a thread sees the number before or the
# number after. A read costs what a plain one costs. `x += 1` is a read and then an assignment: use `add_to`.

cdef extern from "dynet_cy/atomics.h" nogil:
    # derived: types of bint Flag = dy_setting, Setting, Number
    ctypedef bint Flag "dy_setting"
    ctypedef int Setting "dy_setting"
    ctypedef uint64_t Number "dy_number"
    # end of types
    # derived: functions of change, add_to
    int change "dy_change"(Setting* x, int by)
    uint64_t add_to "dy_add_to"(Number* x, uint64_t n)
    # end of functions
    # Of numbers of any size that are not _Atomic; the last two of those that are.  `order` is one of the first three.
    int RELAXED "__ATOMIC_RELAXED"
    int ACQUIRE "__ATOMIC_ACQUIRE"
    int RELEASE "__ATOMIC_RELEASE"
    void fence "__atomic_thread_fence"(int order)
    uint64_t atomic_load "__atomic_load_n"(...)
    uint64_t atomic_add "__atomic_add_fetch"(...)
    uint64_t atomic_sub "__atomic_sub_fetch"(...)
    void atomic_store "__atomic_store_n"(...)
    uint64_t exchange_number "atomic_exchange_explicit"(Number* x, uint64_t n, int order)
    void set_number "atomic_store_explicit"(Number* x, uint64_t n, int order)


# ==== unlocked ====================================================================================
#
# Locks in place of the GIL, for free-threaded Python; with a GIL they do nothing, as it protects the same data.

cdef extern from "dynet_cy/gil.h":
    # derived: constants of bint HAS_GIL = DY_GIL
    bint HAS_GIL "DY_GIL"
    # end of constants
    # All zero means unlocked. Code that holds it must not call Python.
    ctypedef struct Unlocked "dy_gil":
        pass

    # An object at x as a reference, or None: x is NULL, or the last reference has just been dropped, perhaps in another
    # thread, which waits in its destructor.  `let_be_revived` must have been called when the object was made.
    void let_be_revived "dy_let_be_revived"(object x)
    object revived "dy_revived"(void* x)

cdef extern from "dynet_cy/gil.h" nogil:
    # derived: functions of acquire_lock = dy_acquire_gil, bint try_acquire_lock = dy_try_acquire_gil,
    #     release_lock = dy_release_gil, dy_this_thread
    void acquire_lock "dy_acquire_gil"(Unlocked* m)
    bint try_acquire_lock "dy_try_acquire_gil"(Unlocked* m)
    void release_lock "dy_release_gil"(Unlocked* m)
    uintptr_t dy_this_thread()
    # end of functions


# ==== arithmetic ==================================================================================

cdef extern from "<fenv.h>" nogil:
    ctypedef struct fenv_t:
        pass
    const fenv_t* FE_DFL_ENV
    int fegetenv(fenv_t* environment)
    int fesetenv(const fenv_t* environment)


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

cdef extern from "dynet_cy/clocks.h" nogil:
    # derived: functions of coarse_ms, now = dy_nanoseconds
    int64_t coarse_ms "dy_coarse_ms"()
    uint64_t now "dy_nanoseconds"()
    # end of functions

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
