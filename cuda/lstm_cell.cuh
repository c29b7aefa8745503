// SPDX-License-Identifier: Apache-2.0
//
// The elementwise steps of an LSTM cell for number j of h, by the addresses of a line of a table (gpu/cells).
#pragma once
#include "common.cuh"
#include "dynet_cy/gpu_cells.h"

// From the sums of the gates i, f, o, g without the bias; without a bias, from the gates.
static __device__ __forceinline__ void lstm_forward(const dy_lstm_cell &cell, size_t h, size_t j, float i, float f, float o,
                                                    float u) {
    if (cell.bias) {
        const float *b = cell.bias + j;
        float *g = cell.gates + j;
        g[0] = i = LOGISTIC(i + b[0]);
        g[h] = f = LOGISTIC(f + b[h] + 1.f);  // the bias of forget gates
        g[2 * h] = o = LOGISTIC(o + b[2 * h]);
        g[3 * h] = u = tanhf(u + b[3 * h]);
    }
    float c = f * cell.before[j] + i * u;
    cell.c[j] = c;
    cell.y[j] = o * tanhf(c);
}

// The gradients of the state, of the sums and of the state before; d: that of the output.
static __device__ __forceinline__ void lstm_backward(const dy_lstm_cell_back &cell, size_t h, size_t j, float d) {
    const float *g = cell.gates + j;
    float i = g[0], f = g[h], o = g[2 * h], u = g[3 * h], t = tanhf(cell.c[j]);
    float dc = d * o * (1.f - t * t);
    if (cell.has_dc) dc += cell.dc[j];
    float di = dc * u, df = dc * cell.before[j], dout = d * t, du = dc * i;
    float *to = cell.dgates + j;
    if (cell.has_dgates) {
        di += to[0];
        df += to[h];
        dout += to[2 * h];
        du += to[3 * h];
    }
    cell.dc[j] = dc;
    to[0] = di * (i * (1.f - i));
    to[h] = df * (f * (1.f - f));
    to[2 * h] = dout * (o * (1.f - o));
    to[3 * h] = du * (1.f - u * u);
    if (cell.dbefore) store(cell.dbefore + j, cell.acc, dc * f);
}

// The same where no product is computed together with the cell.
static __device__ __forceinline__ void lstm_alone(const dy_lstm_cell &cell, size_t h, size_t j) {
    const float *g = cell.gates + j;
    lstm_forward(cell, h, j, g[0], g[h], g[2 * h], g[3 * h]);
}

static __device__ __forceinline__ void lstm_alone(const dy_lstm_cell_back &cell, size_t h, size_t j) {
    lstm_backward(cell, h, j, cell.dy ? cell.dy[j] : 0.f);
}
