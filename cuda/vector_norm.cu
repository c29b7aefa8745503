// SPDX-License-Identifier: Apache-2.0
//
// Norms of vectors. Each thread sums in double precision, since it may have many terms. The threads of a block are reduced
// pairwise in float.
#include "teams.cuh"

// ---- squared_norm ------------------------------------------------------------------------

/** op squared_norm(x)
 *  n = size_of(&c.x[0].dim)
 *  forward:
 *      squared_norm_forward: rows(batch, n)
 *  backward:
 *      squared_norm_backward: each(elements * n) */
extern "C" __global__ void squared_norm_forward(size_t batch, size_t n, const float *__restrict__ xs, size_t stride_x,
                                                float *y) {
    __shared__ float part[32];
    sum_terms(batch, n, y, part, [=](size_t b, size_t j) { return xs[b * stride_x + j] * xs[b * stride_x + j]; });
}

extern "C" __global__ void squared_norm_backward(size_t batch, size_t n, const float *__restrict__ x, size_t stride_x,
                                                 const float *__restrict__ dy, size_t elements, float *dx, int acc) {
    sum_slopes(batch, n, elements, dx, acc, [=](size_t b, size_t j) { return 2.f * dy[b] * x[b * stride_x + j]; });
}

// ---- norm -----------------------------------------------------------------------------------

static __device__ __forceinline__ float real_power(float x, float p) {
    return p == 0.f ? 1.f : p == 1.f ? x : p == 2.f ? x * x : powf(x, p);
}

/** op norm(x)
 *  Axes kept, reduced, back
 *  reduction_axes(c, &kept, &reduced, &back)
 *  p = c.attrs[1].f
 *  weight = norm_weight(c)
 *  places = c.saved
 *  forward:
 *      n = axes_total(&kept)
 *      terms = axes_total(&reduced)
 *      return fill(gpu, total_of(&c.y.dim), <float>NAN if isinf(weight) else 0, c.y.v) if total_of(&c.x[0].dim) == 0
 *      p_norm_forward(blocks = 1): rows(n, terms) if by_blocks_over(&kept, &reduced)
 *      p_norm_forward(blocks = 0): each(n)
 *  backward:
 *      n = total_of(&c.x[0].dim)
 *      uses = sharing(c)
 *      y_size = size_of(&c.y.dim)
 *      p_norm_backward: each(n) */
// y = (weight times the sum of |x|^p over the reduced axes)^(1/p), of x divided by the greatest |x|. If p is infinite, it is the greatest
// itself, and `places` tells where that is in x.
extern "C" __global__ void p_norm_forward(size_t n, size_t terms, dy_axes kept, dy_axes reduced, float p, float weight,
                                          const float *__restrict__ x, size_t *places, float *y, int blocks) {
    __shared__ Best best[32];
    __shared__ float part[32];
    Team t = team_of(blocks);
    for (size_t e = t.first; e < n; e += t.step) {
        size_t base[DY_ARRAYS], at[DY_ARRAYS];
        Best top = {-1.f, 0};
        double total = 0;
        offsets(kept, e, base);
        for (size_t k = t.lane; k < terms; k += t.lanes) {
            offsets(reduced, k, at);
            top = best_of(top, Best{fabsf(x[base[0] + at[0]]), (uint32_t)k});
        }
        top = team_best(t, top, best);
        float norm = top.x < 0.f ? 0.f : top.x;
        if (top.x > 0.f && !isinf(top.x) && !isinf(p)) {
            for (size_t k = t.lane; k < terms; k += t.lanes) {
                offsets(reduced, k, at);
                total += real_power(fabsf(x[base[0] + at[0]]) / top.x, p);
            }
            float sum = weight * team_sum(t, (float)total, part);
            norm *= p == 2.f ? sqrtf(sum) : powf(sum, 1.f / p);
        }
        if (t.lane == 0) {
            y[e] = norm;
            if (isinf(p)) {
                offsets(reduced, top.at, at);
                places[e] = base[0] + at[0];
            }
        }
    }
}

// dx = weight dy sign(x) (|x| / y)^(p - 1), and 0 where x is 0. The axes are those of x; array 0 is y. `uses` elements of y, y_size
// floats apart, share one of x.
extern "C" __global__ void p_norm_backward(size_t n, dy_axes back, size_t uses, size_t y_size, float p, float weight,
                                           const float *__restrict__ x, const size_t *__restrict__ places,
                                           const float *__restrict__ y, const float *__restrict__ dy, float *dx,
                                           int acc) {
    for (EACH(i, n)) {
        size_t at[DY_ARRAYS];
        float total = 0.f;
        offsets(back, i, at);
        if (x[i] != 0.f)
            for (size_t u = 0; u < uses; u++) {
                size_t e = at[0] + u * y_size;
                if (!isinf(p))
                    total += weight * dy[e] * real_power(fabsf(x[i]) / y[e], p - 1.f);
                else if (places[e] == i)
                    total += dy[e];
            }
        store(dx + i, acc, x[i] < 0.f ? -total : total);
    }
}
