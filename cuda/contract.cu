// SPDX-License-Identifier: Apache-2.0
//
// Circular convolutions.
#include "common.cuh"

/** op circ_conv(a, b)
 *  n = rows_of(&c.y.dim)
 *  forward:
 *      circular(correlate = 0, elements = batch, acc = 0): each(batch * n)
 *  backward:
 *      as = c.x[1 - i].v
 *      stride_a = c.x[1 - i].bstride
 *      bs = c.dy.v
 *      stride_b = n
 *      y = c.dx.v
 *      circular(correlate = 1): each(elements * n) */
/** op circ_corr(a, b)
 *  n = rows_of(&c.y.dim)
 *  forward:
 *      circular(correlate = 1, elements = batch, acc = 0): each(batch * n)
 *  backward:
 *      as = c.dy.v
 *      stride_a = n
 *      bs = c.x[1 - i].v
 *      stride_b = c.x[1 - i].bstride
 *      y = c.dx.v
 *      circular(correlate = i == 0): each(elements * n) */
// y_k = sum_i a_i b_(k - i mod n), or b_(k + i mod n) with `correlate`. y has `elements` batch elements: as many as the
// batch, or one, which is the sum over it. A stride of 0: the argument has batch size 1.
extern "C" __global__ void circular(size_t batch, size_t n, int correlate, const float *__restrict__ as, size_t stride_a,
                                    const float *__restrict__ bs, size_t stride_b, float *y, size_t elements, int acc) {
    size_t uses = elements == 1 ? batch : 1;
    for (EACH_OF(at, e, k, elements, n)) {
        float total = 0.f;
        for (size_t c = e; c < e + uses; c++) {
            const float *a = as + c * stride_a, *b = bs + c * stride_b;
            size_t j = k;
            for (size_t i = 0; i < n; i++) {
                total = multiply_add(a[i], b[j], total);
                j = correlate ? (j + 1 == n ? 0 : j + 1) : (j == 0 ? n - 1 : j - 1);
            }
        }
        store(y + at, acc, total);
    }
}
