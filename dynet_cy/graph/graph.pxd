"""Computation graphs: the owner of the C graph and of everything in it."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.forgetting cimport Renumber
from dynet_cy.graph.structs cimport Graph


# The collector of requests for values: `fibers` implements it.
cdef class Requests:
    # Suspend the running item until an expression, or each of a list, is computed; False if no item is running.
    cdef bint wait_for(self, object wanted) except -1
    # Whether an item is running, rather than another user of its graph.
    cdef bint inside(self) except -1


cdef class ComputationGraph:
    cdef Graph g
    cdef dict keep                  # storage of its parameters -> number of changes at the last backward, or None
    cdef tuple given                # further gradients of the last backward (given.pyx), once requested
    cdef uint32_t n_at_backward     # nodes at the last backward; 0: there was none
    cdef bint warned                # about growth across updates
    cdef dict leaves                # (id of a parameter, trainable): number of its node
    cdef list checkpoints
    cdef list reverts               # (revert number, nodes left), rising in both
    cdef Requests requests          # the collector of requests for values, while a batched map runs; else None

    cdef int warn_of_growth(self) except -1
    cdef int note_values(self) except -1
    cdef bint values_changed(self) except -1
    cdef int compact(self, Renumber renumber) except -1
    cdef int leave_checkpoint(self) except -1


cdef ComputationGraph current()
cdef ComputationGraph owner_of(const Graph* g)
# Raise if an item of a batched map is running: it must not do this to the graph that it shares with others.
cdef int raise_in_item(ComputationGraph graph, str what, str instead) except -1
