/* SPDX-License-Identifier: Apache-2.0
 *
 * Projections onto the simplex, for CPU and GPU: the lanes of a team share a line of n numbers. A team is a block, whose
 * lanes sum in double precision, and are then reduced in float; on the CPU it is one lane. */
#ifndef DYNET_CY_SIMPLEX_H
#define DYNET_CY_SIMPLEX_H

#ifdef FULL_MASK /* cuda/common.cuh is included */
#define DY_TEAM static __device__ inline
#define DY_TEAM_SUM(x) block_sum((float)(x), part)
#define DY_TEAM_MAX(x) block_max(x, part)
#define DY_TEAM_ANY(x) __syncthreads_or(x)
#else
#include <math.h>
#include <stddef.h>
#define DY_TEAM static inline
#define DY_TEAM_SUM(x) (x)
#define DY_TEAM_MAX(x) (x)
#define DY_TEAM_ANY(x) (x)
#define LANES(i, n) size_t i = 0; i < (n); i++
DY_TEAM float larger(float a, float b) { return a > b || a != a ? a : b; }
DY_TEAM void store(float *p, int acc, float x) { *p = acc ? *p + x : x; }
#endif

/* y = max(x - t, 0). Finds the threshold t such that the sum is 1 (Michelot 1986). Each round sets t = (the sum of the x
 * above the last t, minus 1) / their number, until no element drops out. t only rises, so there are at most n rounds, and
 * seldom more than ten. Relative to the maximum, the first t is -1: the threshold cannot be lower. */
DY_TEAM void dy_sparsemax(size_t n, const float *x, float *y, float *part) {
    float top = -INFINITY;
    double t = -1, last = INFINITY;
    (void)part;
    for (LANES(k, n)) top = larger(x[k], top);
    top = DY_TEAM_MAX(top);
    if (top == -INFINITY) top = 0;
    for (;;) {
        double count = 0, total = 0;
        for (LANES(k, n))
            if ((double)x[k] - top > t) {
                total += (double)x[k] - top;
                count += 1;
            }
        count = DY_TEAM_SUM(count);
        total = DY_TEAM_SUM(total);
        if (!(count < last) || count == 0) break; /* the same for all lanes */
        last = count;
        t = (total - 1) / count;
    }
    for (LANES(k, n)) y[k] = (double)x[k] - top <= t ? 0.f : (float)((double)x[k] - top - t); /* a NaN stays */
}

/* dx = dy - mean, where mean is that of dy over the support; 0 outside the support. A NaN counts as support. */
DY_TEAM void dy_sparsemax_bwd(size_t n, const float *y, const float *dy, float *dx, int acc, float *part) {
    double support = 0, total = 0;
    (void)part;
    for (LANES(k, n))
        if (!(y[k] <= 0)) {
            total += dy[k];
            support += 1;
        }
    total = DY_TEAM_SUM(total);
    float mean = (float)(total / DY_TEAM_SUM(support));
    for (LANES(k, n)) store(dx + k, acc, y[k] <= 0 ? 0.f : dy[k] - mean);
}

/* p_i = min(bound_i, left q_i), where q is the softmax over the elements below their bounds, and `left` is 1 minus the sum of
 * the others. q is saved, with DY_AT_BOUND for these. Each round moves at least one more element to its bound, or is the
 * last. */
#define DY_AT_BOUND (-1.f)
DY_TEAM void dy_constrained(size_t n, const float *x, const float *bound, float *q, float *p, float *part) {
    double left = 1;
    int changed = 1;
    (void)part;
    for (LANES(i, n)) q[i] = 0;
    while (changed) {
        float top = -INFINITY;
        double z = 0, at_bounds = 0;
        for (LANES(i, n))
            if (q[i] != DY_AT_BOUND) top = larger(x[i], top);
        top = DY_TEAM_MAX(top);
        for (LANES(i, n))
            if (q[i] != DY_AT_BOUND) z += q[i] = expf(x[i] - top);
        z = DY_TEAM_SUM(z);
        changed = 0;
        for (LANES(i, n)) {
            if (q[i] == DY_AT_BOUND) continue;
            q[i] = (float)(q[i] / z);
            p[i] = (float)(left * q[i]);
            if (p[i] > bound[i]) {
                q[i] = DY_AT_BOUND;
                p[i] = bound[i];
                at_bounds += bound[i];
                changed = 1;
            }
        }
        left -= DY_TEAM_SUM(at_bounds);
        changed = DY_TEAM_ANY(changed);
    }
}

/* dx += p (dy - mean) for elements below their bounds, dbound += dy - mean for those at them, where mean = sum q dy. */
DY_TEAM void dy_constrained_bwd(size_t n, int of_bound, const float *q, const float *p, const float *dy, float *dx,
                                float *part) {
    double mean = 0;
    (void)part;
    for (LANES(i, n))
        if (q[i] != DY_AT_BOUND) mean += q[i] * dy[i];
    mean = DY_TEAM_SUM(mean);
    for (LANES(i, n))
        if ((q[i] == DY_AT_BOUND) == (of_bound != 0)) dx[i] += (float)((of_bound ? 1.f : p[i]) * (dy[i] - mean));
}

#endif
