// SPDX-License-Identifier: Apache-2.0
//
// Distances and losses between two arguments.
#include "elementwise.cuh"

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
// y_b = sum_j f(a_j, b_j), and dx_j = dy_b slope_j for each argument. A stride of 0: the argument has batch size 1.
#define OF_PAIR(e, j, f) \
    [[maybe_unused]] float a = as[e * stride_a + j], b = bs[e * stride_b + j]; \
    return f;

#define PAIR_BACKWARD(side, name, slope) \
    extern "C" __global__ void pair_backward_##side##_##name( \
        size_t batch, size_t n, float p, const float *as, size_t stride_a, const float *bs, size_t stride_b, \
        const float *dy, float *dx, size_t elements, int acc) { \
        (void)p; \
        sum_slopes(batch, n, elements, dx, acc, [=](size_t e, size_t j) { OF_PAIR(e, j, dy[e] * slope) }); \
    }

#define PAIR(name, value, slope_a, slope_b) \
    extern "C" __global__ void pair_forward_##name(size_t batch, size_t n, float p, const float *as, size_t stride_a, \
                                                   const float *bs, size_t stride_b, float *y) { \
        (void)p; \
        __shared__ float part[32]; \
        sum_terms(batch, n, y, part, [=](size_t e, size_t j) { OF_PAIR(e, j, value) }); \
    } \
    PAIR_BACKWARD(0, name, slope_a) \
    PAIR_BACKWARD(1, name, slope_b)

// Rows of binary.def that do not read y.
#define ROW(name) PAIR(name, value2_##name(a, b), slope_a_##name(a, b, 0.f), slope_b_##name(a, b, 0.f))
ROW(squared_difference)
ROW(abs_difference)
ROW(binary_log_loss)
PAIR(huber, 0.5f * value_huber(a - b, p, 0.f), value_clip(a - b, -p, p), (-value_clip(a - b, -p, p)))

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
