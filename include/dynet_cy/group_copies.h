/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies in the launch of a group of products: those of what the products compute, or of what they read. Such copies make
 * the input of a cell of several vectors, and divide its gradient. */
#ifndef DYNET_CY_GROUP_COPIES_H
#define DYNET_CY_GROUP_COPIES_H

#include "gpu.h"
#include "gpu_group.h"
#include "gpu_move.h"

#define DY_MOST_MEMBERS (DY_GROUP_WORDS * 8 / sizeof(dy_group_product))

/* The members of a group: products, and copies of m numbers, whose b is NULL. */
typedef struct {
    dy_group_product p[DY_MOST_MEMBERS];
    size_t n;
    size_t longest;             /* of the copies */
} dy_members;

static inline size_t dy_extent(uint32_t rows, uint32_t columns, uint32_t ld) {
    return rows && columns ? (size_t)ld * (columns - 1) + rows : 0;
}

static inline size_t dy_extent_of_a(const dy_group_product *p) {
    return p->b == NULL ? p->m : p->ta ? dy_extent(p->k, p->m, p->lda) : dy_extent(p->m, p->k, p->lda);
}

static inline size_t dy_extent_of_b(const dy_group_product *p) {
    return p->b == NULL ? 0 : p->tb ? dy_extent(p->n, p->k, p->ldb) : dy_extent(p->k, p->n, p->ldb);
}

static inline int dy_member_writes(const dy_group_product *p, const float *x, size_t n) {
    return dy_share(p->c, dy_extent(p->m, p->n, p->ldc), x, n) || (p->also && dy_share(p->also, (size_t)p->m * p->n, x, n));
}

static inline int dy_member_reads(const dy_group_product *p, const float *x, size_t n) {
    return dy_share(p->a, dy_extent_of_a(p), x, n) || (p->b && dy_share(p->b, dy_extent_of_b(p), x, n));
}

static inline int dy_is_copy(const dy_move *m) {
    return m->source && !m->acc && !m->follower && !m->next && !m->period && m->scale == 1 && !(m->n >> 31);
}

static inline int dy_add_copy(dy_members *g, const dy_move *m) {
    if (g->n == DY_MOST_MEMBERS)
        return 0;
    g->p[g->n++] = (dy_group_product){.a = m->source, .c = m->to, .m = (uint32_t)m->n, .n = 1, .lda = (uint32_t)m->n,
                                      .ldc = (uint32_t)m->n, .alpha = 1};
    g->longest = g->longest > m->n ? g->longest : m->n;
    return 1;
}

/* Let the members make copies that run after them. A member whose whole result is copied writes it twice. Returns 0, and
 * the members are of no use any more, if that is not possible. */
static inline int dy_copy_after(dy_members *g, const dy_move *moves, size_t count) {
    size_t n = g->n;
    for (const dy_move *m = moves; m < moves + count; m++) {
        int made = 0;
        if (!dy_is_copy(m))
            return 0;
        for (dy_group_product *p = g->p; p < g->p + n; p++) {
            if (dy_member_writes(p, m->to, m->n) || dy_member_reads(p, m->to, m->n))
                return 0;
            if (!dy_member_writes(p, m->source, m->n))
                continue;
            if (p->also || m->source != p->c || p->ldc != p->m || m->n != (size_t)p->m * p->n)
                return 0;
            p->also = m->to;
            made = 1;
        }
        if (!made && !dy_add_copy(g, m))
            return 0;
    }
    return 1;
}

/* Where a member finds n numbers that copies would have brought to x; NULL: a copy would bring only a part of them. */
static inline const float *dy_source_of(const dy_move *moves, size_t count, const float *x, size_t n) {
    for (const dy_move *m = moves; m < moves + count; m++)
        if (dy_share(x, n, m->to, m->n))
            return x >= m->to && x + n <= m->to + m->n ? m->source + (x - m->to) : NULL;
    return x;
}

/* Let the members make copies that run before them: they read from where the copies do. Otherwise as above. */
static inline int dy_copy_before(dy_members *g, const dy_move *moves, size_t count) {
    size_t n = g->n;
    for (dy_group_product *p = g->p; p < g->p + n; p++) {
        const float *a = dy_source_of(moves, count, p->a, dy_extent_of_a(p));
        const float *b = p->b ? dy_source_of(moves, count, p->b, dy_extent_of_b(p)) : NULL;
        for (const dy_move *m = moves; m < moves + count; m++)
            if (!dy_is_copy(m) || dy_member_writes(p, m->to, m->n) || dy_member_writes(p, m->source, m->n))
                return 0;
        if (a == NULL || (b == NULL && p->b))
            return 0;
        p->a = a;
        p->b = b;
    }
    for (size_t k = 0; k < count; k++)
        if (!dy_add_copy(g, &moves[k]))
            return 0;
    return 1;
}

#endif
