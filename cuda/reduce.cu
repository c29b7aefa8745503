// SPDX-License-Identifier: Apache-2.0
//
// Moments and deviations over axes. Each thread sums in double precision, since it may have many terms. The threads of a
// block are reduced pairwise in float.
#include "teams.cuh"

// ---- moment, std: x is array 0 of the axes ---------------------------------------------

static __device__ __forceinline__ float power(float x, int r) {
    float y = 1.f;
    for (; r; r >>= 1, x *= x)
        if (r & 1) y *= x;
    return y;
}

/** op moment(x)
 *  Axes kept, reduced, back
 *  r = c.attrs[2].i
 *  reduction_axes(c, &kept, &reduced, &back)
 *  forward:
 *      scale = moment_scale(c)
 *      n = axes_total(&kept)
 *      terms = axes_total(&reduced)
 *      return fill(gpu, total_of(&c.y.dim), <float>NAN if isinf(scale) else 0, c.y.v) if total_of(&c.x[0].dim) == 0
 *      moment_forward(blocks = 1): rows(n, terms) if by_blocks_over(&kept, &reduced)
 *      moment_forward(blocks = 0): each(n)
 *  backward:
 *      scale = r * moment_scale(c)
 *      n = total_of(&c.x[0].dim)
 *      uses = sharing(c)
 *      y_size = size_of(&c.y.dim)
 *      moment_backward: each(n) */
// y = scale times the sum of x^r over the reduced axes, for each element of the kept ones.
extern "C" __global__ void moment_forward(size_t n, size_t terms, dy_axes kept, dy_axes reduced, float scale, int r,
                                          const float *__restrict__ x, float *y, int blocks) {
    __shared__ float part[32];
    Team t = team_of(blocks);
    for (size_t e = t.first; e < n; e += t.step) {
        size_t base[DY_ARRAYS], at[DY_ARRAYS];
        double total = 0;
        offsets(kept, e, base);
        for (size_t k = t.lane; k < terms; k += t.lanes) {
            offsets(reduced, k, at);
            total += power(x[base[0] + at[0]], r);
        }
        float sum = team_sum(t, (float)total, part);
        if (t.lane == 0) y[e] = scale * sum;
    }
}

// dx = scale dy x^(r - 1). The axes are those of x; array 0 is y. `uses` elements of y, y_size floats apart, share one of x.
extern "C" __global__ void moment_backward(size_t n, dy_axes back, size_t uses, size_t y_size, float scale, int r,
                                           const float *__restrict__ x, const float *__restrict__ dy, float *dx,
                                           int acc) {
    for (EACH(i, n)) {
        size_t at[DY_ARRAYS];
        float total = 0.f;
        offsets(back, i, at);
        for (size_t u = 0; u < uses; u++) total += dy[at[0] + u * y_size];
        store(dx + i, acc, scale * total * power(x[i], r - 1));
    }
}

/** op std(x)
 *  Axes kept, reduced, back
 *  reduction_axes(c, &kept, &reduced, &back)
 *  mean = c.saved
 *  forward:
 *      n = axes_total(&kept)
 *      terms = axes_total(&reduced)
 *      return fill(gpu, total_of(&c.y.dim), NAN, c.y.v) if total_of(&c.x[0].dim) == 0
 *      std_forward(blocks = 1): rows(n, terms) if by_blocks_over(&kept, &reduced)
 *      std_forward(blocks = 0): each(n)
 *  backward:
 *      n = total_of(&c.x[0].dim)
 *      uses = sharing(c)
 *      y_size = size_of(&c.y.dim)
 *      scale = share(c)
 *      std_backward: each(n) */
// The standard deviation of the reduced elements, as a population; their mean is saved.
extern "C" __global__ void std_forward(size_t n, size_t terms, dy_axes kept, dy_axes reduced,
                                       const float *__restrict__ x, float *mean, float *y, int blocks) {
    __shared__ float part[32];
    Team t = team_of(blocks);
    for (size_t e = t.first; e < n; e += t.step) {
        size_t base[DY_ARRAYS], at[DY_ARRAYS];
        double total = 0, squares = 0;
        offsets(kept, e, base);
        for (size_t k = t.lane; k < terms; k += t.lanes) {
            offsets(reduced, k, at);
            total += x[base[0] + at[0]];
        }
        float middle = team_sum(t, (float)total, part) / (float)terms;
        for (size_t k = t.lane; k < terms; k += t.lanes) {
            offsets(reduced, k, at);
            float d = x[base[0] + at[0]] - middle;
            squares += d * d;
        }
        float sum = team_sum(t, (float)squares, part);
        if (t.lane == 0) {
            mean[e] = middle;
            y[e] = sqrtf(sum / (float)terms);
        }
    }
}

// Where the deviation is 0, the gradient is 0.
extern "C" __global__ void std_backward(size_t n, dy_axes back, size_t uses, size_t y_size, float scale,
                                        const float *__restrict__ x, const float *__restrict__ mean,
                                        const float *__restrict__ y, const float *__restrict__ dy, float *dx, int acc) {
    for (EACH(i, n)) {
        size_t at[DY_ARRAYS];
        float total = 0.f;
        offsets(back, i, at);
        for (size_t u = 0; u < uses; u++) {
            size_t e = at[0] + u * y_size;
            if (y[e] != 0.f) total += dy[e] * (x[i] - mean[e]) / y[e];
        }
        store(dx + i, acc, scale * total);
    }
}
