// SPDX-License-Identifier: Apache-2.0
//
// Lines along one axis of a tensor.
#pragma once
#include "common.cuh"

// The offset of line e in an array whose batch elements are stride_x floats apart.
static __device__ __forceinline__ size_t line_at(size_t e, size_t inner, size_t length, size_t outer, size_t stride_x) {
    size_t line = e / inner, b = line / outer;
    return b * stride_x + (line - b * outer) * length * inner + (e - line * inner);
}

// dx += dy at the positions in their lines that the elements of y were at, `count` for each line. `uses` lines of y share
// each line of dx; if it is one, all its elements may be added at the same time.
static __device__ inline void add_where(size_t lines, size_t inner, size_t length, size_t outer, size_t count, size_t uses,
                                        const uint32_t *__restrict__ where, const float *__restrict__ dy, float *dx) {
    size_t shares = uses == 1 ? count : 1;
    for (EACH_OF(t, e, first, lines, shares)) {
        float *to = dx + line_at(e, inner, length, outer, inner * length * outer);
        for (size_t u = 0; u < uses; u++) {
            size_t at = line_at(e + u * lines, inner, count, outer, inner * count * outer);
            for (size_t k = first; k < count; k += shares) to[where[at + k * inner] * inner] += dy[at + k * inner];
        }
    }
}
