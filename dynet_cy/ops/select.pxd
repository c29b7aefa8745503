"""Selections: elements, ranges, rows, columns, batch elements, indexing; and sorting."""

# How `take` and `put` mean positions that are values of the graph, their attribute 1.
cdef enum:
    SHARED_POSITIONS                # a vector of positions, the same for all lines along the axis
    ONE_POSITION                    # one position: the axis is removed
    OWN_POSITIONS                   # positions of the shape of y: each element has its own
