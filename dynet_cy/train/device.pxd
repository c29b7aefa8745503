"""Updates of parameters on devices, and the device of each parameter."""

from dynet_cy.memory.storage cimport Storage
from dynet_cy.train.interfaces cimport Backend, Outcome, TrainerFields, Update


# ==== device ======================================================================================
#
# Updates of parameters that live on one device.

cdef class DeviceBackend(Backend):
    cdef list stored                # all parameters and tables of the trainer
    cdef list planes                # the state of the rule
    cdef list sums                  # (parameter or table, None or rows, their sums): to be copied to the device
    cdef object back, numbers       # the copy to the device, and these sums in one array
    cdef object update              # modules of dynet_cy.gpu, loaded only if there is a device: updates,
    cdef object records             # records of their outcomes,
    cdef object flat_buffer         # and copies of many parameters at once
    cdef object clipping            # the record, from the first update with clipping on
    cdef bint waits                 # whether updates with clipping have been started since `wait`

    # Begin an update of which this backend makes a part.
    cdef int attach(self, list stored, list planes) except -1
    # Find the sum of squares of each group's gradients, stored with its first entry.  This waits for the device.
    cdef int measure_groups(self, Update* u) except -1
    cdef int look(self, Outcome* found) except -1
    cdef int keep_sums(self, Update* u, Py_ssize_t i, object rows, object sums) except -1
    cdef int send_sums(self, Storage storage) except -1


# ==== devices =====================================================================================
#
# Updates of parameters that live on several devices; the choice of a trainer's backend.

cdef class DevicesBackend(Backend):
    cdef list parts                 # the work of each device, the CPU last
    cdef dict backends              # by device, kept from one update to the next
    cdef object update, records     # modules of dynet_cy.gpu: updates, and records of their outcomes
    cdef bint by_group              # whether squares are sums over a group, stored with one of its parameters

    cdef Backend on(self, int device)


# The backend of a trainer, depending on where its parameters live now.
cdef Backend backend_of(trainer)
# Count the outcomes of updates in the trainer.
cdef int apply_outcome(TrainerFields trainer, const Outcome* found) except -1
# The same for all outcomes known without waiting; and for all updates, after waiting for them.
cdef int poll_updates(trainer) except -1
cdef int wait_for_updates(trainer) except -1
