"""Updates that several processes make together."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from dynet_cy.memory.storage cimport Param
from dynet_cy.train.trainers cimport Stepper, Update


# What a rank sends of one parameter or table before an update.
cdef struct Entry:
    double factor               # of a table that decays
    double squares              # of the part of its gradient that this rank has added up
    uint32_t n_touched          # rows with a gradient
    uint8_t has                 # whether there is a gradient
    uint8_t role
    uint8_t in_place


# What a rank sends before an update; its entries follow it.
cdef struct StepHeader:
    double lr
    double threshold
    double weight_decay
    double decay_due
    int64_t steps
    uint64_t groups             # a digest of their settings
    uint32_t n
    uint8_t sparse
    uint8_t skips
    uint8_t active


cdef inline Entry* entries_of(StepHeader* header) noexcept nogil:
    return <Entry*>(header + 1)


cdef class CollectiveUpdate(Stepper):
    cdef readonly object communicator
    cdef readonly int rank
    cdef readonly int size
    cdef readonly bint active           # whether this rank has data; see `join`
    cdef bint mean
    cdef Py_ssize_t n                   # entries
    cdef bytes what                     # what ranks wait in for an update of this trainer
    cdef size_t header_bytes
    cdef StepHeader* own
    cdef StepHeader** headers               # of all ranks
    cdef uint8_t* any                   # for each entry whether some rank has a gradient
    cdef bint together             # whether the others count on this rank's part in an update
    cdef bint reduced
    cdef list summed                    # the parameters and tables of the update
    cdef readonly dict sent             # what has been exchanged: see `traffic`

    cdef int note_rows(self, Param* p, size_t union_, size_t own) except -1
    cdef int begin(self) except -1
    cdef int swap(self, Update* u) except -1
    cdef int reduce(self, Update* u) except -1
    cdef int add_up(self, Update* u) except -1
    cdef int agree(self, object trainer, list stored, Update* u) except -1
    cdef int agree_on_groups(self, object trainer, StepHeader* lead, int leader) except -1


cdef class AllreduceStepper(CollectiveUpdate):
    cdef list told
    cdef bytearray memory

    cdef int reduce_table(self, Update* u, Py_ssize_t i) except -1
    cdef int reduce_range(self, Update* u, Py_ssize_t i, Py_ssize_t j, size_t n) except -1
