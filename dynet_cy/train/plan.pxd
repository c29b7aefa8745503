"""What an update does to a parameter or table, as a list of spans that backends and reducers carry out.

All decisions are made here: which rows the rule changes, whether the others get the update later, and whether weight
decay is a part of the step.  The CPU loops over the spans, a GPU launches kernels over tables of them, and processes
that share memory carry out a part each.
"""

from libc.stdint cimport uint8_t, uint32_t

from dynet_cy.train.structs cimport Update


cdef enum Kind:
    DECAY                       # the share `before` is taken off all values, or off the factor of their table
    CATCH_UP                    # all rows, and the states that ranks share, get the updates that they are missing
    STEP                        # the rule changes values and states, and gradients become zero

# Who has the states of the rule.
cdef enum States:
    OWN                         # this process
    SHARED                      # all ranks, which must make the same decisions
    FOREIGN                     # all ranks; and rows are missing updates of another trainer

cdef enum:
    MOST_SPANS = 4              # of an entry

cdef struct Span:
    uint8_t kind
    bint some                   # of a step: only rows with a gradient make it,
    bint late                   # and the others get it later, which is noted
    double before               # shares of weight decay that are taken off before the rule
    double after                # and after it

# An update, with the memory of its lists.
cdef class Plan:
    cdef Update u
    cdef list stored            # the entries
    cdef list planes            # the state of the rule

    # Allocate the settings of this many groups.
    cdef int set_groups(self, uint32_t n) except -1
    # What the update does on one device: a copy, in which entries that live elsewhere are frozen.
    cdef Plan on(self, int device, list planes)

# What an update does to entry i, of which n rows have a gradient, in order; returns the number of spans.
cdef int plan_entry(Update* u, Py_ssize_t i, uint32_t n, States states, Span* spans) noexcept nogil
