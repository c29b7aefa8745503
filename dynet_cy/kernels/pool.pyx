# SPDX-License-Identifier: Apache-2.0
"""The threads that work together on one large product; see native/pool.h."""

import atexit
import os

from libc.stdint cimport uint64_t

from dynet_cy.core.engine cimport add_count, add_tunable

cdef extern from "pool.h" nogil:
    # derived: functions of dy_pool_init, dy_pool_set_threads, dy_pool_threads
    int dy_pool_init()
    void dy_pool_set_threads(int threads, int cpus)
    int dy_pool_threads()
    # end of functions
    # derived: variables of dy_pool_jobs, dy_pool_far_from, dy_pool_measurements, dy_background_runs
    uint64_t dy_pool_jobs
    uint64_t dy_pool_far_from
    uint64_t dy_pool_measurements
    uint64_t dy_background_runs
    # end of variables
    # derived: functions of dy_pool_stop, dy_pool_end, dy_pool_enter, dy_pool_leave, dy_arithmetic_begin,
    #     dy_arithmetic_end, dy_flush_denormals, bint dy_flushes_denormals, dy_pool_acquire, bint dy_pool_far,
    #     dy_pool_run, bint dy_background_claim, dy_background_offer, bint dy_background_paused, dy_background_pause,
    #     dy_background_resume, dy_background_release
    void dy_pool_stop()
    void dy_pool_end()
    void dy_pool_enter()
    void dy_pool_leave()
    void dy_arithmetic_begin()
    void dy_arithmetic_end()
    void dy_flush_denormals(int on)
    bint dy_flushes_denormals()
    int dy_pool_acquire(int most, int most_awake)
    bint dy_pool_far()
    void dy_pool_run(int threads, size_t parts, void (*run)(void* job, size_t part) noexcept nogil, void* job)
    bint dy_background_claim(void (*run)(void* work) noexcept nogil, void* work)
    void dy_background_offer(int wakes)
    bint dy_background_paused()
    void dy_background_pause()
    void dy_background_resume()
    void dy_background_release()
    # end of functions
add_count("kernels.pool.jobs", &dy_pool_jobs)
add_count("kernels.pool.measurements", &dy_pool_measurements)
add_count("kernels.pool.background_runs", &dy_background_runs)
add_tunable("kernels.pool.far_from", &dy_pool_far_from)


cdef void enter_pool() noexcept nogil:
    """Note that the calling thread begins to compute: other threads' jobs then get one thread less."""
    dy_pool_enter()


cdef void leave_pool() noexcept nogil:
    """Note that the calling thread has finished computing."""
    dy_pool_leave()


cdef void begin_arithmetic() noexcept nogil:
    """Use the engine's floating-point settings in this thread: denormal numbers are 0.  May be nested."""
    dy_arithmetic_begin()


cdef void end_arithmetic() noexcept nogil:
    """Restore the floating-point settings of this thread."""
    dy_arithmetic_end()


def flush_denormals(on: bool):
    """Set whether the engine treats denormal numbers, those below 1.2e-38, as 0."""
    dy_flush_denormals(bool(on))


def flushes_denormals() -> bool:
    """Whether the engine treats denormal numbers as 0."""
    return dy_flushes_denormals()


cdef int acquire_pool(int most, int most_awake) noexcept nogil:
    """Get threads for a job and return how many: see pool.h.  If it is not 1, `run_pool` must follow."""
    return dy_pool_acquire(most, most_awake)


cdef bint far_apart() noexcept nogil:
    """Whether the threads are on cores that share no cache."""
    return dy_pool_far()


cdef void run_pool(int threads, size_t parts, void (*run)(void* job, size_t part) noexcept nogil,
                   void* job) noexcept nogil:
    """Call run(job, 0) to run(job, parts - 1) on the threads that `acquire_pool` returned, and release them."""
    dy_pool_run(threads, parts, run, job)


cdef int pool_threads() noexcept nogil:
    return dy_pool_threads()


cdef bint claim_background(void (*run)(void* work) noexcept nogil, void* work) noexcept nogil:
    """Whether a thread of the pool may do background work for the calling thread: see pool.h."""
    return dy_background_claim(run, work)


cdef void offer_background(bint wakes) noexcept nogil:
    """Let a thread call `run`, and wake it if it sleeps and `wakes` is set."""
    dy_background_offer(wakes)


cdef bint background_paused() noexcept nogil:
    """Whether `run` should return."""
    return dy_background_paused()


cdef void pause_background() noexcept nogil:
    """Wait until no thread is in `run`, and let none begin."""
    dy_background_pause()


cdef void resume_background() noexcept nogil:
    """Let a thread call `run` again."""
    dy_background_resume()


cdef void release_background() noexcept nogil:
    """End what `claim_background` began; it must have been paused."""
    dy_background_release()


def cpus() -> int:
    """Number of CPUs that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


# The last requested number of threads, and how many processes share the CPUs.
_asked = 0
_processes = 1


def default_threads() -> int:
    """The default number of threads: the CPUs that this process may use, at most ``OMP_NUM_THREADS``.

    The CPUs are divided among the processes that were passed to `share_cpus`.
    """
    found = max(1, cpus() // _processes)
    # OpenMP allows a list, of which the first number is for the outermost level.
    limit = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if limit.isascii() and limit.isdigit() and int(limit):
        found = min(found, int(limit))
    return min(found, DY_MOST_THREADS)


def set_threads(threads: SupportsIndex):
    """Set the number of threads that compute one product.

    Args:
        threads: 1 to 1024; 0 for the result of `default_threads`.

    Raises:
        ValueError: it is another number.
    """
    try:
        n = threads.__index__()
    except AttributeError:
        raise ValueError(f"threads must be a whole number, not {threads!r}") from None
    if not 0 <= n <= DY_MOST_THREADS:
        raise ValueError(f"threads must be between 1 and {DY_MOST_THREADS}, or 0 for the default, not {threads!r}")
    global _asked
    _asked = n
    dy_pool_set_threads(n or default_threads(), cpus())


def share_cpus(int processes):
    """Divide the CPUs among several processes, this one included; a number of threads that was set does not change."""
    global _processes
    _processes = max(1, processes)
    set_threads(_asked)


def threads() -> int:
    """The number of threads that compute one product."""
    return dy_pool_threads()


def is_far() -> bool:
    """Whether threads do only large jobs now."""
    return bool(dy_pool_far())


def stop():
    """End the threads.  The threads are started again when needed."""
    with nogil:
        dy_pool_stop()


def _end():
    """End the threads; no other thread computes from now on."""
    with nogil:
        dy_pool_end()


cdef int failed = dy_pool_init()
if failed:
    raise OSError(failed, os.strerror(failed))
# Daemon threads keep running while the interpreter frees the objects that they use.
atexit.register(_end)
