// SPDX-License-Identifier: Apache-2.0
//
// Kernels for the executor and for many ops: moves, copies and sums over axes.
#include "common.cuh"
#include "dynet_cy/gpu_group.h"
#include "dynet_cy/gpu_move.h"

// Moves with the same destination form a chain. The threads of the first one run the whole chain in order.
static __device__ __forceinline__ void move_all(const dy_move *moves, unsigned count) {
    for (unsigned first = blockIdx.y; first < count; first += gridDim.y) {
        if (moves[first].follower) continue;
        float *to = moves[first].to;
        if (moves[first].period) {
            for (EACH(i, moves[first].n)) to[i] = moves[first].source[i % moves[first].period];
            continue;
        }
        for (EACH(i, moves[first].n)) {
            float x = moves[first].acc ? to[i] : 0.f;
            for (unsigned k = first + 1; k; k = moves[k - 1].next) {
                const float *source = moves[k - 1].source;
                float g = source ? times(moves[k - 1].scale, source[i]) : 0.f;
                x = k == first + 1 && !moves[first].acc ? g : x + g;
            }
            to[i] = x;
        }
    }
}

extern "C" __global__ void move_floats(const dy_move *__restrict__ moves, unsigned count) { move_all(moves, count); }

// The same for few moves, which are passed by value.
extern "C" __global__ void move_few(unsigned count, const __grid_constant__ dy_group moves) {
    move_all(reinterpret_cast<const dy_move *>(moves.words), count);
}

// y = a x, or y += a x.
extern "C" __global__ void scale_floats(size_t n, float a, const float *x, float *y, int acc) {
    for (EACH(i, n)) store(y + i, acc, times(a, x[i]));
}

/** op esum(): scale = 1
 *  op average(): scale = 1.0 / c.n
 *  forward: add_scaled(gpu, c, {scale})
 *  backward: pass_scaled(gpu, &c.dy, {scale}, &c.dx, c.accumulate)
 *  spread: {scale}
 *  work: sums_work(c) if i < 0 else 0 */
// y = a (x_1 + x_2 + ...), or y += that.
extern "C" __global__ void sum_pointers(size_t n, dy_pointers xs, unsigned count, float a, float *y, int acc) {
    for (EACH(i, n)) {
        float total = 0.f;
        for (unsigned k = 0; k < count; k++) total += xs.p[k][i];
        store(y + i, acc, a * total);
    }
}

// y_i = a x_i, where x, array 0 of the axes, may have fewer elements than y.
extern "C" __global__ void expand(size_t n, dy_axes axes, float a, const float *__restrict__ x, float *y, int acc) {
    for (EACH(i, n)) {
        size_t at[DY_ARRAYS];
        offsets(axes, i, at);
        store(y + i, acc, times(a, x[at[0]]));
    }
}

// y_e = a times the sum of x over the reduced axes, for each element e of the kept ones; x is array 0. Each element is
// computed by a thread or by a block.
extern "C" __global__ void contract_by_threads(size_t n, size_t terms, dy_axes kept, dy_axes reduced, float a,
                                               const float *__restrict__ x, float *y, int acc) {
    for (EACH(e, n)) {
        size_t base[DY_ARRAYS], at[DY_ARRAYS];
        double total = 0;
        offsets(kept, e, base);
        for (size_t r = 0; r < terms; r++) {
            offsets(reduced, r, at);
            total += x[base[0] + at[0]];
        }
        store(y + e, acc, (float)(a * total));
    }
}

extern "C" __global__ void contract_by_blocks(size_t n, size_t terms, dy_axes kept, dy_axes reduced, float a,
                                              const float *__restrict__ x, float *y, int acc) {
    __shared__ float part[32];
    for (ROWS(e, n)) {
        size_t base[DY_ARRAYS], at[DY_ARRAYS];
        double total = 0;
        offsets(kept, e, base);
        for (LANES(r, terms)) {
            offsets(reduced, r, at);
            total += x[base[0] + at[0]];
        }
        float sum = block_sum((float)total, part);
        if (threadIdx.x == 0) store(y + e, acc, a * sum);
    }
}

// As `expand` for each batch element: y_b = a x_b, where the list points to x_b, which may have fewer elements than y_b.
extern "C" __global__ void expand_list(size_t batch, size_t n, dy_axes axes, float a, float *const *__restrict__ list,
                                       float *y, int acc) {
    for (EACH(i, batch * n)) {
        size_t b = i / n, at[DY_ARRAYS];
        offsets(axes, i - b * n, at);
        store(y + i, acc, times(a, list[b][at[0]]));
    }
}

// Backward of `expand_list`: list_b += a times the sums of x_b over the reduced axes. If a pointer is listed several
// times, the block of its first occurrence adds all contributions, in the order of the list.
extern "C" __global__ void contract_list(size_t batch, size_t n, size_t terms, size_t stride, dy_axes kept,
                                         dy_axes reduced, float a, const float *__restrict__ x,
                                         float *const *__restrict__ list, int acc) {
    for (ROWS(b, batch)) {
        float *place = list[b];
        if (is_listed_before(list, b)) continue;
        for (LANES(e, n)) {
            size_t base[DY_ARRAYS], at[DY_ARRAYS];
            float total = 0.f;
            offsets(kept, e, base);
            for (size_t k = b; k < batch; k++) {
                if (list[k] != place) continue;
                for (size_t r = 0; r < terms; r++) {
                    offsets(reduced, r, at);
                    total += x[k * stride + base[0] + at[0]];
                }
            }
            store(place + e, acc, a * total);
        }
    }
}
