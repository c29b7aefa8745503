// SPDX-License-Identifier: Apache-2.0
//
// Sorting along an axis, cumulative products and cumulative sums of exponentials. Lines of x lie along the middle one of
// three axes.
#include "lines.cuh"

static __device__ __forceinline__ bool goes_first(float a, float b, int descending) {
    if (b != b) return a == a;
    return descending ? a > b : a < b;
}

/** op sort(x)
 *  Split s = split_at(&c.x[0].dim, c.attrs[0].u)
 *  inner = s.pre
 *  length = s.len
 *  outer = s.post
 *  count = c.attrs[1].u
 *  where = c.saved
 *  nothing if total_of(&c.y.dim) == 0
 *  forward:
 *      lines = inner * outer * batch
 *      descending = c.attrs[2].u
 *      sort_lines: each(lines * length)
 *  backward:
 *      lines = inner * outer * elements
 *      sort_backward: each(lines) */
/** op argsort(x)
 *  Split s = split_at(&c.x[0].dim, c.attrs[0].u)
 *  inner = s.pre
 *  length = s.len
 *  outer = s.post
 *  count = c.attrs[1].u
 *  nothing if total_of(&c.y.dim) == 0
 *  forward:
 *      lines = inner * outer * batch
 *      descending = c.attrs[2].u
 *      sort_lines(where = NULL): each(lines * length) */
// The rank of an element is the number of elements that come before it; the first `count` are written. Without `where`, y
// gets positions in x instead of values.
extern "C" __global__ void sort_lines(size_t lines, size_t inner, size_t length, size_t outer, size_t count,
                                      int descending, const float *__restrict__ x, size_t stride_x, uint32_t *where,
                                      float *y) {
    for (EACH(t, lines * length)) {
        size_t e = t / length, i = t - e * length, rank = 0;
        const float *from = x + line_at(e, inner, length, outer, stride_x);
        float own = from[i * inner];
        for (size_t j = 0; j < length; j++) {
            float other = from[j * inner];
            rank += goes_first(other, own, descending) || (j < i && !goes_first(own, other, descending));
        }
        if (rank >= count) continue;
        size_t at = line_at(e, inner, count, outer, inner * count * outer) + rank * inner;
        y[at] = where ? own : (float)i;
        if (where) where[at] = (uint32_t)i;
    }
}

// dx += dy at the positions that values came from. `uses` lines of y share each line of dx.
extern "C" __global__ void sort_backward(size_t lines, size_t inner, size_t length, size_t outer, size_t count,
                                         size_t uses, const uint32_t *__restrict__ where,
                                         const float *__restrict__ dy, float *dx) {
    for (EACH(e, lines)) {
        float *to = dx + line_at(e, inner, length, outer, inner * length * outer);
        for (size_t u = 0; u < uses; u++) {
            size_t at = line_at(e + u * lines, inner, count, outer, inner * count * outer);
            for (size_t k = 0; k < count; k++) to[where[at + k * inner] * inner] += dy[at + k * inner];
        }
    }
}

static __device__ __forceinline__ void cumprod_line(const float *from, float *to, float *, size_t inner, size_t length) {
    float product = 1.f;
    for (size_t k = 0; k < length; k++) to[k * inner] = product *= from[k * inner];
}

// The sum is kept as exp(greatest) * total, so that no exponential overflows. Both are saved: next to a large maximum, its
// logarithm has too few digits.
static __device__ __forceinline__ void logcumsumexp_line(const float *from, float *to, float *saved, size_t inner,
                                                         size_t length) {
    double greatest = from[0], total = 1.;
    to[0] = saved[0] = from[0];
    saved[1] = 1.f;
    for (size_t k = 1; k < length; k++) {
        double own = from[k * inner];
        if (own > greatest) {
            total = total * exp(greatest - own) + 1.;
            greatest = own;
        } else {  // equal elements may be infinite, and their difference NaN
            total += own == greatest ? 1. : exp(own - greatest);
        }
        to[k * inner] = (float)(greatest + log(total));
        saved[2 * k * inner] = (float)greatest;
        saved[2 * k * inner + 1] = (float)total;
    }
}

// exp(a) / exp(b), which is 1 for equal infinities.
static __device__ __forceinline__ double ratio_of_exponentials(float a, float b) {
    return a == b ? 1. : exp((double)a - b);
}

// cumprod: dx_k += y_{k-1} s_k, where s_k = dy_k + x_{k+1} s_{k+1}.
// logcumsumexp: dx_k += exp(x_k - y_k) s_k, where s_k = dy_k + exp(y_k - y_{k+1}) s_{k+1}: no exponent is above 0. exp(y) is
// exp(greatest) * total, the saved pair.
template <bool LOGS>
static __device__ __forceinline__ void cumulative_backward(size_t lines, size_t inner, size_t length, size_t outer,
                                                           size_t uses, const float *__restrict__ x, size_t stride_x,
                                                           const float *__restrict__ y,
                                                           const float *__restrict__ saved,
                                                           const float *__restrict__ dy, float *dx) {
    for (EACH(e, lines)) {
        size_t own = inner * length * outer;
        const float *from = x + line_at(e, inner, length, outer, stride_x);
        float *to = dx + line_at(e, inner, length, outer, own);
        for (size_t u = 0; u < uses; u++) {
            size_t line = line_at(e + u * lines, inner, length, outer, own);
            double rest = 0;
            for (size_t n = length; n > 0; n--) {
                size_t k = n - 1, at = line + k * inner;
                double next = 0., by_x;
                if (LOGS) {
                    const float *sum = saved + 2 * at, *after = sum + 2 * inner;
                    if (n < length) next = ratio_of_exponentials(sum[0], after[0]) * sum[1] / after[1];
                    by_x = ratio_of_exponentials(from[k * inner], sum[0]) / sum[1];
                } else {
                    if (n < length) next = from[n * inner];
                    by_x = k ? y[at - inner] : 1.f;
                }
                rest = dy[at] + next * rest;
                to[k * inner] += (float)(rest * by_x);
            }
        }
    }
}

/** op cumprod(x)
 *  op logcumsumexp(x)
 *  Split s = split_at(&c.x[0].dim, c.attrs[0].u)
 *  inner = s.pre
 *  length = s.len
 *  outer = s.post
 *  nothing if total_of(&c.y.dim) == 0
 *  forward:
 *      lines = inner * outer * batch
 *      {op}_forward: each(lines)
 *  backward:
 *      lines = inner * outer * elements
 *      {op}_backward: each(lines) */
#define CUMULATIVE(name, LOGS) \
    extern "C" __global__ void name##_forward(size_t lines, size_t inner, size_t length, size_t outer, \
                                              const float *__restrict__ x, size_t stride_x, float *y, float *saved) { \
        for (EACH(e, lines)) { \
            size_t at = line_at(e, inner, length, outer, inner * length * outer); \
            name##_line(x + line_at(e, inner, length, outer, stride_x), y + at, LOGS ? saved + 2 * at : NULL, inner, \
                        length); \
        } \
    } \
    extern "C" __global__ void name##_backward(size_t lines, size_t inner, size_t length, size_t outer, size_t uses, \
                                               const float *__restrict__ x, size_t stride_x, \
                                               const float *__restrict__ y, const float *__restrict__ saved, \
                                               const float *__restrict__ dy, float *dx) { \
        cumulative_backward<LOGS>(lines, inner, length, outer, uses, x, stride_x, y, saved, dy, dx); \
    }

CUMULATIVE(cumprod, false)
CUMULATIVE(logcumsumexp, true)
