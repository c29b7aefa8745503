"""Shapes of leaves, for use by other families."""

from dynet_cy.core.tensor cimport Dim

cdef int dim_with_batch(object shape, object batch_size, Dim* dim, str op) except -1
