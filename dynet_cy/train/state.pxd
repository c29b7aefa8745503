"""Settings and state of trainers."""

# Apply all updates made so far to all rows of tables and their states.
cdef int catch_up_tables(collection) except -1
