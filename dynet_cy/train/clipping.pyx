"""Clipping of gradients by their norms (Pascanu, Mikolov and Bengio 2013, On the difficulty of training recurrent
neural networks).  The norm is that of all gradients together, except that groups with their own threshold are clipped
by the norm of their own gradients.
"""

from libc.math cimport isfinite, sqrt
from libc.stdint cimport uint32_t

from dynet_cy.memory.storage cimport bad_gradients
from dynet_cy.model.parameters cimport zero_gradient
from dynet_cy.train.structs cimport FROZEN, GroupSettings


cdef bint clip(Backend backend, list stored, Update* u, Outcome* found) except -1:
    cdef Py_ssize_t i
    found.norm = norm_of(u)
    found.measured = True
    if isfinite(found.norm):
        found.clipped += clip_groups(u)
        return True
    if not u.skips:
        raise bad_gradients(found.norm, backend.not_finite(stored, u), 1)
    for i in range(u.n):
        if u.roles[i] != FROZEN:
            zero_gradient(stored[i])
    found.skipped += 1
    return False


cdef double norm_of(Update* u) noexcept nogil:
    """The norm of all gradients; also sets the sum of squares of each group."""
    cdef double total = 0
    cdef uint32_t k
    cdef Py_ssize_t i
    cdef GroupSettings* s
    for k in range(u.n_groups):
        u.settings[k].squares = 0
    for i in range(u.n):
        total += u.squares[i]
        s = &u.settings[u.group[i]]
        (s if s.own_norm else u.settings).squares += u.squares[i]
    return u.scale * sqrt(total)


cdef bint clip_groups(Update* u) noexcept nogil:
    """Set the factor that scales each group down to its threshold; returns whether any group is clipped."""
    cdef double own
    cdef uint32_t k
    cdef GroupSettings* s
    cdef bint clips = False
    for k in range(u.n_groups):
        s = &u.settings[k]
        own = u.scale * sqrt((s if s.own_norm else u.settings).squares)
        if 0 < s.threshold < own:
            s.h.grad_scale = <float>(u.scale * (s.threshold / own))
            clips = True
    return clips
