// SPDX-License-Identifier: Apache-2.0
//
// Softmax with upper bounds.
#include "common.cuh"
#include "dynet_cy/simplex.h"

/** op constrained_softmax(x, bounds)
 *  n = rows_of(&c.y.dim)
 *  ps = c.y.v
 *  forward:
 *      constrained_forward: rows(batch, n)
 *  backward:
 *      constrained_backward(of_bound = i): rows(elements, n) */
extern "C" __global__ void constrained_forward(size_t batch, size_t n, const float *__restrict__ xs, size_t stride_x,
                                               const float *__restrict__ bounds, size_t stride_bounds, float *saved,
                                               float *ps) {
    __shared__ float part[32];
    for (ROWS(b, batch)) dy_constrained(n, xs + b * stride_x, bounds + b * stride_bounds, saved + b * n, ps + b * n, part);
}

extern "C" __global__ void constrained_backward(size_t batch, size_t n, int of_bound, const float *__restrict__ saved,
                                                const float *__restrict__ ps, const float *__restrict__ dys,
                                                size_t elements, float *dxs) {
    __shared__ float part[32];
    for (ROWS(e, elements))
        for (size_t b = e; b < batch; b += elements)
            dy_constrained_bwd(n, of_bound, saved + b * n, ps + b * n, dys + b * n, dxs + e * n, part);
}
