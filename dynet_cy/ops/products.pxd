"""Products of tensors with three and more axes, circular convolutions, inverses and determinants."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call
from dynet_cy.ops.linalg cimport Algebra

cdef void inverse_back(const Algebra* la, const Call* c, uint32_t i) noexcept nogil
