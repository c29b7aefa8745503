// SPDX-License-Identifier: Apache-2.0
//
// Linear-chain conditional random fields; see dynet_cy/ops/crf.pyx. A block processes a sentence, word by word; its
// threads share the tags.
#include "common.cuh"

// The arguments. Batch elements are `stride_*` floats apart; 0 if the argument has batch size 1.
#define CRF \
    const float *__restrict__ x, size_t stride_x, const float *__restrict__ transitions, size_t stride_transitions, \
        const float *__restrict__ start, size_t stride_start, const float *__restrict__ end, size_t stride_end, size_t tags, \
        size_t n

static __device__ __forceinline__ float log_sum(float top, double total) {
    return isinf(top) ? top : top + logf((float)total);
}

// Subtracts the maximum from the scores, if it is finite, and returns it, or 0. For all threads of a block.
static __device__ inline float lower(float *scores, size_t tags, float *part) {
    float top = -INFINITY;
    for (LANES(j, tags)) top = larger(scores[j], top);
    top = block_max(top, part);
    if (top - top != 0.f) return 0.f;
    for (LANES(j, tags)) scores[j] -= top;
    __syncthreads();
    return top;
}

// Alphas and betas are normalized column by column, as on the CPU, so that long sequences lose no precision. y may be
// NULL.
extern "C" __global__ void crf_alphas(size_t batch, CRF, size_t apart, float *alphas, size_t lowered, float *y) {
    __shared__ float part[32];
    for (ROWS(b, batch)) {
        const float *own = x + b * stride_x, *transition = transitions + b * stride_transitions;
        float *alpha = alphas + b * apart, *down = alpha + lowered;
        for (LANES(j, tags)) alpha[j] = own[j] + start[b * stride_start + j];
        __syncthreads();
        double offset = lower(alpha, tags, part);
        if (threadIdx.x == 0) down[0] = (float)offset;
        for (size_t t = 1; t < n; t++) {
            const float *before = alpha + (t - 1) * tags;
            for (LANES(j, tags)) {
                float top = -INFINITY;
                double total = 0;
                for (size_t i = 0; i < tags; i++) top = fmaxf(top, before[i] + transition[i + j * tags]);
                for (size_t i = 0; i < tags; i++) total += expf(before[i] + transition[i + j * tags] - top);
                alpha[t * tags + j] = own[t * tags + j] + log_sum(top, total);
            }
            __syncthreads();
            float by = lower(alpha + t * tags, tags, part);
            offset += by;
            if (threadIdx.x == 0) down[t] = by;
        }
        if (threadIdx.x == 0 && y) {
            const float *last = alpha + (n - 1) * tags, *stop = end + b * stride_end;
            float top = -INFINITY;
            double total = 0;
            for (size_t i = 0; i < tags; i++) top = fmaxf(top, last[i] + stop[i]);
            for (size_t i = 0; i < tags; i++) total += expf(last[i] + stop[i] - top);
            y[b] = (float)(offset + log_sum(top, total));
        }
        __syncthreads();
    }
}

// Subtracts a number from beta so that the exponentials of alpha + beta sum to 1. For all threads of a block.
static __device__ inline void fit(const float *alpha, float *beta, size_t tags, float *part) {
    float top = -INFINITY, total = 0.f;
    for (LANES(i, tags)) top = larger(alpha[i] + beta[i], top);
    top = block_max(top, part);
    for (LANES(i, tags)) total += expf(alpha[i] + beta[i] - top);
    total = block_sum(total, part);
    for (LANES(i, tags)) beta[i] -= top + logf(total);
    __syncthreads();
}

extern "C" __global__ void crf_betas(size_t batch, CRF, size_t apart, const float *alphas, float *betas) {
    __shared__ float part[32];
    (void)start;
    (void)stride_start;
    for (ROWS(b, batch)) {
        const float *own = x + b * stride_x, *transition = transitions + b * stride_transitions, *alpha = alphas + b * apart;
        float *beta = betas + b * apart;
        for (LANES(i, tags)) beta[(n - 1) * tags + i] = end[b * stride_end + i];
        __syncthreads();
        fit(alpha + (n - 1) * tags, beta + (n - 1) * tags, tags, part);
        for (size_t t = n - 1; t > 0; t--) {
            const float *later = beta + t * tags, *word = own + t * tags;
            for (LANES(i, tags)) {
                float top = -INFINITY;
                double total = 0;
                for (size_t j = 0; j < tags; j++) top = fmaxf(top, transition[i + j * tags] + word[j] + later[j]);
                for (size_t j = 0; j < tags; j++) total += expf(transition[i + j * tags] + word[j] + later[j] - top);
                beta[(t - 1) * tags + i] = log_sum(top, total);
            }
            __syncthreads();
            fit(alpha + (t - 1) * tags, beta + (t - 1) * tags, tags, part);
        }
    }
}

// y = e^(alpha + beta) for `count` tags of each batch element, from an offset on. If dy is given, that is multiplied by
// dy and added to dx, which has `own` batch elements. Batch elements of alphas and betas are `apart` floats apart.
extern "C" __global__ void crf_marginals(size_t own, size_t batch, size_t count, size_t offset, size_t apart,
                                         const float *__restrict__ alphas, const float *__restrict__ betas,
                                         const float *dy, float *to) {
    for (EACH(k, own * count)) {
        size_t first = k / count, at = offset + k - first * count;
        float sum = 0.f;
        for (size_t b = first; b < batch; b += own) {
            float p = expf(alphas[b * apart + at] + betas[b * apart + at]);
            sum += dy ? dy[b] * p : p;
        }
        to[k] = dy ? to[k] + sum : sum;
    }
}

// The gradient of the transitions.
extern "C" __global__ void crf_transitions_backward(size_t own, size_t batch, CRF, size_t apart,
                                              const float *__restrict__ alphas, const float *__restrict__ betas,
                                              const float *__restrict__ lowered, const float *__restrict__ dy, float *dx) {
    (void)start;
    (void)stride_start;
    (void)end;
    (void)stride_end;
    for (EACH(k, own * tags * tags)) {
        size_t first = k / (tags * tags), at = k - first * tags * tags, i = at % tags, j = at / tags;
        double sum = 0;
        for (size_t b = first; b < batch; b += own) {
            float score = transitions[b * stride_transitions + at];
            for (size_t t = 1; t < n; t++)
                sum += dy[b] * expf(alphas[b * apart + (t - 1) * tags + i] + x[b * stride_x + t * tags + j] +
                                    betas[b * apart + t * tags + j] - lowered[b * apart + t] + score);
        }
        dx[k] += (float)sum;
    }
}

/** op crf_viterbi(x, transitions, start, end)
 *  tags = rows_of(&c.x[0].dim)
 *  n = cols_of(&c.x[0].dim)
 *  forward:
 *      crf_viterbi: rows(batch, tags)
 *  work: (n + 2) * tags * batch */
// `work` has, for each batch element, the scores of two words, and a back pointer for each word and tag.
extern "C" __global__ void crf_viterbi(size_t batch, CRF, float *work, float *y) {
    for (ROWS(b, batch)) {
        const float *own = x + b * stride_x, *transition = transitions + b * stride_transitions;
        float *scores = work + b * (n + 2) * tags;
        uint32_t *came = (uint32_t *)(scores + 2 * tags);
        for (LANES(j, tags)) scores[j] = own[j] + start[b * stride_start + j];
        __syncthreads();
        for (size_t t = 1; t < n; t++) {
            const float *before = scores + (t - 1) % 2 * tags;
            for (LANES(j, tags)) {
                float top = before[0] + transition[j * tags];
                uint32_t best = 0;
                for (size_t i = 1; i < tags; i++) {
                    float score = before[i] + transition[i + j * tags];
                    if (score > top || (score != score && top == top)) {
                        top = score;
                        best = (uint32_t)i;
                    }
                }
                came[t * tags + j] = best;
                scores[t % 2 * tags + j] = top + own[t * tags + j];
            }
            __syncthreads();
        }
        if (threadIdx.x == 0) {
            const float *last = scores + (n - 1) % 2 * tags, *stop = end + b * stride_end;
            size_t best = 0;
            float top = last[0] + stop[0];
            for (size_t i = 1; i < tags; i++) {
                float score = last[i] + stop[i];
                if (score > top || (score != score && top == top)) {
                    top = score;
                    best = i;
                }
            }
            for (size_t t = n; t > 0; t--) {
                y[b * n + t - 1] = top == top ? (float)best : NAN;  // with a NaN, no sequence is the best
                if (t > 1) best = came[(t - 1) * tags + best];
            }
        }
        __syncthreads();
    }
}
