"""Setting and counts of the passes that change sums before they are scheduled: `schedule/sums` and `schedule/gates`."""

from dynet_cy.core.atomic cimport Flag
from dynet_cy.schedule.counting cimport Counts


cdef class Changes:
    cdef Flag on
    cdef Counts changed_and_taken   # sums that were changed, and nodes that they have taken in

cdef Changes in_sums
cdef Changes in_gates
