// SPDX-License-Identifier: Apache-2.0
//
// Selections: y_j = x_at(j), where `at` may differ between batch elements. Each kind of selection is a struct with `at`
// and its inverse for the gradient: `first(b, d)`, the first j with at(b, j) = d, or NONE; and `sum(b, d, dy)`, the sum of
// dy_j over all such j, in double precision, since there may be many.
#include "common.cuh"

#define NONE SIZE_MAX

// A range along the middle one of three axes, which begins at items[b].
struct AxisRange {
    size_t pre, len, column;  // size of the first axis, length of the range, stride of the last axis in x
    const uint32_t *items;

    __device__ size_t at(size_t b, size_t j) const {
        size_t n = pre * len, k = j / n;
        return k * column + items[b] * pre + (j - k * n);
    }
    __device__ size_t first(size_t b, size_t d) const {
        size_t k = d / column, from = items[b] * pre, inside = d - k * column;
        return inside >= from && inside - from < pre * len ? k * pre * len + inside - from : NONE;
    }
    __device__ double sum(size_t b, size_t d, const float *dy) const {
        size_t j = first(b, d);
        return j == NONE ? 0 : dy[j];
    }
};

// Positions along the middle one of three axes: `count` items for each batch element, which may be equal.
struct Listed {
    size_t pre, count, column;
    const uint32_t *items;

    __device__ size_t at(size_t b, size_t j) const {
        size_t line = j / pre, k = line / count;
        return k * column + items[b * count + line - k * count] * pre + (j - line * pre);
    }
    __device__ size_t first(size_t b, size_t d) const {
        size_t k = d / column, inside = d - k * column, item = inside / pre;
        for (size_t i = 0; i < count; i++)
            if (items[b * count + i] == item) return (k * count + i) * pre + inside - item * pre;
        return NONE;
    }
    __device__ double sum(size_t b, size_t d, const float *dy) const {
        size_t k = d / column, inside = d - k * column, item = inside / pre;
        double total = 0;
        for (size_t i = 0; i < count; i++)
            if (items[b * count + i] == item) total += dy[(k * count + i) * pre + inside - item * pre];
        return total;
    }
};

// Strided selection: items are start, step and number of elements for each axis. The axes are those of y; array 0 has the
// strides of x, array 1 the sizes of x.
struct Strided {
    const dy_axes &axes;
    const uint32_t *items;

    __device__ size_t at(size_t b, size_t j) const {
        const uint32_t *item = items + 3 * b * axes.n;
        size_t d = 0;
#pragma unroll 1
        for (unsigned k = 0; k < axes.n; k++) {
            size_t q = j / axes.size[k];
            long long i = (long long)item[3 * k] + (long long)(j - q * axes.size[k]) * (int32_t)item[3 * k + 1];
            d += (size_t)i * axes.stride[0][k];
            j = q;
        }
        return d;
    }
    __device__ size_t first(size_t b, size_t d) const {
        const uint32_t *item = items + 3 * b * axes.n;
        size_t j = 0, step = 1;
#pragma unroll 1
        for (unsigned k = 0; k < axes.n; k++) {
            long long by = (int32_t)item[3 * k + 1];
            long long way = (long long)(d / axes.stride[0][k] % axes.stride[1][k]) - (long long)item[3 * k];
            long long i = way / by;
            if (i * by != way || i < 0 || i >= (long long)axes.size[k]) return NONE;
            j += (size_t)i * step;
            step *= axes.size[k];
        }
        return j;
    }
    __device__ double sum(size_t b, size_t d, const float *dy) const {
        size_t j = first(b, d);
        return j == NONE ? 0 : dy[j];
    }
};

template <class Way>
static __device__ __forceinline__ void select(size_t batch, size_t n, Way way, float *x, size_t bstride,
                                              float *const *list, float *y) {
    for (EACH(i, batch * n)) {
        size_t b = i / n;
        y[i] = element(x, bstride, list, b)[way.at(b, i - b * n)];
    }
}

// dx_at(j) += dy_j. If several batch elements share dx, the thread of the first contribution to an element adds all
// contributions to it, in order.
template <class Way>
static __device__ __forceinline__ void put_back(size_t batch, size_t n, Way way, const float *dy, float *dx, size_t bstride,
                                                float *const *list) {
    for (ROWS(b, batch)) {
        float *to = element(dx, bstride, list, b);
        int shared = shares(bstride, list, batch, b);
        for (SLICES(j, n)) {
            size_t d = way.at(b, j);
            int mine = way.first(b, d) == j;
            if (shared)
                for (size_t k = 0; mine && k < b; k++)
                    mine = element(dx, bstride, list, k) != to || way.first(k, d) == NONE;
            if (!mine) continue;
            double total = to[d] + way.sum(b, d, dy + b * n);
            if (shared)
                for (size_t k = b + 1; k < batch; k++)
                    if (element(dx, bstride, list, k) == to) total += way.sum(k, d, dy + k * n);
            to[d] = (float)total;
        }
    }
}

/** op pick(x)
 *  op pick_range(x)
 *  Split s = split_at(&c.x[0].dim, c.attrs[0].u)
 *  n = size_of(&c.y.dim)
 *  pre = s.pre
 *  column = pre * s.len
 *  nothing if n == 0
 *  len = n // (pre * s.post)
 *  forward:
 *      range_forward: each(batch * n)
 *  backward:
 *      range_backward: slices(batch, n) */
extern "C" __global__ void range_forward(size_t batch, size_t n, size_t pre, size_t len, size_t column,
                                         const uint32_t *items, float *x, size_t stride_x, float *const *list_x, float *y) {
    select(batch, n, AxisRange{pre, len, column, items}, x, stride_x, list_x, y);
}

extern "C" __global__ void range_backward(size_t batch, size_t n, size_t pre, size_t len, size_t column,
                                          const uint32_t *items, const float *dy, float *dx, size_t stride_dx,
                                          float *const *list_dx) {
    put_back(batch, n, AxisRange{pre, len, column, items}, dy, dx, stride_dx, list_dx);
}

/** op select_rows(x)
 *  op select_cols(x)
 *  uses lookup
 *  Split s = split_at(&c.x[0].dim, c.attrs[0].u)
 *  count = c.item_count
 *  pre = s.pre
 *  column = pre * s.len
 *  n = pre * count * s.post
 *  forward:
 *      listed_forward: each(batch * n)
 *  backward:
 *      return add_listed(gpu, batch, &s, count, c.items, c.dy.v, c.dx.v, c.dx.bstride, <float**>c.dx.list) */
/** op take(x, positions)
 *  uses lookup, positions
 *  Split s
 *  saved: size_of(&c.x[1].dim) * c.y.dim.bd
 *  forward:
 *      find_items(gpu, c, &c.x[0].dim, &s, <uint32_t*>c.saved)
 *      count = size_of(&c.x[1].dim)
 *      pre = s.pre
 *      column = pre * s.len
 *      n = pre * count * s.post
 *      listed_forward(items = <const uint32_t*>c.saved): each(batch * n)
 *  backward:
 *      nothing if i  # none flows to an index
 *      items_split(c, &c.x[0].dim, &s)
 *      count = size_of(&c.x[1].dim)
 *      return add_listed(gpu, batch, &s, count, <const uint32_t*>c.saved, c.dy.v, c.dx.v, c.dx.bstride, <float**>c.dx.list) */
// Rows and columns by number.
extern "C" __global__ void listed_forward(size_t batch, size_t n, size_t pre, size_t count, size_t column,
                                          const uint32_t *items, float *x, size_t stride_x, float *const *list_x, float *y) {
    select(batch, n, Listed{pre, count, column, items}, x, stride_x, list_x, y);
}

extern "C" __global__ void listed_backward(size_t batch, size_t n, size_t pre, size_t count, size_t column,
                                           const uint32_t *items, const float *dy, float *dx, size_t stride_dx,
                                           float *const *list_dx) {
    put_back(batch, n, Listed{pre, count, column, items}, dy, dx, stride_dx, list_dx);
}

/** op strided_select(x)
 *  n = size_of(&c.y.dim)
 *  Axes axes
 *  strided_axes(c, &axes)
 *  forward:
 *      strided_forward: each(batch * n)
 *  backward:
 *      nothing if n == 0
 *      strided_backward: slices(batch, n) */
extern "C" __global__ void strided_forward(size_t batch, size_t n, dy_axes axes, const uint32_t *items, float *x,
                                           size_t stride_x, float *y) {
    select(batch, n, Strided{axes, items}, x, stride_x, nullptr, y);
}

extern "C" __global__ void strided_backward(size_t batch, size_t n, dy_axes axes, const uint32_t *items,
                                            const float *dy, float *dx, size_t stride_dx) {
    put_back(batch, n, Strided{axes, items}, dy, dx, stride_dx, nullptr);
}
