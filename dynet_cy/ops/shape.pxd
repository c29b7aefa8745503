"""Ops for shapes, for other families."""

from dynet_cy.core.tensor cimport Attr, Dim
from dynet_cy.graph.expressions cimport Expression
from dynet_cy.ops.registry cimport Op

cdef Op* CONCATENATE

cdef Expression concatenated(object xs, Py_ssize_t d)
# Whether a concatenation is its arguments, as they lie in memory, one after the other.
cdef bint is_along_last_axis(const Dim* y, const Attr* attrs) noexcept nogil
