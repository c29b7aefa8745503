/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients that are sums over many batch elements. Rounding errors grow with the number of terms of a running sum, so
 * 128 terms at a time are added in single precision, and their sums in double precision. */
#ifndef DYNET_CY_TERMS_H
#define DYNET_CY_TERMS_H

#include <stddef.h>

#define DY_TERMS 128

typedef struct {
    size_t n, count;  /* elements; terms so far */
    float *dx, *part; /* the destination of the sum; the sum of the terms not added to `total` yet, or NULL */
    double *total;
    int acc;
} dy_terms;

/* Floats of working memory for a sum of that many terms of n elements. */
static inline size_t dy_terms_work(size_t n, size_t terms) { return terms > DY_TERMS ? 3 * n + 2 : 0; }

/* dx = the sum, or dx += the sum if `acc`. Few terms go straight to dx. `work` must be aligned as a float. */
static inline void dy_terms_begin(dy_terms *t, size_t n, size_t terms, float *work, float *dx, int acc) {
    t->n = n;
    t->count = 0;
    t->dx = dx;
    t->acc = acc;
    t->part = NULL;
    t->total = NULL;
    if (terms > DY_TERMS) {
        t->total = (double *)(((size_t)work + sizeof(double) - 1) / sizeof(double) * sizeof(double));
        t->part = (float *)(t->total + n);
        for (size_t j = 0; j < n; j++) t->total[j] = 0;
    }
}

static inline void dy_terms_collect(dy_terms *t) {
    for (size_t j = 0; j < t->n; j++) t->total[j] += t->part[j];
}

/* The destination of the next term; `*add` tells whether to add or assign it. */
static inline float *dy_terms_next(dy_terms *t, int *add) {
    size_t k = t->count++;
    if (!t->part) {
        *add = t->acc || k;
        return t->dx;
    }
    *add = k % DY_TERMS != 0;
    if (k && !*add) dy_terms_collect(t);
    return t->part;
}

static inline void dy_terms_end(dy_terms *t) {
    if (!t->part) return;
    dy_terms_collect(t);
    for (size_t j = 0; j < t->n; j++) t->dx[j] = (t->acc ? t->dx[j] : 0) + (float)t->total[j];
}

#endif
