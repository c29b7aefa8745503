// SPDX-License-Identifier: Apache-2.0
//
// Ops that only move elements, the rows of index.def: `at` is the place in the whole of element j of the part. Its inverse,
// for what is added to the whole: `first(b, d)`, the first j with at(b, j) = d, or NONE; and `sum(b, d, part)`, the sum of the
// part over all such j, in double precision, since there may be many.
#include "common.cuh"
#include "dynet_cy/places.h"

#define NONE SIZE_MAX

// The place along axis k of element i of the part, or the element at a place, or NONE.
static __device__ __forceinline__ long long along(const dy_places &p, const uint32_t *own, unsigned k, long long i) {
    if (p.kind == DY_STARTS && k == 0) return i + (long long)(own[0] * p.pre);
    if (p.kind == DY_LISTED && k == p.axis) return own[i];
    if (p.kind == DY_STEPPED) return (long long)own[3 * k] + i * (int32_t)own[3 * k + 1];
    return i;
}

static __device__ __forceinline__ size_t back_along(const dy_places &p, const uint32_t *own, unsigned k, long long way) {
    long long i = way;
    if (p.kind == DY_STARTS && k == 0) i = way - (long long)(own[0] * p.pre);
    if (p.kind == DY_LISTED && k == p.axis)
        for (i = 0; i < (long long)p.size[k] && own[i] != way;) i++;
    if (p.kind == DY_STEPPED) {
        long long by = (int32_t)own[3 * k + 1];
        i = (way - (long long)own[3 * k]) / by;
        if (way != (long long)own[3 * k] + i * by) return NONE;
    }
    return i < 0 || i >= (long long)p.size[k] ? NONE : (size_t)i;
}

static __device__ size_t at(const dy_places &p, const uint32_t *items, size_t b, size_t j) {
    const uint32_t *own = items + b * p.words;
    size_t d = p.offset;
#pragma unroll 1
    for (unsigned k = 0; k < p.n; k++) {
        size_t q = (j | p.size[k]) >> 32 ? j / p.size[k] : (uint32_t)j / (uint32_t)p.size[k];
        d += (size_t)along(p, own, k, (long long)(j - q * p.size[k])) * p.stride[k];
        j = q;
    }
    return d;
}

static __device__ size_t first(const dy_places &p, const uint32_t *items, size_t b, size_t d) {
    size_t j = 0, step = 1;
#pragma unroll 1
    for (unsigned k = 0; k < p.n; k++) {
        size_t i = back_along(p, items + b * p.words, k, (long long)(d / p.stride[k] % p.extent[k]));
        if (i == NONE) return NONE;
        j += i * step;
        step *= p.size[k];
    }
    return j;
}

static __device__ double sum(const dy_places &p, const uint32_t *items, size_t b, size_t d, const float *part) {
    const uint32_t *own = items + b * p.words;
    size_t j = first(p, items, b, d), step = 1;
    double total = j == NONE ? 0 : part[j];
    if (p.kind != DY_LISTED || j == NONE) return total;
    for (unsigned k = 0; k < p.axis; k++) step *= p.size[k];
    for (size_t from = j / step % p.size[p.axis], i = from + 1; i < p.size[p.axis]; i++)
        if (own[i] == own[from]) total += part[j + (i - from) * step];
    return total;
}

// y_j = x_at(j), n numbers for each batch element.
extern "C" __global__ void select_read(size_t n, dy_places places, const uint32_t *items, float *x, size_t stride_x,
                                       float *const *list_x, float *y) {
    for (EACH(i, places.batch * n)) {
        size_t b = i / n;
        y[i] = element(x, stride_x, list_x, b)[at(places, items, b, i - b * n)];
    }
}

// whole_at(j) += part_j. If several batch elements share the whole, the thread of the first contribution to an element adds
// all contributions to it, in order.
extern "C" __global__ void select_add(size_t n, dy_places places, const uint32_t *items, const float *part, size_t stride,
                                      float *whole, size_t bstride, float *const *list) {
    for (ROWS(b, places.batch)) {
        float *to = element(whole, bstride, list, b);
        int shared = shares(bstride, list, places.batch, b);
        for (SLICES(j, n)) {
            size_t d = at(places, items, b, j);
            int mine = first(places, items, b, d) == j;
            if (shared)
                for (size_t k = 0; mine && k < b; k++)
                    mine = element(whole, bstride, list, k) != to || first(places, items, k, d) == NONE;
            if (!mine) continue;
            double total = to[d] + sum(places, items, b, d, part + b * stride);
            if (shared)
                for (size_t k = b + 1; k < places.batch; k++)
                    if (element(whole, bstride, list, k) == to) total += sum(places, items, k, d, part + k * stride);
            to[d] = (float)total;
        }
    }
}

// part_j = (or +=) whole_at(j), where batch element b of the whole begins at b * size. If batch elements share a part, the
// block of the first one adds all, in order.
extern "C" __global__ void select_read_back(size_t n, dy_places places, const uint32_t *items, const float *whole, size_t size,
                                            float *part, size_t bstride, float *const *list, int acc) {
    for (ROWS(b, places.batch)) {
        float *to = element(part, bstride, list, b);
        int shared = shares(bstride, list, places.batch, b), later = 0;
        if (shared) {
            for (LANES(k, b)) later |= element(part, bstride, list, k) == to;
            if (__syncthreads_or(later)) continue;
        }
        for (SLICES(j, n)) {
            float total = whole[b * size + at(places, items, b, j)];
            if (shared)
                for (size_t k = b + 1; k < places.batch; k++)
                    if (element(part, bstride, list, k) == to) total += whole[k * size + at(places, items, k, j)];
            store(to + j, acc, total);
        }
    }
}
