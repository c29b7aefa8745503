"""Products of tensors with three and more axes, circular convolutions, inverses and determinants."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call

cdef void inverse_back(const Call* c, uint32_t i) noexcept nogil
