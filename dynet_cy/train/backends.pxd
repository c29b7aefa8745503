"""Chooses the backend of a trainer, and collects the outcomes of its updates."""

from dynet_cy.train.interfaces cimport Backend
from dynet_cy.train.structs cimport Outcome


# The backend of a trainer, depending on where its parameters live now.
cdef Backend backend_of(trainer)
# Count the outcomes of updates in the trainer.
cdef int take_outcome(trainer, const Outcome* found) except -1
# The same for all outcomes known without waiting; and for all updates, after waiting for them.
cdef int poll_updates(trainer) except -1
cdef int wait_for_updates(trainer) except -1
