/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of ops that are rows of line.def: a forward and a backward for each, over the kernels that the same row
 * makes. The lines are those along attribute 0. */
#ifndef DYNET_CY_LINE_H
#define DYNET_CY_LINE_H

#include <math.h>

#include "axes.h"
#include "collisions.h"
#include "kernels.h"

static const dy_kernels *dy_line_kernels;

enum { DY_LINE_PAIRS, DY_LINE_NUMBERS, DY_LINE_AGAIN };

/* x has as many batch elements as y, or one, which all `uses` of it share. */
#define LINE(row, result, forward, backward)                                   \
    static void dy_line_forward_##row(const dy_call *c) {                      \
        dy_split s = dy_split_at(&c->x[0].dim, c->attrs[0].u);                 \
        size_t lines = s.pre * s.post * c->x[0].dim.bd, uses = c->y.dim.bd / c->x[0].dim.bd, u, i; \
        int pairs = DY_LINE_##result == DY_LINE_PAIRS;                         \
        float *y = pairs ? c->saved : c->y.v;                                  \
        for (u = 0; u < uses; u++, y += lines * (pairs ? 2 : s.len))           \
            dy_line_kernels->row(s.len, s.pre, lines, c->x[0].v, y, c->work);  \
        for (i = 0; i < (pairs ? lines * uses : 0); i++) c->y.v[i] = c->saved[2 * i] + logf(c->saved[2 * i + 1]); \
    }                                                                          \
    static void dy_line_backward_##row(const dy_call *c, uint32_t i) {         \
        dy_split s = dy_split_at(&c->x[0].dim, c->attrs[0].u);                 \
        size_t lines = s.pre * s.post * c->x[0].dim.bd, uses = c->y.dim.bd / c->x[0].dim.bd, u; \
        int pairs = DY_LINE_##result == DY_LINE_PAIRS;                         \
        const float *y = pairs ? c->saved : c->y.v, *dy = c->dy.v;             \
        (void)i;                                                               \
        for (u = 0; u < uses; u++, y += lines * (pairs ? 2 : s.len), dy += lines * (pairs ? 1 : s.len)) \
            dy_line_kernels->row##_bwd(s.len, s.pre, lines, c->x[0].v, y, dy, c->dx.v, c->work, c->accumulate || u); \
    }
#include "line.def"
#undef LINE

/* What the kernels need across lines: the elements of a vector of lines, and three copies of them if they collide. */
static size_t dy_line_work(const dy_call *c, int i) {
    dy_split s = dy_split_at(&c->x[0].dim, c->attrs[0].u);
    (void)i;
    return s.pre > 1 ? (dy_lines_collide(s.len, s.pre) ? 4 : 1) * s.len * (s.pre < 16 ? s.pre : 16) : 0;
}

/* A row of line.def. */
typedef struct {
    const char *name;
    int result;
    void (*forward)(const dy_call *c);
    void (*backward)(const dy_call *c, uint32_t i);
} dy_line_row;

#define LINE(row, result, forward, backward) \
    {#row, DY_LINE_##result, dy_line_forward_##row, dy_line_backward_##row},
static const dy_line_row dy_line_rows[] = {
#include "line.def"
};
#undef LINE

#endif
