"""Updates of parameters that live on several devices; the choice of a trainer's backend."""

from dynet_cy.train.interfaces cimport Backend
from dynet_cy.train.plan cimport Outcome


cdef class DevicesBackend(Backend):
    cdef list parts                 # the work of each device, the CPU last
    cdef dict backends              # by device, kept from one update to the next
    cdef object update, records     # modules of dynet_cy.gpu: updates, and records of their outcomes
    cdef bint by_group              # whether squares are sums over a group, stored with one of its parameters

    cdef Backend on(self, int device)


# The backend of a trainer, depending on where its parameters live now.
cdef Backend backend_of(trainer)
# Count the outcomes of updates in the trainer.
cdef int take_outcome(trainer, const Outcome* found) except -1
# The same for all outcomes known without waiting; and for all updates, after waiting for them.
cdef int poll_updates(trainer) except -1
cdef int wait_for_updates(trainer) except -1
