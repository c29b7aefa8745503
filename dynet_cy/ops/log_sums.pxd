"""The logarithm of a sum of e^x as a pair of floats: the maximum of the x, and the sum of e^(x - maximum).

As one float it has too few digits next to a large maximum: the e^(x - log-sum) would not sum to one.
"""

from libc.math cimport logf


cdef inline float log_of(const float* pair) noexcept nogil:
    return pair[0] + logf(pair[1])


cdef inline void logs_of(size_t n, const float* pairs, float* y) noexcept nogil:
    cdef size_t i
    for i in range(n):
        y[i] = log_of(pairs + 2 * i)
