"""Draws of random ops, which depend on the seed and the items of a node, never on batching."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, draw_key, draw_number
from dynet_cy.kernels.kernels cimport DY_RNG_bernoulli, K


cdef inline void draw(const Call* c, uint32_t b, int which, size_t n, float p0, float p1,
                      float* out) noexcept nogil:
    """The first n elements of the draw of batch element b."""
    K.rng[which](draw_key(c, b), <uint32_t>(c.stream >> 32), draw_number(c, b), 0, n, p0, p1, out)


cdef inline void draw_mask(const Call* c, uint32_t b, size_t n, float* out) noexcept nogil:
    """0 with probability p, else 1 / (1 - p); attribute 0 is p."""
    cdef float keep = 1 - c.attrs[0].f
    draw(c, b, <int>DY_RNG_bernoulli, n, keep, 1 / keep if keep > 0 else 0, out)
