"""Launches of LSTM cells, each together with the product that was recorded right before it if that computes
the sums of their gates, or the gradients of their outputs: a step of an LSTM is then one launch in each direction.

Most products of steps have few columns.  Then a launch takes longer than what it computes, and the kernels of
cuda/steps.cu need not be as fast as cuBLAS.
"""

from dynet_cy.gpu.commands cimport Command, Pass
from dynet_cy.gpu.driver cimport Gpu

# Note for the command of a table of cells where the table is on the host, and in which direction they run.
cdef void note_steps(Pass* s, Command* c, const void* table, bint back) noexcept nogil
# Record such a command.
cdef int launch_cells(Gpu* gpu, const Command* c) noexcept nogil
