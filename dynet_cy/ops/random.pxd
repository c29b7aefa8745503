"""Random ops, for other families."""

from dynet_cy.ops.registry cimport Op

# Attribute 0 is the probability of zero, or the deviation.
cdef Op* DROPOUT
cdef Op* NOISE
