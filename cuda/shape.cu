// SPDX-License-Identifier: Apache-2.0
//
// Concatenation and transposition.
#include "common.cuh"
#include "dynet_cy/gpu_parts.h"

/** op reshape(x): scale = 1, laid = always
 *  op scale_gradient(x): scale = c.attrs[0].f, laid = NULL
 *  set laid = {laid}
 *  set assigns = True
 *  forward: copy_elements(gpu, c)
 *  backward: pass_elements(gpu, c, {scale}) */
/** op nobackprop(x)
 *  forward: copy_elements(gpu, c) */
/** op fold_rows(x)
 *  n = c.attrs[0].u
 *  size = size_of(&c.y.dim)
 *  forward:
 *      Axes kept = strided(size, n, c.y.dim.bd, c.x[0].bstride)
 *      Axes reduced = strided(n, 1)
 *      return contract(gpu, &kept, &reduced, 1, c.x[0].v, c.y.v, 0)
 *  backward:
 *      Axes kept = strided(n, 0, size, 1, elements, size)
 *      Axes reduced = strided(uses, size)
 *      return contract(gpu, &kept, &reduced, 1, c.dy.v, c.dx.v, c.accumulate) */
/** op concatenate()
 *  uses shape, select
 *  set lists = True
 *  set laid = is_along_last_axis
 *  set assigns = True
 *  forward: lay_parts(gpu, c)
 *  backward: read_back(gpu, c, i, c.items) */
/** op concatenate_to_batch()
 *  uses shape
 *  forward: lay_parts(gpu, c)
 *  backward: scaled(gpu, total_of(&c.dx.dim), 1, c.dy.v + c.before * size_of(&c.dx.dim), c.dx.v, c.accumulate) */
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

/** op transpose(x)
 *  uses shape
 *  set laid = is_one_line
 *  set assigns = True
 *  nothing if total_of(&c.y.dim) == 0
 *  forward: turn(gpu, c)
 *  backward: turn_back(gpu, c) */
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
