"""Clipping of gradients by their norms."""

from dynet_cy.train.interfaces cimport Backend
from dynet_cy.train.structs cimport Outcome, Update


# Let gradients be scaled to the thresholds where their norms, of which `squares` are known, are larger.  Returns
# whether to go on: 0 if the update is dropped, which has set the gradients to zero.
cdef bint clip(Backend backend, list stored, Update* u, Outcome* found) except -1
