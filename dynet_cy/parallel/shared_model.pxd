"""Memory of models that the processes of one machine share."""

from dynet_cy.memory.storage cimport Storage


cdef extern from * nogil:
    # Floats between places where parts may begin: a cache line.
    const size_t LINE "((size_t)16)"

# Where a mapping lies.  Its owner keeps it.
cdef char* address(object region) except NULL
# The shared memory of a collection, a `SharedModel`, made if there is none yet.  Collective.
cdef object model_of(communicator, Storage storage, parts, with_children=*)
# Make all values those of rank 0, through memory that all see.  Collective.
cdef int send_values(communicator, Storage storage, list stored, float* through) except -1
# Let the state of the rule live in shared memory, as rank 0 has it.  Collective.
cdef int share_states(communicator, trainer, region, size_t start, size_t plane_bytes) except -1
