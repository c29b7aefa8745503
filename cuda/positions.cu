// SPDX-License-Identifier: Apache-2.0
//
// Indices that are values of the graph: integers, or whole numbers in floats; they are checked here.
#include "refused.cuh"

// Whether element i of v, which holds integers or floats, is a whole number from 0 to n - 1, which is stored; NaN is none.
// Otherwise it is noted, for an error at the next wait.
static __device__ inline bool is_position(const float *v, int integers, size_t i, size_t n, size_t b, size_t k,
                                          uint32_t function, dy_refused_index *refused, uint32_t *position) {
    if (integers) {
        uint32_t at = ((const uint32_t *)v)[i];
        *position = at;
        if (at < n && at <= 0x7fffffffu) return true;
    } else {
        *position = (uint32_t)v[i];
        if (v[i] >= 0.f && v[i] < (float)n && v[i] == (float)*position) return true;
    }
    refuse(refused, function, b, k, n, integers ? (double)((const int32_t *)v)[i] : (double)v[i]);
    return false;
}

// items = the indices v, `count` for each batch element, of which each is from 0 to length - 1; `none` in place of others.
// If `pre` is not 0, the items are places in a tensor of three axes, pre x length x post, each index standing for the
// element in its line.
extern "C" __global__ void find_positions(size_t batch, size_t count, size_t pre, size_t length, size_t post,
                                          const float *__restrict__ v, size_t stride_v, int integers, uint32_t none,
                                          uint32_t function, dy_refused_index *refused, uint32_t *items) {
    for (EACH_OF(i, b, k, batch, count)) {
        uint32_t at;
        if (!is_position(v, integers, b * stride_v + k, length, b, k, function, refused, &at)) at = none;
        else if (pre) at = (uint32_t)((k / (count / post) * length + at) * pre + k % pre);
        items[i] = at;
    }
}

/** op one_hot_at(v)
 *  count = size_of(&c.x[0].dim)
 *  n = c.y.dim.d[0]
 *  integers = c.x[0].dim.type
 *  function = c.attrs[3].u
 *  forward:
 *      one_hot_forward(refused = refused_of(gpu)): each(batch * count * n) */
// y = columns of n numbers with 1 at the index, otherwise 0; `count` columns for each batch element.
extern "C" __global__ void one_hot_forward(size_t batch, size_t count, size_t n, const float *__restrict__ v,
                                           size_t stride_v, int integers, uint32_t function, dy_refused_index *refused,
                                           float *y) {
    for (EACH(i, batch * count * n)) {
        size_t column = i / n, j = i - column * n, b = column / count, k = column - b * count;
        size_t at = b * stride_v + k;
        uint32_t place;
        if (j == 0) is_position(v, integers, at, n, b, k, function, refused, &place);
        y[i] = (integers ? ((const uint32_t *)v)[at] == j : v[at] == (float)j) ? 1.f : 0.f;
    }
}
