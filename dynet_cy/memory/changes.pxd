"""Long changes of parameters that appear atomic to every reader, even if a signal interrupts them.

A change that a signal handler has interrupted is finished before anything reads or changes a parameter, a gradient or
a state of a trainer: all of these call `see_whole` first.
"""

from dynet_cy.core.atomic cimport Flag, Number
from dynet_cy.core.interrupts cimport Interrupts


cdef extern from "<fenv.h>" nogil:
    ctypedef struct fenv_t:
        pass


cdef class Change:
    cdef fenv_t arithmetic          # floating-point environment of the thread that asked for the change
    # Continue where it stopped, until it is finished or `interrupted`; True if it is finished.
    cdef bint go_on(self, Interrupts* s) noexcept nogil

# Whether a change is in progress or waiting to be finished.
cdef Flag unfinished

# Make a change.  If a handler raises an exception, the change stops there, and `raise_kept` raises the exception.
# Changes that are asked for before that wait behind this one.
cdef int make_change(Change change) except -1
# Raise the exception that a handler has raised in `make_change`.
cdef int raise_kept() except -1
# Keep the exception of a handler where an update cannot stop, for `raise_kept`.
cdef int keep_raised(object error) except -1
cdef int finish_changes() except -1


# Keeps items of batched maps from changing parameters that others have begun to use: filled in by `fibers`.
cdef struct Guard:
    Number users                    # maps and servers; the functions are called if there are any
    int (*check)(object storage, str what) except -1
    int (*made)(object storage) except -1

cdef Guard guard


cdef inline int check_change(object storage, str what) except -1:
    """Raise if this thread runs items that may have used values of parameters, which are about to change."""
    return guard.check(storage, what) if guard.users else 0


cdef inline int see_whole() except -1:
    """Finish interrupted changes, before parameters, gradients or states are read or changed.

    If a handler raises an exception meanwhile, it is raised, and the change remains unfinished.
    """
    if unfinished:
        finish_changes()
    return 0
