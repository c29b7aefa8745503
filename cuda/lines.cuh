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
