"""The backends of updates: on the host, by rules in C and in Python, and on devices."""

from dynet_cy.memory.storage cimport Param, Storage
from dynet_cy.train.interfaces cimport Backend, GroupSettings, Outcome, Reducer, Span, TrainerFields, Update


# ==== host ========================================================================================
#
# Updates of parameters that lie in the memory of the host.

cdef class HostBackend(Backend):
    pass

# Prevent graphs of other threads from adding to the gradient.
cdef void lock_gradient(Param* p) noexcept nogil
cdef void unlock_gradient(Param* p) noexcept nogil
# Sum of the squares of the gradient.
cdef double squared_norm(Param* p) noexcept nogil
# Make a step with n numbers of a parameter, from `at` on.
cdef void step_part(Param* p, const GroupSettings* s, const Update* u, const Span* span, size_t at,
                    size_t n) noexcept nogil
# Take this share off the value, or multiply the factor of a table instead.
cdef void apply_weight_decay(Param* p, double share) noexcept nogil
# Replace the gradients of a table's rows by their sums over all ranks.
cdef int sum_table(Reducer ranks, Update* u, Py_ssize_t i) except -1


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
