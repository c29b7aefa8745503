"""Updates of parameters that live on one device."""

from dynet_cy.memory.storage cimport Storage
from dynet_cy.train.interfaces cimport Backend
from dynet_cy.train.plan cimport Outcome, Update


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
    cdef int take(self, Update* u, Py_ssize_t i, object rows, object sums) except -1
    cdef int send_sums(self, Storage storage) except -1
