"""Updates of parameters that live on several devices."""

from dynet_cy.train.interfaces cimport Backend


cdef class DevicesBackend(Backend):
    cdef list parts                 # what there is to do on each device, the CPU last
    cdef dict backends              # by device, kept from one update to the next
    cdef object update, records     # the modules of dynet_cy.gpu: of updates, and of what became of them
    cdef bint by_group              # whether squares are those of groups, and stand with one of their parameters

    cdef Backend on(self, int device)
