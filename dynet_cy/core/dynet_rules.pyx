"""Whether the process runs a program written for DyNet."""

from dynet_cy.core.atomic cimport Flag

cdef Flag follows = False


cdef bint follows_dynet() noexcept nogil:
    return follows


def follow_dynet():
    """Use DyNet's rules from now on: in arrays of expressions, and for the implicit graph of threads."""
    global follows
    follows = True
