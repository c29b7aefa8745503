"""Makes one update of a trainer."""

# Update the parameters of these names, all if None.
cdef int make_update(trainer, object names, bint skips) except -1
