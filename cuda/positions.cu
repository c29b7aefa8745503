// SPDX-License-Identifier: Apache-2.0
//
// Indices that are values of the graph: whole numbers in floats, which are checked here.
#include "common.cuh"
#include "dynet_cy/gpu_refused.h"

// Whether v is a whole number from 0 to n - 1; NaN is none. Otherwise it is noted, for an error at the next wait.
static __device__ inline bool is_position(float v, size_t n, size_t b, size_t k, uint32_t function,
                                          dy_refused_index *refused) {
    if (v >= 0.f && v < (float)n && v == (float)(uint32_t)v) return true;
    if (atomicAdd(&refused->any, 1u) == 0) {
        refused->function = function;
        refused->b = (uint32_t)b;
        refused->n = (uint32_t)n;
        refused->k = k;
        refused->v = v;
    }
    return false;
}

// items = the indices v, `count` for each batch element, of which each is from 0 to length - 1; `none` in place of others.
// If `pre` is not 0, the items are places in a tensor of three axes, pre x length x post, each index standing for the
// element in its line.
extern "C" __global__ void find_positions(size_t batch, size_t count, size_t pre, size_t length, size_t post,
                                          const float *__restrict__ v, size_t stride_v, uint32_t none,
                                          uint32_t function, dy_refused_index *refused, uint32_t *items) {
    for (EACH(i, batch * count)) {
        size_t b = i / count, k = i - b * count;
        float index = v[b * stride_v + k];
        uint32_t at = none;
        if (is_position(index, length, b, k, function, refused)) {
            at = (uint32_t)index;
            if (pre) at = (uint32_t)((k / (count / post) * length + at) * pre + k % pre);
        }
        items[i] = at;
    }
}

// y = columns of n numbers with 1 at the index, otherwise 0; `count` columns for each batch element.
extern "C" __global__ void one_hot_forward(size_t batch, size_t count, size_t n, const float *__restrict__ v,
                                           size_t stride_v, uint32_t function, dy_refused_index *refused, float *y) {
    for (EACH(i, batch * count * n)) {
        size_t column = i / n, j = i - column * n, b = column / count, k = column - b * count;
        float index = v[b * stride_v + k];
        if (j == 0) is_position(index, n, b, k, function, refused);
        y[i] = index == (float)j ? 1.f : 0.f;
    }
}
