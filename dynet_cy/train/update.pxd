"""Makes one update of a trainer."""

# Update the parameters with these names, or all if None.
cdef int make_update(trainer, object names, bint skips) except -1
