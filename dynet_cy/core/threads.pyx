"""Data that threads share without the GIL: settings, locks, and signals that arrive while the engine computes."""

import os
import threading

from cpython.exc cimport PyErr_CheckSignals
from cpython.ref cimport Py_DECREF, Py_INCREF


# ==== dynet rules =================================================================================
#
# Whether the process runs a program written for DyNet.

cdef Flag follows = False


cdef bint follows_dynet() noexcept nogil:
    return follows


def is_dynet() -> bool:
    """Whether the process runs a program written for DyNet."""
    return follows


def follow_dynet():
    """Use DyNet's rules from now on: in arrays of expressions, and for the implicit graph of threads."""
    global follows
    follows = True


# ==== interrupts ==================================================================================
#
# Python handlers of signals while the engine computes.

cdef Number pause = 50              # milliseconds between two looks for signals
_pause_at = <uintptr_t>&pause       # core.engine stands above

cdef enum:
    LONG_PAUSE = 250                # where taking the GIL is slow, since other threads want it
    SLOW = 3

# The thread that runs handlers.
cdef uintptr_t main_thread = 0
cdef uint64_t n_raised = 0


def _find_main_thread():
    global main_thread
    main_thread = <uintptr_t>threading.main_thread().ident


_find_main_thread()
# In a child process it is the thread that forked.
os.register_at_fork(after_in_child=_find_main_thread)


cdef bint runs_handlers() noexcept nogil:
    return dy_this_thread() == main_thread


cdef bint look_at_clock(Interrupts* s) noexcept nogil:
    cdef int64_t at = coarse_ms()
    if s.raised != NULL:
        return True
    if s.due == 0:
        s.due = at + <int64_t>pause
    elif at != s.seen:                          # pieces are long: look after each
        s.stride = 1
    elif s.stride < MOST_PIECES:
        s.stride *= 2
    s.left = s.stride
    s.seen = at
    if at < s.due:
        return False
    if runs_handlers():
        run_handlers(s)
    # Waiting for the GIL must not cost more than a few percent.
    s.seen = coarse_ms()
    s.due = s.seen + (LONG_PAUSE if s.seen - at > SLOW else <int64_t>pause)
    return s.raised != NULL


cdef void run_handlers(Interrupts* s) noexcept with gil:
    """Run pending handlers with standard arithmetic: the engine may treat denormal numbers as 0."""
    cdef fenv_t engine
    fegetenv(&engine)
    fesetenv(FE_DFL_ENV)
    try:
        PyErr_CheckSignals()
    except BaseException as error:
        Py_INCREF(error)
        s.raised = <void*>error
    fesetenv(&engine)


cdef int raise_interrupt(Interrupts* s) except -1:
    global n_raised
    if s.raised == NULL:
        return 0
    n_raised += 1
    error = <object>s.raised
    Py_DECREF(error)
    s.raised = NULL
    raise error


cdef uint64_t raised_here() noexcept nogil:
    return n_raised if dy_this_thread() == main_thread else 0
