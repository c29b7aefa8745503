// SPDX-License-Identifier: Apache-2.0
//
// Reductions: moments, deviations, norms, and ops along one axis. Each thread sums in double precision, since it may have
// many terms. The threads of a block are reduced pairwise in float.
#include "common.cuh"

// What computes an element of y: a single thread, or a block, whose threads are the lanes.
struct Team {
    size_t first, step, lane, lanes;
};

static __device__ __forceinline__ Team team_of(int blocks) {
    Team t = {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x};
    if (!blocks) t = {(size_t)blockIdx.x * blockDim.x + threadIdx.x, (size_t)gridDim.x * blockDim.x, 0, 1};
    return t;
}

static __device__ inline float team_sum(const Team &t, float x, float *part) {
    return t.lanes > 1 ? block_sum(x, part) : x;
}

static __device__ inline float team_max(const Team &t, float x, float *part) {
    return t.lanes > 1 ? block_max(x, part) : x;
}

struct Best {
    float x;
    uint32_t at;
};

// A NaN is above all numbers; of equal numbers, the first is.
static __device__ __forceinline__ Best best_of(Best a, Best b) {
    bool above = a.x > b.x || (a.x != a.x && b.x == b.x);
    bool below = b.x > a.x || (b.x != b.x && a.x == a.x);
    return above || (!below && a.at < b.at) ? a : b;
}

static __device__ inline Best warp_best(Best x) {
    for (int o = 16; o > 0; o >>= 1) {
        Best other = {__shfl_xor_sync(FULL_MASK, x.x, o), __shfl_xor_sync(FULL_MASK, x.at, o)};
        x = best_of(x, other);
    }
    return x;
}

static __device__ inline Best team_best(const Team &t, Best top, Best *part) {
    if (t.lanes == 1) return top;
    top = warp_best(top);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = top;
    __syncthreads();
    int lane = threadIdx.x & 31;
    top = lane < (int)(blockDim.x >> 5) ? part[lane] : Best{-INFINITY, 0xffffffffu};
    top = warp_best(top);
    __syncthreads();
    return top;
}

// ---- moment, std: x is array 0 of the axes ---------------------------------------------

static __device__ __forceinline__ float power(float x, int r) {
    float y = 1.f;
    for (; r; r >>= 1, x *= x)
        if (r & 1) y *= x;
    return y;
}

/** op moment(x)
 *  Axes kept, reduced, back
 *  r = c.attrs[2].i
 *  axes_of(c, &kept, &reduced, &back)
 *  forward:
 *      scale = moment_scale(c)
 *      n = axes_total(&kept)
 *      terms = axes_total(&reduced)
 *      return fill(gpu, total_of(&c.y.dim), <float>NAN if isinf(scale) else 0, c.y.v) if total_of(&c.x[0].dim) == 0
 *      moment_forward(blocks = 1): rows(n, terms) if by_blocks_over(&kept, &reduced)
 *      moment_forward(blocks = 0): each(n)
 *  backward:
 *      scale = r * moment_scale(c)
 *      n = total_of(&c.x[0].dim)
 *      uses = sharing(c)
 *      y_size = size_of(&c.y.dim)
 *      moment_backward: each(n) */
// y = scale times the sum of x^r over the reduced axes, for each element of the kept ones.
extern "C" __global__ void moment_forward(size_t n, size_t terms, dy_axes kept, dy_axes reduced, float scale, int r,
                                          const float *__restrict__ x, float *y, int blocks) {
    __shared__ float part[32];
    Team t = team_of(blocks);
    for (size_t e = t.first; e < n; e += t.step) {
        size_t base[DY_ARRAYS], at[DY_ARRAYS];
        double total = 0;
        offsets(kept, e, base);
        for (size_t k = t.lane; k < terms; k += t.lanes) {
            offsets(reduced, k, at);
            total += power(x[base[0] + at[0]], r);
        }
        float sum = team_sum(t, (float)total, part);
        if (t.lane == 0) y[e] = scale * sum;
    }
}

// dx = scale dy x^(r - 1). The axes are those of x; array 0 is y. `uses` elements of y, y_size floats apart, share one of x.
extern "C" __global__ void moment_backward(size_t n, dy_axes back, size_t uses, size_t y_size, float scale, int r,
                                           const float *__restrict__ x, const float *__restrict__ dy, float *dx,
                                           int acc) {
    for (EACH(i, n)) {
        size_t at[DY_ARRAYS];
        float total = 0.f;
        offsets(back, i, at);
        for (size_t u = 0; u < uses; u++) total += dy[at[0] + u * y_size];
        store(dx + i, acc, scale * total * power(x[i], r - 1));
    }
}

/** op std(x)
 *  Axes kept, reduced, back
 *  axes_of(c, &kept, &reduced, &back)
 *  mean = c.saved
 *  forward:
 *      n = axes_total(&kept)
 *      terms = axes_total(&reduced)
 *      return fill(gpu, total_of(&c.y.dim), NAN, c.y.v) if total_of(&c.x[0].dim) == 0
 *      std_forward(blocks = 1): rows(n, terms) if by_blocks_over(&kept, &reduced)
 *      std_forward(blocks = 0): each(n)
 *  backward:
 *      n = total_of(&c.x[0].dim)
 *      uses = sharing(c)
 *      y_size = size_of(&c.y.dim)
 *      scale = share(c)
 *      std_backward: each(n) */
// The standard deviation of the reduced elements, as a population; their mean is saved.
extern "C" __global__ void std_forward(size_t n, size_t terms, dy_axes kept, dy_axes reduced,
                                       const float *__restrict__ x, float *mean, float *y, int blocks) {
    __shared__ float part[32];
    Team t = team_of(blocks);
    for (size_t e = t.first; e < n; e += t.step) {
        size_t base[DY_ARRAYS], at[DY_ARRAYS];
        double total = 0, squares = 0;
        offsets(kept, e, base);
        for (size_t k = t.lane; k < terms; k += t.lanes) {
            offsets(reduced, k, at);
            total += x[base[0] + at[0]];
        }
        float middle = team_sum(t, (float)total, part) / (float)terms;
        for (size_t k = t.lane; k < terms; k += t.lanes) {
            offsets(reduced, k, at);
            float d = x[base[0] + at[0]] - middle;
            squares += d * d;
        }
        float sum = team_sum(t, (float)squares, part);
        if (t.lane == 0) {
            mean[e] = middle;
            y[e] = sqrtf(sum / (float)terms);
        }
    }
}

// Where the deviation is 0, the gradient is 0.
extern "C" __global__ void std_backward(size_t n, dy_axes back, size_t uses, size_t y_size, float scale,
                                        const float *__restrict__ x, const float *__restrict__ mean,
                                        const float *__restrict__ y, const float *__restrict__ dy, float *dx, int acc) {
    for (EACH(i, n)) {
        size_t at[DY_ARRAYS];
        float total = 0.f;
        offsets(back, i, at);
        for (size_t u = 0; u < uses; u++) {
            size_t e = at[0] + u * y_size;
            if (y[e] != 0.f) total += dy[e] * (x[i] - mean[e]) / y[e];
        }
        store(dx + i, acc, scale * total);
    }
}

// ---- squared_norm, l2_norm ---------------------------------------------------------------

/** op squared_norm(x): root = 0
 *  op l2_norm(x): root = 1
 *  n = size_of(&c.x[0].dim)
 *  root = {root}
 *  forward:
 *      norm_forward: rows(batch, n)
 *  backward:
 *      norm_backward: each(elements * n) */
// y_b = |x_b|^2, or its root.
extern "C" __global__ void norm_forward(size_t batch, size_t n, const float *__restrict__ xs, size_t stride_x, int root,
                                        float *y) {
    __shared__ float part[32];
    for (ROWS(b, batch)) {
        const float *x = xs + b * stride_x;
        double total = 0;
        if (!root)
            for (LANES(i, n)) total += x[i] * x[i];
        float norm = root ? block_norm(n, x, part) : block_sum((float)total, part);
        if (threadIdx.x == 0) y[b] = norm;
    }
}

// The gradient of the norm is 0 at 0.
extern "C" __global__ void norm_backward(size_t batch, size_t n, const float *__restrict__ x, int root,
                                         const float *__restrict__ y, const float *__restrict__ dy, size_t elements,
                                         float *dx, int acc) {
    size_t uses = batch / elements;
    for (EACH(i, elements * n)) {
        size_t e = i / n;
        float total = 0.f;
        for (size_t b = e * uses; b < (e + 1) * uses; b++)
            total += root ? (y[b] != 0.f ? dy[b] / y[b] : 0.f) : 2.f * dy[b];
        store(dx + i, acc, total * x[i]);
    }
}

// ---- norm -----------------------------------------------------------------------------------

static __device__ __forceinline__ float real_power(float x, float p) {
    return p == 0.f ? 1.f : p == 1.f ? x : p == 2.f ? x * x : powf(x, p);
}

/** op norm(x)
 *  Axes kept, reduced, back
 *  axes_of(c, &kept, &reduced, &back)
 *  p = c.attrs[1].f
 *  places = c.saved
 *  forward:
 *      n = axes_total(&kept)
 *      terms = axes_total(&reduced)
 *      return fill(gpu, total_of(&c.y.dim), 0, c.y.v) if total_of(&c.x[0].dim) == 0
 *      p_norm_forward(blocks = 1): rows(n, terms) if by_blocks_over(&kept, &reduced)
 *      p_norm_forward(blocks = 0): each(n)
 *  backward:
 *      n = total_of(&c.x[0].dim)
 *      uses = sharing(c)
 *      y_size = size_of(&c.y.dim)
 *      p_norm_backward: each(n) */
// y = (the sum of |x|^p over the reduced axes)^(1/p), of x divided by the greatest |x|. If p is infinite, it is the greatest
// itself, and `places` tells where that is in x.
extern "C" __global__ void p_norm_forward(size_t n, size_t terms, dy_axes kept, dy_axes reduced, float p,
                                          const float *__restrict__ x, size_t *places, float *y, int blocks) {
    __shared__ Best best[32];
    __shared__ float part[32];
    Team t = team_of(blocks);
    for (size_t e = t.first; e < n; e += t.step) {
        size_t base[DY_ARRAYS], at[DY_ARRAYS];
        Best top = {-1.f, 0};
        double total = 0;
        offsets(kept, e, base);
        for (size_t k = t.lane; k < terms; k += t.lanes) {
            offsets(reduced, k, at);
            top = best_of(top, Best{fabsf(x[base[0] + at[0]]), (uint32_t)k});
        }
        top = team_best(t, top, best);
        float norm = top.x < 0.f ? 0.f : top.x;
        if (top.x > 0.f && !isinf(top.x) && !isinf(p)) {
            for (size_t k = t.lane; k < terms; k += t.lanes) {
                offsets(reduced, k, at);
                total += real_power(fabsf(x[base[0] + at[0]]) / top.x, p);
            }
            float sum = team_sum(t, (float)total, part);
            norm *= p == 2.f ? sqrtf(sum) : powf(sum, 1.f / p);
        }
        if (t.lane == 0) {
            y[e] = norm;
            if (isinf(p)) {
                offsets(reduced, top.at, at);
                places[e] = base[0] + at[0];
            }
        }
    }
}

// dx = dy sign(x) (|x| / y)^(p - 1), and 0 where x is 0. The axes are those of x; array 0 is y. `uses` elements of y, y_size
// floats apart, share one of x.
extern "C" __global__ void p_norm_backward(size_t n, dy_axes back, size_t uses, size_t y_size, float p,
                                           const float *__restrict__ x, const size_t *__restrict__ places,
                                           const float *__restrict__ y, const float *__restrict__ dy, float *dx,
                                           int acc) {
    for (EACH(i, n)) {
        size_t at[DY_ARRAYS];
        float total = 0.f;
        offsets(back, i, at);
        if (x[i] != 0.f)
            for (size_t u = 0; u < uses; u++) {
                size_t e = at[0] + u * y_size;
                if (!isinf(p))
                    total += dy[e] * real_power(fabsf(x[i]) / y[e], p - 1.f);
                else if (places[e] == i)
                    total += dy[e];
            }
        store(dx + i, acc, x[i] < 0.f ? -total : total);
    }
}

// ---- ops along one axis: lines of `length` elements that are `inner` floats apart ----------

// The offset of line e in an array whose batch elements are stride_x floats apart.
static __device__ __forceinline__ size_t line_at(size_t e, size_t inner, size_t length, size_t outer, size_t stride_x) {
    size_t line = e / inner, b = line / outer;
    return b * stride_x + (line - b * outer) * length * inner + (e - line * inner);
}

// The maximum of sign x_k, returned in all lanes. Unless `or_nan`, a NaN counts as -inf.
static __device__ inline Best greatest(const Team &t, const float *x, size_t length, size_t inner, float sign,
                                       bool or_nan, Best *part) {
    Best top = {-INFINITY, 0xffffffffu};
    for (size_t k = t.lane; k < length; k += t.lanes) {
        float one = sign * x[k * inner];
        top = best_of(top, Best{or_nan || one == one ? one : -INFINITY, (uint32_t)k});
    }
    return team_best(t, top, part);
}

/** op max_dim(x): sign = 1
 *  op min_dim(x): sign = -1
 *  Split s = split_at(&c.x[0].dim, c.attrs[0].u)
 *  inner = s.pre
 *  length = s.len
 *  outer = s.post
 *  where = c.saved
 *  forward:
 *      sign = {sign}
 *      lines = inner * outer * batch
 *      extreme_forward(blocks = 1): rows(lines, length) if by_blocks(lines, length, inner == 1)
 *      extreme_forward(blocks = 0): each(lines)
 *  backward:
 *      lines = inner * outer * elements
 *      extreme_backward: each(lines) */
extern "C" __global__ void extreme_forward(size_t lines, size_t inner, size_t length, size_t outer, float sign,
                                           const float *__restrict__ x, size_t stride_x, uint32_t *where, float *y,
                                           int blocks) {
    __shared__ Best part[32];
    Team t = team_of(blocks);
    for (size_t e = t.first; e < lines; e += t.step) {
        Best top = greatest(t, x + line_at(e, inner, length, outer, stride_x), length, inner, sign, false, part);
        if (t.lane == 0) {
            y[e] = sign * top.x;
            where[e] = top.at;
        }
    }
}

// dx += dy at the position of the extreme. dx has `lines` lines, each of which `uses` elements of y share.
extern "C" __global__ void extreme_backward(size_t lines, size_t inner, size_t length, size_t outer, size_t uses,
                                            const uint32_t *__restrict__ where, const float *__restrict__ dy,
                                            float *dx) {
    for (EACH(e, lines)) {
        float *to = dx + line_at(e, inner, length, outer, inner * length * outer);
        for (size_t u = 0; u < uses; u++) to[where[e + u * lines] * inner] += dy[e + u * lines];
    }
}

/** op argmax(x)
 *  n = size_of(&c.y.dim)
 *  forward:
 *      argmax_forward: rows(batch, n) */
/** op argmax_straight_through(x)
 *  n = size_of(&c.y.dim)
 *  forward:
 *      argmax_forward: rows(batch, n)
 *  backward:
 *      return pass_scaled(gpu, &c.dy, 1, &c.dx, c.accumulate) */
// y_b = 1 at the maximum of x_b, otherwise 0.
extern "C" __global__ void argmax_forward(size_t batch, size_t n, const float *__restrict__ x, size_t stride_x, float *y) {
    __shared__ Best part[32];
    Team t = team_of(1);
    for (ROWS(b, batch)) {
        Best top = greatest(t, x + b * stride_x, n, 1, 1.f, true, part);
        for (LANES(i, n)) y[b * n + i] = i == top.at ? 1.f : 0.f;
    }
}

/** op cumsum(x)
 *  Split s = split_at(&c.x[0].dim, c.attrs[0].u)
 *  inner = s.pre
 *  length = s.len
 *  outer = s.post
 *  use_stride = size_of(&c.y.dim)
 *  nothing if length == 0
 *  forward:
 *      lines = inner * outer * batch
 *      scan_lines(uses = 1, backward = 0, acc = 0, blocks = 1): rows(lines, length) if by_blocks(lines, length, inner == 1)
 *      scan_lines(uses = 1, backward = 0, acc = 0, blocks = 0): each(lines)
 *  backward:
 *      lines = inner * outer * elements
 *      x = c.dy.v
 *      stride_x = use_stride
 *      y = c.dx.v
 *      scan_lines(backward = 1, blocks = 1): rows(lines, length) if by_blocks(lines, length, inner == 1)
 *      scan_lines(backward = 1, blocks = 0): each(lines) */
// Cumulative sums of a line, from its beginning or from its end. Each line of y is the sum over `uses` lines of x, which
// are use_stride floats apart.
extern "C" __global__ void scan_lines(size_t lines, size_t inner, size_t length, size_t outer, size_t uses,
                                      size_t use_stride, int backward, const float *__restrict__ x, size_t stride_x,
                                      float *y, int acc, int blocks) {
    __shared__ float part[32];
    Team t = team_of(blocks);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (size_t e = t.first; e < lines; e += t.step) {
        const float *from = x + line_at(e, inner, length, outer, stride_x);
        float *to = y + line_at(e, inner, length, outer, inner * length * outer);
        for (size_t u = 0; u < uses; u++, from += use_stride) {
            double before = 0;
            for (size_t start = 0; start < length; start += t.lanes) {
                size_t k = start + t.lane, at = (backward ? length - 1 - k : k) * inner;
                float sum = k < length ? from[at] : 0.f;
                if (t.lanes == 1) {
                    before += sum;
                    store(to + at, acc || u, (float)before);
                    continue;
                }
                for (int o = 1; o < 32; o <<= 1) {
                    float left = __shfl_up_sync(FULL_MASK, sum, o);
                    if (lane >= o) sum += left;
                }
                if (lane == 31) part[warp] = sum;
                __syncthreads();
                double all = before;
                for (int w = 0; w < (int)(blockDim.x >> 5); w++) {
                    if (w == warp) sum += (float)all;
                    all += part[w];
                }
                __syncthreads();
                if (k < length) store(to + at, acc || u, sum);
                before = all;
            }
        }
    }
}

/** op logsumexp_dim(x)
 *  Split s = split_at(&c.x[0].dim, c.attrs[0].u)
 *  inner = s.pre
 *  length = s.len
 *  forward:
 *      outer = s.post
 *      lines = inner * outer * batch
 *      logsumexp_lines(blocks = 1): rows(lines, length) if by_blocks(lines, length, inner == 1)
 *      logsumexp_lines(blocks = 0): each(lines)
 *  backward:
 *      n = total_of(&c.dx.dim)
 *      lines = inner * s.post * elements
 *      logsumexp_lines_backward: each(n) */
// y = log sum e^x.
extern "C" __global__ void logsumexp_lines(size_t lines, size_t inner, size_t length, size_t outer,
                                           const float *__restrict__ x, size_t stride_x, float *y, int blocks) {
    __shared__ float part[32];
    Team t = team_of(blocks);
    for (size_t e = t.first; e < lines; e += t.step) {
        const float *from = x + line_at(e, inner, length, outer, stride_x);
        float top = -INFINITY;
        double total = 0;
        for (size_t k = t.lane; k < length; k += t.lanes) top = larger(from[k * inner], top);
        top = team_max(t, top, part);
        if (isinf(top)) top = 0.f;  // inf - inf would be NaN; without subtracting, the sum is 0 or inf, as it should be
        for (size_t k = t.lane; k < length; k += t.lanes) total += expf(from[k * inner] - top);
        float sum = team_sum(t, (float)total, part);
        if (t.lane == 0) y[e] = top + logf(sum);
    }
}

// dx = dy e^(x - y), and 0 for an infinite x.
extern "C" __global__ void logsumexp_lines_backward(size_t n, size_t inner, size_t length, size_t uses, size_t lines,
                                                    const float *__restrict__ x, const float *__restrict__ y,
                                                    const float *__restrict__ dy, float *dx, int acc) {
    for (EACH(i, n)) {
        size_t e = i / (inner * length) * inner + i % inner;
        float total = 0.f;
        if (!isinf(x[i]))
            for (size_t u = 0; u < uses; u++, e += lines) total += dy[e] * expf(x[i] - y[e]);
        store(dx + i, acc, total);
    }
}
