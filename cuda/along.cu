// SPDX-License-Identifier: Apache-2.0
//
// Ops along one axis: lines of `length` elements that are `inner` floats apart. Each thread sums in double precision, since
// it may have many terms. The threads of a block are reduced pairwise in float.
#include "lines.cuh"
#include "refused.cuh"
#include "teams.cuh"

// The maximum of sign x_k, returned in all lanes. If `ignores`, a NaN counts as -inf; otherwise it is above all numbers.
static __device__ inline Best greatest(const Team &t, const float *x, size_t length, size_t inner, float sign,
                                       bool ignores, Best *part) {
    Best top = {-INFINITY, 0xffffffffu};
    for (size_t k = t.lane; k < length; k += t.lanes) {
        float one = sign * x[k * inner];
        top = best_of(top, Best{ignores && one != one ? -INFINITY : one, (uint32_t)k});
    }
    return team_best(t, top, part);
}

/** op sum(x)
 *  op mean(x)
 *  set assigns = True
 *  Axes kept, reduced, back
 *  reduction_axes(c, &kept, &reduced, &back)
 *  forward:
 *      return fill(gpu, total_of(&c.y.dim), <float>NAN if isinf(mean_scale(c)) else 0, c.y.v) if total_of(&c.x[0].dim) == 0
 *      return contract(gpu, &kept, &reduced, mean_scale(c), c.x[0].v, c.y.v, 0)
 *  backward: spread_mean(gpu, c, &back) */
/** op max_dim(x): sign = 1
 *  op min_dim(x): sign = -1
 *  Split s = split_at(&c.x[0].dim, c.attrs[0].u)
 *  inner = s.pre
 *  length = s.len
 *  outer = s.post
 *  where = c.saved
 *  forward:
 *      sign = {sign}
 *      ignores = c.attrs[1].u
 *      lines = inner * outer * batch
 *      extreme_forward(blocks = 1): rows(lines, length) if by_blocks(lines, length, inner == 1)
 *      extreme_forward(blocks = 0): each(lines)
 *  backward:
 *      lines = inner * outer * elements
 *      extreme_backward: each(lines) */
extern "C" __global__ void extreme_forward(size_t lines, size_t inner, size_t length, size_t outer, float sign,
                                           int ignores, const float *__restrict__ x, size_t stride_x, uint32_t *where,
                                           float *y, int blocks) {
    __shared__ Best part[32];
    Team t = team_of(blocks);
    for (size_t e = t.first; e < lines; e += t.step) {
        Best top = greatest(t, x + line_at(e, inner, length, outer, stride_x), length, inner, sign, ignores, part);
        if (t.lane == 0) {
            y[e] = sign * top.x;
            where[e] = top.at;
        }
    }
}

extern "C" __global__ void extreme_backward(size_t lines, size_t inner, size_t length, size_t outer, size_t uses,
                                            const uint32_t *__restrict__ where, const float *__restrict__ dy,
                                            float *dx) {
    add_where(lines, inner, length, outer, 1, uses, where, dy, dx);
}

/** op index_of_max(x): sign = 1
 *  op index_of_min(x): sign = -1
 *  Split s = split_at(&c.x[0].dim, c.attrs[0].u)
 *  inner = s.pre
 *  length = s.len
 *  outer = s.post
 *  function = c.attrs[2].u
 *  forward:
 *      sign = {sign}
 *      lines = inner * outer * batch
 *      refused = refused_of(gpu)
 *      index_forward(blocks = 1): rows(lines, length) if by_blocks(lines, length, inner == 1)
 *      index_forward(blocks = 0): each(lines) */
// The index of the maximum of sign x in each line, which must not be NaN.
extern "C" __global__ void index_forward(size_t lines, size_t inner, size_t length, size_t outer, float sign,
                                         uint32_t function, dy_refused_index *refused, const float *__restrict__ x,
                                         size_t stride_x, int32_t *y, int blocks) {
    __shared__ Best part[32];
    Team t = team_of(blocks);
    for (size_t e = t.first; e < lines; e += t.step) {
        size_t first = line_at(e, inner, length, outer, stride_x);
        Best top = greatest(t, x + first, length, inner, sign, false, part);
        if (t.lane != 0) continue;
        y[e] = (int32_t)top.at;
        size_t b = e / (inner * outer);
        if (top.x != top.x) refuse(refused, function, b, first - b * stride_x + top.at * inner, 0, top.x);
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
        Best top = greatest(t, x + b * stride_x, n, 1, 1.f, false, part);
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
