// SPDX-License-Identifier: Apache-2.0
//
// Linear-chain conditional random fields; see dynet_cy/ops/losses.pyx. A block processes a sentence, word by word; its
// threads share the tags.
#include "refused.cuh"
#include "teams.cuh"

// The arguments, and for crf_loss the tags of each sentence; otherwise NULL. Batch elements are `stride_*` floats apart; 0 if the argument has batch size 1.
#define CRF \
    const float *__restrict__ x, size_t stride_x, const float *__restrict__ transitions, size_t stride_transitions, \
        const float *__restrict__ start, size_t stride_start, const float *__restrict__ end, size_t stride_end, size_t tags, \
        size_t n, const uint32_t *__restrict__ gold

// The greatest scores, which are subtracted before anything is added up: those of the words, then those of transitions,
// starts and ends. See dynet_cy/ops/losses.pyx.
struct Tops {
    float *words, *transitions, *start, *end;
};

static __device__ __forceinline__ Tops tops_at(float *words, size_t n) {
    return {words, words + n, words + n + 1, words + n + 2};
}

static __device__ __forceinline__ float if_finite(float top) { return top - top == 0.f ? top : 0.f; }

static __device__ inline void find_top(const float *scores, size_t count, float *to, float *part) {
    float top = -INFINITY;
    for (LANES(i, count)) top = larger(scores[i], top);
    top = block_max(top, part);
    if (threadIdx.x == 0) *to = if_finite(top);
}

// The logarithm of the sum of the e^score(i) over all tags i.
template <class Score> static __device__ __forceinline__ float log_sum(size_t tags, Score score) {
    float top = -INFINITY;
    double total = 0;
    for (size_t i = 0; i < tags; i++) top = fmaxf(top, score(i));
    for (size_t i = 0; i < tags; i++) total += expf(score(i) - top);
    return isinf(top) ? top : top + logf((float)total);
}

// The tag with the greatest score(i).
template <class Score> static __device__ __forceinline__ Best best_tag(size_t tags, Score score) {
    Best top = {-INFINITY, 0xffffffffu};
    for (size_t i = 0; i < tags; i++) top = best_of(top, Best{score(i), (uint32_t)i});
    return top;
}

// For all threads of a block.
static __device__ inline void find_tops(const Tops &tops, const float *own, const float *transition, const float *first,
                                        const float *last, size_t tags, size_t n, float *part) {
    for (LANES(t, n)) {
        float top = -INFINITY;
        for (size_t j = 0; j < tags; j++) top = larger(own[t * tags + j], top);
        tops.words[t] = if_finite(top);
    }
    find_top(transition, tags * tags, tops.transitions, part);
    find_top(first, tags, tops.start, part);
    find_top(last, tags, tops.end, part);
    __syncthreads();
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

// The amount subtracted from the score of each sequence of tags, less the score of `gold` if there is one.
static __device__ inline double subtracted(const Tops &top, const float *own, const float *transition, const float *first,
                                           const float *last, size_t tags, size_t n, const uint32_t *gold) {
    double total = 0;
    if (!gold) {
        for (size_t t = 0; t < n; t++) total += top.words[t];
        return total + (double)*top.transitions * (double)(n - 1) + *top.start + *top.end;
    }
    for (size_t t = 0; t < n; t++) total -= own[t * tags + gold[t]] - top.words[t];
    for (size_t t = 1; t < n; t++) total -= transition[gold[t] * tags + gold[t - 1]] - *top.transitions;
    return total - (first[gold[0]] - *top.start) - (last[gold[n - 1]] - *top.end);
}

/** op crf_log_partition(x, transitions, start, end)
 *  op crf_loss(x, transitions, start, end)
 *  tags = rows_of(&c.x[0].dim)
 *  n = cols_of(&c.x[0].dim)
 *  size = tags * n
 *  apart = 2 * size + 2 * n + 3        # saved for each batch element: alphas, betas, and what `Tops` and `lower` find
 *  gold = c.items if c.item_count else NULL
 *  alphas = c.saved
 *  betas = c.saved + size
 *  forward:
 *      lowered = 2 * size
 *      crf_alphas: rows(batch, tags)
 *  begin_backward:
 *      lowered = 2 * size
 *      crf_betas: rows(batch, tags)
 *  backward:
 *      own = elements
 *      crf_transitions_backward(lowered = c.saved + 2 * size): each(own * tags * tags) if i == 1
 *      count = size if i == 0 else tags
 *      offset = size - tags if i == 3 else 0
 *      crf_marginals(to = c.dx.v): each(own * count)
 *  saved: apart * batch */
/** op crf_marginals(x, transitions, start, end)
 *  tags = rows_of(&c.x[0].dim)
 *  n = cols_of(&c.x[0].dim)
 *  size = tags * n
 *  apart = 2 * size + 2 * n + 3
 *  lowered = 2 * size
 *  gold = NULL
 *  alphas = c.work
 *  betas = c.work + size
 *  forward:
 *      first crf_alphas(y = NULL): rows(batch, tags)
 *      first crf_betas: rows(batch, tags)
 *      own = batch
 *      count = size
 *      offset = 0
 *      crf_marginals(dy = NULL, to = c.y.v): each(batch * size)
 *  work: apart * batch */
// Alphas and betas are normalized column by column, as on the CPU, so that long sequences lose no precision. y may be
// NULL.
extern "C" __global__ void crf_alphas(size_t batch, CRF, size_t apart, float *alphas, size_t lowered, float *y) {
    __shared__ float part[32];
    for (ROWS(b, batch)) {
        const float *own = x + b * stride_x, *transition = transitions + b * stride_transitions;
        const float *first = start + b * stride_start, *last = end + b * stride_end;
        float *alpha = alphas + b * apart, *down = alpha + lowered;
        Tops tops = tops_at(down + n, n);
        find_tops(tops, own, transition, first, last, tags, n, part);
        for (LANES(j, tags)) alpha[j] = (own[j] - tops.words[0]) + (first[j] - *tops.start);
        __syncthreads();
        double offset = lower(alpha, tags, part);
        if (threadIdx.x == 0) down[0] = (float)offset;
        for (size_t t = 1; t < n; t++) {
            const float *before = alpha + (t - 1) * tags;
            for (LANES(j, tags)) {
                float z = log_sum(tags, [=](size_t i) { return before[i] + (transition[i + j * tags] - *tops.transitions); });
                alpha[t * tags + j] = (own[t * tags + j] - tops.words[t]) + z;
            }
            __syncthreads();
            float by = lower(alpha + t * tags, tags, part);
            offset += by;
            if (threadIdx.x == 0) down[t] = by;
        }
        if (threadIdx.x == 0 && y) {
            const float *final = alpha + (n - 1) * tags;
            offset += subtracted(tops, own, transition, first, last, tags, n, gold ? gold + b * n : NULL);
            y[b] = (float)(offset + log_sum(tags, [=](size_t i) { return final[i] + (last[i] - *tops.end); }));
        }
        __syncthreads();
    }
}

// Subtracts a number from beta so that the exponentials of alpha + beta sum to 1. For all threads of a block.
static __device__ inline void fit(const float *alpha, float *beta, size_t tags, float *part) {
    float top = -INFINITY;
    double own = 0;
    for (LANES(i, tags)) top = larger(alpha[i] + beta[i], top);
    top = block_max(top, part);
    for (LANES(i, tags)) own += expf(alpha[i] + beta[i] - top);
    float total = block_sum((float)own, part);
    for (LANES(i, tags)) beta[i] -= top + logf(total);
    __syncthreads();
}

extern "C" __global__ void crf_betas(size_t batch, CRF, size_t apart, float *alphas, size_t lowered, float *betas) {
    __shared__ float part[32];
    (void)start;
    (void)stride_start;
    (void)gold;
    for (ROWS(b, batch)) {
        const float *own = x + b * stride_x, *transition = transitions + b * stride_transitions, *alpha = alphas + b * apart;
        float *beta = betas + b * apart;
        Tops tops = tops_at(alphas + b * apart + lowered + n, n);
        for (LANES(i, tags)) beta[(n - 1) * tags + i] = end[b * stride_end + i] - *tops.end;
        __syncthreads();
        fit(alpha + (n - 1) * tags, beta + (n - 1) * tags, tags, part);
        for (size_t t = n - 1; t > 0; t--) {
            const float *later = beta + t * tags, *word = own + t * tags;
            for (LANES(i, tags))
                beta[(t - 1) * tags + i] = log_sum(tags, [=](size_t j) {
                    return (transition[i + j * tags] - *tops.transitions) + (word[j] - tops.words[t]) + later[j];
                });
            __syncthreads();
            fit(alpha + (t - 1) * tags, beta + (t - 1) * tags, tags, part);
        }
    }
}

// y = e^(alpha + beta) for `count` tags of each batch element, from an offset on, less 1 for those of `gold`. If dy is
// given, that is multiplied by dy and added to dx, which has `own` batch elements. Batch elements of alphas and betas are
// `apart` floats apart.
extern "C" __global__ void crf_marginals(size_t own, size_t batch, size_t count, size_t offset, size_t apart, size_t tags,
                                         size_t n, const uint32_t *__restrict__ gold,
                                         const float *__restrict__ alphas, const float *__restrict__ betas,
                                         const float *dy, float *to) {
    for (EACH(k, own * count)) {
        size_t first = k / count, at = offset + k - first * count;
        double sum = 0;
        for (size_t b = first; b < batch; b += own) {
            float p = expf(alphas[b * apart + at] + betas[b * apart + at]);
            if (gold && gold[b * n + at / tags] == at % tags) p -= 1.f;
            sum += dy ? dy[b] * p : p;
        }
        to[k] = (float)(dy ? to[k] + sum : sum);
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
            const float *down = lowered + b * apart, *alpha = alphas + b * apart, *beta = betas + b * apart;
            Tops tops = tops_at((float *)down + n, n);
            float score = transitions[b * stride_transitions + at] - *tops.transitions;
            for (size_t t = 1; t < n; t++) {
                float word = x[b * stride_x + t * tags + j] - tops.words[t];
                float p = expf(alpha[(t - 1) * tags + i] + word + beta[t * tags + j] - down[t] + score);
                if (gold && gold[b * n + t - 1] == i && gold[b * n + t] == j) p -= 1.f;
                sum += dy[b] * p;
            }
        }
        dx[k] += (float)sum;
    }
}

// Refuses the first score that is NaN or inf; whether there is one. `argument`: the number of the op's argument.
static __device__ inline bool refuse_score(const float *scores, size_t count, dy_refused_index *refused, uint32_t function,
                                           size_t b, size_t argument) {
    for (size_t k = 0; k < count; k++)
        if (!(scores[k] < INFINITY)) {
            refuse(refused, function, b, k, argument, scores[k]);
            return true;
        }
    return false;
}

/** op crf_viterbi(x, transitions, start, end)
 *  tags = rows_of(&c.x[0].dim)
 *  n = cols_of(&c.x[0].dim)
 *  gold = NULL
 *  function = c.attrs[0].u
 *  forward:
 *      crf_viterbi(refused = refused_of(gpu)): rows(batch, tags)
 *  work: ((n + 2) * tags + n + 3) * batch */
// `work` has, for each batch element, the scores of two words, a back pointer for each word and tag, and the greatest
// scores, which are subtracted.
extern "C" __global__ void crf_viterbi(size_t batch, CRF, uint32_t function, dy_refused_index *refused, float *work,
                                       int32_t *y) {
    __shared__ float part[32];
    (void)gold;
    for (ROWS(b, batch)) {
        const float *own = x + b * stride_x, *transition = transitions + b * stride_transitions;
        const float *first = start + b * stride_start, *stop = end + b * stride_end;
        float *scores = work + b * ((n + 2) * tags + n + 3);
        uint32_t *came = (uint32_t *)(scores + 2 * tags);
        Tops tops = tops_at(scores + (n + 2) * tags, n);
        find_tops(tops, own, transition, first, stop, tags, n, part);
        for (LANES(j, tags)) scores[j] = (own[j] - tops.words[0]) + (first[j] - *tops.start);
        __syncthreads();
        for (size_t t = 1; t < n; t++) {
            const float *before = scores + (t - 1) % 2 * tags;
            for (LANES(j, tags)) {
                Best top = best_tag(tags, [=](size_t i) { return before[i] + (transition[i + j * tags] - *tops.transitions); });
                came[t * tags + j] = top.at;
                scores[t % 2 * tags + j] = top.x + (own[t * tags + j] - tops.words[t]);
            }
            __syncthreads();
        }
        if (threadIdx.x == 0) {
            const float *last = scores + (n - 1) % 2 * tags;
            Best top = best_tag(tags, [=](size_t i) { return last[i] + (stop[i] - *tops.end); });
            size_t best = top.at;
            if (!(top.x > -INFINITY) && !refuse_score(own, tags * n, refused, function, b, 0) &&
                !refuse_score(transition, tags * tags, refused, function, b, 1) &&
                !refuse_score(first, tags, refused, function, b, 2) && !refuse_score(stop, tags, refused, function, b, 3))
                refuse(refused, function, b, 0, 0, -INFINITY);  // each sequence has the score -inf
            for (size_t t = n; t > 0; t--) {
                y[b * n + t - 1] = (int32_t)best;
                if (t > 1) best = came[(t - 1) * tags + best];
            }
        }
        __syncthreads();
    }
}

// ---- label_chain: see dynet_cy/ops/losses.pyx. The threads of a block share the states of a sequence. ------------
static __device__ __forceinline__ float log_sum_of(float a, float b, float c) {
    float top = larger(c, larger(b, a));
    return top - top != 0.f ? top : top + logf(expf(a - top) + expf(b - top) + expf(c - top));
}

/** op label_chain(x)
 *  states = rows_of(&c.x[0].dim)
 *  frames = cols_of(&c.x[0].dim)
 *  alphas = c.saved
 *  forward:
 *      chain_forward: rows(batch, states)
 *  backward:
 *      betas = c.work
 *      chain_backward: rows(elements, states)
 *  work: 2 * states * batch if i >= 0 else 0 */
extern "C" __global__ void chain_forward(size_t batch, size_t states, size_t frames, const float *__restrict__ x,
                                         size_t stride_x, const uint32_t *__restrict__ items, float *alphas, float *y) {
    __shared__ float part[32];
    for (ROWS(b, batch)) {
        const uint32_t *skips = items + b * states;
        const float *own = x + b * stride_x;
        float *alpha = alphas + b * states * frames;
        double total = 0;
        for (size_t t = 0; t < frames; t++, own += states, alpha += states) {
            const float *last = alpha - states;
            for (LANES(s, states)) {
                if (t == 0) {
                    alpha[s] = s < 2 ? own[s] : -INFINITY;
                    continue;
                }
                float before = s > 0 ? last[s - 1] : -INFINITY, skipped = s > 1 && skips[s] ? last[s - 2] : -INFINITY;
                alpha[s] = log_sum_of(last[s], before, skipped) + own[s];
            }
            __syncthreads();
            total += lower(alpha, states, part);
        }
        if (threadIdx.x == 0)
            y[b] = (float)(total + log_sum_of(alpha[-1], states > 1 ? alpha[-2] : -INFINITY, -INFINITY));
    }
}

// dx += dy times the part of the sum that is in each state at each frame. With a stride of 0, summed over the batch.
extern "C" __global__ void chain_backward(size_t batch, size_t states, size_t frames, const float *__restrict__ x,
                                          size_t stride_x, const uint32_t *__restrict__ items,
                                          const float *__restrict__ alphas, float *betas, const float *__restrict__ dy,
                                          size_t elements, float *dxs) {
    __shared__ float part[32];
    for (ROWS(e, elements)) {
        for (size_t b = e; b < batch; b += elements) {
            const uint32_t *skips = items + b * states;
            const float *alpha = alphas + b * states * frames, *own = x + b * stride_x;
            float *beta = betas + 2 * b * states, *later = beta + states, *dx = dxs + e * states * frames;
            for (size_t t = frames; t > 0; t--) {
                size_t at = (t - 1) * states;
                for (LANES(s, states)) {
                    if (t == frames) {
                        beta[s] = s + 2 >= states ? 0.f : -INFINITY;
                        continue;
                    }
                    float next = s + 1 < states ? later[s + 1] : -INFINITY;
                    beta[s] = log_sum_of(later[s], next, s + 2 < states && skips[s + 2] ? later[s + 2] : -INFINITY);
                }
                __syncthreads();
                fit(alpha + at, beta, states, part);
                for (LANES(s, states)) {
                    dx[at + s] += dy[b] * expf(alpha[at + s] + beta[s]);
                    later[s] = beta[s] + own[at + s];
                }
                __syncthreads();
            }
        }
    }
}
