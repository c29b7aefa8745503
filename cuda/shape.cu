// SPDX-License-Identifier: Apache-2.0
//
// Concatenation and transposition.
#include "common.cuh"
#include "dynet_cy/gpu_parts.h"

// y = the arguments side by side along the middle one of three axes: m numbers of each, from `start` on in the columns of
// y. Blocks with the same blockIdx.y share an argument.
extern "C" __global__ void parts_forward(size_t batch, size_t post, size_t column, dy_parts parts, unsigned count,
                                         float *y) {
    for (unsigned k = blockIdx.y; k < count; k += gridDim.y) {
        const dy_piece &part = parts.part[k];
        size_t m = part.m, n = m * post;
        for (EACH(i, batch * n)) {
            size_t b = i / n, in = i - b * n, j = in / m;
            y[(b * post + j) * column + part.start + (in - j * m)] = element(part.v, part.bstride, part.list, b)[in];
        }
    }
}

// y = x' for each of `count` m x n matrices, by tiles. A bstride of 0: one x for all of them.
extern "C" __global__ void turn_forward(size_t m, size_t n, size_t count, const float *__restrict__ x, size_t bstride,
                                        float *__restrict__ y, int acc) {
    __shared__ float tile[32][33];
    size_t across = (m + 31) / 32, down = (n + 31) / 32, col = threadIdx.x & 31, line = threadIdx.x >> 5;
    for (ROWS(t, across * down * count)) {
        size_t b = t / (across * down), in = t - b * across * down, j0 = in / across * 32, i0 = in % across * 32;
        for (size_t j = line; j < 32; j += blockDim.x >> 5)
            if (i0 + col < m && j0 + j < n) tile[j][col] = x[b * bstride + (j0 + j) * m + i0 + col];
        __syncthreads();
        for (size_t i = line; i < 32; i += blockDim.x >> 5)
            if (j0 + col < n && i0 + i < m) store(y + (b * m + i0 + i) * n + j0 + col, acc, tile[col][i]);
        __syncthreads();  // the tile may be written again
    }
}
