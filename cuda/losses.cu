// SPDX-License-Identifier: Apache-2.0
//
// Distances and losses between two arguments.
#include "common.cuh"

#define UNARY(name, value, derivative) \
    static __device__ __forceinline__ float unary_##name(float x, float p0, float p1) { \
        (void)p0; (void)p1; \
        return value; \
    }
// The rows of binary.def that are losses do not use y.
#define BINARY(name, value, da, db) \
    static __device__ __forceinline__ float value_##name(float a, float b, float) { return value; } \
    static __device__ __forceinline__ float slope_0_##name(float a, float b, float, float y = 0.f) { \
        (void)a; (void)b; (void)y; \
        return da; \
    } \
    static __device__ __forceinline__ float slope_1_##name(float a, float b, float, float y = 0.f) { \
        (void)a; (void)b; (void)y; \
        return db; \
    }
#include "dynet_cy/unary.def"
#include "dynet_cy/binary.def"

static __device__ __forceinline__ float value_huber(float a, float b, float c) { return 0.5f * unary_huber(a - b, c, 0.f); }
static __device__ __forceinline__ float slope_0_huber(float a, float b, float c) { return unary_clip(a - b, -c, c); }
static __device__ __forceinline__ float slope_1_huber(float a, float b, float c) { return -unary_clip(a - b, -c, c); }

/** op squared_distance(a, b): f = squared_difference
 *  op l1_distance(a, b): f = abs_difference
 *  op binary_log_loss(a, b): f = binary_log_loss
 *  op huber_distance(a, b): f = huber
 *  n = size_of(&c.x[0].dim)
 *  p = c.attrs[0].f
 *  forward:
 *      pair_forward_{f}: rows(batch, n)
 *  backward:
 *      pair_backward_0_{f}: each(elements * n) if i == 0
 *      pair_backward_1_{f}: each(elements * n) */
// dx_j = dy_b slope_j for each argument.
#define PAIR_BACKWARD(side, name) \
    extern "C" __global__ void pair_backward_##side##_##name( \
        size_t batch, size_t n, float p, const float *as, size_t stride_a, const float *bs, size_t stride_b, \
        const float *dy, float *dx, size_t elements, int acc) { \
        sum_slopes(batch, n, elements, dx, acc, [=](size_t b, size_t j) { \
            return dy[b] * slope_##side##_##name(as[b * stride_a + j], bs[b * stride_b + j], p); \
        }); \
    }

// y_b = sum_j f(a_j, b_j). A stride of 0: the argument has batch size 1.
#define PAIR(name) \
    extern "C" __global__ void pair_forward_##name(size_t batch, size_t n, float p, const float *as, size_t stride_a, \
                                                   const float *bs, size_t stride_b, float *y) { \
        __shared__ float part[32]; \
        sum_terms(batch, n, y, part, [=](size_t b, size_t j) { \
            return value_##name(as[b * stride_a + j], bs[b * stride_b + j], p); \
        }); \
    } \
    PAIR_BACKWARD(0, name) \
    PAIR_BACKWARD(1, name)

PAIR(squared_difference)
PAIR(abs_difference)
PAIR(binary_log_loss)
PAIR(huber)

/** op pairwise_rank_loss(a, b)
 *  total = total_of(&c.y.dim)
 *  forward:
 *      m = c.attrs[0].f
 *      na = total_of(&c.x[0].dim)
 *      nb = total_of(&c.x[1].dim)
 *      pairwise_forward: each(total)
 *  backward:
 *      n = total_of(&c.dx.dim)
 *      sign = 1 if i else -1
 *      pairwise_backward: each(n) */
// y = max(m - a + b, 0). An argument with fewer numbers than y has batch size 1.
extern "C" __global__ void pairwise_forward(size_t total, float m, const float *__restrict__ as, size_t na,
                                            const float *__restrict__ bs, size_t nb, float *y) {
    for (EACH(i, total)) {
        float t = m - as[i % na] + bs[i % nb];
        y[i] = t <= 0.f ? 0.f : t;  // a NaN stays
    }
}

extern "C" __global__ void pairwise_backward(size_t total, size_t n, float sign, const float *__restrict__ y,
                                             const float *__restrict__ dy, float *dx, int acc) {
    sum_slopes(total / n, n, 1, dx, acc, [=](size_t b, size_t j) { return y[b * n + j] > 0.f ? sign * dy[b * n + j] : 0.f; });
}

/** op poisson_loss(l)
 *  forward:
 *      poisson_forward: each(batch)
 *  backward:
 *      poisson_backward: each(elements) */
// y = e^l - x l + log x!, with x = items_b, in double: the terms nearly cancel.
extern "C" __global__ void poisson_forward(size_t batch, const float *__restrict__ l, size_t stride_l,
                                           const uint32_t *__restrict__ items, float *y) {
    for (EACH(b, batch)) {
        double log_mean = l[b * stride_l], x = items[b];
        y[b] = (float)(exp(log_mean) - x * log_mean + lgamma(x + 1));
    }
}

extern "C" __global__ void poisson_backward(size_t batch, const float *__restrict__ l, size_t stride_l,
                                            const uint32_t *__restrict__ items, const float *__restrict__ dy,
                                            size_t elements, float *dx, int acc) {
    sum_slopes(batch, 1, elements, dx, acc,
               [=](size_t b, size_t) { return dy[b] * (exp((double)l[b * stride_l]) - (double)items[b]); });
}
