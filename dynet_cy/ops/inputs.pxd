"""Shapes of leaves, for other families to apply."""

from dynet_cy.core.tensor cimport Dim

cdef int dim_with_batch(object shape, object batch_size, Dim* dim, str op) except -1
