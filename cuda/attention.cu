// SPDX-License-Identifier: Apache-2.0
//
// Scaled dot-product attention; see dynet_cy/ops/attention.pyx. Each block computes as many scores at a time as it has
// threads, and never stores them. Dropout masks are drawn again in backward.
#include "dynet_cy/gpu_attention.h"
#include "rng.cuh"

#define MOST_THREADS 1024

// One head of one batch element.
typedef struct {
    size_t b, head;
    const float *q, *k, *v, *bias;
} Head;

static __device__ inline Head head_at(const dy_gpu_attention &p, size_t b, size_t head) {
    Head h;
    h.b = b;
    h.head = head;
    h.q = p.q + b * p.q_step + head * p.rows;
    h.k = p.k + b * p.k_step + head * p.rows;
    h.v = p.v + b * p.v_step + head * p.value_rows;
    h.bias = p.bias ? p.bias + b * p.bias_step + (p.bias_heads > 1 ? head * p.n * p.bias_columns : 0) : NULL;
    return h;
}

// The keys that a query may attend to: from the first one to the end, exclusive.
static __device__ __forceinline__ size_t first_seen(const dy_gpu_attention &p, size_t query) {
    size_t place = p.place + query;
    return place > p.before ? place - p.before : 0;
}

static __device__ __forceinline__ size_t end_seen(const dy_gpu_attention &p, size_t query) {
    size_t end = p.place + query + 1 + p.after;
    return p.after >= p.n || end > p.n ? p.n : end;
}

static __device__ __forceinline__ bool sees(const dy_gpu_attention &p, size_t query, size_t key) {
    return first_seen(p, query) <= key && key < end_seen(p, query);
}

static __device__ inline float score(const dy_gpu_attention &p, const Head &h, size_t query, size_t key) {
    const float *q = h.q + query * p.heads * p.rows, *k = h.k + key * p.heads * p.rows;
    float total = 0.f;
    for (size_t r = 0; r < p.rows; r++) total = multiply_add(p.scale * q[r], k[r], total);
    return h.bias ? total + h.bias[(p.bias_columns > 1 ? query * p.n : 0) + key] : total;
}

// The dropout factor of a weight.
static __device__ inline float mask(const dy_gpu_attention &p, const Head &h, size_t query, size_t key) {
    if (!p.items) return 1.f;
    return draw_bernoulli(p.seeds, p.items, h.b, (h.head * p.m + query) * p.n + key, p.keep, p.keep > 0.f ? 1.f / p.keep : 0.f);
}

// The offset of a head's rows in the result or its gradient.
static __device__ __forceinline__ size_t result_at(const dy_gpu_attention &p, const Head &h, size_t query) {
    return ((h.b * p.m + query) * p.heads + h.head) * p.value_rows;
}

static __device__ __forceinline__ size_t sum_at(const dy_gpu_attention &p, const Head &h, size_t query) {
    return (h.b * p.heads + h.head) * p.m + query;
}

// The gradient of a score; *weight is the weight after dropout.
static __device__ inline float slope(const dy_gpu_attention &p, const Head &h, size_t query, size_t key, float *weight) {
    const float *dy = p.dy + result_at(p, h, query), *v = h.v + key * p.heads * p.value_rows;
    size_t at = sum_at(p, h, query);
    float total = 0.f, kept = mask(p, h, query, key);
    float w = expf(score(p, h, query, key) - p.sums[2 * at]) / p.sums[2 * at + 1];
    for (size_t r = 0; r < p.value_rows; r++) total = multiply_add(dy[r], v[r], total);
    *weight = w * kept;
    return w * (total * kept - p.means[at]);
}

/** op scaled_dot_product_attention(q, k, v, bias)
 *  op scaled_dot_product_attention_dropout(q, k, v, bias) draws
 *  forward:
 *      Attention p = attention_of(c)
 *      blocks = sums_of(c)
 *      attention_forward: rows(blocks, p.n)
 *  begin_backward:
 *      Attention p = attention_backward_of(c)
 *      blocks = sums_of(c)
 *      attention_means(means = c.saved + 2 * blocks): rows(blocks, p.value_rows)
 *  backward:
 *      Attention p = attention_backward_of(c)
 *      blocks = size_of(&c.dx.dim) * elements // (1 if i == 3 else p.value_rows if i == 2 else p.rows)
 *      attention_backward_q: rows(blocks, p.n) if i == 0
 *      attention_backward_bias: rows(blocks, p.m) if i == 3
 *      attention_backward_kv(of_values = i == 2): rows(blocks, p.m)
 *  saved: 3 * sums_of(c) */
// A block for each query of each head of each batch element.
extern "C" __global__ void attention_forward(size_t blocks, dy_gpu_attention p, float *y) {
    __shared__ float part[32], weight[MOST_THREADS];
    for (ROWS(u, blocks)) {
        size_t query = u % p.m;
        Head h = head_at(p, u / p.m / p.heads, u / p.m % p.heads);
        size_t seen = end_seen(p, query);
        float *out = y + result_at(p, h, query), top = -INFINITY, total = 0.f;
        for (LANES(r, p.value_rows)) out[r] = 0.f;
        for (size_t first = first_seen(p, query); first < seen; first += blockDim.x) {
            size_t key = first + threadIdx.x, count = seen - first < blockDim.x ? seen - first : blockDim.x;
            float s = key < seen ? score(p, h, query, key) : -INFINITY;
            float most = larger(top, block_max(s, part));
            float factor = top == most ? 1.f : expf(top - most);
            float w = key < seen ? expf(s - (most == -INFINITY ? 0.f : most)) : 0.f;
            total = total * factor + block_sum(w, part);
            top = most;
            weight[threadIdx.x] = key < seen ? w * mask(p, h, query, key) : 0.f;
            __syncthreads();
            for (LANES(r, p.value_rows)) {
                float sum = out[r] * factor;
                for (size_t i = 0; i < count; i++)
                    sum = multiply_add(weight[i], h.v[(first + i) * p.heads * p.value_rows + r], sum);
                out[r] = sum;
            }
            __syncthreads();
        }
        for (LANES(r, p.value_rows)) out[r] = total == 0.f ? 0.f : out[r] / total;
        if (threadIdx.x == 0) {
            float *sum = p.sums + 2 * sum_at(p, h, query);
            sum[0] = total == 0.f ? INFINITY : top;
            sum[1] = total == 0.f ? 1.f : total;
        }
        __syncthreads();
    }
}

// For each query of each head, the dot product of its result and its gradient, which is the weighted mean of the
// gradients of its weights.
extern "C" __global__ void attention_means(size_t blocks, dy_gpu_attention p, float *means) {
    __shared__ float part[32];
    for (ROWS(u, blocks)) {
        size_t query = u % p.m;
        Head h = head_at(p, u / p.m / p.heads, u / p.m % p.heads);
        size_t at = result_at(p, h, query);
        double own = 0;
        for (LANES(r, p.value_rows)) own += p.y[at + r] * p.dy[at + r];
        float total = block_sum((float)own, part);
        if (threadIdx.x == 0) means[sum_at(p, h, query)] = total;
    }
}

// A block for each column of each head of the gradient of an argument. The argument has `elements` batch elements, y `batch`.
#define COLUMN(columns) \
    size_t column = u % (columns), head = u / (columns) % p.heads, element = u / (columns) / p.heads

extern "C" __global__ void attention_backward_q(size_t blocks, size_t elements, size_t batch, dy_gpu_attention p, float *dx) {
    __shared__ float slopes[MOST_THREADS];
    for (ROWS(u, blocks)) {
        COLUMN(p.m);
        float *out = dx + ((element * p.m + column) * p.heads + head) * p.rows;
        for (size_t b = element; b < batch; b += elements) {
            Head h = head_at(p, b, head);
            size_t seen = end_seen(p, column);
            for (size_t first = first_seen(p, column); first < seen; first += blockDim.x) {
                size_t key = first + threadIdx.x, count = seen - first < blockDim.x ? seen - first : blockDim.x;
                float weight;
                slopes[threadIdx.x] = key < seen ? slope(p, h, column, key, &weight) : 0.f;
                __syncthreads();
                for (LANES(r, p.rows)) {
                    float sum = 0.f;
                    for (size_t i = 0; i < count; i++) sum = multiply_add(slopes[i], h.k[(first + i) * p.heads * p.rows + r], sum);
                    out[r] += p.scale * sum;
                }
                __syncthreads();
            }
        }
    }
}

// The gradient of v if `of_values`, otherwise that of k.
extern "C" __global__ void attention_backward_kv(size_t blocks, size_t elements, size_t batch, uint32_t of_values,
                                                 dy_gpu_attention p, float *dx) {
    __shared__ float factors[MOST_THREADS];
    for (ROWS(u, blocks)) {
        COLUMN(p.n);
        size_t rows = of_values ? p.value_rows : p.rows;
        float *out = dx + ((element * p.n + column) * p.heads + head) * rows;
        for (size_t b = element; b < batch; b += elements) {
            Head h = head_at(p, b, head);
            for (size_t first = 0; first < p.m; first += blockDim.x) {
                size_t query = first + threadIdx.x, count = p.m - first < blockDim.x ? p.m - first : blockDim.x;
                float weight = 0.f, ds = 0.f;
                if (query < p.m && sees(p, query, column)) ds = slope(p, h, query, column, &weight);
                factors[threadIdx.x] = of_values ? weight : p.scale * ds;
                __syncthreads();
                for (LANES(r, rows)) {
                    float sum = 0.f;
                    for (size_t i = 0; i < count; i++)
                        sum = multiply_add(factors[i],
                                           of_values ? p.dy[result_at(p, h, first + i) + r]
                                                     : h.q[(first + i) * p.heads * p.rows + r],
                                           sum);
                    out[r] += sum;
                }
                __syncthreads();
            }
        }
    }
}

// A block for each element of the bias: sums over all scores that it was added to.
extern "C" __global__ void attention_backward_bias(size_t blocks, size_t elements, size_t batch, dy_gpu_attention p,
                                                   float *dx) {
    __shared__ float part[32];
    size_t queries = p.bias_columns > 1 ? 1 : p.m, heads = p.bias_heads > 1 ? 1 : p.heads;
    for (ROWS(u, blocks)) {
        size_t key = u % p.n, column = u / p.n % p.bias_columns, matrix = u / p.n / p.bias_columns % p.bias_heads;
        size_t element = u / p.n / p.bias_columns / p.bias_heads, uses = queries * heads * (batch / elements);
        double own = 0;
        for (LANES(i, uses)) {
            size_t query = queries > 1 ? i % queries : column, head = heads > 1 ? i / queries % heads : matrix;
            Head h = head_at(p, element + i / queries / heads * elements, head);
            float weight;
            if (sees(p, query, key)) own += slope(p, h, query, key, &weight);
        }
        float total = block_sum((float)own, part);
        if (threadIdx.x == 0) dx[u] += total;
    }
}
