// SPDX-License-Identifier: Apache-2.0
//
// The elementwise maximum of several arguments.
#include "common.cuh"

#define NO_WINNER 0xffffffffu  // the winner if there is a NaN, so that no argument gets the gradient

// Takes arguments first, first + 1, ...; y and winner hold the result of the arguments before. Of equal arguments, the
// first wins. Bit k of `once`: argument first + k has batch size 1, with n numbers.
extern "C" __global__ void emax_forward(size_t total, size_t n, dy_pointers xs, unsigned count, unsigned once,
                                        unsigned first, uint32_t *winner, float *y) {
    for (EACH(i, total)) {
        size_t j = i % n;
        float best = first ? y[i] : -INFINITY;
        uint32_t by = first ? winner[i] : 0;
        for (unsigned k = 0; k < count; k++) {
            float x = xs.p[k][once >> k & 1 ? j : i];
            if (isnan(x)) by = NO_WINNER;
            else if (x > best) by = first + k;
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
