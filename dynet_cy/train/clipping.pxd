"""Clipping of gradients by their norms."""

from dynet_cy.train.interfaces cimport Backend
from dynet_cy.train.structs cimport Outcome, Update


# Set the factors that scale gradients down to the thresholds, given the `squares` of their norms.  Returns whether to
# go on: 0 if the update is dropped, in which case the gradients have been set to zero.
cdef bint clip(Backend backend, list stored, Update* u, Outcome* found) except -1
