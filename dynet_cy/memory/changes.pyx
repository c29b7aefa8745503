"""Long changes of parameters that appear atomic to every reader; see changes.pxd."""

import os

from cpython.ref cimport Py_INCREF
from libc.stdint cimport uintptr_t

from dynet_cy.core.atomic cimport Flag
from dynet_cy.core.interrupts cimport begin_interrupts, dy_this_thread, raise_interrupt, runs_handlers
from dynet_cy.core.mutex cimport (
    pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_trylock, pthread_mutex_unlock,
)


cdef extern from "<fenv.h>" nogil:
    int fegetenv(fenv_t* environment)
    int fesetenv(const fenv_t* environment)

cdef Flag unfinished = False

# Changes in the order in which they were asked for.  Only those of the thread that runs handlers are listed, because no
# other thread can be stopped midway.
cdef list changes = []
# Held by the thread that makes or finishes changes.
cdef pthread_mutex_t busy
cdef uintptr_t runner = 0
cdef Interrupts kept                # what a handler has raised in `make_change`
pthread_mutex_init(&busy, NULL)
begin_interrupts(&kept)


def _begin_anew():
    """In a newly forked child, no other thread continues a change."""
    global runner
    pthread_mutex_init(&busy, NULL)
    runner = 0


os.register_at_fork(after_in_child=_begin_anew)


cdef class Change:
    cdef bint go_on(self, Interrupts* s) noexcept nogil:
        return True


cdef int make_change(Change change) except -1:
    global unfinished
    cdef Interrupts s
    cdef bint waits = kept.raised != NULL
    if not runs_handlers():
        see_whole()
        begin_interrupts(&s)
        with nogil:
            change.go_on(&s)
        return 0
    if not waits:
        see_whole()
    fegetenv(&change.arithmetic)
    changes.append(change)
    unfinished = True
    if not waits:
        run(&kept, True)
    return 0


cdef int raise_kept() except -1:
    return raise_interrupt(&kept) if runs_handlers() else 0


cdef int keep_raised(object error) except -1:
    if kept.raised == NULL:
        Py_INCREF(error)
        kept.raised = <void*>error
    return 0


def waiting():
    """The number of changes that were interrupted and are not finished yet."""
    return len(changes)


cdef int finish_changes() except -1:
    cdef Interrupts s
    begin_interrupts(&s)
    run(&s, False)
    return raise_interrupt(&s)


cdef int run(Interrupts* s, bint asked) except -1:
    """Continue all changes until a handler raises.  In a handler that runs between two pieces of a change, finish it.

    With `asked`, this thread has just asked for the change, so its floating-point environment is already the right one.
    """
    global unfinished, runner
    cdef bint inside = runner == dy_this_thread()
    cdef Change change
    cdef bint done = True
    cdef fenv_t own
    if not inside:
        if pthread_mutex_trylock(&busy):
            with nogil:
                pthread_mutex_lock(&busy)
        runner = dy_this_thread()
    begin_interrupts(s)
    if not asked:
        fegetenv(&own)
    while done and changes:
        change = changes[0]
        if not asked:
            fesetenv(&change.arithmetic)
        with nogil:
            done = change.go_on(s)
        if not asked:
            fesetenv(&own)
        if done and changes and changes[0] is change:       # a handler may have finished it
            changes.pop(0)
    unfinished = len(changes) > 0
    if not inside:
        runner = 0
        pthread_mutex_unlock(&busy)
    return 0
