// SPDX-License-Identifier: Apache-2.0
//
// What kernels refuse: indices out of range, and choices that are none. The error comes at the next wait.
#pragma once
#include "common.cuh"
#include "dynet_cy/gpu_refused.h"

// As `refuse_number` of dynet_cy/ops/positions: the first counts.
static __device__ inline void refuse(dy_refused_index *refused, uint32_t function, size_t b, size_t k, size_t n, double v) {
    if (atomicAdd(&refused->any, 1u) != 0) return;
    refused->function = function;
    refused->b = (uint32_t)b;
    refused->n = (uint32_t)n;
    refused->k = k;
    refused->v = v;
}
