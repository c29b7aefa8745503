// SPDX-License-Identifier: Apache-2.0
//
// Steps of LSTMs: products and the cells that use them, in one launch (gpu/cells). Forward, the products are the sums of the
// gates of the cells, W h; backward, the gradients of their outputs, W' d. Both have few columns, so that a launch takes
// longer than its work. A block computes all that 8 units of up to 32 cells need, and then their elementwise steps. While it
// multiplies a tile, it reads the next one. Tiles are long, since each takes as long as a read from memory; that takes many
// registers, but few blocks run at once anyway.
#include "dynet_cy/gpu_group.h"
#include "lstm_cell.cuh"

#define UNITS 8
#define TILE 32                 // rows and columns that are in shared memory at once
#define THREADS 256
#define LENGTH(back) ((back) ? 64 : 128)  // numbers of a sum, or of a quarter of it, that are there
#define LEFT(back) (LENGTH(back) * (TILE + 1))
#define QUARTER(back) (LENGTH(back) * (TILE + 4) + 4)  // in different banks for each quarter

// The 32 rows of a tile of A are 4 for each unit. Forward, these are its gates. Backward, they are the four quarters of its
// sum, which are added at the end: so there are as many blocks, and as much work for each thread, in both directions.
template <bool back> struct Tile {
    float a[LENGTH(back) * TILE / THREADS], b[(back ? 4 : 1) * LENGTH(back) * TILE / THREADS];

    // Read the numbers of a thread, from number `from` of the sums, or of their quarters, on.
    __device__ __forceinline__ void fetch(const dy_cell_products &p, const float *left, const float *right, unsigned h,
                                          unsigned unit, unsigned wide, unsigned from, unsigned length) {
#pragma unroll
        for (unsigned s = 0; s < sizeof a / sizeof *a; s++) {
            unsigned e = threadIdx.x + s * THREADS, r = back ? e / LENGTH(true) : e % TILE;
            unsigned l = from + (back ? e % LENGTH(true) : e / TILE), u = unit + r % UNITS, part = r / UNITS;
            unsigned at = back ? part * length + l : l;
            a[s] = u < h && l < length && at < p.k
                       ? left[back ? (size_t)u * p.lda + at : (size_t)at * p.lda + part * h + u]
                       : 0.f;
        }
#pragma unroll
        for (unsigned s = 0; s < sizeof b / sizeof *b; s++) {
            unsigned e = threadIdx.x + s * THREADS, l = from + e % LENGTH(back), y = e / LENGTH(back);
            unsigned j = y % TILE, at = y / TILE * length + l;
            b[s] = j < wide && l < length && at < p.k ? right[(size_t)j * p.ldb + at] : 0.f;
        }
    }

    __device__ __forceinline__ void put(unsigned columns, float *left, float *right) const {
#pragma unroll
        for (unsigned s = 0; s < sizeof a / sizeof *a; s++) {
            unsigned e = threadIdx.x + s * THREADS;
            left[back ? e % LENGTH(true) * (TILE + 1) + e / LENGTH(true) : e / TILE * (TILE + 1) + e % TILE] = a[s];
        }
#pragma unroll
        for (unsigned s = 0; s < sizeof b / sizeof *b; s++) {
            unsigned e = threadIdx.x + s * THREADS, y = e / LENGTH(back);
            if (y % TILE < columns) right[y / TILE * QUARTER(back) + e % LENGTH(back) * (TILE + 4) + y % TILE] = b[s];
        }
    }
};

// Columns that a block computes at once. With fewer than 32, several warps share the sums of four columns.
static __device__ __forceinline__ unsigned columns_at_once(unsigned n) { return n > 16 ? 32 : n > 8 ? 16 : n > 4 ? 8 : 4; }

// Compute the 32 rows of some columns. Afterwards, numbers 0 to 31 of line p * columns + j of `left` are those of column j,
// as far as warps with number p have summed them.
template <bool back>
static __device__ __forceinline__ void multiply(const dy_cell_products &p, const float *a, const float *b, unsigned h,
                                                unsigned unit, unsigned wide, unsigned columns, float *left, float *right) {
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, groups = columns / 4, group = warp % groups;
    unsigned length = back ? (p.k + 3) / 4 : p.k;
    const float *column = right + (back ? lane / UNITS * QUARTER(true) : 0) + 4 * group;
    float sum[4] = {0.f, 0.f, 0.f, 0.f};
    Tile<back> next;
    next.fetch(p, a, b, h, unit, wide, 0, length);
    for (unsigned from = 0; from < length; from += LENGTH(back)) {
        unsigned here = length - from < LENGTH(back) ? length - from : LENGTH(back);
        next.put(columns, left, right);
        __syncthreads();
        if (from + LENGTH(back) < length) next.fetch(p, a, b, h, unit, wide, from + LENGTH(back), length);
#pragma unroll 4
        for (unsigned l = warp / groups; l < here; l += THREADS / 32 / groups) {
            float x = left[l * (TILE + 1) + lane];
            float4 y = *reinterpret_cast<const float4 *>(column + l * (TILE + 4));
            sum[0] = multiply_add(x, y.x, sum[0]);
            sum[1] = multiply_add(x, y.y, sum[1]);
            sum[2] = multiply_add(x, y.z, sum[2]);
            sum[3] = multiply_add(x, y.w, sum[3]);
        }
        __syncthreads();
    }
#pragma unroll
    for (unsigned s = 0; s < 4; s++) left[(warp / groups * columns + 4 * group + s) * (TILE + 1) + lane] = sum[s];
    __syncthreads();
}

// The elementwise steps of number j of a cell, from what the products give.
static __device__ __forceinline__ void finish(const dy_lstm_cell &cell, size_t h, size_t j, const float *sum, bool acc) {
    float x[4];
#pragma unroll
    for (unsigned s = 0; s < 4; s++) x[s] = acc ? cell.gates[s * h + j] + sum[s] : sum[s];
    lstm_forward(cell, h, j, x[0], x[1], x[2], x[3]);
}

static __device__ __forceinline__ void finish(const dy_lstm_cell_back &cell, size_t h, size_t j, const float *sum, bool acc) {
    float *dy = const_cast<float *>(cell.dy) + j;
    store(dy, acc, sum[0] + sum[1] + sum[2] + sum[3]);
    lstm_backward(cell, h, j, *dy);
}

template <bool back, class Cell>
static __device__ __forceinline__ void steps(const dy_cell_products &p, size_t lines, unsigned h, const Cell *cells,
                                             float *left, float4 *aligned) {
    float *right = reinterpret_cast<float *>(aligned);
    unsigned columns = columns_at_once(p.n), across = (p.n + columns - 1) / columns, down = (h + UNITS - 1) / UNITS;
    size_t tasks = (size_t)down * across * p.count;
    size_t rest = p.count * (size_t)p.n < lines ? (lines * h + THREADS - 1) / THREADS : 0;
    for (size_t t = blockIdx.x; t < tasks + rest; t += gridDim.x) {
        if (t < tasks) {
            unsigned unit = (unsigned)(t % down) * UNITS, z = (unsigned)(t / down / across);
            unsigned from = (unsigned)(t / down % across) * columns, wide = p.n - from < columns ? p.n - from : columns;
            multiply<back>(p, p.a + z * p.stride_a, p.b + z * p.stride_b + (size_t)from * p.ldb, h, unit, wide, columns, left,
                           right);
            unsigned u = threadIdx.x % UNITS, j = threadIdx.x / UNITS;
            if (j < wide && unit + u < h) {
                float sum[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
                for (unsigned s = 0; s < 4; s++)
                    for (unsigned k = j; k < TILE; k += columns) sum[s] += left[k * (TILE + 1) + s * UNITS + u];
                finish(cells[(z ? p.first[1] : p.first[0]) + from + j], h, unit + u, sum, p.acc);
            }
            __syncthreads();  // `left` may be written again
        } else {
            size_t i = (t - tasks) * THREADS + threadIdx.x, e = i / h;
            if (e < lines && e - p.first[0] >= p.n && (p.count < 2 || e - p.first[1] >= p.n)) lstm_alone(cells[e], h, i - e * h);
        }
    }
}

// Kernels for a table of cells on the device, and for a small one, which is passed by value.
#define STEP(direction, back, cell, factors) \
    extern "C" __global__ void __launch_bounds__(THREADS) \
        lstm_step_##direction(const __grid_constant__ dy_cell_products p, size_t n, size_t h, \
                              const cell *__restrict__ cells) { \
        __shared__ float left[LEFT(back)]; \
        __shared__ float4 right[factors]; \
        steps<back>(p, n, (unsigned)h, cells, left, right); \
    } \
    extern "C" __global__ void __launch_bounds__(THREADS) \
        few_lstm_steps_##direction(const __grid_constant__ dy_cell_products p, size_t n, size_t h, \
                                   const __grid_constant__ dy_group cells) { \
        __shared__ float left[LEFT(back)]; \
        __shared__ float4 right[factors]; \
        steps<back>(p, n, (unsigned)h, reinterpret_cast<const cell *>(cells.words), left, right); \
    }

STEP(forward, false, dy_lstm_cell, QUARTER(false) / 4)
STEP(backward, true, dy_lstm_cell_back, QUARTER(true))
