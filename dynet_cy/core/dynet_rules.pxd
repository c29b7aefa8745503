"""Whether the process runs a program written for DyNet: `import dynet` gives dynet_cy there, see `dynet_cy.compat`.

A few rules of DyNet's contradict what today's programs expect, such as one implicit graph for all threads. They hold in
such a process only.
"""

cdef bint follows_dynet() noexcept nogil
