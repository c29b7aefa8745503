/* Elementwise functions of two arguments, with broadcasting: a forward and a backward
 * for each row of binary.def, over the kernels that the same row makes. */
#ifndef DYNET_CY_BINARY_H
#define DYNET_CY_BINARY_H

#include "kernels.h"
#include "ranges.h"
#include "tensor.h"
#include "terms.h"

static const dy_kernels *dy_binary_kernels;
static dy_in_ranges dy_binary_in_ranges;

/* Runs of a broadcast call: `inner` elements along which each argument
 * either advances by one element or stays at the same one, `outer` times. */
typedef struct {
    uint32_t nd;
    size_t size[DY_MAX_ND + 1], a[DY_MAX_ND + 1], b[DY_MAX_ND + 1];
} dy_runs;

/* Whether both arguments have the same shape: then nothing is broadcast, and the whole call is one run. */
static inline int dy_pairwise(const dy_call *c) {
    const dy_dim *a = &c->x[0].dim, *b = &c->x[1].dim;
    if (a->nd != b->nd || a->bd != b->bd)
        return 0;
    for (uint32_t i = 0; i < a->nd; i++)
        if (a->d[i] != b->d[i])
            return 0;
    return 1;
}

static void dy_runs_init(dy_runs *r, const dy_call *c) {
    size_t sa = 1, sb = 1;
    r->nd = 0;
    for (uint32_t k = 0; k <= c->y.dim.nd; k++) {
        int batch = k == c->y.dim.nd;
        size_t n = batch ? c->y.dim.bd : c->y.dim.d[k];
        size_t na = batch ? c->x[0].dim.bd : dy_axis(&c->x[0].dim, k);
        size_t nb = batch ? c->x[1].dim.bd : dy_axis(&c->x[1].dim, k);
        if (n == 1 && k)
            continue;
        size_t ma = na == 1 ? 0 : sa, mb = nb == 1 ? 0 : sb;
        sa *= na;
        sb *= nb;
        /* An axis that continues the one before it makes that one longer. */
        if (r->nd && (ma == 0) == (r->a[r->nd - 1] == 0) && (mb == 0) == (r->b[r->nd - 1] == 0)) {
            r->size[r->nd - 1] *= n;
            continue;
        }
        r->size[r->nd] = n;
        r->a[r->nd] = ma;
        r->b[r->nd] = mb;
        r->nd++;
    }
}

static size_t dy_runs_outer(const dy_runs *r) {
    size_t n = 1;
    for (uint32_t k = 1; k < r->nd; k++)
        n *= r->size[k];
    return n;
}

/* Offsets of run number `i` in a and b. */
static void dy_runs_at(const dy_runs *r, size_t i, size_t *a, size_t *b) {
    *a = *b = 0;
    for (uint32_t k = 1; k < r->nd; k++) {
        size_t rest = k + 1 < r->nd ? i / r->size[k] : 0; /* a division takes as long as a short run */
        *a += (i - rest * r->size[k]) * r->a[k];
        *b += (i - rest * r->size[k]) * r->b[k];
        i = rest;
    }
}

/* The same for y, whose axes have the strides `apart`. */
static void dy_runs_at_y(const dy_runs *r, size_t i, const size_t *apart, size_t *y) {
    *y = 0;
    for (uint32_t k = 1; k < r->nd; k++) {
        size_t rest = k + 1 < r->nd ? i / r->size[k] : 0;
        *y += (i - rest * r->size[k]) * apart[k];
        i = rest;
    }
}

/* Element by element, without broadcasting. */
typedef struct {
    const dy_call *c;
    dy_binary_fwd forward;
    dy_binary_bwd backward;
} dy_binary_job;

static void dy_binary_forward_range(void *job, size_t i, size_t end) {
    const dy_binary_job *j = job;
    const dy_call *c = j->c;
    j->forward(end - i, c->x[0].v + i, 1, c->x[1].v + i, 1, c->y.v + i);
}

static void dy_binary_backward_range(void *job, size_t i, size_t end) {
    const dy_binary_job *j = job;
    const dy_call *c = j->c;
    j->backward(end - i, c->x[0].v + i, 1, c->x[1].v + i, 1, c->y.v + i, c->dy.v + i, c->dx.v + i, c->accumulate);
}

static inline void dy_binary_run_pairwise(dy_binary_job *job, dy_range_run run) {
    size_t n = dy_total(&job->c->y.dim);
    if (n < DY_LEAST_DIVIDED) run(job, 0, n);
    else dy_binary_in_ranges(n, DY_RANGE_STEP, DY_ELEMENT_COST, run, job);
}

static void dy_binary_run(const dy_call *c, int which) {
    dy_runs r;
    if (dy_pairwise(c)) {
        dy_binary_job job = {c, dy_binary_kernels->binary_fwd[which], NULL};
        dy_binary_run_pairwise(&job, dy_binary_forward_range);
        return;
    }
    dy_runs_init(&r, c);
    size_t outer = dy_runs_outer(&r), n = r.size[0], a, b;
    for (size_t i = 0; i < outer; i++) {
        dy_runs_at(&r, i, &a, &b);
        dy_binary_kernels->binary_fwd[which](n, c->x[0].v + a, r.a[0] != 0, c->x[1].v + b,
                                             r.b[0] != 0, c->y.v + i * n);
    }
}

/* Elements of a gradient that are summed at once, so that their sums stay in the cache. */
#define DY_RUN_TILE 1024

/* The axes k >= 1 of r along which argument `arg` varies, or along which it is constant; and those of y. */
static void dy_runs_part(const dy_runs *r, uint32_t arg, int varies, dy_runs *part, size_t *y) {
    size_t at = r->size[0];
    part->nd = 1;
    for (uint32_t k = 1; k < r->nd; at *= r->size[k++])
        if (((arg ? r->b[k] : r->a[k]) != 0) == varies) {
            part->size[part->nd] = r->size[k];
            part->a[part->nd] = r->a[k];
            part->b[part->nd] = r->b[k];
            y[part->nd++] = at;
        }
}

/* The gradient of an argument that is broadcast along long axes: each element is a sum of its own. */
static void dy_binary_sum_backward(const dy_call *c, uint32_t arg, dy_binary_bwd run, const dy_runs *r) {
    dy_runs kept, summed;
    size_t y_kept[DY_MAX_ND + 1], y_summed[DY_MAX_ND + 1];
    float work[3 * DY_RUN_TILE + 2];
    dy_runs_part(r, arg, 1, &kept, y_kept);
    dy_runs_part(r, arg, 0, &summed, y_summed);
    size_t n = r->size[0], sa = r->a[0] != 0, sb = r->b[0] != 0, s = arg ? sb : sa;
    size_t places = dy_runs_outer(&kept), terms = dy_runs_outer(&summed), step = s ? DY_RUN_TILE : n;
    for (size_t p = 0; p < places; p++)
        for (size_t from = 0; from < n; from += step) {
            size_t a0, b0, y0, length = n - from < step ? n - from : step;
            dy_terms sum;
            dy_runs_at(&kept, p, &a0, &b0);
            dy_runs_at_y(&kept, p, y_kept, &y0);
            dy_terms_begin(&sum, s ? length : 1, terms, work, c->dx.v + (arg ? b0 : a0) + s * from, c->accumulate);
            for (size_t i = 0; i < terms; i++) {
                size_t a, b, y;
                int add;
                dy_runs_at(&summed, i, &a, &b);
                dy_runs_at_y(&summed, i, y_summed, &y);
                y += y0 + from;
                float *to = dy_terms_next(&sum, &add);
                run(length, c->x[0].v + a0 + a + sa * from, (int)sa, c->x[1].v + b0 + b + sb * from, (int)sb, c->y.v + y,
                    c->dy.v + y, to, add);
            }
            dy_terms_end(&sum);
        }
}

static void dy_binary_run_backward(const dy_call *c, uint32_t arg, int which) {
    dy_runs r;
    dy_binary_bwd run = arg ? dy_binary_kernels->binary_bwd_b[which]
                            : dy_binary_kernels->binary_bwd_a[which];
    if (dy_pairwise(c)) {
        dy_binary_job job = {c, NULL, run};
        dy_binary_run_pairwise(&job, dy_binary_backward_range);
        return;
    }
    dy_runs_init(&r, c);
    size_t outer = dy_runs_outer(&r), n = r.size[0], a, b;
    /* Runs that return to the same elements must add to them. */
    size_t terms = 1;
    for (uint32_t k = 1; k < r.nd; k++)
        if ((arg ? r.b[k] : r.a[k]) == 0) terms *= r.size[k];
    if (terms > DY_TERMS) {
        dy_binary_sum_backward(c, arg, run, &r);
        return;
    }
    int add = c->accumulate;
    if (!add && terms > 1) {
        dy_binary_kernels->fill(dy_total(&c->dx.dim), 0.f, c->dx.v);
        add = 1;
    }
    for (size_t i = 0; i < outer; i++) {
        dy_runs_at(&r, i, &a, &b);
        run(n, c->x[0].v + a, r.a[0] != 0, c->x[1].v + b, r.b[0] != 0, c->y.v + i * n,
            c->dy.v + i * n, c->dx.v + (arg ? b : a), add);
    }
}

#define BINARY_PART(...)
#define BINARY(name, value, slope_a, slope_b) \
    static void dy_forward_##name(const dy_call *c) { \
        dy_binary_run(c, DY_BINARY_##name); \
    } \
    static void dy_backward_##name(const dy_call *c, uint32_t i) { \
        dy_binary_run_backward(c, i, DY_BINARY_##name); \
    }
#include "binary.def"
#undef BINARY

/* By number of the row; NULL for rows that are not ops. */
#define BINARY_PART(...) NULL,
#define BINARY(name, value, slope_a, slope_b) dy_forward_##name,
static void (*const dy_binary_forward[])(const dy_call *) = {
#include "binary.def"
};
#undef BINARY
#define BINARY_PART(...) NULL,
#define BINARY(name, value, slope_a, slope_b) dy_backward_##name,
static void (*const dy_binary_backward[])(const dy_call *, uint32_t) = {
#include "binary.def"
};
#undef BINARY
#define BINARY_PART(...) NULL,
#define BINARY(name, value, slope_a, slope_b) #name,
static const char *const dy_binary_op_names[] = {
#include "binary.def"
};
#undef BINARY
#define BINARY_PART(...) NULL,
#define BINARY(name, value, slope_a, slope_b) #slope_a " " #slope_b,
static const char *const dy_binary_slopes[] = {
#include "binary.def"
};
#undef BINARY

#endif
