// SPDX-License-Identifier: Apache-2.0
//
// Rows of tables. An item that is NO_ROW stands for an index that was refused.
#include "common.cuh"

#define NO_ROW 0xffffffffu

/** op lookup()
 *  uses lookup
 *  set note = lookup_note
 *  forward: read_table(gpu, c, c.y.dim.bd, c.items)
 *  backward: add_to_table(gpu, c, c.y.dim.bd, c.items) */
// Rows whose numbers are values of the graph: forward saves them as items.
/** op lookup_at(index)
 *  uses lookup, positions
 *  set note = lookup_at_note
 *  rows = total_of(&c.x[0].dim)
 *  forward:
 *      first find_positions(gpu, c, &c.x[0], (<Param*>c.object).rows, <uint32_t>NO_ROW, <uint32_t*>c.saved)
 *      return read_table(gpu, c, rows, <const uint32_t*>c.saved)
 *  backward:
 *      nothing if i < c.n                                                                      # none flows to an index
 *      return add_to_table(gpu, c, rows, <const uint32_t*>c.saved) */
// y_b = table[items_b], rows of n numbers.
extern "C" __global__ void lookup_forward(size_t rows, size_t n, const float *__restrict__ table,
                                          const uint32_t *__restrict__ items, float *y) {
    for (EACH_OF(i, b, j, rows, n)) y[i] = items[b] == NO_ROW ? 0.f : table[items[b] * n + j];
}

// grad[items_b] += dy_b. The block of the first use of a row adds all of its uses in order, so that sums do not
// depend on which block runs first.
extern "C" __global__ void lookup_backward(size_t rows, size_t n, const uint32_t *__restrict__ items,
                                           const float *__restrict__ dy, float *grad) {
    for (ROWS(b, rows)) {
        uint32_t item = items[b];
        int before = 0;
        for (LANES(k, b)) before |= items[k] == item;
        if (__syncthreads_or(before) || item == NO_ROW) continue;
        for (LANES(i, n)) {
            double total = grad[item * n + i];
            for (size_t k = b; k < rows; k++)
                if (items[k] == item) total += dy[k * n + i];
            grad[item * n + i] = (float)total;
        }
    }
}

// The same in any order, for so many rows that finding all equal items would cost more. The blocks of a part add up equal
// items among MOST rows first, so that a row of the table that is used very often gets few atomic additions.
#define MOST 256

extern "C" __global__ void lookup_backward_unordered(size_t rows, size_t n, const uint32_t *__restrict__ items,
                                                     const float *__restrict__ dy, float *grad) {
    __shared__ uint32_t item[MOST], next[MOST], is_first[MOST]; // next: the next row with this item, or MOST
    size_t parts = (rows + MOST - 1) / MOST;
    for (ROWS(part, parts)) {
        size_t from = part * MOST, count = rows - from < MOST ? rows - from : MOST;
        __syncthreads();
        for (LANES(k, count)) item[k] = items[from + k];
        __syncthreads();
        for (LANES(k, count)) {
            size_t after = k + 1, before = 0;
            while (after < count && item[after] != item[k]) after++;
            while (item[before] != item[k]) before++;
            next[k] = after < count ? (uint32_t)after : MOST;
            is_first[k] = before == k;
        }
        __syncthreads();
        for (SLICES(i, count * n)) {
            size_t k = i / n, column = i - k * n;
            if (!is_first[k] || item[k] == NO_ROW) continue;
            double total = 0;
            for (size_t j = k; j < MOST; j = next[j]) total += dy[(from + j) * n + column];
            atomicAdd(&grad[item[k] * n + column], (float)total);
        }
    }
}
