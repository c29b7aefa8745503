// SPDX-License-Identifier: Apache-2.0
//
// Normalization of layers and weights.
#include "common.cuh"

// y = g (x - mean) / (deviation + tiny) + b. g and b have ng and nb elements, and repeat. Of each batch element the mean,
// 1 / (deviation + tiny) and 1 / deviation are kept.
extern "C" __global__ void layer_norm_forward(size_t batch, size_t n, float tiny, const float *__restrict__ xs,
                                              size_t stride_x, const float *__restrict__ gs, size_t ng, size_t stride_g,
                                              const float *__restrict__ bs, size_t nb, size_t stride_b, float *kept,
                                              float *y) {
    __shared__ float part[32];
    for (ROWS(e, batch)) {
        const float *x = xs + e * stride_x, *g = gs + e * stride_g, *b = bs + e * stride_b;
        float total = 0.f, squares = 0.f;
        for (LANES(i, n)) total += x[i];
        float mean = block_sum(total, part) / (float)n;
        for (LANES(i, n)) squares += (x[i] - mean) * (x[i] - mean);
        float deviation = sqrtf(block_sum(squares, part) / (float)n), factor = 1.f / (deviation + tiny);
        for (LANES(i, n)) y[e * n + i] = g[i % ng] * ((x[i] - mean) * factor) + b[i % nb];
        if (threadIdx.x == 0) {
            kept[3 * e] = mean;
            kept[3 * e + 1] = factor;
            kept[3 * e + 2] = deviation > 0.f ? 1.f / deviation : 0.f;
        }
    }
}

// dz = g dy; dx = factor (dz - mean dz - (x - mean) mean(dz z) / deviation). dx has `elements` batch elements: those of
// y, or one that is the sum over them.
extern "C" __global__ void layer_norm_backward_x(size_t batch, size_t n, const float *__restrict__ xs,
                                                 const float *__restrict__ gs, size_t ng, size_t stride_g,
                                                 const float *__restrict__ kept, const float *__restrict__ dys,
                                                 size_t elements, float *dx, int acc) {
    __shared__ float part[32];
    size_t uses = batch / elements;
    for (ROWS(e, elements)) {
        const float *x = xs + e * n;
        for (size_t b = e * uses; b < (e + 1) * uses; b++) {
            const float *g = gs + b * stride_g, *dy = dys + b * n;
            float middle = kept[3 * b], factor = kept[3 * b + 1], total = 0.f, along = 0.f;
            for (LANES(i, n)) {
                float dz = g[i % ng] * dy[i];
                total += dz;
                along += dz * (x[i] - middle);
            }
            float mean = block_sum(total, part) / (float)n;
            float slope = block_sum(along, part) * factor * kept[3 * b + 2] / (float)n;
            for (LANES(i, n)) {
                float g_dy = g[i % ng] * dy[i];
                store(dx + e * n + i, acc || b > e * uses, factor * (g_dy - mean - slope * (x[i] - middle)));
            }
        }
    }
}

// The gradients of g (with x) and b (without): sums over all that their m elements serve. A warp adds up 32 neighbours,
// and the warps of a block share the terms.
extern "C" __global__ void layer_norm_backward_weights(size_t batch, size_t n, size_t m, const float *__restrict__ x,
                                                       size_t stride_x, const float *__restrict__ kept,
                                                       const float *__restrict__ dy, size_t elements, float *dx,
                                                       int acc) {
    __shared__ float part[32][32];
    size_t uses = batch / elements, repeats = n / m, tiles = (m + 31) / 32;
    unsigned lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    for (ROWS(tile, elements * tiles)) {
        size_t e = tile / tiles, k = (tile - e * tiles) * 32 + lane;
        float total = 0.f;
        if (k < m)
            for (size_t r = warp; r < uses * repeats; r += warps) {
                size_t b = e * uses + r / repeats, i = r % repeats * m + k;
                float z = x ? (x[b * stride_x + i] - kept[3 * b]) * kept[3 * b + 1] : 1.f;
                total += dy[b * n + i] * z;
            }
        part[warp][lane] = total;
        __syncthreads();
        if (warp == 0 && k < m) {
            for (unsigned w = 1; w < warps; w++) total += part[w][lane];
            store(dx + e * m + k, acc, total);
        }
        __syncthreads();
    }
}

// y = g w / |w|.
extern "C" __global__ void weight_norm_forward(size_t batch, size_t n, const float *__restrict__ ws, size_t stride_w,
                                               const float *__restrict__ g, size_t stride_g, float *y) {
    __shared__ float part[32];
    for (ROWS(b, batch)) {
        const float *w = ws + b * stride_w;
        float squares = 0.f;
        for (LANES(i, n)) squares += w[i] * w[i];
        float factor = g[b * stride_g] / sqrtf(block_sum(squares, part));
        for (LANES(i, n)) y[b * n + i] = factor * w[i];
    }
}

// dw = g / |w| (dy - w (w dy) / |w|^2), or dg = w dy / |w|.
extern "C" __global__ void weight_norm_backward(size_t batch, size_t n, int of_g, const float *__restrict__ ws,
                                                size_t stride_w, const float *__restrict__ g, size_t stride_g,
                                                const float *__restrict__ dys, size_t elements, float *dx, int acc) {
    __shared__ float part[32];
    size_t uses = batch / elements;
    for (ROWS(e, elements)) {
        float slope = 0.f;
        for (size_t b = e * uses; b < (e + 1) * uses; b++) {
            const float *w = ws + b * stride_w, *dy = dys + b * n;
            float squares = 0.f, along = 0.f;
            for (LANES(i, n)) {
                squares += w[i] * w[i];
                along += w[i] * dy[i];
            }
            float norm = sqrtf(block_sum(squares, part));
            along = block_sum(along, part) / norm;
            slope += along;
            if (of_g) continue;
            float factor = g[b * stride_g] / norm;
            for (LANES(i, n)) store(dx + e * n + i, acc || b > e * uses, factor * (dy[i] - w[i] * (along / norm)));
        }
        if (of_g && threadIdx.x == 0) store(dx + e, acc, slope);
    }
}
