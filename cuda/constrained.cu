// SPDX-License-Identifier: Apache-2.0
//
// Softmax with upper bounds.
#include "common.cuh"

#define AT_BOUND (-1.f)

/** op constrained_softmax(x, bounds)
 *  n = rows_of(&c.y.dim)
 *  ps = c.y.v
 *  forward:
 *      constrained_forward: rows(batch, n)
 *  backward:
 *      constrained_backward(of_bound = i): rows(elements, n) */
// p_i = min(u_i, left q_i), where q is the softmax over the elements below their bounds. q is saved, with AT_BOUND for the
// other elements. Each round moves at least one more element to its bound, or is the last.
extern "C" __global__ void constrained_forward(size_t batch, size_t n, const float *__restrict__ xs, size_t stride_x,
                                               const float *__restrict__ bounds, size_t stride_bounds, float *saved,
                                               float *ps) {
    __shared__ float part[32];
    for (ROWS(b, batch)) {
        const float *x = xs + b * stride_x, *bound = bounds + b * stride_bounds;
        float *q = saved + b * n, *p = ps + b * n, left = 1.f;
        int changed = 1;
        for (LANES(i, n)) q[i] = 0.f;
        while (changed) {
            float top = -INFINITY, z = 0.f, bound_sum = 0.f;
            for (LANES(i, n))
                if (q[i] != AT_BOUND) top = larger(x[i], top);
            top = block_max(top, part);
            for (LANES(i, n))
                if (q[i] != AT_BOUND) z += q[i] = expf(x[i] - top);
            z = block_sum(z, part);
            changed = 0;
            for (LANES(i, n)) {
                if (q[i] == AT_BOUND) continue;
                q[i] /= z;
                p[i] = left * q[i];
                if (p[i] > bound[i]) {
                    q[i] = AT_BOUND;
                    p[i] = bound[i];
                    bound_sum += bound[i];
                    changed = 1;
                }
            }
            left -= block_sum(bound_sum, part);
            changed = __syncthreads_or(changed);
        }
    }
}

// dx += p (dy - mean) for elements below their bounds, du += dy - mean for those at them, where mean = sum q dy. With a
// stride of 0, one gradient is summed over the batch.
extern "C" __global__ void constrained_backward(size_t batch, size_t n, int of_bound, const float *__restrict__ saved,
                                                const float *__restrict__ ps, const float *__restrict__ dys, float *dxs,
                                                size_t stride_dx) {
    __shared__ float part[32];
    size_t elements = stride_dx ? batch : 1, uses = stride_dx ? 1 : batch;
    for (ROWS(e, elements)) {
        float *d = dxs + e * stride_dx;
        for (size_t b = e; b < e + uses; b++) {
            const float *q = saved + b * n, *p = ps + b * n, *dy = dys + b * n;
            float mean = 0.f;
            for (LANES(i, n))
                if (q[i] != AT_BOUND) mean += q[i] * dy[i];
            mean = block_sum(mean, part);
            for (LANES(i, n))
                if ((q[i] == AT_BOUND) == (of_bound != 0)) d[i] += (of_bound ? 1.f : p[i]) * (dy[i] - mean);
        }
    }
}
