"""Settings and state of trainers."""

# Let all rows of tables, and their states, have all updates made so far.
cdef int catch_up_tables(collection) except -1
