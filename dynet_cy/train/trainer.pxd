"""Trainers: what they share, one update, moving averages, and their state."""


# ==== state =======================================================================================
#
# Settings and state of trainers.

# Apply all updates made so far to all rows of tables and their states.
cdef int catch_up_tables(collection) except -1


# ==== update ======================================================================================
#
# Makes one update of a trainer.

# Update the parameters with these names, or all if None.
cdef int make_update(trainer, object names, bint skips) except -1
