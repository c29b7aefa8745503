"""Updates that all processes make together: what they compare, sums of gradients, and sums during backward."""

from libc.stdint cimport uint8_t, uint32_t

from dynet_cy.memory.storage cimport Param
from dynet_cy.train.interfaces cimport Backend, Reducer, TrainerSettings, Update


# ==== collective ==================================================================================
#
# The base of all synchronous ways of training in several processes.

# The message of a rank about one parameter or table before an update.
cdef struct Entry:
    double factor               # of a table that decays
    double squares              # sum of squares of the part of its gradient that this rank has summed
    uint32_t n_touched          # rows with a gradient
    uint32_t lazy               # the number of deferred updates,
    uint8_t behind              # whether the states of this trainer are among what has not had them,
    uint8_t read                # and whether all values have had them, and only the states have not
    uint8_t has                 # whether there is a gradient
    uint8_t role
    uint8_t in_place


# The message of a rank before an update; its entries follow it.
cdef struct StepHeader:
    TrainerSettings settings
    uint32_t n
    uint8_t active


cdef inline Entry* entries_of(StepHeader* header) noexcept nogil:
    return <Entry*>(header + 1)


cdef inline size_t header_bytes_of(size_t n) noexcept nogil:
    """Of a header and its n entries."""
    return (sizeof(StepHeader) + n * sizeof(Entry) + 63) // 64 * 64


cdef class CollectiveReducer(Reducer):
    cdef readonly object communicator   # type: Communicator
    cdef readonly int rank
    cdef readonly int size
    cdef readonly bint active           # whether this rank has data; see `join`
    cdef bint mean
    cdef Py_ssize_t n                   # entries
    cdef list stored                    # the parameters and tables that have been compared
    cdef bytes what                     # what ranks wait in during an update of this trainer, for messages
    cdef size_t header_bytes
    cdef StepHeader* own
    cdef StepHeader** headers           # of all ranks
    cdef uint8_t* any                   # for each entry, whether some rank has a gradient
    cdef bint together                  # whether the other ranks rely on this one to finish the update
    cdef readonly dict sent             # type: dict[str, int]  # what has been exchanged: see `traffic`

    cdef int note_rows(self, const Param* p, size_t union_, size_t own) except -1
    cdef int begin_update(self) except -1
    cdef int swap(self, Update* u) except -1
    cdef int sum_all(self, Backend backend, Update* u) except -1
    cdef object compare(self, trainer, list stored, Update* u, TrainerSettings* settings, list groups)
    cdef object compare_groups(self, str trainer, StepHeader* lead, int leader, list groups)


# ==== allreduce ===================================================================================
#
# Updates in which every rank updates all parameters, after any communicator has summed the gradients.

cdef class AllreduceReducer(CollectiveReducer):
    cdef list settings              # the headers of all ranks
    cdef bytearray memory           # the header of this rank
