"""The ops of an LSTM step."""

from dynet_cy.ops.registry cimport Op

cdef Op* PROJECTED
cdef Op* CELL
cdef Op* OUTPUT
