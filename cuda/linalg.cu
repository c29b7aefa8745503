// SPDX-License-Identifier: Apache-2.0
//
// Products that do not use cuBLAS.
#include "common.cuh"

/** op dot_product(a, b)
 *  forward:
 *      n = size_of(&c.x[0].dim)
 *      dot_forward: rows(batch, n)
 *  backward:
 *      n = size_of(&c.dx.dim)
 *      dot_backward: each(elements * n) */
// y_b = sum_i a_i b_i for each batch element. A stride of 0: the argument has batch size 1.
extern "C" __global__ void dot_forward(size_t batch, size_t n, const float *__restrict__ a, size_t stride_a,
                                       const float *__restrict__ b, size_t stride_b, float *y) {
    __shared__ float part[32];
    sum_terms(batch, n, y, part, [=](size_t r, size_t i) { return a[r * stride_a + i] * b[r * stride_b + i]; });
}

// dx = dy_b other for each batch element.
extern "C" __global__ void dot_backward(size_t batch, size_t n, size_t elements, const float *__restrict__ other,
                                        size_t stride_other, const float *__restrict__ dy, float *dx, int acc) {
    sum_slopes(batch, n, elements, dx, acc, [=](size_t r, size_t i) { return dy[r] * other[r * stride_other + i]; });
}
