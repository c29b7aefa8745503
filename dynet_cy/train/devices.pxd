"""Updates of parameters that live on several devices."""

from dynet_cy.train.interfaces cimport Backend


cdef class DevicesBackend(Backend):
    cdef list parts                 # the work of each device, the CPU last
    cdef dict backends              # by device, kept from one update to the next
    cdef object update, records     # modules of dynet_cy.gpu: updates, and records of their outcomes
    cdef bint by_group              # whether squares are sums over a group, stored with one of its parameters

    cdef Backend on(self, int device)
