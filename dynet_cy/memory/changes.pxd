"""Changes of parameters that take long: whole for everybody who looks, though signals may end them midway.

A change that a handler of a signal has ended is finished before anybody next reads or changes a parameter, a gradient
or a state of a trainer: they all call `see_whole` first.
"""

from dynet_cy.core.interrupts cimport Interrupts


cdef extern from "<fenv.h>" nogil:
    ctypedef struct fenv_t:
        pass


cdef class Change:
    cdef fenv_t arithmetic          # of the thread that has asked for it, which it is made with
    # Go on where it stopped, until it is finished or `interrupted`; whether it is finished.
    cdef bint go_on(self, Interrupts* s) noexcept nogil

# Whether a change is under way or waits to be finished.
cdef bint unfinished

# Make a change, or as much of it as there is until a handler raises: then `raise_kept` raises that.  Changes that come
# before it does wait behind this one.
cdef int make_change(Change change) except -1
# Raise what a handler has raised in `make_change`.
cdef int raise_kept() except -1
# Keep what a handler has raised where an update can't stop, for `raise_kept`.
cdef int keep_raised(object error) except -1
cdef int finish_changes() except -1


cdef inline int see_whole() except -1:
    """See that no change is half made, before parameters, gradients or states are read or changed.

    Raises what a handler raises meanwhile; then there is still something to be finished.
    """
    if unfinished:
        finish_changes()
    return 0
