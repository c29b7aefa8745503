/* SPDX-License-Identifier: Apache-2.0
 *
 * Ops that only move elements: forward and backward on the CPU for each row of index.def. */
#ifndef DYNET_CY_INDEX_H
#define DYNET_CY_INDEX_H

#include <string.h>

#include "axes.h"
#include "kernels.h"
#include "places.h"
#include "terms.h"

/* Which tensor is the whole, and what forward does. */
enum {
    DY_INDEX_READS,                   /* y is a part of x */
    DY_INDEX_TURNS,                   /* y is all of x, in another order */
    DY_INDEX_ADDS,                    /* y is zeros, to which x is added as a part */
    DY_INDEX_LAYS                     /* y consists of the arguments; each is a part */
};
enum { DY_ITEMS, DY_POSITIONS };    /* whether the places are items of the node, or argument 1 */

static const dy_kernels *dy_index_kernels;
/* Writes the positions of argument 1 as items; 0 if one of them is refused. */
static int (*dy_index_find)(const dy_call *c, const dy_dim *all, uint32_t *items);

/* ---- places ------------------------------------------------------------------------------ */

/* Of the further arguments of a call, only the size differs. */
static inline int dy_is_further(dy_places *p, size_t count) {
    if (!p->n) return 0;
    p->count = count;
    p->size[0] = p->unit * count;
    return 1;
}

/* `count` places along the middle one of three axes of the whole. */
static inline void dy_places_in(dy_places *p, const dy_split *s, uint32_t kind, size_t count) {
    p->unit = s->pre;
    p->count = count;
    if (kind == DY_LISTED && count == 1) kind = DY_STARTS;
    p->kind = kind;
    if (kind == DY_LISTED) {
        if (s->pre != 1) dy_add_places(p, s->pre, s->pre, 1);
        p->axis = p->n;
        dy_add_places(p, count, s->len, s->pre);
    } else {
        dy_add_places(p, s->pre * count, s->pre * s->len, 1);
    }
    if (s->post != 1) dy_add_places(p, s->post, s->post, s->pre * s->len);
}

static inline void dy_places_along(dy_places *p, const dy_dim *all, uint32_t axis, uint32_t kind, size_t count) {
    dy_split s;
    if (dy_is_further(p, count)) return;
    s = dy_split_at(all, axis);
    dy_places_in(p, &s, kind, count);
}

/* Places in the whole as one long vector. */
static inline void dy_places_in_vector(dy_places *p, size_t length, uint32_t kind, size_t count) {
    dy_split s = {1, length, 1};
    if (!dy_is_further(p, count)) dy_places_in(p, &s, kind, count);
}

/* Whole batch elements. */
static inline void dy_places_in_batch(dy_places *p, const dy_dim *all, uint32_t kind, size_t count) {
    dy_split s = {dy_size(all), all->bd, 1};
    p->batch = 1;
    dy_places_in(p, &s, kind, count);
}

static inline void dy_places_stepped(dy_places *p, const dy_dim *all, const dy_dim *part) {
    size_t stride = 1;
    p->kind = DY_STEPPED;
    for (uint32_t k = 0; k < part->nd; k++) {
        dy_add_places(p, part->d[k], all->d[k], stride);
        stride *= all->d[k];
    }
    if (!p->n) dy_add_places(p, 1, 1, 1);
}

/* All of the whole: axis k of the part is axis `order >> 3 k & 7`. */
static inline void dy_places_turned(dy_places *p, const dy_dim *all, const dy_dim *part, uint32_t order) {
    size_t strides[8], stride = 1;
    for (uint32_t k = 0; k < 7; k++) {
        strides[k] = stride;
        stride *= dy_axis(all, k);
    }
    strides[7] = stride;
    for (uint32_t k = 0; k < part->nd; k++) {
        size_t size = part->d[k], last = p->n - 1;
        stride = strides[order >> 3 * k & 7];
        if (size == 1) continue;
        if (p->n && stride == p->stride[last] * p->size[last]) p->extent[last] = p->size[last] *= size;
        else dy_add_places(p, size, size, stride);
    }
    if (!p->n) dy_add_places(p, 1, 1, 1);
}

/* ---- moves of a batch element ------------------------------------------------------------------- */

#define DY_TILE 16              /* rows and columns of a block that fits in the cache */
/* Up to so many indices per column, a plain loop is faster than a call of a kernel. */
#define DY_FEW 256
#define DY_MOVER static inline __attribute__((always_inline)) void

DY_MOVER dy_move_number(float *all, float *part, int back, int add) {
    if (back) *all = add ? *all + *part : *part;
    else *part = add ? *part + *all : *all;
}

/* Adjacent numbers. */
DY_MOVER dy_move_run(size_t n, float *all, float *part, int back, int add) {
    float *to = back ? all : part;
    const float *from = back ? part : all;
    if (n == 1) dy_move_number(all, part, back, add);
    else if (add) dy_index_kernels->add(n, from, to);
    else memcpy(to, from, n * sizeof(float));
}

/* The part has m x n numbers; in the whole, they are at i step + j stride. `back`: from the part to the whole. */
DY_MOVER dy_move_plane(size_t m, size_t n, ptrdiff_t step, ptrdiff_t stride, float *all, float *part, int back, int add) {
    if (step == 1 || m == 1) {
        for (size_t j = 0; j < n; j++, part += m, all += stride) dy_move_run(m, all, part, back, add);
    } else if (n == 1 || stride > step) {
        for (size_t j = 0; j < n; j++, part += m, all += stride)
            for (size_t i = 0; i < m; i++) dy_move_number(all + (ptrdiff_t)i * step, part + i, back, add);
    } else {
        for (size_t j0 = 0; j0 < n; j0 += DY_TILE)
            for (size_t i0 = 0; i0 < m; i0 += DY_TILE)
                for (size_t j = j0; j < n && j < j0 + DY_TILE; j++)
                    for (size_t i = i0; i < m && i < i0 + DY_TILE; i++)
                        dy_move_number(all + (ptrdiff_t)i * step + (ptrdiff_t)j * stride, part + i + j * m, back, add);
    }
}

DY_MOVER dy_move_axes(const dy_places *p, const ptrdiff_t *stride, float *all, float *part, int back, int add) {
    size_t at[DY_PLACE_AXES] = {0}, m = p->size[0], n = p->n > 1 ? p->size[1] : 1, planes = 1;
    for (uint32_t k = 2; k < p->n; k++) planes *= p->size[k];
    for (; planes; planes--) {
        dy_move_plane(m, n, stride[0], p->n > 1 ? stride[1] : 0, all, part, back, add);
        part += m * n;
        for (uint32_t k = 2; k < p->n; k++) {
            all += stride[k];
            if (++at[k] < p->size[k]) break;
            all -= stride[k] * (ptrdiff_t)p->size[k];
            at[k] = 0;
        }
    }
}

static void dy_read_listed(const dy_places *p, const uint32_t *items, const float *all, float *part, int add) {
    size_t count = p->count, pre = p->unit, post = p->n > p->axis + 1 ? p->size[p->axis + 1] : 1;
    for (; post; post--) {
        if (pre == 1 && count <= DY_FEW && !add)
            for (size_t k = 0; k < count; k++) part[k] = all[items[k]];
        else dy_index_kernels->take_rows(count, pre, items, all, part, add);
        all += pre * p->extent[p->axis];
        part += count * pre;
    }
}

static void dy_add_listed(const dy_places *p, const uint32_t *items, float *all, const float *part) {
    size_t count = p->count, pre = p->unit, len = p->extent[p->axis];
    size_t post = p->n > p->axis + 1 ? p->size[p->axis + 1] : 1;
    if (pre == 1 && count > DY_FEW) {
        dy_index_kernels->add_lines(post, count, len, items, part, all);
        return;
    }
    for (; post; post--) {
        if (pre == 1)
            for (size_t k = 0; k < count; k++) all[items[k]] += part[k];
        else dy_index_kernels->add_rows(count, pre, items, part, all);
        all += pre * len;
        part += count * pre;
    }
}

DY_MOVER dy_move_by_axes(const dy_places *p, const uint32_t *items, float *all, float *part, int back, int add) {
    ptrdiff_t stride[DY_PLACE_AXES];
    if (p->kind == DY_LISTED) {
        if (back) dy_add_listed(p, items, all, part);
        else dy_read_listed(p, items, all, part, add);
        return;
    }
    for (uint32_t k = 0; k < p->n; k++) {
        stride[k] = (ptrdiff_t)p->stride[k];
        if (p->kind == DY_STEPPED) {
            all += items[3 * k] * p->stride[k];
            stride[k] *= (int32_t)items[3 * k + 1];
        }
    }
    dy_move_axes(p, stride, all, part, back, add);
}

/* Batch elements from `b` up to `end`. Most places are one number, adjacent ones, or adjacent ones at a distance; what moves
 * others is a function of its own, so that these need few registers. */
DY_MOVER dy_move_elements(const dy_places *p, const uint32_t *items, const dy_tensor *all, const dy_tensor *part, uint32_t b,
                          uint32_t end, int back, int add,
                          void (*others)(const dy_places *p, const uint32_t *items, float *all, float *part)) {
    size_t m = p->size[0], unit = p->kind == DY_STARTS ? p->unit : 0, words = p->words;
    int adjacent = p->kind <= DY_STARTS && p->stride[0] == 1, one = adjacent && p->n == 1;
    items += b * words;
    for (; b < end; b++, items += words) {
        float *x = dy_element(all, b) + p->offset + (unit ? items[0] * unit : 0), *y = dy_element(part, b);
        if (one) dy_move_run(m, x, y, back, add);
        else if (adjacent && p->n == 2)
            for (size_t j = 0; j < p->size[1]; j++) dy_move_run(m, x + j * p->stride[1], y + j * m, back, add);
        else others(p, items, x, y);
    }
}

#define MOVER(name, back, add) \
    static __attribute__((noinline)) void dy_##name##_by_axes(const dy_places *p, const uint32_t *items, float *all, \
                                                              float *part) { \
        dy_move_by_axes(p, items, all, part, back, add); \
    } \
    static void dy_##name(const dy_places *p, const uint32_t *items, const dy_tensor *all, const dy_tensor *part, \
                          uint32_t b, uint32_t end) { \
        dy_move_elements(p, items, all, part, b, end, back, add, dy_##name##_by_axes); \
    }
MOVER(read, 0, 0)
MOVER(read_more, 0, 1)
MOVER(lay, 1, 0)
MOVER(lay_more, 1, 1)
#undef MOVER

/* ---- ops ------------------------------------------------------------------------------------- */

typedef void (*dy_places_of)(const dy_call *c, uint32_t i, dy_places *p);

static inline const dy_dim *dy_whole(const dy_call *c, int way) {
    return way == DY_INDEX_READS || way == DY_INDEX_TURNS ? &c->x[0].dim : &c->y.dim;
}

static inline size_t dy_index_items(const dy_call *c, int positions) {
    return positions ? dy_size(&c->x[1].dim) * c->y.dim.bd : 0;
}

static inline void dy_begin_places(dy_places *p, const dy_call *c, int positions) {
    p->n = p->axis = 0;
    p->kind = DY_PLAIN;
    p->words = positions ? (uint32_t)dy_size(&c->x[1].dim) : c->item_count;
    p->batch = c->y.dim.bd;
    p->offset = p->unit = p->count = 0;
}

static inline void dy_index_forward(const dy_call *c, int way, int positions, dy_places_of places) {
    const uint32_t *items = positions ? (uint32_t *)c->work : c->items;
    size_t before = 0;
    dy_places p;
    if (way == DY_INDEX_ADDS) memset(c->y.v, 0, dy_total(&c->y.dim) * sizeof(float));
    if (positions && !dy_index_find(c, dy_whole(c, way), (uint32_t *)c->work)) return;
    dy_begin_places(&p, c, positions);
    for (uint32_t k = 0; k < (way == DY_INDEX_LAYS ? c->n : 1); k++) {
        places(c, k, &p);
        p.offset = before * p.unit;
        before += p.count;
        if (way == DY_INDEX_LAYS) dy_lay(&p, items, &c->y, &c->x[k], 0, (uint32_t)p.batch);
        else if (way == DY_INDEX_ADDS) dy_lay_more(&p, items, &c->y, &c->x[0], 0, (uint32_t)p.batch);
        else dy_read(&p, items, &c->x[0], &c->y, 0, (uint32_t)p.batch);
    }
}

/* How many batch elements assign their gradient; the others add. */
static inline uint32_t dy_assigning(const dy_call *c, const dy_places *p) {
    return c->accumulate ? 0 : c->dx.dim.bd == 1 && c->dx.list == NULL ? 1 : (uint32_t)p->batch;
}

/* dx = (+=) the part of dy; with ADDS as a sum of terms if all batch elements share dx. */
static inline void dy_index_read_back(const dy_call *c, int way, const dy_places *p, const uint32_t *items, float *work) {
    uint32_t b = dy_assigning(c, p);
    int add;
    dy_tensor dx = c->dx;
    dy_terms t;
    if (way == DY_INDEX_LAYS || c->dx.dim.bd != 1 || c->dx.list != NULL) {
        if (b) dy_read(p, items, &c->dy, &c->dx, 0, b);
        if (b < p->batch) dy_read_more(p, items, &c->dy, &c->dx, b, (uint32_t)p->batch);
        return;
    }
    dy_terms_begin(&t, dy_size(&c->dx.dim), p->batch, work, c->dx.v, c->accumulate);
    for (b = 0; b < p->batch; b++) {
        dx.v = dy_terms_next(&t, &add);
        (add ? dy_read_more : dy_read)(p, items, &c->dy, &dx, b, b + 1);
    }
    dy_terms_end(&t);
}

static inline void dy_index_backward(const dy_call *c, uint32_t i, int way, int positions, dy_places_of places) {
    uint32_t *found = (uint32_t *)c->work, assigning;
    const uint32_t *items = positions ? found : c->items;
    dy_places p;
    if (positions && i) {                           /* none flows to an index */
        if (way == DY_INDEX_ADDS && !c->accumulate) memset(c->dx.v, 0, dy_total(&c->dx.dim) * sizeof(float));
        return;
    }
    dy_begin_places(&p, c, positions);
    places(c, i, &p);
    p.offset = c->before * p.unit;
    if (positions) dy_index_find(c, dy_whole(c, way), found);
    if (way == DY_INDEX_ADDS || way == DY_INDEX_LAYS) {
        dy_index_read_back(c, way, &p, items, c->work + dy_index_items(c, positions));
        return;
    }
    assigning = way == DY_INDEX_TURNS ? dy_assigning(c, &p) : 0;
    if (assigning) dy_lay(&p, items, &c->dx, &c->dy, 0, assigning);
    if (assigning < p.batch) dy_lay_more(&p, items, &c->dx, &c->dy, assigning, (uint32_t)p.batch);
}

static inline size_t dy_index_work(const dy_call *c, int i, int way, int positions) {
    int is_sum = way == DY_INDEX_ADDS && i == 0 && c->x[0].dim.bd == 1;
    size_t sums = is_sum ? dy_terms_work(dy_size(&c->x[0].dim), c->y.dim.bd) : 0;
    return i > 0 ? 0 : dy_index_items(c, positions) + sums;
}

#define INDEX(name, way, source, where) \
    static void dy_places_##name(const dy_call *c, uint32_t i, dy_places *p) { \
        const dy_dim *all = dy_whole(c, DY_INDEX_##way); \
        (void)all; \
        (void)i; \
        where; \
    } \
    static void dy_index_forward_##name(const dy_call *c) { \
        dy_index_forward(c, DY_INDEX_##way, DY_##source, dy_places_##name); \
    } \
    static void dy_index_backward_##name(const dy_call *c, uint32_t i) { \
        dy_index_backward(c, i, DY_INDEX_##way, DY_##source, dy_places_##name); \
    } \
    static size_t dy_index_work_##name(const dy_call *c, int i) { return dy_index_work(c, i, DY_INDEX_##way, DY_##source); } \
    static size_t dy_index_part_##name(const dy_call *c, uint32_t i) { \
        dy_places p; \
        dy_begin_places(&p, c, DY_##source); \
        dy_places_##name(c, i, &p); \
        return p.count; \
    }
#include "index.def"
#undef INDEX

/* A row of index.def. */
typedef struct {
    const char *name;
    int way, positions;
    dy_places_of places;
    void (*forward)(const dy_call *c);
    void (*backward)(const dy_call *c, uint32_t i);
    size_t (*work)(const dy_call *c, int i);
    size_t (*part)(const dy_call *c, uint32_t i);
} dy_index_row;

#define INDEX(name, way, source, where) \
    {#name, DY_INDEX_##way, DY_##source, dy_places_##name, dy_index_forward_##name, dy_index_backward_##name, \
     dy_index_work_##name, dy_index_part_##name},
static const dy_index_row dy_index_rows[] = {
#include "index.def"
};
#undef INDEX
enum { DY_INDEX_COUNT = sizeof dy_index_rows / sizeof *dy_index_rows };

#endif
