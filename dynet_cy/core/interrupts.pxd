"""Signals that arrive while the engine computes: their Python handlers run between pieces of work.

A pass, or other work that may take long, begins with `begin_interrupts`, and calls `interrupted` after each piece,
without the GIL.  The clock is read after at most 16 pieces, signals are looked for every 50 ms, and only by the thread
that runs handlers, so neither costs anything that can be measured.  What a handler raises is kept until the pass has
ended, and raised then by `raise_interrupt`.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t


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
