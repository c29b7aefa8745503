"""Passes over a graph on a device: what has been listed is sent and run.  Nothing is waited for."""

from dynet_cy.gpu.commands cimport Pass
from dynet_cy.gpu.driver cimport Gpu

# Load what all passes need.  That runs Python, and so perhaps handlers of signals: what can't be taken back comes
# after it.
cdef int load_moves(Gpu* gpu) except -1
cdef int run_pass(Pass* s, str what) except -1
# Raise for what stopped the walk that lists a pass.
cdef int raise_pass_failure(Pass* s, str what) except -1
