"""Updates in shared memory: synchronous, with each rank updating its part, or asynchronous, without locks."""

from dynet_cy.memory.storage cimport Storage

# Memory of models that the processes of one machine share.

cdef extern from * nogil:
    # Parts begin at multiples of this many floats: a cache line.
    const size_t LINE "((size_t)16)"

# The address of a mapping, which its owner has to keep alive.
cdef char* address(object region) except NULL
# The shared memory of a collection, a `SharedModel`; made at the first call.  Collective.  Raises an error if these
# parameters and tables do not have the same places on all ranks.
cdef object model_of(communicator, Storage storage, list stored, parts, with_children=*)
# Copy all values from rank 0, through shared memory.  Collective.
cdef int send_values(communicator, Storage storage, list stored, float* through) except -1
# Move the state of the rule to shared memory, with the values of rank 0.  Collective.
cdef int share_states(communicator, trainer, region, size_t start, size_t plane_bytes) except -1
