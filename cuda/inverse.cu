// SPDX-License-Identifier: Apache-2.0
//
// Inverse and determinant of square matrices.
#include "common.cuh"

static __device__ __forceinline__ void exchange(float *a, float *b) {
    float x = *a;
    *a = *b;
    *b = x;
}

/** op inverse(x)
 *  set assigns = True
 *  n = rows_of(&c.y.dim)
 *  forward:
 *      nothing if n == 0
 *      invert(count = batch, ys = c.y.v, logdets = NULL): rows(batch, n * n)
 *  backward:
 *      first inverse_back(c, i)
 *      return gpu.error
 *  work: c.y.dim.bd * (2 * n if i < 0 else n * n) */
// y = the inverse of x, n x n, by Gauss-Jordan elimination in place with partial pivoting; NaN if x is singular. A block
// inverts a matrix; `work` has 2 n numbers for each. Unless it is NULL, logdets gets the logarithm of the determinant:
// -inf if x is singular, NaN if the determinant is negative.
extern "C" __global__ void invert(size_t count, size_t n, const float *__restrict__ xs, size_t stride_x, float *ys,
                                  float *work, float *logdets) {
    __shared__ float part[32];
    for (ROWS(b, count)) {
        const float *x = xs + b * stride_x;
        float *y = ys + b * n * n, *column = work + 2 * b * n;
        uint32_t *pivots = (uint32_t *)(column + n);
        double total = 0;
        int singular = 0, negative = 0;
        for (LANES(i, n * n)) y[i] = x[i];
        __syncthreads();
        for (size_t k = 0; k < n && !singular; k++) {
            float top = -INFINITY, at = -INFINITY;
            for (LANES(i, n))
                if (i >= k) top = larger(fabsf(y[i + k * n]), top);
            top = block_max(top, part);
            for (LANES(i, n))
                if (i >= k && fabsf(y[i + k * n]) == top) at = fmaxf(at, -(float)i);
            at = block_max(at, part);
            size_t pivot = top == top ? (size_t)-at : k;  // a NaN spreads
            singular = top == 0.f;
            if (singular) continue;
            if (threadIdx.x == 0) pivots[k] = (uint32_t)pivot;
            if (pivot != k)
                for (LANES(j, n)) exchange(y + k + j * n, y + pivot + j * n);
            __syncthreads();
            float head = y[k + k * n];
            for (LANES(i, n)) column[i] = y[i + k * n];
            __syncthreads();
            for (LANES(j, n)) y[k + j * n] = (j == k ? 1.f : y[k + j * n]) / head;
            __syncthreads();
            for (LANES(i, n * n)) {
                size_t j = i / n, row = i - j * n;
                if (row != k) y[i] = (j == k ? 0.f : y[i]) - column[row] * y[k + j * n];
            }
            __syncthreads();
            total += log(fabs((double)head));
            negative ^= (head < 0.f) ^ (pivot != k);
        }
        for (size_t k = n; !singular && k-- > 0;)  // undo row exchanges: they are column exchanges of the inverse
            if (pivots[k] != k) {
                for (LANES(i, n)) exchange(y + i + k * n, y + i + pivots[k] * n);
                __syncthreads();
            }
        if (singular)
            for (LANES(i, n * n)) y[i] = NAN;
        if (logdets && threadIdx.x == 0) logdets[b] = singular ? -INFINITY : negative ? NAN : (float)total;
        __syncthreads();
    }
}

/** op logdet(x)
 *  n = rows_of(&c.x[0].dim)
 *  forward:
 *      return fill(gpu, batch, 0, c.y.v) if n == 0
 *      invert(count = batch, ys = c.saved, logdets = c.y.v): rows(batch, n * n)
 *  backward:
 *      inverses = c.saved
 *      logdet_backward: each(elements * n * n)
 *  saved: batch * n * n
 *  work: 2 * n * batch if i < 0 else 0 */
// dx = dy_b times the transposed inverse.
extern "C" __global__ void logdet_backward(size_t batch, size_t n, const float *__restrict__ inverses,
                                           const float *__restrict__ dy, size_t elements, float *dx, int acc) {
    sum_slopes(batch, n * n, elements, dx, acc,
               [=](size_t b, size_t i) { return dy[b] * inverses[b * n * n + i / n + i % n * n]; });
}
