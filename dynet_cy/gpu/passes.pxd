"""Passes over a graph on a device: sends the listed tables and runs the listed commands, without waiting."""

from dynet_cy.gpu.commands cimport Pass
from dynet_cy.gpu.driver cimport Gpu

# Load the kernel that all passes need.  Loading runs Python code, and so perhaps signal handlers: call this before
# changes that cannot be undone.
cdef int load_moves(Gpu* gpu) except -1
cdef int run_pass(Pass* s, str what) except -1
# Raise the error that stopped the walk that lists a pass.
cdef int raise_pass_failure(Pass* s, str what) except -1
