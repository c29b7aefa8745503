"""Products, for other families to apply."""

from dynet_cy.ops.registry cimport Op

cdef Op* MATMUL
cdef Op* AFFINE
