"""Updates in which every rank updates all parameters, after any communicator has summed the gradients."""

from dynet_cy.parallel.collective cimport CollectiveReducer


cdef class AllreduceReducer(CollectiveReducer):
    cdef list told                  # the headers of all ranks
    cdef bytearray memory           # the header of this rank
