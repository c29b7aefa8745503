"""Which backend a trainer has, and what its backend tells it."""

from dynet_cy.train.interfaces cimport Backend
from dynet_cy.train.structs cimport Outcome


# The backend of a trainer, by where its parameters live now.
cdef Backend backend_of(trainer)
# Let the trainer count what has become of its updates.
cdef int take_outcome(trainer, const Outcome* found) except -1
# The same, as far as it is known without waiting; and for all updates, waiting for them.
cdef int poll_updates(trainer) except -1
cdef int wait_for_updates(trainer) except -1
