"""Values of several expressions, computed together."""

# Compute expressions of one graph together, so that they batch with each other; `op` is for messages.
cdef list compute_all(object expressions, str op, bint recalculate)
