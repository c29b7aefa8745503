// SPDX-License-Identifier: Apache-2.0
//
// Activations of gates, and the steps of GRUs and Tree-LSTMs that use them. A stride is 0 if the argument has batch size
// 1; its gradient is then the sum over the batch.
#include "common.cuh"
#include "dynet_cy/gpu_cells.h"

// In place, for each column of `rows` sums: tanh for `squashed` rows from row `first` on, logistic for all others.
extern "C" __global__ void gates_forward(size_t n, size_t rows, size_t first, size_t squashed, float *y) {
    for (EACH(i, n)) y[i] = i % rows - first < squashed ? tanhf(y[i]) : LOGISTIC(y[i]);  // unsigned
}

extern "C" __global__ void gates_backward(size_t n, size_t rows, size_t first, size_t squashed,
                                          const float *__restrict__ ys, const float *dy, float *dsums) {
    for (EACH(i, n)) {
        float y = ys[i];
        dsums[i] = dy[i] * (i % rows - first < squashed ? 1.f - y * y : y * (1.f - y));
    }
}

/** op gru_h(h, z, g)
 *  n = size_of(&c.y.dim)
 *  forward:
 *      gru_h_forward: each(batch * n)
 *  backward:
 *      gru_h_backward(argument = i): each(elements * n) */
// y = h + z (g - h).
extern "C" __global__ void gru_h_forward(size_t batch, size_t n, const float *__restrict__ hs, size_t stride_h,
                                         const float *__restrict__ zs, size_t stride_z, const float *__restrict__ gs,
                                         size_t stride_g, float *y) {
    for (EACH_OF(i, b, j, batch, n)) {
        float h = hs[b * stride_h + j];
        y[i] = h + zs[b * stride_z + j] * (gs[b * stride_g + j] - h);
    }
}

// The gradient of h, z or g: argument 0, 1 or 2.
extern "C" __global__ void gru_h_backward(size_t batch, size_t n, unsigned argument, const float *__restrict__ hs,
                                          size_t stride_h, const float *__restrict__ zs, size_t stride_z,
                                          const float *__restrict__ gs, size_t stride_g, const float *__restrict__ dy,
                                          size_t elements, float *dx, int acc) {
    sum_slopes(batch, n, elements, dx, acc, [=](size_t b, size_t j) {
        float z = zs[b * stride_z + j];
        return dy[b * n + j] * (argument == 1 ? gs[b * stride_g + j] - hs[b * stride_h + j] : argument == 2 ? z : 1.f - z);
    });
}

// y = i u + f1 c1 + f2 c2 + ... Gates are i, o, u, f1, f2... Takes `count` cells from number `from` on. The launch with
// `from` 0 begins the sum, others add to it.
extern "C" __global__ void tree_c_forward(size_t batch, size_t h, const float *__restrict__ gates, size_t stride_g,
                                          dy_gpu_cells cells, unsigned from, unsigned count, float *y) {
    for (EACH_OF(i, b, j, batch, h)) {
        const float *g = gates + b * stride_g + j;
        float total = from ? y[i] : g[0] * g[2 * h];
        for (unsigned k = 0; k < count; k++) total += g[(3 + from + k) * h] * cells.v[k][b * cells.bstride[k] + j];
        y[i] = total;
    }
}

// The gradient of a cell: dc = dy f.
extern "C" __global__ void tree_c_backward_cell(size_t batch, size_t h, const float *__restrict__ f, size_t stride_f,
                                                const float *__restrict__ dy, size_t elements, float *dc, int acc) {
    sum_slopes(batch, h, elements, dc, acc, [=](size_t b, size_t j) { return dy[b * h + j] * f[b * stride_f + j]; });
}

// The gradient of the gates, which have `rows` rows. The launch with the first cells also writes those of i, o and u, and
// of the gates f of all later cells.
extern "C" __global__ void tree_c_backward_gates(size_t batch, size_t h, size_t rows, const float *__restrict__ gates,
                                                 size_t stride_g, dy_gpu_cells cells, unsigned from, unsigned count,
                                                 const float *__restrict__ dy, size_t elements, float *dgates, int acc) {
    size_t uses = batch / elements;
    for (EACH(i, elements * rows)) {
        size_t e = i / rows, row = i - e * rows, block = row / h, j = row - block * h;
        bool of_cell = block >= 3 + from && block < 3 + from + count;
        if (!of_cell && from) continue;
        float total = 0.f;
        if (of_cell || block == 0 || block == 2)
            for (size_t b = e * uses; b < (e + 1) * uses; b++) {
                size_t k = block - 3 - from;
                float other = of_cell ? cells.v[k][b * cells.bstride[k] + j]
                                      : gates[b * stride_g + (2 - block) * h + j];
                total += dy[b * h + j] * other;
            }
        store(dgates + i, acc, total);
    }
}
