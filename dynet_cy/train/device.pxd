"""Updates of parameters that live on one device."""

from dynet_cy.memory.storage cimport Storage
from dynet_cy.train.interfaces cimport Backend
from dynet_cy.train.structs cimport Outcome, Update


cdef class DeviceBackend(Backend):
    cdef list stored                # all parameters and tables of the trainer
    cdef list planes                # the state of the rule
    cdef list sums                  # (parameter or table, None or rows, their sums): what is to go to the device
    cdef object back, numbers       # how, and these sums side by side
    cdef object update              # of dynet_cy.gpu: the modules of updates,
    cdef object records             # of what became of them,
    cdef object flat_buffer         # and of copies of many parameters; loaded where there is a device only
    cdef object clipping            # the record, from the first update with clipping on
    cdef bint waits                 # whether updates with clipping were asked for since `wait`

    # Begin an update of which this backend makes its part.
    cdef int attach(self, list stored, list planes) except -1
    # Find the sum of squares of the gradients of each group, which stands with the first of it: a wait for the device.
    cdef int measure_groups(self, Update* u) except -1
    cdef int look(self, Outcome* found) except -1
    cdef int take(self, Update* u, Py_ssize_t i, object rows, object sums) except -1
    cdef int send_sums(self, Storage storage) except -1
    cdef list chosen(self, const Update* u)
