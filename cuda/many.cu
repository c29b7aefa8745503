// SPDX-License-Identifier: Apache-2.0
//
// The elementwise maximum of several arguments.
#include "common.cuh"

#define NO_WINNER 0xffffffffu  // the winner if there is a NaN, so that no argument gets the gradient

/** op emax()
 *  total = total_of(&c.y.dim)
 *  winner = c.saved
 *  forward:
 *      n = size_of(&c.y.dim)
 *      emax_forward: some(total, 0)
 *  backward:
 *      n = total_of(&c.dx.dim)
 *      emax_backward(k = i): each(n) */
// y and winner hold the result of the arguments before. Of equal arguments, the first wins. Batch elements have n numbers.
extern "C" __global__ void emax_forward(size_t total, size_t n, dy_some xs, uint32_t *winner, float *y) {
    for (EACH(i, total)) {
        float best = xs.first ? y[i] : -INFINITY;
        uint32_t by = xs.first ? winner[i] : 0;
        for (unsigned k = 0; k < xs.count; k++) {
            float x = number_of(xs, k, i, i % n);
            if (isnan(x)) by = NO_WINNER;
            else if (x > best) by = xs.first + k;
            best = larger(best, x);
        }
        y[i] = best;
        winner[i] = by;
    }
}

// dx = dy where argument k won; summed over the batch if dx has fewer numbers than y.
extern "C" __global__ void emax_backward(size_t total, size_t n, unsigned k, const uint32_t *__restrict__ winner,
                                         const float *__restrict__ dy, float *dx, int acc) {
    sum_slopes(total / n, n, 1, dx, acc, [=](size_t b, size_t j) { return winner[b * n + j] == k ? dy[b * n + j] : 0.f; });
}
