// SPDX-License-Identifier: Apache-2.0
//
// Softmax and losses over scores of classes.
#include "common.cuh"

// The maximum of n numbers, and the logarithm of the sum of their exponentials, in all threads of the block.
static __device__ inline float logsumexp(const float *x, size_t n, float *part) {
    float top = -INFINITY, total = 0.f;
    for (LANES(i, n)) top = larger(x[i], top);
    top = block_max(top, part);
    if (isinf(top)) return top;  // no x is above -inf, or one is inf
    for (LANES(i, n)) total += expf(x[i] - top);
    return top + logf(block_sum(total, part));
}

// y_b = log sum e^x - x_v, with v = items_b. The log-sum is kept.
extern "C" __global__ void pickneglogsoftmax_forward(size_t batch, size_t n, const float *__restrict__ x, size_t bstride,
                                                     const uint32_t *__restrict__ items, float *kept, float *y) {
    __shared__ float part[32];
    for (ROWS(b, batch)) {
        const float *xb = x + b * bstride;
        float z = logsumexp(xb, n, part);
        if (threadIdx.x == 0) {
            kept[b] = z;
            y[b] = z - xb[items[b]];
        }
    }
}

// dx += dy_b (e^(x - log-sum) - onehot). With one x for all of the batch (bstride 0), dx is the sum over it.
extern "C" __global__ void pickneglogsoftmax_backward(size_t batch, size_t n, const float *__restrict__ x,
                                                      size_t bstride, const uint32_t *__restrict__ items,
                                                      const float *__restrict__ kept, const float *__restrict__ dy,
                                                      float *dx, int acc) {
    size_t elements = bstride ? batch : 1, uses = bstride ? 1 : batch;
    for (EACH(i, elements * n)) {
        size_t e = i / n, j = i - e * n;
        float total = 0.f;
        for (size_t b = e; b < e + uses; b++)
            total += dy[b] * (expf(x[i] - kept[b]) - (items[b] == j ? 1.f : 0.f));
        store(dx + i, acc, total);
    }
}
