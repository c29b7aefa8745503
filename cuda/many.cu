// SPDX-License-Identifier: Apache-2.0
//
// The greatest of several arguments, element by element.
#include "common.cuh"

#define NOBODY 0xffffffffu  // a NaN is none of the arguments

// Of arguments first, first + 1, ...; y and winner hold what the ones before have. Of equal ones the first one wins. Bit
// k of `once`: argument first + k has one batch element, of n numbers, for all of y.
extern "C" __global__ void emax_forward(size_t total, size_t n, dy_pointers xs, unsigned count, unsigned once,
                                        unsigned first, uint32_t *winner, float *y) {
    for (EACH(i, total)) {
        size_t j = i % n;
        float best = first ? y[i] : -INFINITY;
        uint32_t by = first ? winner[i] : 0;
        for (unsigned k = 0; k < count; k++) {
            float x = xs.p[k][once >> k & 1 ? j : i];
            if (isnan(x)) by = NOBODY;
            else if (x > best) by = first + k;
            best = larger(best, x);
        }
        y[i] = best;
        winner[i] = by;
    }
}

// dx += dy where argument k won; of a batch, or, with fewer numbers than y, the sum over that.
extern "C" __global__ void emax_backward(size_t total, size_t n, unsigned k, const uint32_t *__restrict__ winner,
                                         const float *__restrict__ dy, float *dx, int acc) {
    for (EACH(j, n)) {
        double sum = 0;
        for (size_t i = j; i < total; i += n)
            if (winner[i] == k) sum += dy[i];
        store(dx + j, acc, (float)sum);
    }
}
