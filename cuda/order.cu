// SPDX-License-Identifier: Apache-2.0
//
// Sorting along an axis, cumulative products and cumulative sums of exponentials. Lines of x lie along the middle one of
// three axes.
#include "lines.cuh"
#include "refused.cuh"
#include "dynet_cy/cumulative.h"

// The order of a sort: bits, as in dynet_cy/ops/select.pyx.
enum { DESCENDING = 1, NAN_FIRST = 2, BEST_FIRST = DESCENDING | NAN_FIRST };

static __device__ __forceinline__ bool goes_first(float a, float b, int order) {
    if (b != b) return a == a && !(order & NAN_FIRST);
    if (a != a) return order & NAN_FIRST;
    return order & DESCENDING ? a > b : a < b;
}

// ---- sort, argsort: gpu/shape.pyx launches them ----------------------------------------------------
//
// A stable merge sort. A block sorts up to TILE elements of a line in shared memory; in longer lines, further launches
// merge runs of sorted elements, until there is one. Each element of two runs finds its place in the merged run by a binary
// search in the other one, so that all elements of a launch are placed at the same time.
#define TILE 1024

struct Ranked {
    float x;
    uint32_t at;
};

// Where element i of a line goes when sorted runs of `width` elements are merged in pairs.
static __device__ inline size_t merged_place(const Ranked *runs, size_t length, size_t width, size_t i, int order) {
    size_t start = i / (2 * width) * (2 * width), middle = start + width < length ? start + width : length;
    size_t end = middle + width < length ? middle + width : length;
    bool in_first = i < middle;
    size_t low = in_first ? middle : start, high = in_first ? end : middle;
    float own = runs[i].x;
    while (low < high) {  // elements of the other run before `low` come before this one, those from `high` on after it
        size_t half = low + (high - low) / 2;
        float other = runs[half].x;
        if (in_first ? goes_first(other, own, order) : !goes_first(own, other, order)) low = half + 1;
        else high = half;
    }
    return low + i - middle;  // start, and the elements before it: up to i in its own run, up to `low` in the other
}

// Write the element of rank k of a line. Without `where`, y gets its position in x instead of its value. `function`, if
// it is not 0, refuses a NaN that comes first.
static __device__ __forceinline__ void put_ranked(Ranked one, size_t e, size_t k, size_t inner, size_t length, size_t outer,
                                                  size_t count, uint32_t function, dy_refused_index *refused,
                                                  uint32_t *where, float *y) {
    if (k >= count) return;
    if (k == 0 && function && one.x != one.x)
        refuse(refused, function, e / (inner * outer), line_at(e, inner, length, outer, 0) + one.at * inner, 0, one.x);
    size_t to = line_at(e, inner, count, outer, inner * count * outer) + k * inner;
    if (where) {
        y[to] = one.x;
        where[to] = one.at;
    } else ((uint32_t *)y)[to] = one.at;
}

/** op sort(x)
 *  work: two_lists(c) if i < 0 else 0
 *  forward: order(gpu, c, c.saved)
 *  backward:
 *      Split s = split_at(&c.x[0].dim, c.attrs[0].u)
 *      inner = s.pre
 *      length = s.len
 *      outer = s.post
 *      count = c.attrs[1].u
 *      lines = inner * outer * elements
 *      sort_backward(where = <const uint32_t*>c.saved): each(lines * (count if uses == 1 else min(count, <size_t>1))) */
/** op argsort(x)
 *  uses order
 *  work: two_lists(c) if i < 0 else 0
 *  forward: order(gpu, c, NULL) */
// Sort each tile of each line; into y, or, if a line has several tiles, into `runs`.
extern "C" __global__ void sort_tiles(size_t lines, size_t inner, size_t length, size_t outer, size_t count,
                                      int order, uint32_t function, dy_refused_index *refused,
                                      const float *__restrict__ x, size_t stride_x, void *runs, uint32_t *where,
                                      float *y) {
    __shared__ Ranked buffers[2][TILE];
    size_t tiles = (length + TILE - 1) / TILE;
    for (ROWS(t, lines * tiles)) {
        size_t e = t / tiles, first = (t - e * tiles) * TILE, n = length - first < TILE ? length - first : TILE;
        const float *from = x + line_at(e, inner, length, outer, stride_x);
        Ranked *now = buffers[0], *next = buffers[1];
        for (LANES(i, n)) now[i] = Ranked{from[(first + i) * inner], (uint32_t)(first + i)};
        __syncthreads();
        for (size_t width = 1; width < n; width *= 2) {
            for (LANES(i, n)) next[merged_place(now, n, width, i, order)] = now[i];
            __syncthreads();
            Ranked *done = now;
            now = next;
            next = done;
        }
        for (LANES(i, n)) {
            if (tiles > 1) ((Ranked *)runs)[e * length + first + i] = now[i];
            else put_ranked(now[i], e, i, inner, length, outer, count, function, refused, where, y);
        }
        __syncthreads();  // the buffers may be written again
    }
}

// Merge sorted runs of `width` elements in pairs: into `to`, or, if that is NULL, into y.
extern "C" __global__ void sort_merge(size_t lines, size_t inner, size_t length, size_t outer, size_t count, int order,
                                      uint32_t function, dy_refused_index *refused, size_t width, const void *runs,
                                      void *to, uint32_t *where, float *y) {
    for (EACH(t, lines * length)) {
        size_t e = t / length, i = t - e * length;
        const Ranked *line = (const Ranked *)runs + e * length;
        size_t place = merged_place(line, length, width, i, order);
        if (to) ((Ranked *)to)[e * length + place] = line[i];
        else put_ranked(line[i], e, place, inner, length, outer, count, function, refused, where, y);
    }
}

extern "C" __global__ void sort_backward(size_t lines, size_t inner, size_t length, size_t outer, size_t count,
                                         size_t uses, const uint32_t *__restrict__ where,
                                         const float *__restrict__ dy, float *dx) {
    add_where(lines, inner, length, outer, count, uses, where, dy, dx);
}

// ---- kmax_pooling ------------------------------------------------------------------
// Lines of `length` elements that are `inner` floats apart; `inner` x `outer` lines in each batch element.

// A number whose order is that of floats, with NaN above all, or if `ignores` below all, and 0 equal to -0.
static __device__ __forceinline__ uint32_t order_of(float x, int ignores) {
    if (x != x) return ignores ? 0 : 0xffffffffu;
    uint32_t bits = __float_as_uint(x + 0.f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// How many threads of the block before this one hold true; *all: how many of all. `found` is 32 numbers of shared memory.
static __device__ inline size_t count_before(bool holds, unsigned *found, size_t *all) {
    unsigned lane = threadIdx.x & 31, warp = threadIdx.x >> 5, which = __ballot_sync(FULL_MASK, holds);
    if (lane == 0) found[warp] = __popc(which);
    __syncthreads();
    size_t before = __popc(which & ((1u << lane) - 1));
    *all = 0;
    for (unsigned u = 0; u < blockDim.x >> 5; u++) {
        if (u < warp) before += found[u];
        *all += found[u];
    }
    __syncthreads();
    return before;
}

/** op kmax_pooling(x)
 *  Split s = split_at(&c.x[0].dim, c.attrs[0].u)
 *  inner = s.pre
 *  length = s.len
 *  count = c.attrs[1].u
 *  ignores = not c.attrs[2].u & NAN_FIRST
 *  where = c.saved
 *  outer = s.post
 *  forward:
 *      lines = inner * outer * batch
 *      kmax_forward: rows(lines, length)
 *  backward:
 *      lines = inner * outer * elements
 *      sort_backward: each(lines * (count if uses == 1 else <size_t>1)) */
// The k largest elements of each line, in the order of the line; of equal elements the first. A block takes a line. It
// finds the k-th largest bit by bit, by counting how many elements are not below a number, and then chooses all elements
// above it, and as many of those that equal it as are missing.
extern "C" __global__ void kmax_forward(size_t lines, size_t inner, size_t length, size_t outer, size_t count, int ignores,
                                        const float *__restrict__ x, size_t stride_x, uint32_t *where, float *y) {
    __shared__ unsigned found[32];
    for (ROWS(line, lines)) {
        const float *from = x + line_at(line, inner, length, outer, stride_x);
        size_t to = line_at(line, inner, count, outer, inner * count * outer), above = 0, equals = 0, chosen = 0, n;
        uint32_t bar = 0;
        for (int bit = 31; bit >= 0; bit--) {
            uint32_t higher = bar | 1u << bit;
            size_t reach = 0;
            for (size_t start = 0; start < length; start += blockDim.x) {
                size_t i = start + threadIdx.x;
                reach += __syncthreads_count(i < length && order_of(from[i * inner], ignores) >= higher);
            }
            if (reach >= count) bar = higher;
            else above = reach;  // of the lowest number that too few reach, which is the one after `bar` in the end
        }
        for (size_t start = 0; start < length && chosen < count; start += blockDim.x) {
            size_t i = start + threadIdx.x;
            float v = i < length ? from[i * inner] : 0.f;
            uint32_t own = i < length ? order_of(v, ignores) : 0;
            size_t rank = equals + count_before(i < length && own == bar, found, &n);
            equals += n;
            bool is_chosen = i < length && (own > bar || (own == bar && rank < count - above));
            size_t place = chosen + count_before(is_chosen, found, &n);
            chosen += n;
            if (is_chosen) {
                y[to + place * inner] = v;
                where[to + place * inner] = (uint32_t)i;
            }
        }
    }
}

// ---- continuations: see select.pyx ------------------------------------------------------------------
/** op continuations(x, totals)
 *  beams = c.attrs[0].u
 *  count = c.attrs[1].u
 *  end = c.attrs[2].u
 *  begin = c.attrs[3].u
 *  n = size_of(&c.x[0].dim)
 *  lines = max(c.x[0].dim.bd, c.x[1].dim.bd)
 *  most = min(count, n)
 *  sums = c.work
 *  work: 2 * lines * most if i < 0 else 0
 *  forward:
 *      nothing if count == 0
 *      first continuations_of_lines: rows(lines, n)
 *      continuations_of_beams: rows(beams, lines // beams * most) */
struct Chosen {
    float sum;
    uint32_t line, at;
};

static __device__ __forceinline__ bool comes_first(Chosen a, Chosen b) {
    if (goes_first(a.sum, b.sum, BEST_FIRST)) return true;
    if (goes_first(b.sum, a.sum, BEST_FIRST)) return false;
    return a.line < b.line || (a.line == b.line && a.at < b.at);
}

// The first of the places of all threads, in all of them; `any`: whether a thread has one.
static __device__ inline Chosen first_of_block(Chosen own, bool any, Chosen *places, uint8_t *there) {
    places[threadIdx.x] = own;
    there[threadIdx.x] = any;
    __syncthreads();
    for (unsigned n = blockDim.x; n > 1;) {
        unsigned half = (n + 1) / 2, other = threadIdx.x + half;
        if (other < n && there[other] && (!there[threadIdx.x] || comes_first(places[other], places[threadIdx.x]))) {
            places[threadIdx.x] = places[other];
            there[threadIdx.x] = 1;
        }
        __syncthreads();
        n = half;
    }
    Chosen first = places[0];
    __syncthreads();  // they may be written again
    return first;
}

// The first `count` of n candidates, in their order: `put(k, one)` is called by one thread for each. For all threads of a
// block.
template <class Candidate, class Put>
static __device__ __forceinline__ void choose(size_t count, size_t n, Chosen *places, uint8_t *there, Candidate candidate,
                                              Put put) {
    Chosen last = {0.f, 0, 0};
    for (size_t k = 0; k < count; k++) {
        Chosen best = {0.f, 0, 0};
        bool any = false;
        for (LANES(i, n)) {
            Chosen own = candidate(i);
            if ((k == 0 || comes_first(last, own)) && (!any || comes_first(own, best))) {
                best = own;
                any = true;
            }
        }
        last = first_of_block(best, any, places, there);
        if (threadIdx.x == 0) put(k, last);
    }
}

// The best places of each line: their sums, and behind these of all lines the places themselves.
extern "C" __global__ void continuations_of_lines(size_t lines, size_t n, size_t most, const float *__restrict__ x,
                                                  size_t stride_x, const float *__restrict__ totals,
                                                  size_t stride_totals, float *sums) {
    __shared__ Chosen places[1024];
    __shared__ uint8_t there[1024];
    uint32_t *ats = (uint32_t *)(sums + lines * most);
    for (ROWS(line, lines)) {
        float total = totals[line * stride_totals];
        auto candidate = [=](size_t i) {
            return Chosen{total == -INFINITY ? total : x[line * stride_x + i] + total, 0, (uint32_t)i};
        };
        choose(most, n, places, there, candidate, [=](size_t k, Chosen one) {
            sums[line * most + k] = one.sum;
            ats[line * most + k] = one.at;
        });
    }
}

// The best of the places of a beam's lines.
extern "C" __global__ void continuations_of_beams(size_t beams, size_t lines, size_t count, size_t most, uint32_t end,
                                                  uint32_t begin, const float *__restrict__ sums, float *y) {
    __shared__ Chosen places[1024];
    __shared__ uint8_t there[1024];
    const uint32_t *ats = (const uint32_t *)(sums + lines * most);
    size_t candidates = lines / beams * most;
    for (ROWS(beam, beams)) {
        auto candidate = [=](size_t i) {
            size_t at = beam * candidates + i;
            return Chosen{sums[at], (uint32_t)(at / most), ats[at]};
        };
        choose(count, candidates, places, there, candidate, [=](size_t k, Chosen one) {
            float *to = y + (beam * count + k) * 5;
            bool ends = one.at == end;
            to[0] = one.sum;
            to[1] = (float)one.line;
            to[2] = (float)one.at;
            to[3] = ends ? -INFINITY : one.sum;
            to[4] = (float)(ends ? begin : one.at);
        });
    }
}

static __device__ __forceinline__ void dy_cumprod(size_t n, size_t step, const float *x, float *y, float *) {
    float product = 1.f;
    for (size_t k = 0; k < n; k++) y[k * step] = product *= x[k * step];
}

/** op cumprod(x)
 *  op logcumsumexp(x)
 *  Split s = split_at(&c.x[0].dim, c.attrs[0].u)
 *  inner = s.pre
 *  length = s.len
 *  outer = s.post
 *  nothing if total_of(&c.y.dim) == 0
 *  forward:
 *      lines = inner * outer * batch
 *      {op}_forward: each(lines)
 *  backward:
 *      lines = inner * outer * elements
 *      {op}_backward: each(lines) */
#define CUMULATIVE(name, LOGS) \
    extern "C" __global__ void name##_forward(size_t lines, size_t inner, size_t length, size_t outer, \
                                              const float *__restrict__ x, size_t stride_x, float *y, float *saved) { \
        for (EACH(e, lines)) { \
            size_t at = line_at(e, inner, length, outer, inner * length * outer); \
            dy_##name(length, inner, x + line_at(e, inner, length, outer, stride_x), y + at, LOGS ? saved + 2 * at : NULL); \
        } \
    } \
    extern "C" __global__ void name##_backward(size_t lines, size_t inner, size_t length, size_t outer, size_t uses, \
                                               const float *__restrict__ x, size_t stride_x, \
                                               const float *__restrict__ y, const float *__restrict__ saved, \
                                               const float *__restrict__ dy, float *dx) { \
        for (EACH(e, lines)) { \
            size_t own = inner * length * outer; \
            for (size_t u = 0; u < uses; u++) { \
                size_t at = line_at(e + u * lines, inner, length, outer, own); \
                dy_cumulative_backward(LOGS, length, inner, x + line_at(e, inner, length, outer, stride_x), y + at, \
                                       LOGS ? saved + 2 * at : NULL, dy + at, dx + line_at(e, inner, length, outer, own)); \
            } \
        } \
    }

CUMULATIVE(cumprod, false)
CUMULATIVE(logcumsumexp, true)
