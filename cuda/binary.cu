// SPDX-License-Identifier: Apache-2.0
//
// Elementwise functions of two arguments, with broadcasting: kernels for each row of binary.def. The arrays of the axes
// are a, b and y. Backward of an argument iterates over the axes that the argument has, and sums over those that it
// lacks. Sums are in double precision, since they may have many terms.
#include "elementwise.cuh"
#include "teams.cuh"

#define BACKWARD(side, name) \
    extern "C" __global__ void binary_backward_##side##_##name( \
        size_t n, size_t terms, dy_axes kept, dy_axes reduced, const float *as, const float *bs, const float *ys, \
        const float *dys, float *dxs, int acc, int blocks) { \
        __shared__ float part[32]; \
        Team t = team_of(blocks); \
        for (size_t e = t.first; e < n; e += t.step) { \
            size_t base[DY_ARRAYS], at[DY_ARRAYS]; \
            double total = 0; \
            offsets(kept, e, base); \
            for (size_t r = t.lane; r < terms; r += t.lanes) { \
                offsets(reduced, r, at); \
                size_t k = base[2] + at[2]; \
                total += dys[k] * slope_##side##_##name(as[base[0] + at[0]], bs[base[1] + at[1]], ys[k]); \
            } \
            float sum = team_sum(t, (float)total, part); \
            if (t.lane == 0) store(dxs + e, acc, sum); \
        } \
    }

#define BINARY(name, value, da, db) \
    extern "C" __global__ void binary_forward_##name(size_t n, dy_axes axes, const float *as, const float *bs, \
                                                     float *ys) { \
        for (EACH(i, n)) { \
            size_t at[DY_ARRAYS]; \
            offsets(axes, i, at); \
            ys[i] = value2_##name(as[at[0]], bs[at[1]]); \
        } \
    } \
    BACKWARD(a, name) \
    BACKWARD(b, name)
#include "dynet_cy/binary.def"
