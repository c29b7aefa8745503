"""Counts of what the engine does, and numbers that decide how it does it: for tests and measurements."""

from libc.stdint cimport uint64_t

from dynet_cy.core.threads cimport Number

# The module with a variable registers it once, where it defines it, as "folder.module.name".  Nothing is copied:
# passes read and write the variable itself.

# A count, for `stats`.
cdef int add_count(str name, const Number* at) except -1
# A number from 0 to `most`, for `tune`.
cdef int add_tunable(str name, Number* at, uint64_t most=?) except -1
