# SPDX-License-Identifier: Apache-2.0
"""A pool of threads; see native/pool.h."""

cdef extern from "pool.h" nogil:
    # derived: constants of DY_MOST_THREADS
    int DY_MOST_THREADS
    # end of constants


# Background work, which one thread of the pool does.
cdef int pool_threads() noexcept nogil                  # how many there are
cdef bint claim_background(void (*run)(void* work) noexcept nogil, void* work) noexcept nogil
cdef void offer_background(bint wakes) noexcept nogil
cdef bint background_paused() noexcept nogil
cdef void pause_background() noexcept nogil
cdef void resume_background() noexcept nogil
cdef void release_background() noexcept nogil

cdef void enter_pool() noexcept nogil
cdef void leave_pool() noexcept nogil
cdef void begin_arithmetic() noexcept nogil
cdef void end_arithmetic() noexcept nogil
cdef bint far_apart() noexcept nogil
cdef int acquire_pool(int most, int most_awake) noexcept nogil
cdef void run_pool(int threads, size_t parts, void (*run)(void* job, size_t part) noexcept nogil,
                   void* job) noexcept nogil
