// SPDX-License-Identifier: Apache-2.0
//
// Rows of tables.
#include "common.cuh"

// y_b = factor table[items_b], rows of n numbers.
extern "C" __global__ void lookup_forward(size_t rows, size_t n, float factor, const float *__restrict__ table,
                                          const uint32_t *__restrict__ items, float *y) {
    for (EACH(i, rows * n)) {
        size_t b = i / n;
        y[i] = factor * table[items[b] * n + (i - b * n)];
    }
}

// grad[items_b] += dy_b. The block of the first use of a row adds all its uses in their order, so that sums do not
// depend on which block runs first.
extern "C" __global__ void lookup_backward(size_t rows, size_t n, const uint32_t *__restrict__ items,
                                           const float *__restrict__ dy, float *grad) {
    for (ROWS(b, rows)) {
        uint32_t item = items[b];
        int before = 0;
        for (LANES(k, b)) before |= items[k] == item;
        if (__syncthreads_or(before)) continue;
        for (LANES(i, n)) {
            float total = grad[item * n + i];
            for (size_t k = b; k < rows; k++)
                if (items[k] == item) total += dy[k * n + i];
            grad[item * n + i] = total;
        }
    }
}

// The same in any order, for so many rows that finding the equal ones would cost more.
extern "C" __global__ void lookup_backward_unordered(size_t rows, size_t n, const uint32_t *__restrict__ items,
                                                     const float *__restrict__ dy, float *grad) {
    for (EACH(i, rows * n)) {
        size_t b = i / n;
        atomicAdd(&grad[items[b] * n + (i - b * n)], dy[i]);
    }
}
