/* SPDX-License-Identifier: Apache-2.0
 *
 * Cumulative ops, for CPU and GPU: a line of n elements, `step` floats apart. */
#ifndef DYNET_CY_CUMULATIVE_H
#define DYNET_CY_CUMULATIVE_H

#include <math.h>
#include <stddef.h>

#ifdef __CUDACC__
#define DY_CUMULATIVE static __device__ __forceinline__
#else
#define DY_CUMULATIVE static inline
#endif

/* exp(a) / exp(b), which is 1 for equal infinities. */
DY_CUMULATIVE double dy_ratio_of_exponentials(float a, float b) { return a == b ? 1 : exp((double)a - b); }

/* The sum is kept as exp(greatest) * total, in double precision, so that no exponential overflows. Both are saved: next to a
 * large maximum, the logarithm of the sum has too few digits. */
DY_CUMULATIVE void dy_logcumsumexp(size_t n, size_t step, const float *x, float *y, float *saved) {
    double greatest = -INFINITY, total = 0;
    for (size_t at = 0; at < n * step; at += step) {
        double own = x[at];
        if (own > greatest) {
            total = total * exp(greatest - own) + 1;
            greatest = own;
        } else { /* equal elements may be infinite, and their difference NaN */
            total += own == greatest ? 1 : exp(own - greatest);
        }
        y[at] = (float)(greatest + log(total));
        saved[2 * at] = (float)greatest;
        saved[2 * at + 1] = (float)total;
    }
}

/* Adds the gradient of logcumsumexp or, without `logs`, of cumprod, from the end of the line to its beginning.
 * cumprod: dx_k = y_{k-1} s_k, where s_k = dy_k + x_{k+1} s_{k+1}: no division, so zeros are numbers like others.
 * logcumsumexp: dx_k = exp(x_k - y_k) s_k, where s_k = dy_k + exp(y_k - y_{k+1}) s_{k+1}: no exponent is above 0. exp(y) is
 * exp(greatest) * total, the saved pair of each element. */
DY_CUMULATIVE void dy_cumulative_backward(int logs, size_t n, size_t step, const float *x, const float *y, const float *saved,
                                          const float *dy, float *dx) {
    double total = 0;
    for (size_t k = n; k-- > 0;) {
        size_t at = k * step;
        double next_by_own = 0, own_by_x;
        if (logs) {
            const float *own = saved + 2 * at, *after = own + 2 * step;
            if (k + 1 < n) next_by_own = dy_ratio_of_exponentials(own[0], after[0]) * own[1] / after[1];
            own_by_x = dy_ratio_of_exponentials(x[at], own[0]) / own[1];
        } else {
            if (k + 1 < n) next_by_own = x[at + step];
            own_by_x = k ? y[at - step] : 1;
        }
        total = dy[at] + next_by_own * total;
        dx[at] += (float)(total * own_by_x);
    }
}

#endif
