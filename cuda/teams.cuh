// SPDX-License-Identifier: Apache-2.0
//
// Elements of a result that a thread computes alone, or a block together.
#pragma once
#include "common.cuh"

// What computes an element of y: a single thread, or a block, whose threads are the lanes.
struct Team {
    size_t first, step, lane, lanes;
};

static __device__ __forceinline__ Team team_of(int blocks) {
    Team t = {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x};
    if (!blocks) t = {(size_t)blockIdx.x * blockDim.x + threadIdx.x, (size_t)gridDim.x * blockDim.x, 0, 1};
    return t;
}

static __device__ inline float team_sum(const Team &t, float x, float *part) {
    return t.lanes > 1 ? block_sum(x, part) : x;
}

static __device__ inline float team_max(const Team &t, float x, float *part) {
    return t.lanes > 1 ? block_max(x, part) : x;
}

struct Best {
    float x;
    uint32_t at;
};

// A NaN is above all numbers; of equal numbers, the first is.
static __device__ __forceinline__ Best best_of(Best a, Best b) {
    bool above = a.x > b.x || (a.x != a.x && b.x == b.x);
    bool below = b.x > a.x || (b.x != b.x && a.x == a.x);
    return above || (!below && a.at < b.at) ? a : b;
}

static __device__ inline Best warp_best(Best x) {
    for (int o = 16; o > 0; o >>= 1) {
        Best other = {__shfl_xor_sync(FULL_MASK, x.x, o), __shfl_xor_sync(FULL_MASK, x.at, o)};
        x = best_of(x, other);
    }
    return x;
}

static __device__ inline Best team_best(const Team &t, Best top, Best *part) {
    if (t.lanes == 1) return top;
    top = warp_best(top);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = top;
    __syncthreads();
    int lane = threadIdx.x & 31;
    top = lane < (int)(blockDim.x >> 5) ? part[lane] : Best{-INFINITY, 0xffffffffu};
    top = warp_best(top);
    __syncthreads();
    return top;
}
