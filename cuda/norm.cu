// SPDX-License-Identifier: Apache-2.0
//
// Normalization of layers and weights. Each thread sums in double precision; the threads of a block are reduced pairwise
// in float.
#include "rng.cuh"

// A batch element of n numbers consists of lines of `len` elements that are `pre` floats apart.
struct Lines {
    size_t pre, len, n;

    __device__ size_t count() const { return n / len; }
    __device__ size_t at(size_t line) const { return line / pre * pre * len + line % pre; }
    __device__ size_t of(size_t i) const { return i / (pre * len) * pre + i % pre; }
};

// g or b for element i of a line. It has as many elements as x, or as a line, or fewer, which repeat.
static __device__ __forceinline__ float part_of(const Lines &s, const float *v, size_t m, size_t at, size_t i) {
    return m > s.len ? v[at + i * s.pre] : v[i % m];
}

// One line: y = g (x - mean) / (deviation + tiny) + b. The mean, 1 / (deviation + tiny) and 1 / deviation are saved. If
// eps > 0, it is added to the variance instead, and 1 / sqrt(variance + eps) is saved in both places.
static __device__ __forceinline__ void norm_line(const Lines &s, size_t at, float tiny, float eps, const float *x,
                                                 const float *g, size_t ng, const float *b, size_t nb, float *saved,
                                                 float *y, float *part) {
    double total = 0, squares = 0;
    for (LANES(i, s.len)) total += x[i * s.pre];
    float mean = block_sum((float)total, part) / (float)s.len;
    for (LANES(i, s.len)) squares += (x[i * s.pre] - mean) * (x[i * s.pre] - mean);
    float deviation = sqrtf(block_sum((float)squares, part) / (float)s.len);
    float factor = eps > 0.f ? 1.f / sqrtf(deviation * deviation + eps) : 1.f / (deviation + tiny);
    for (LANES(i, s.len))
        y[i * s.pre] = part_of(s, g, ng, at, i) * ((x[i * s.pre] - mean) * factor) + part_of(s, b, nb, at, i);
    if (threadIdx.x == 0) {
        saved[0] = mean;
        saved[1] = factor;
        saved[2] = eps > 0.f ? factor : deviation > 0.f ? 1.f / deviation : 0.f;
    }
}

/** op layer_norm(x, g, b)
 *  n = size_of(&c.y.dim)
 *  Split s = lines_of(&c.y.dim, &c.x[1].dim, c.attrs)
 *  pre = s.pre
 *  len = s.len
 *  lines = pre * s.post
 *  ng = size_of(&c.x[1].dim)
 *  nothing if n == 0
 *  forward:
 *      tiny = 1e-8
 *      eps = c.attrs[EPSILON].f
 *      nb = size_of(&c.x[2].dim)
 *      layer_norm_forward: rows(batch * lines, len)
 *  backward:
 *      m = size_of(&c.dx.dim)
 *      layer_norm_backward_x(seeds = NULL, items = NULL, keep = 1, value = 1): rows(elements * lines, len) if i == 0
 *      layer_norm_backward_weights(x = c.x[0].v if i == 1 else NULL): rows(elements * ((m + 31) // 32), THREADS) */
extern "C" __global__ void layer_norm_forward(size_t batch, size_t n, size_t pre, size_t len, float tiny, float eps,
                                              const float *__restrict__ xs, size_t stride_x,
                                              const float *__restrict__ gs, size_t ng, size_t stride_g,
                                              const float *__restrict__ bs, size_t nb, size_t stride_b, float *saved,
                                              float *ys) {
    __shared__ float part[32];
    Lines s = {pre, len, n};
    for (ROWS(l, batch * s.count())) {
        size_t e = l / s.count(), at = s.at(l - e * s.count());
        norm_line(s, at, tiny, eps, xs + e * stride_x + at, gs + e * stride_g, ng, bs + e * stride_b, nb, saved + 3 * l,
                  ys + e * n + at, part);
    }
}

/** op residual_layer_norm(x, g, r, b)
 *  op residual_layer_norm_dropout(x, g, r, b) draws
 *  n = size_of(&c.y.dim)
 *  Split s = columns_of(&c.y.dim)
 *  pre = s.pre
 *  len = s.len
 *  keep = 1 - c.attrs[DROPPED].f
 *  value = 1 / keep if keep > 0 else 0
 *  nothing if n == 0
 *  forward:
 *      tiny = 1e-8
 *      eps = c.attrs[EPSILON].f
 *      zs = c.saved + 3 * s.post * batch          # the sums x + mask r, after three numbers for each column
 *      residual_layer_norm_forward(items = c.items if keep < 1 else NULL): rows(batch * s.post, len)
 *  backward:
 *      m = size_of(&c.dx.dim)
 *      stride_x = n
 *      layer_norm_backward_weights(x = c.saved + 3 * s.post * batch if i == 1 else NULL): rows(elements * ((m + 31) // 32), THREADS) if i & 1
 *      ng = len
 *      xs = c.saved + 3 * s.post * batch
 *      layer_norm_backward_x(items = c.items if keep < 1 and i == 2 else NULL): rows(elements * s.post, len) */
// Columns of z = x + mask r are normalized. A mask value is 1 / keep with probability `keep`, otherwise 0; without items
// there is no mask. The sums z are saved.
extern "C" __global__ void residual_layer_norm_forward(
    size_t batch, size_t n, size_t len, float tiny, float eps, const uint64_t *__restrict__ seeds,
    const uint32_t *__restrict__ items, float keep, float value, const float *__restrict__ xs, size_t stride_x,
    const float *__restrict__ rs, size_t stride_r, const float *__restrict__ gs, size_t stride_g,
    const float *__restrict__ bs, size_t stride_b, float *saved, float *zs, float *ys) {
    __shared__ float part[32];
    size_t count = n / len;
    for (ROWS(l, batch * count)) {
        size_t e = l / count, at = (l - e * count) * len;
        const float *x = xs + e * stride_x + at, *r = rs + e * stride_r + at;
        float *z = zs + e * n + at;
        for (LANES(i, len)) z[i] = x[i] + r[i] * (items ? draw_bernoulli(seeds, items, e, at + i, keep, value) : 1.f);
        norm_line(Lines{1, len, n}, at, tiny, eps, z, gs + e * stride_g, len, bs + e * stride_b, len, saved + 3 * l,
                  ys + e * n + at, part);
    }
}

// dz = g dy; dx = factor (dz - mean dz - (x - mean) mean(dz z) / deviation), times the mask that the items draw, if any.
// dx has `elements` batch elements: as many as y, or one, which is the sum over the batch.
extern "C" __global__ void layer_norm_backward_x(size_t batch, size_t n, size_t pre, size_t len,
                                                 const float *__restrict__ xs, size_t stride_x,
                                                 const float *__restrict__ gs, size_t ng, size_t stride_g,
                                                 const uint64_t *__restrict__ seeds,
                                                 const uint32_t *__restrict__ items, float keep, float value,
                                                 const float *__restrict__ saved, const float *__restrict__ dys,
                                                 size_t elements, float *dxs, int acc) {
    __shared__ float part[32];
    Lines s = {pre, len, n};
    size_t uses = batch / elements;
    for (ROWS(l, elements * s.count())) {
        size_t e = l / s.count(), line = l - e * s.count(), at = s.at(line);
        float *dx = dxs + e * n + at;
        for (size_t b = e * uses; b < (e + 1) * uses; b++) {
            const float *x = xs + b * stride_x + at, *g = gs + b * stride_g, *dy = dys + b * n + at;
            const float *of_line = saved + 3 * (b * s.count() + line);
            float middle = of_line[0], factor = of_line[1];
            double total = 0, along = 0;
            for (LANES(i, len)) {
                float dz = part_of(s, g, ng, at, i) * dy[i * pre];
                total += dz;
                along += dz * (x[i * pre] - middle);
            }
            float mean = block_sum((float)total, part) / (float)len;
            float slope = block_sum((float)along, part) * factor * of_line[2] / (float)len;
            for (LANES(i, len)) {
                float g_dy = part_of(s, g, ng, at, i) * dy[i * pre];
                float mask = items ? draw_bernoulli(seeds, items, b, at + i, keep, value) : 1.f;
                store(dx + i * pre, acc || b > e * uses, mask * (factor * (g_dy - mean - slope * (x[i * pre] - middle))));
            }
        }
    }
}

// The gradient of g (with x) or b (without x): each of its m elements gets the sum over all elements of y that use it. A
// warp computes 32 adjacent elements, and the warps of a block share the terms.
extern "C" __global__ void layer_norm_backward_weights(size_t batch, size_t n, size_t pre, size_t len, size_t m,
                                                       const float *__restrict__ x, size_t stride_x,
                                                       const float *__restrict__ saved, const float *__restrict__ dy,
                                                       size_t elements, float *dx, int acc) {
    __shared__ float part[32][32];
    Lines s = {pre, len, n};
    // Element k is used by elements p + apart (k + m j) of x, for p below `apart`.
    size_t uses = batch / elements, repeats = n / m, tiles = (m + 31) / 32, apart = m > len ? 1 : pre;
    unsigned lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    for (ROWS(tile, elements * tiles)) {
        size_t e = tile / tiles, k = (tile - e * tiles) * 32 + lane;
        double total = 0;
        if (k < m)
            for (size_t r = warp; r < uses * repeats; r += warps) {
                size_t b = e * uses + r / repeats, one = r % repeats, i = one % apart + apart * (k + m * (one / apart));
                const float *of_line = saved + 3 * (b * s.count() + s.of(i));
                float z = x ? (x[b * stride_x + i] - of_line[0]) * of_line[1] : 1.f;
                total += dy[b * n + i] * z;
            }
        part[warp][lane] = (float)total;
        __syncthreads();
        if (warp == 0 && k < m) {
            for (unsigned w = 1; w < warps; w++) total += part[w][lane];
            store(dx + e * m + k, acc, total);
        }
        __syncthreads();
    }
}

/** op weight_norm(w, g)
 *  n = size_of(&c.y.dim)
 *  forward:
 *      weight_norm_forward: rows(batch, n)
 *  backward:
 *      weight_norm_backward(of_g = i): rows(elements, n) */
// y = g w / |w|.
extern "C" __global__ void weight_norm_forward(size_t batch, size_t n, const float *__restrict__ ws, size_t stride_w,
                                               const float *__restrict__ g, size_t stride_g, float *y) {
    __shared__ float part[32];
    for (ROWS(b, batch)) {
        const float *w = ws + b * stride_w;
        float norm = block_norm(n, w, part), factor = g[b * stride_g];
        for (LANES(i, n)) y[b * n + i] = factor * (w[i] / norm);
    }
}

// dw = g / |w| (dy - u (u dy)), or dg = u dy, with u = w / |w|.
extern "C" __global__ void weight_norm_backward(size_t batch, size_t n, int of_g, const float *__restrict__ ws,
                                                size_t stride_w, const float *__restrict__ g, size_t stride_g,
                                                const float *__restrict__ dys, size_t elements, float *dx, int acc) {
    __shared__ float part[32];
    size_t uses = batch / elements;
    for (ROWS(e, elements)) {
        double slope = 0;
        for (size_t b = e * uses; b < (e + 1) * uses; b++) {
            const float *w = ws + b * stride_w, *dy = dys + b * n;
            float norm = block_norm(n, w, part);
            double own = 0;
            for (LANES(i, n)) own += w[i] / norm * dy[i];
            float along = block_sum((float)own, part);
            slope += along;
            if (of_g) continue;
            float factor = g[b * stride_g] / norm;
            for (LANES(i, n)) store(dx + e * n + i, acc || b > e * uses, factor * (dy[i] - w[i] / norm * along));
        }
        if (of_g && threadIdx.x == 0) store(dx + e, acc, (float)slope);
    }
}
