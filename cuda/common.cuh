// SPDX-License-Identifier: Apache-2.0
//
// Included first by every .cu file. The files must also compile for the emulation on the CPU (tools/gpu/emu). So kernels
// are `extern "C" __global__ void name(...)`, take plain pointers, numbers of 4 or 8 bytes and structs by value, and are
// correct for any grid of one-dimensional blocks of whole warps.
#pragma once
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "dynet_cy/gpu_axes.h"

#ifndef CUDA_EMU
#define DYN_SHARED(T, name) extern __shared__ __align__(16) T name[]
#endif
#define FULL_MASK 0xffffffffu

// for (EACH(i, n)): the threads of the grid share n elements.
#define EACH(i, n) \
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (size_t)gridDim.x * blockDim.x
// The same of i = b n + j, element j of batch element b.
#define EACH_OF(i, b, j, batch, n) \
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, b, j; \
    i < (batch) * (n) && (b = i / (n), j = i - b * (n), true); \
    i += (size_t)gridDim.x * blockDim.x
// for (ROWS(r, n)): the blocks of the grid share n rows; for (LANES(i, n)): the threads of a block share n elements.
#define ROWS(r, n) size_t r = blockIdx.x; r < (n); r += gridDim.x
#define LANES(i, n) size_t i = threadIdx.x; i < (n); i += blockDim.x
// for (PLANES(p, n)): the rows of blocks of the grid, along y, share n planes.
#define PLANES(p, n) size_t p = blockIdx.y; p < (n); p += gridDim.y
// As LANES, if several blocks, along y, share one row.
#define SLICES(i, n) \
    size_t i = (size_t)blockIdx.y * blockDim.x + threadIdx.x; i < (n); i += (size_t)gridDim.y * blockDim.x

// ---- functions for the formulas of the .def files -----------------------------
#define C(x) ((float)(x))
#define SEL(c, a, b) ((c) ? (a) : (b))
#define ABS fabsf
#define SQRT sqrtf
#define EXP expf
#define EXPM1 expm1f
#define LOG logf
#define LOG1P log1pf
#define TANH tanhf
#define POW powf
#define ERF erff
#define LGAMMA lgammaf
#define SIN sinf
#define COS cosf
#define TAN tanf
#define ASIN asinf
#define ACOS acosf
#define ATAN atanf
#define SINH sinhf
#define COSH coshf
#define ASINH asinhf
#define ACOSH acoshf
#define ATANH atanhf
#define FLOOR floorf
#define CEIL ceilf
#define ROUND roundf

static __device__ __forceinline__ float LOGISTIC(float x) { return 1.f / (1.f + expf(-x)); }
static __device__ __forceinline__ float SOFTPLUS(float x) { return fmaxf(x, 0.f) + log1pf(expf(-fabsf(x))); }

// The derivative of lgamma, as in scalar.h: recurrence up to x >= 6, then the asymptotic series, in double.
static __device__ inline float DIGAMMA(float xf) {
    double x = xf, r = 0;
    if (x <= 0) {
        if (x == floor(x)) return NAN;
        r = -3.14159265358979323846 / tan(3.14159265358979323846 * x);
        x = 1 - x;
    }
    for (; x < 6; x += 1) r -= 1 / x;
    double z = 1 / (x * x);
    return (float)(r + log(x) - 0.5 / x -
                   z * (1.0 / 12 - z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z / 132)))));
}

// ---- reductions -----------------------------------------------------------------
static __device__ __forceinline__ float warp_sum(float x) {
    for (int o = 16; o > 0; o >>= 1) x += __shfl_xor_sync(FULL_MASK, x, o);
    return x;
}

static __device__ __forceinline__ float larger(float a, float b) { return a > b || a != a ? a : b; }  // a NaN stays

static __device__ __forceinline__ float warp_max(float x) {
    for (int o = 16; o > 0; o >>= 1) x = larger(x, __shfl_xor_sync(FULL_MASK, x, o));
    return x;
}

// The sum or the maximum over a block, returned in all of its threads. `part` is 32 floats of shared memory.
static __device__ inline float block_sum(float x, float *part) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    x = warp_sum(x);
    if (lane == 0) part[warp] = x;
    __syncthreads();
    x = warp_sum(lane < (int)(blockDim.x >> 5) ? part[lane] : 0.f);
    __syncthreads();  // part may be written again
    return x;
}

static __device__ inline float block_max(float x, float *part) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    x = warp_max(x);
    if (lane == 0) part[warp] = x;
    __syncthreads();
    x = warp_max(lane < (int)(blockDim.x >> 5) ? part[lane] : -INFINITY);
    __syncthreads();
    return x;
}

// |x|, returned in all threads of a block; correct even if squares overflow or underflow.
static __device__ inline float block_norm(size_t n, const float *x, float *part) {
    double squares = 0;
    float top = 0.f;
    for (LANES(i, n)) squares += (double)x[i] * x[i];
    float norm = sqrtf(block_sum((float)squares, part));
    if (norm > 1e-15f && norm < 1e15f) return norm;
    for (LANES(i, n)) top = larger(fabsf(x[i]), top);
    top = block_max(top, part);
    if (top == 0.f || top - top != 0.f) return norm;  // already correct for zeros, infinities and NaN
    squares = 0;
    for (LANES(i, n)) squares += (x[i] / top) * (x[i] / top);
    return top * sqrtf(block_sum((float)squares, part));
}

// ---- tensors ----------------------------------------------------------------------
// Batch element b of an argument: from a list of pointers, or at a stride of bstride floats.
static __device__ __forceinline__ float *element(float *v, size_t bstride, float *const *list, size_t b) {
    return list ? list[b] : v + b * bstride;
}

// Whether pointer b of a list occurs before b too. Must be called by all threads of a block. When gradients are added, the
// block of the first occurrence of a pointer handles all of its occurrences.
static __device__ inline int is_listed_before(float *const *list, size_t b) {
    float *place = list[b];
    int before = 0;
    for (LANES(k, b)) before |= list[k] == place;
    return __syncthreads_or(before);
}

// Whether another batch element has the same address as b. Must be called by all threads of a block.
static __device__ inline int shares(size_t bstride, float *const *list, size_t batch, size_t b) {
    if (!list) return !bstride && batch > 1;
    int other = 0;
    for (LANES(k, batch)) other |= k != b && list[k] == list[b];
    return __syncthreads_or(other);
}

// Element i of argument k of some, if it has as many as the result, or element j of its only batch element.
static __device__ __forceinline__ float number_of(const dy_some &xs, unsigned k, size_t i, size_t j) {
    return xs.p[k][xs.once >> k & 1 ? j : i];
}

// a x; for a = 1 with all bits of x, which may be an integer.
static __device__ __forceinline__ float times(float a, float x) { return a == 1.f ? x : a * x; }

// a b + c. The compiler does not contract products and sums by itself, so that the numbers do not depend on which ops are
// computed together; long sums of products are contracted by this function.
static __device__ __forceinline__ float multiply_add(float a, float b, float c) {
#ifdef CUDA_EMU
    return a * b + c;  // without such an instruction a call would be slow
#else
    return fmaf(a, b, c);
#endif
}

// Add or assign a gradient.
static __device__ __forceinline__ void store(float *p, int acc, float x) { *p = acc ? *p + x : x; }

// y_b = the sum of term(b, j) over n numbers j. Each thread sums in double precision, as it may have many terms.
template <class Term>
static __device__ __forceinline__ void sum_terms(size_t batch, size_t n, float *y, float *part, Term term) {
    for (ROWS(b, batch)) {
        double own = 0;
        for (LANES(j, n)) own += term(b, j);
        float sum = block_sum((float)own, part);
        if (threadIdx.x == 0) y[b] = sum;
    }
}

// The gradient of an argument whose batch elements have n numbers: the sum of slope(b, j) over the batch elements b of y
// that use it, which are all if it has one element only.
template <class Slope>
static __device__ __forceinline__ void sum_slopes(size_t batch, size_t n, size_t elements, float *dx, int acc, Slope slope) {
    size_t uses = batch / elements;
    for (EACH_OF(i, e, j, elements, n)) {
        double total = 0;
        for (size_t b = e * uses; b < (e + 1) * uses; b++) total += slope(b, j);
        store(dx + i, acc, (float)total);
    }
}

// Axes: how many, the size of each, and its stride in each array.
static __device__ __forceinline__ unsigned axes_in(const dy_axes &x) { return x.n; }
static __device__ __forceinline__ uint64_t size_in(const dy_axes &x, unsigned k) { return x.size[k]; }
static __device__ __forceinline__ uint64_t stride_in(const dy_axes &x, unsigned array, unsigned k) { return x.stride[array][k]; }

// The offset of element i in each of the arrays.
template <class Axes> static __device__ inline void offsets(const Axes &x, size_t i, size_t at[DY_ARRAYS]) {
    at[0] = at[1] = at[2] = 0;
#pragma unroll 1
    for (unsigned k = 0; k < axes_in(x); k++) {
        size_t j = i, size = size_in(x, k);
        if (k + 1 < axes_in(x)) {  // 32-bit division is much faster, and nearly always sufficient
            size_t q = (i | size) >> 32 ? i / size : (uint32_t)i / (uint32_t)size;
            j = i - q * size;
            i = q;
        }
        at[0] += j * stride_in(x, 0, k);
        at[1] += j * stride_in(x, 1, k);
        at[2] += j * stride_in(x, 2, k);
    }
}
