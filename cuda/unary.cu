// SPDX-License-Identifier: Apache-2.0
//
// Elementwise functions of one argument: a kernel forward and one backward for each row of unary.def.
#include "elementwise.cuh"

#define UNARY(name, value, derivative) \
    extern "C" __global__ void unary_forward_##name(size_t n, const float *x, float p0, float p1, float *y) { \
        for (EACH(i, n)) y[i] = value_##name(x[i], p0, p1); \
    } \
    extern "C" __global__ void unary_backward_##name(size_t n, const float *x, const float *y, const float *dy, float p0, \
                                                     float p1, float *dx, int acc) { \
        for (EACH(i, n)) store(dx + i, acc, dy[i] * slope_##name(x[i], y[i], p0, p1)); \
    }
#include "dynet_cy/unary.def"
