# SPDX-License-Identifier: Apache-2.0
"""Products with a parameter, whose packed form is kept while its values stay."""

from dynet_cy.core.tensor cimport Packed

cdef void product(bint ta, size_t m, size_t n, size_t k, const float* a, Packed* pack,
                  const float* b, float beta, float* c) noexcept nogil
