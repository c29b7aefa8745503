// SPDX-License-Identifier: Apache-2.0
//
// Dropout, noise and random leaves. Masks are not saved, but drawn again in backward. Seed and stream are read
// from device memory, so that launches are the same in every step.
#include "lines.cuh"
#include "refused.cuh"
#include "rng.cuh"
#include "teams.cuh"

// Leaves: y_b = the draw of number items_b.
/** op random_normal() draws
 *  op random_uniform() draws
 *  op random_bernoulli() draws
 *  op random_gumbel() draws
 *  n = size_of(&c.y.dim)
 *  p0 = c.attrs[0].f
 *  p1 = c.attrs[1].f
 *  forward:
 *      {op}: each(batch * n) */
#define RNG(name, value) \
    extern "C" __global__ void random_##name(size_t batch, size_t n, const uint64_t *__restrict__ seeds, \
                                             const uint32_t *__restrict__ items, float p0, float p1, float *y) { \
        for (EACH_OF(i, b, j, batch, n)) y[i] = draw_##name(seeds, items, b, j, p0, p1); \
    }
#include "dynet_cy/rng.def"
#undef RNG

/** op noise(x) draws
 *  n = size_of(&c.y.dim)
 *  deviation = c.attrs[0].f
 *  forward:
 *      noise_forward: each(batch * n)
 *  backward:
 *      return pass_scaled(gpu, &c.dy, 1, &c.dx, c.accumulate) */
// y = x + deviation z.
extern "C" __global__ void noise_forward(size_t batch, size_t n, const uint64_t *__restrict__ seeds,
                                         const uint32_t *__restrict__ items, float deviation,
                                         const float *__restrict__ x, size_t stride_x, float *y) {
    for (EACH_OF(i, b, j, batch, n)) y[i] = x[b * stride_x + j] + draw_normal(seeds, items, b, j, 0.f, deviation);
}

// The index of the mask value of element j. All elements along an axis of `length`, `inner` floats apart, share a value.
static __device__ __forceinline__ size_t mask_place(size_t j, size_t inner, size_t length) {
    return length == 1 ? j : j / (inner * length) * inner + j % inner;
}

/** op dropout(x) draws: inner = size_of(&c.y.dim), length = 1
 *  op dropout_dim(x) draws: inner = s.pre, length = s.len
 *  op dropout_batch(x) draws: inner = 1, length = size_of(&c.y.dim)
 *  op block_dropout(x) draws: inner = 1, length = size_of(&c.y.dim)
 *  Split s = split_at(&c.y.dim, c.attrs[1].u)
 *  n = size_of(&c.y.dim)
 *  keep = 1 - c.attrs[0].f
 *  value = 1 / keep if keep > 0 else 0
 *  inner = {inner}
 *  length = {length}
 *  forward:
 *      dropout_forward: each(batch * n)
 *  backward:
 *      dropout_backward: each(elements * n) */
// y = x mask, where a mask value is 1 / keep with probability `keep`, otherwise 0.
extern "C" __global__ void dropout_forward(size_t batch, size_t n, size_t inner, size_t length,
                                           const uint64_t *__restrict__ seeds,
                                           const uint32_t *__restrict__ items, float keep, float value,
                                           const float *__restrict__ x, size_t stride_x, float *y) {
    for (EACH_OF(i, b, j, batch, n))
        y[i] = x[b * stride_x + j] * draw_bernoulli(seeds, items, b, mask_place(j, inner, length), keep, value);
}

// dx = dy mask.
extern "C" __global__ void dropout_backward(size_t batch, size_t n, size_t inner, size_t length,
                                            const uint64_t *__restrict__ seeds,
                                            const uint32_t *__restrict__ items, float keep, float value,
                                            const float *__restrict__ dy, size_t elements, float *dx, int acc) {
    sum_slopes(batch, n, elements, dx, acc, [=](size_t b, size_t j) {
        return dy[b * n + j] * draw_bernoulli(seeds, items, b, mask_place(j, inner, length), keep, value);
    });
}

/** op sample(x) draws
 *  Split s = split_at(&c.x[0].dim, c.attrs[0].u)
 *  inner = s.pre
 *  length = s.len
 *  outer = s.post
 *  function = c.attrs[3].u
 *  forward:
 *      sample_forward(refused = refused_of(gpu)): rows(inner * outer * batch, length) */
// The index of the maximum of x plus noise from a Gumbel distribution in each line.
extern "C" __global__ void sample_forward(size_t batch, size_t inner, size_t length, size_t outer,
                                          const uint64_t *__restrict__ seeds, const uint32_t *__restrict__ items,
                                          uint32_t function, dy_refused_index *refused,
                                          const float *__restrict__ x, size_t stride_x, int32_t *y) {
    __shared__ Best part[32];
    Team t = team_of(1);
    for (ROWS(e, batch * inner * outer)) {
        size_t b = e / (inner * outer), first = line_at(e - b * inner * outer, inner, length, outer, 0);
        Best top = {-INFINITY, 0xffffffffu};
        for (LANES(k, length)) {
            size_t j = first + k * inner;
            float score = x[b * stride_x + j] + draw_gumbel(seeds, items, b, j, 0.f, 1.f);
            top = best_of(top, Best{score, (uint32_t)k});
        }
        top = team_best(t, top, part);
        if (t.lane != 0) continue;
        y[e] = (int32_t)top.at;
        size_t place = first + top.at * inner;
        if (!(top.x > -INFINITY)) refuse(refused, function, b, place, 0, x[b * stride_x + place]);
    }
}
