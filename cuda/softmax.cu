// SPDX-License-Identifier: Apache-2.0
//
// Softmax and losses over scores of classes. Each thread sums in double precision, as it may have all terms of a line; the
// threads of a block are reduced pairwise in float.
#include "lines.cuh"
#include "teams.cuh"
#include "dynet_cy/simplex.h"

// The logarithm of the sum of the e^x of some numbers, as on the CPU: their maximum, and the sum of the
// e^(x - top).
struct LogSum {
    float top, total;
};

// The log-sum of n numbers that are `step` floats apart, or at some places, returned in all threads of the team.
static __device__ inline LogSum log_sum(const Team &t, const float *x, size_t n, size_t step, float *part,
                                        const uint32_t *places = NULL) {
    float top = -INFINITY;
    double total = 0;
    for (size_t k = t.lane; k < n; k += t.lanes) top = larger(x[places ? places[k] : k * step], top);
    top = team_max(t, top, part);
    if (isinf(top)) return {top, 1.f};  // all x are -inf, or one is inf
    for (size_t k = t.lane; k < n; k += t.lanes) total += expf(x[places ? places[k] : k * step] - top);
    return {top, team_sum(t, (float)total, part)};
}

/** op pickneglogsoftmax(x)
 *  n = size_of(&c.x[0].dim)
 *  forward:
 *      pickneglogsoftmax_forward: rows(batch, n)
 *  backward:
 *      pickneglogsoftmax_backward: each(n * elements) */
/** op pickneglogsoftmax_at(x, positions)
 *  uses positions
 *  n = size_of(&c.x[0].dim)
 *  saved: 3 * <size_t>c.y.dim.bd  # the items behind the log-sums
 *  forward:
 *      first find_positions(gpu, c, &c.x[1], n, 0, <uint32_t*>(c.saved + 2 * batch))
 *      pickneglogsoftmax_forward(items = <const uint32_t*>(c.saved + 2 * batch)): rows(batch, n)
 *  backward:
 *      return 0 if c.accumulate else fill(gpu, total_of(&c.dx.dim), 0, c.dx.v) if i  # none flows to an index
 *      pickneglogsoftmax_backward(items = <const uint32_t*>(c.saved + 2 * batch)): each(n * elements) */
// y_b = log sum e^x - x_v, with v = items_b. The log-sums are saved as pairs.
extern "C" __global__ void pickneglogsoftmax_forward(size_t batch, size_t n, const float *__restrict__ x, size_t stride_x,
                                                     const uint32_t *__restrict__ items, float *saved, float *y) {
    __shared__ float part[32];
    for (ROWS(b, batch)) {
        const float *xb = x + b * stride_x;
        LogSum z = log_sum(team_of(1), xb, n, 1, part);
        if (threadIdx.x == 0) {
            saved[2 * b] = z.top;
            saved[2 * b + 1] = z.total;
            y[b] = logf(z.total) - (xb[items[b]] - z.top);
        }
    }
}

// dx = dy_b (e^(x - log-sum) - onehot).
extern "C" __global__ void pickneglogsoftmax_backward(size_t batch, size_t n, const float *__restrict__ x,
                                                      size_t stride_x, const uint32_t *__restrict__ items,
                                                      const float *__restrict__ saved, const float *__restrict__ dy,
                                                      size_t elements, float *dx, int acc) {
    sum_slopes(batch, n, elements, dx, acc, [=](size_t b, size_t j) {
        return dy[b] * (expf(x[b * stride_x + j] - saved[2 * b]) / saved[2 * b + 1] - (items[b] == j ? 1.f : 0.f));
    });
}

// ---- the rows of line.def -------------------------------------------------------------
// Tensors consist of lines of n numbers that are `step` floats apart; `step` lines are adjacent. x may have fewer lines
// than y: then several batch elements share them, and their gradients are summed.
static __device__ __forceinline__ size_t line_at(size_t line, size_t n, size_t step) {
    return line / step * step * n + line % step;
}

constexpr bool PAIRS = false, NUMBERS = true, AGAIN = true; // whether there is a y for each x

#define IN_LINE(...) \
    for (size_t k = team.lane * step; k < n * step; k += team.lanes * step) { \
        [[maybe_unused]] float x = px[k], y = py[k], dy = pdy[k]; \
        __VA_ARGS__; \
    }
#define REDUCE(s, f) \
    double s##_own = 0; \
    IN_LINE(s##_own += f) \
    float s = team_sum(team, (float)s##_own, part);
#define TOP(m) \
    float m = -INFINITY; \
    IN_LINE(m = larger(x, m)) \
    m = team_max(team, m, part);
#define EXPONENTIALS(s, m) REDUCE(s, ys[at + k] = expf(x - m))
#define LOG_SUM(m, s) \
    LogSum m##_pair = log_sum(team, px, n, step, part); \
    float m = m##_pair.top, s = m##_pair.total;
#define LOG_OF(z, s) float z = logf(s);
#define SUM(t, a) REDUCE(t, a)
#define DOT(t, a, b) REDUCE(t, a * b)
#define SAVE(m, s) \
    if (team.lane == 0) { \
        ys[line] = m + logf(s); \
        saved[2 * line] = m; \
        saved[2 * line + 1] = s; \
    }
#define SAVED(m, t) float m = saved[2 * line], t = dys[line] / saved[2 * line + 1];
#define Y(f) IN_LINE(ys[at + k] = f)
#define DX(f) IN_LINE(store(dx + k, acc || line > first, f))
#define TIMES(a, b) ((a) * (b))
#define EXP_LESS(x, m) (isinf(x) ? 0.f : expf(x - m))

/** op softmax(x): row = softmax
 *  op log_softmax(x): row = log_softmax
 *  op log_softmax_along(x): row = log_softmax
 *  op logsumexp_dim(x): row = logsumexp
 *  Split s = split_at(&c.x[0].dim, c.attrs[0].u)
 *  n = s.len
 *  step = s.pre
 *  lines = s.pre * s.post * batch
 *  forward:
 *      x_lines = s.pre * s.post * c.x[0].dim.bd
 *      {row}_forward(blocks = 0): each(lines) if step >= 32      # the threads of a warp read 32 adjacent lines together
 *      {row}_forward(blocks = 1): rows(lines, n)
 *  backward:
 *      x_lines = s.pre * s.post * elements
 *      {row}_backward(blocks = 0): each(x_lines) if step >= 32
 *      {row}_backward(blocks = 1): rows(x_lines, n) */
#define LINE(name, result, forward, backward) \
    extern "C" __global__ void name##_forward(size_t lines, size_t n, size_t step, const float *__restrict__ xs, \
                                              size_t x_lines, float *ys, float *saved, int blocks) { \
        [[maybe_unused]] __shared__ float part[32]; \
        Team team = team_of(blocks); \
        for (size_t line = team.first; line < lines; line += team.step) { \
            [[maybe_unused]] size_t at = line_at(line, n, step); \
            const float *px = xs + line_at(line % x_lines, n, step); \
            [[maybe_unused]] const float *py = result ? ys + at : px, *pdy = px; \
            forward \
        } \
    } \
    extern "C" __global__ void name##_backward(size_t lines, size_t n, size_t step, const float *__restrict__ xs, \
                                               const float *__restrict__ ys, const float *__restrict__ saved, \
                                               const float *__restrict__ dys, size_t x_lines, float *dxs, int acc, \
                                               int blocks) { \
        [[maybe_unused]] __shared__ float part[32]; \
        Team team = team_of(blocks); \
        for (size_t first = team.first; first < x_lines; first += team.step) { \
            const float *px = xs + line_at(first, n, step); \
            float *dx = dxs + line_at(first, n, step); \
            for (size_t line = first; line < lines; line += x_lines) { \
                [[maybe_unused]] size_t at = line_at(line, n, step); \
                [[maybe_unused]] const float *py = result ? ys + at : px, *pdy = result ? dys + at : px; \
                backward \
            } \
        } \
    }
#include "dynet_cy/line.def"

/** op sparsemax(x)
 *  n = rows_of(&c.y.dim)
 *  cols = cols_of(&c.y.dim)
 *  lines = cols * batch
 *  forward:
 *      x_lines = cols * c.x[0].dim.bd
 *      sparsemax_forward: rows(lines, n)
 *  backward:
 *      x_lines = cols * elements
 *      sparsemax_backward: rows(x_lines, n) */
extern "C" __global__ void sparsemax_forward(size_t lines, size_t n, const float *__restrict__ xs, size_t x_lines,
                                             float *ys) {
    __shared__ float part[32];
    for (ROWS(line, lines)) dy_sparsemax(n, xs + line % x_lines * n, ys + line * n, part);
}

extern "C" __global__ void sparsemax_backward(size_t lines, size_t n, const float *__restrict__ ys,
                                              const float *__restrict__ dys, size_t x_lines, float *dxs, int acc) {
    __shared__ float part[32];
    for (ROWS(first, x_lines))
        for (size_t line = first; line < lines; line += x_lines)
            dy_sparsemax_bwd(n, ys + line * n, dys + line * n, dxs + first * n, acc || line > first, part);
}

// ---- restricted_log_softmax -------------------------------------------------------------
/** op restricted_log_softmax(x)
 *  n = size_of(&c.y.dim)
 *  count = c.item_count
 *  forward:
 *      restricted_forward: rows(batch, n)
 *  backward:
 *      restricted_backward: rows(elements, count) */
// Over the `count` distinct elements that the items name; -inf elsewhere.
extern "C" __global__ void restricted_forward(size_t batch, size_t n, const float *__restrict__ xs, size_t stride_x,
                                              const uint32_t *__restrict__ items, size_t count, float *ys) {
    __shared__ float part[32];
    for (ROWS(b, batch)) {
        const float *x = xs + b * stride_x;
        const uint32_t *chosen = items + b * count;
        float *y = ys + b * n;
        LogSum z = log_sum(team_of(1), x, count, 1, part, chosen);
        z.total = logf(z.total);
        for (LANES(i, n)) y[i] = -INFINITY;
        __syncthreads();
        for (LANES(k, count)) y[chosen[k]] = (x[chosen[k]] - z.top) - z.total;
    }
}

extern "C" __global__ void restricted_backward(size_t batch, size_t n, const uint32_t *__restrict__ items, size_t count,
                                               const float *__restrict__ ys, const float *__restrict__ dys, float *dxs,
                                               size_t stride_dx) {
    __shared__ float part[32];
    size_t elements = stride_dx ? batch : 1, uses = stride_dx ? 1 : batch;
    for (ROWS(e, elements)) {
        float *dx = dxs + e * stride_dx;
        for (size_t b = e; b < e + uses; b++) {
            const uint32_t *chosen = items + b * count;
            const float *y = ys + b * n, *dy = dys + b * n;
            double own = 0;
            for (LANES(k, count)) own += dy[chosen[k]];
            float total = block_sum((float)own, part);  // its barriers also complete the additions of the previous batch element
            for (LANES(k, count)) dx[chosen[k]] += dy[chosen[k]] - total * expf(y[chosen[k]]);
        }
    }
}

// ---- logsumexp, elementwise over several arguments ----------------------------------------------
/** op logsumexp()
 *  total = total_of(&c.y.dim)
 *  forward:
 *      n = size_of(&c.y.dim)
 *      logsumexp_of_list_forward: some(total, 0)
 *  backward:
 *      n = total_of(&c.dx.dim)
 *      logsumexp_of_list_backward(x = c.x[i].v): each(n) */
// y has the result of the arguments before. The maximum of each element is saved, or 0 if that is not finite, and the
// logarithm of the sum of the e^(x - maximum). Batch elements have n numbers.
extern "C" __global__ void logsumexp_of_list_forward(size_t total, size_t n, dy_some xs, float *saved, float *y) {
    for (EACH(i, total)) {
        size_t j = i % n;
        float top = xs.first ? y[i] : -INFINITY;
        double sum = 0;
        for (unsigned k = 0; k < xs.count; k++) top = larger(number_of(xs, k, i, j), top);
        if (isinf(top) || isnan(top)) top = 0.f;
        if (xs.first) sum = expf((saved[i] - top) + saved[total + i]);
        for (unsigned k = 0; k < xs.count; k++) sum += expf(number_of(xs, k, i, j) - top);
        saved[i] = top;
        saved[total + i] = logf((float)sum);
        y[i] = top + saved[total + i];
    }
}

// dx = dy e^(x - y); summed over the batch if dx has fewer numbers than y.
extern "C" __global__ void logsumexp_of_list_backward(size_t total, size_t n, const float *__restrict__ x,
                                              const float *__restrict__ saved, const float *__restrict__ dy, float *dx,
                                              int acc) {
    sum_slopes(total / n, n, 1, dx, acc, [=](size_t b, size_t j) {
        size_t i = b * n + j;
        return x[j] == -INFINITY ? 0.f : dy[i] * expf((x[j] - saved[i]) - saved[total + i]);
    });
}

// ---- hinge: one loss per line --------------------------------------------------------------------
/** op hinge(x)
 *  n = size_of(&c.x[0].dim)
 *  margin = c.attrs[0].f
 *  forward:
 *      hinge_forward: rows(batch, n)
 *  backward:
 *      hinge_backward: rows(elements, n) */
// Items: the true class of each batch element.
extern "C" __global__ void hinge_forward(size_t batch, size_t n, float margin, const float *__restrict__ xs,
                                         size_t stride_x, const uint32_t *__restrict__ items, float *y) {
    __shared__ float part[32];
    sum_terms(batch, n, y, part, [=](size_t b, size_t j) {
        const float *x = xs + b * stride_x;
        float over = margin - x[items[b]] + x[j];
        return j == items[b] || over <= 0.f ? 0.f : over;  // a NaN is a loss
    });
}

extern "C" __global__ void hinge_backward(size_t batch, size_t n, float margin, const float *__restrict__ xs,
                                          size_t stride_x, const uint32_t *__restrict__ items,
                                          const float *__restrict__ dy, float *dxs) {
    __shared__ float part[32];
    size_t elements = stride_x ? batch : 1, uses = stride_x ? 1 : batch;
    for (ROWS(e, elements)) {
        const float *x = xs + e * stride_x;
        float *dx = dxs + e * stride_x;
        for (size_t b = e; b < e + uses; b++) {
            size_t v = items[b];
            float bar = margin - x[v], slope = dy[b], count = 0.f;
            for (LANES(j, n))
                if (j != v && !(bar + x[j] <= 0.f)) {
                    dx[j] += slope;
                    count += 1.f;
                }
            count = block_sum(count, part);
            // The thread that handles element v in all batch elements.
            if (count > 0.f && v % blockDim.x == threadIdx.x) dx[v] -= count * slope;
        }
    }
}
