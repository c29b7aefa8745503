// SPDX-License-Identifier: Apache-2.0
//
// Elementwise functions of integers, with broadcasting: a kernel for each row of integers.def; and conversions.
#include "common.cuh"

// The arrays of the axes are a and b; an argument that is a constant has no array.
#define ROW(name, type, value) \
    extern "C" __global__ void name##_forward(size_t n, dy_axes axes, const int32_t *as, const int32_t *bs, \
                                              int32_t constant, type *ys) { \
        for (EACH(i, n)) { \
            size_t at[DY_ARRAYS]; \
            offsets(axes, i, at); \
            int32_t a = as ? as[at[0]] : constant, b = bs ? bs[at[1]] : constant; \
            ys[i] = value; \
        } \
    }
#define INTEGER(name, value) ROW(name, int32_t, value)
#define COMPARISON(name, holds) ROW(name, float, holds)
#include "dynet_cy/integers.def"

/** op to_float(x)
 *  n = total_of(&c.y.dim)
 *  forward:
 *      to_float_forward: each(n) */
extern "C" __global__ void to_float_forward(size_t n, const int32_t *__restrict__ x, float *y) {
    for (EACH(i, n)) y[i] = (float)x[i];
}

/** op to_int(x)
 *  n = total_of(&c.y.dim)
 *  forward:
 *      to_int_forward: each(n) */
// The fraction is dropped. Beyond the range: the nearest integer; NaN: 0.
extern "C" __global__ void to_int_forward(size_t n, const float *__restrict__ x, int32_t *y) {
    for (EACH(i, n))
        y[i] = x[i] >= 2147483648.f ? INT32_MAX : x[i] > -2147483648.f ? (int32_t)x[i] : x[i] == x[i] ? INT32_MIN : 0;
}
