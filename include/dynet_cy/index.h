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

/* A row's functions become one function without tests of what the row says, as if it were written by hand. */
#define DY_INLINE static inline __attribute__((always_inline))

static const dy_kernels *dy_index_kernels;
/* Writes the positions of argument 1 as items; 0 if one of them is refused. */
static int (*dy_index_find)(const dy_call *c, const dy_dim *all, uint32_t *items);

/* ---- places ------------------------------------------------------------------------------ */

DY_INLINE void dy_places_in(dy_places *p, size_t pre, size_t len, size_t post, uint32_t kind) {
    p->kind = kind;
    p->pre = pre;
    p->len = len;
    p->post = post;
}

/* Places along the middle one of three axes of the whole. */
DY_INLINE void dy_places_along(dy_places *p, const dy_dim *all, uint32_t axis, uint32_t kind) {
    dy_split s = dy_split_at(all, axis);
    dy_places_in(p, s.pre, s.len, s.post, kind);
}

/* Whole batch elements. */
DY_INLINE void dy_places_in_batch(dy_places *p, const dy_dim *all, uint32_t kind) {
    p->batch = 1;
    dy_places_in(p, dy_size(all), all->bd, 1, kind);
}

/* Attribute 0 is the axis, attribute 1 says how positions are meant; those of each element are in the whole as one vector. */
DY_INLINE void dy_places_at_positions(dy_places *p, const dy_dim *all, const dy_call *c) {
    if (c->attrs[1].u == DY_OWN_POSITIONS) dy_places_in(p, 1, dy_size(all), 1, DY_LISTED);
    else dy_places_along(p, all, c->attrs[0].u, DY_LISTED);
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
    p->kind = DY_TURNED;
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
/* For up to so many indices per column, or longer runs, a plain loop is faster than a call of a kernel. */
#define DY_FEW 256

/* `back`: from the part to the whole. */
DY_INLINE void dy_move_number(float *all, float *part, int back, int add) {
    if (back) *all = add ? *all + *part : *part;
    else *part = add ? *part + *all : *all;
}

/* Adjacent numbers. */
DY_INLINE void dy_move_run(size_t n, float *all, float *part, int back, int add) {
    float *to = back ? all : part;
    const float *from = back ? part : all;
    if (add) dy_index_kernels->add(n, from, to);
    else memcpy(to, from, n * sizeof(float));
}

/* The part has m x n numbers; in the whole, they are at i step + j stride. */
DY_INLINE void dy_move_plane(size_t m, size_t n, ptrdiff_t step, ptrdiff_t stride, float *all, float *part, int back, int add) {
    if (m == 1) {
        for (size_t j = 0; j < n; j++) dy_move_number(all + (ptrdiff_t)j * stride, part + j, back, add);
    } else if (step == 1 && n == 1) {
        dy_move_run(m, all, part, back, add);           /* most are one run: a loop would take more registers */
    } else if (step == 1) {
        for (size_t j = 0; j < n; j++, part += m, all += stride) dy_move_run(m, all, part, back, add);
    } else if (n == 1 || stride > step) {
        for (size_t j = 0; j < n; j++, part += m, all += stride)
            for (size_t i = 0; i < m; i++) dy_move_number(all + (ptrdiff_t)i * step, part + i, back, add);
    } else {
        for (size_t j0 = 0; j0 < n; j0 += DY_TILE)
            for (size_t i0 = 0; i0 < m; i0 += DY_TILE) {
                size_t i1 = m - i0 < DY_TILE ? m : i0 + DY_TILE, j1 = n - j0 < DY_TILE ? n : j0 + DY_TILE;
                for (size_t a = back ? i0 : j0; a < (back ? i1 : j1); a++)      /* writes go to adjacent numbers */
                    for (size_t b = back ? j0 : i0; b < (back ? j1 : i1); b++) {
                        size_t i = back ? a : b, j = back ? b : a;
                        dy_move_number(all + (ptrdiff_t)i * step + (ptrdiff_t)j * stride, part + i + j * m, back, add);
                    }
            }
    }
}

DY_INLINE void dy_move_axes(const dy_places *p, const uint32_t *items, float *all, float *part, int back, int add) {
    size_t at[DY_PLACE_AXES] = {0}, m = p->size[0], n = p->n > 1 ? p->size[1] : 1, planes = 1;
    ptrdiff_t stride[DY_PLACE_AXES];
    for (uint32_t k = 0; k < p->n; k++) {
        stride[k] = (ptrdiff_t)p->stride[k];
        if (p->kind == DY_STEPPED) {
            all += items[3 * k] * p->stride[k];
            stride[k] *= (int32_t)items[3 * k + 1];
        }
        if (k > 1) planes *= p->size[k];
    }
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

static __attribute__((noinline)) void dy_move_by_axes(const dy_places *p, const uint32_t *items, float *all, float *part,
                                                      int back, int add) {
    if (!back) dy_move_axes(p, items, all, part, 0, 0);             /* no row adds to such a part */
    else if (add) dy_move_axes(p, items, all, part, 1, 1);
    else dy_move_axes(p, items, all, part, 1, 0);
}

static void dy_read_listed(dy_split s, size_t count, const uint32_t *items, const float *all, float *part, int add) {
    for (; s.post; s.post--, all += s.pre * s.len, part += count * s.pre)
        if (s.pre == 1 && count <= DY_FEW && !add)
            for (size_t k = 0; k < count; k++) part[k] = all[items[k]];
        else if (s.pre > DY_FEW && !add)
            for (size_t k = 0; k < count; k++) memcpy(part + k * s.pre, all + items[k] * s.pre, s.pre * sizeof(float));
        else dy_index_kernels->take_rows(count, s.pre, items, all, part, add);
}

static void dy_add_listed(dy_split s, size_t count, const uint32_t *items, float *all, const float *part) {
    if (s.pre == 1 && count > DY_FEW) {
        dy_index_kernels->add_lines(s.post, count, s.len, items, part, all);
        return;
    }
    for (; s.post; s.post--, all += s.pre * s.len, part += count * s.pre)
        if (s.pre == 1)
            for (size_t k = 0; k < count; k++) all[items[k]] += part[k];
        else dy_index_kernels->add_rows(count, s.pre, items, part, all);
}

DY_INLINE void dy_move(const dy_places *p, const uint32_t *items, float *all, float *part, int back, int add) {
    dy_split s = {p->pre, p->len, p->post};
    size_t m = s.pre * p->count, column = s.pre * s.len;
    if (p->kind >= DY_TURNED) {
        dy_move_by_axes(p, items, all, part, back, add);
    } else if (p->kind == DY_LISTED && p->count != 1) {
        if (back) dy_add_listed(s, p->count, items, all, part);
        else dy_read_listed(s, p->count, items, all, part, add);
    } else {
        all += p->offset + (p->kind == DY_PLAIN ? 0 : items[0] * s.pre);
        dy_move_plane(m, s.post, 1, (ptrdiff_t)column, all, part, back, add);
    }
}

/* ---- ops ------------------------------------------------------------------------------------- */

/* The places, of argument 0 or of what all arguments are in; and how many of them argument i has. */
typedef void (*dy_places_of)(const dy_call *c, dy_places *p);
typedef size_t (*dy_part_of)(const dy_call *c, uint32_t i);

DY_INLINE int dy_index_reads(int way) { return way == DY_INDEX_READS || way == DY_INDEX_TURNS; }

DY_INLINE const dy_dim *dy_whole(const dy_call *c, int way) { return dy_index_reads(way) ? &c->x[0].dim : &c->y.dim; }

DY_INLINE size_t dy_index_items(const dy_call *c, int positions) {
    return positions ? dy_size(&c->x[1].dim) * c->y.dim.bd : 0;
}

DY_INLINE void dy_begin_places(dy_places *p, const dy_call *c, int positions) {
    p->n = p->axis = 0;
    p->words = positions ? (uint32_t)dy_size(&c->x[1].dim) : c->item_count;
    p->batch = c->y.dim.bd;
    p->offset = p->pre = p->len = p->post = 0;
}

DY_INLINE void dy_index_forward(const dy_call *c, int way, int positions, dy_places_of places, dy_part_of part) {
    const uint32_t *items = positions ? (uint32_t *)c->work : c->items;
    const size_t step = c->y.bstride;
    dy_places p;
    if (way == DY_INDEX_ADDS) memset(c->y.v, 0, dy_total(&c->y.dim) * sizeof(float));
    if (positions && !dy_index_find(c, dy_whole(c, way), (uint32_t *)c->work)) return;
    dy_begin_places(&p, c, positions);
    places(c, &p);
    for (uint32_t k = 0; k < (way == DY_INDEX_LAYS ? c->n : 1); k++) {
        const dy_tensor x = c->x[k];
        const uint32_t *own = items;
        float *y = c->y.v;
        p.count = part(c, k);
        for (uint32_t b = 0; b < p.batch; b++, own += p.words, y += step)
            if (dy_index_reads(way)) dy_move(&p, own, dy_element(&x, b), y, 0, 0);
            else dy_move(&p, own, y, dy_element(&x, b), 1, way == DY_INDEX_ADDS);
        p.offset += p.count * p.pre;
    }
}

DY_INLINE void dy_index_backward(const dy_call *c, uint32_t i, int way, int positions, dy_places_of places, dy_part_of part) {
    uint32_t *found = (uint32_t *)c->work;
    const uint32_t *items = positions ? found : c->items;
    int shared = c->dx.dim.bd == 1 && c->dx.list == NULL, is_sum = way == DY_INDEX_ADDS && shared;
    const dy_tensor to = c->dx;
    const size_t step = c->dy.bstride;
    float *dy = c->dy.v;
    dy_places p;
    dy_terms t;
    if (positions && i) {                           /* none flows to an index */
        if (way == DY_INDEX_ADDS && !c->accumulate) memset(c->dx.v, 0, dy_total(&c->dx.dim) * sizeof(float));
        return;
    }
    if (positions) dy_index_find(c, dy_whole(c, way), found);
    dy_begin_places(&p, c, positions);
    places(c, &p);
    p.count = part(c, i);
    p.offset = c->before * p.pre;
    if (way == DY_INDEX_ADDS)
        dy_terms_begin(&t, dy_size(&c->dx.dim), is_sum ? p.batch : 0, c->work + dy_index_items(c, positions), c->dx.v,
                       c->accumulate);
    for (uint32_t b = 0; b < p.batch; b++, items += p.words, dy += step) {
        int add = way == DY_INDEX_READS || c->accumulate || (shared && b);
        float *dx = is_sum ? dy_terms_next(&t, &add) : dy_element(&to, b);
        if (dy_index_reads(way)) dy_move(&p, items, dx, dy, 1, add);
        else dy_move(&p, items, dy, dx, 0, add);
    }
    if (way == DY_INDEX_ADDS) dy_terms_end(&t);
}

DY_INLINE size_t dy_index_work(const dy_call *c, int i, int way, int positions) {
    int is_sum = way == DY_INDEX_ADDS && i == 0 && c->x[0].dim.bd == 1;
    size_t sums = is_sum ? dy_terms_work(dy_size(&c->x[0].dim), c->y.dim.bd) : 0;
    return i > 0 ? 0 : dy_index_items(c, positions) + sums;
}

#define INDEX(name, way, source, where, many) \
    DY_INLINE void dy_places_##name(const dy_call *c, dy_places *p) { \
        const dy_dim *all = dy_whole(c, DY_INDEX_##way); \
        where; \
    } \
    DY_INLINE size_t dy_part_##name(const dy_call *c, uint32_t i) { return (void)c, (void)i, many; } \
    static void dy_index_forward_##name(const dy_call *c) { \
        dy_index_forward(c, DY_INDEX_##way, DY_##source, dy_places_##name, dy_part_##name); \
    } \
    static void dy_index_backward_##name(const dy_call *c, uint32_t i) { \
        dy_index_backward(c, i, DY_INDEX_##way, DY_##source, dy_places_##name, dy_part_##name); \
    } \
    static size_t dy_index_work_##name(const dy_call *c, int i) { return dy_index_work(c, i, DY_INDEX_##way, DY_##source); } \
    static size_t dy_index_part_##name(const dy_call *c, uint32_t i) { return dy_part_##name(c, i); } \
    static void dy_index_places_##name(const dy_call *c, uint32_t i, dy_places *p) { \
        dy_begin_places(p, c, DY_##source); \
        dy_places_##name(c, p); \
        p->count = dy_part_##name(c, i); \
        p->offset = c->before * p->pre; \
        dy_places_as_axes(p); \
    }
#include "index.def"
#undef INDEX

/* A row of index.def. */
typedef struct {
    const char *name;
    int way, positions;
    void (*places)(const dy_call *c, uint32_t i, dy_places *p);     /* as axes, for GPUs */
    void (*forward)(const dy_call *c);
    void (*backward)(const dy_call *c, uint32_t i);
    size_t (*work)(const dy_call *c, int i);
    size_t (*part)(const dy_call *c, uint32_t i);
} dy_index_row;

#define INDEX(name, way, source, where, many) \
    {#name, DY_INDEX_##way, DY_##source, dy_index_places_##name, dy_index_forward_##name, dy_index_backward_##name, \
     dy_index_work_##name, dy_index_part_##name},
static const dy_index_row dy_index_rows[] = {
#include "index.def"
};
#undef INDEX
enum { DY_INDEX_COUNT = sizeof dy_index_rows / sizeof *dy_index_rows };

#endif
