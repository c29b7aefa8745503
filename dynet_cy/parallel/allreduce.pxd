"""Updates of which each rank makes the whole, after gradients were summed by any communicator."""

from dynet_cy.parallel.collective cimport CollectiveReducer


cdef class AllreduceReducer(CollectiveReducer):
    cdef list told                  # the headers of all ranks
    cdef bytearray memory           # the own one
