"""Shapes, for use by other families."""

from dynet_cy.graph.expressions cimport Expression
from dynet_cy.ops.registry cimport Op

cdef Op* CONCATENATE

cdef Expression concatenated(object xs, Py_ssize_t d)
