/* SPDX-License-Identifier: Apache-2.0
 *
 * Deferred updates of the rows of a lookup table, and the single step that combines them. For CPU and GPU;
 * kernels/lazy_rows.pxd explains the method. */
#ifndef DYNET_CY_LAZY_H
#define DYNET_CY_LAZY_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu_size.h"
#include "optim.h"

#ifdef __CUDACC__
#define DY_LAZY __host__ __device__ static inline
#else
#define DY_LAZY static inline
#endif

enum { DY_MOST_DEFERRED = 512 };

/* A table on a GPU has two such records: that of the host lists the updates that were requested, and that of the
 * device, `there`, those of them that were made. */
typedef struct dy_lazy {
    uint32_t n;                 /* number of these updates */
    int rule;                   /* the trainer's rule, constants and state */
    float b1, b2, eps;
    uint8_t each;               /* updates cannot be combined: each is a term of its own */
    uint8_t shared;             /* the states are in memory that several processes share: only updates of all change them */
    uint8_t read;               /* the values of all rows are up to date, and shared states are not */
    uint8_t moving;             /* an update of all processes is changing the states */
    const struct dy_arena *states[3];
    float *rows[3];             /* on a device: the states of the table */
    uint32_t *had;              /* for each row, how many of the updates it has had */
    struct dy_lazy *there;      /* of the host: the one on the device, in its own memory */
    void *memory;
    void (*close)(struct dy_lazy *lazy);
    double weights[DY_MOST_DEFERRED];
    float rates[DY_MOST_DEFERRED];          /* learning rates */
    float eps_scales[DY_MOST_DEFERRED];     /* see dy_optim */
    /* of the updates from one on: sums of weight / eps_scale b1^j (fade / eps_scale)^k, j = 1, 2, ... */
    double moments[DY_MOST_DEFERRED + 1][4];
    double kept[DY_MOST_DEFERRED + 1];      /* what weight decay leaves of a value in the updates from one on */
    double fades[DY_MOST_DEFERRED + 1];     /* powers of the root of b2, */
    double b1_powers[DY_MOST_DEFERRED + 1];  /* and of b1 */
} dy_lazy;
DY_SIZE(dy_lazy, 104 + 16 * DY_MOST_DEFERRED + 56 * (DY_MOST_DEFERRED + 1));

DY_LAZY int dy_kind_of_rule(int rule) {
    switch (rule) {
#define OPTIM(name, states, formula, kind, idle) \
    case DY_OPTIM_##name: \
        return kind;
#include "optim.def"
#undef OPTIM
    }
    return DY_STILL;
}

/* If q is the ratio of the rates at which divisor and step decay, two terms have a relative error of 4 q^4: the remainder
 * of Gauss-Laguerre quadrature. With a larger ratio than this one, each update is a term. */
#define DY_MOST_FADING 0.01
/* A step that has decayed to less than this share of the first one is negligible: 2^-40. */
#define DY_LEAST_STEP 9.094947017729282e-13

/* Start without deferred updates. */
DY_LAZY void dy_lazy_begin(dy_lazy *lazy, int rule, float b1, float b2, float eps) {
    lazy->n = 0;
    lazy->rule = rule;
    lazy->b1 = b1;
    lazy->b2 = b2;
    lazy->eps = eps;
    lazy->fades[0] = lazy->b1_powers[0] = 1;
    lazy->fades[1] = sqrt((double)b2);
    lazy->b1_powers[1] = b1;
    for (uint32_t j = 2; j <= DY_MOST_DEFERRED; j++) {
        lazy->fades[j] = lazy->fades[j - 1] * lazy->fades[1];
        lazy->b1_powers[j] = lazy->b1_powers[j - 1] * b1;
    }
    lazy->each = 1 - lazy->fades[1] > DY_MOST_FADING * (1 - lazy->b1_powers[1]);
}

/* The weight of an update; see dy_idle. */
DY_LAZY double dy_lazy_weight(int rule, float lr, float step_scale) {
    int kind = dy_kind_of_rule(rule);
    return kind == DY_STEADY || kind == DY_REPLAYED ? (double)step_scale : (double)step_scale * lr;
}

/* The factor to which the divisor of a rule has decayed after j updates. */
DY_LAZY double dy_lazy_fade(const dy_lazy *lazy, uint32_t j) {
    return dy_kind_of_rule(lazy->rule) == DY_FADING ? lazy->fades[j] : 1;
}

/* Add an update of this weight to what rows that have had s updates are missing, for s = 0, ..., late->n. Call
 * `dy_lazy_added` afterwards. `kept` is what weight decay leaves of all values after the step. */
DY_LAZY void dy_lazy_add(dy_lazy *lazy, uint32_t s, double weight, double eps_scale, double kept) {
    uint32_t n = lazy->n, j = n - s + 1;
    double term = weight / eps_scale * lazy->b1_powers[j], fade = dy_lazy_fade(lazy, j) / eps_scale;
    for (int k = 0; k < 4; k++) {
        lazy->moments[s][k] = (s == n ? 0 : kept * lazy->moments[s][k]) + term;
        term *= fade;
    }
    lazy->kept[s] = s == n ? kept : kept * lazy->kept[s];
    lazy->weights[s] = s == n ? weight : kept * lazy->weights[s];
}

DY_LAZY void dy_lazy_added(dy_lazy *lazy, float lr, float eps_scale) {
    /* How fast the divisors of terms shrink because of eps_scale^2 = 1 - b2^t. */
    double squared = (double)eps_scale * eps_scale, growth = (1 - squared) * (1 - lazy->b2) / (2 * squared);
    lazy->rates[lazy->n] = lr;
    lazy->eps_scales[lazy->n] = eps_scale;
    if (!(lazy->weights[lazy->n] >= 0)) lazy->each = 1;
    if (growth + 1 - lazy->fades[1] > DY_MOST_FADING * (1 - lazy->b1_powers[1])) lazy->each = 1;
    lazy->n++;
}

/* The terms with these moments: the nodes are the roots of the orthogonal polynomial of degree 2. Returns their number. */
DY_LAZY uint32_t dy_lazy_two_terms(const double *moments, float *weights, float *fades) {
    double total = moments[0], mean, variance, skew, middle, half;
    if (total == 0) return 0;
    mean = moments[1] / total;
    variance = moments[2] / total - mean * mean;
    weights[0] = (float)total;
    fades[0] = (float)mean;
    if (!(variance > 1e-13)) return 1; /* one update, or the others are negligible */
    skew = moments[3] / total - 3 * mean * variance - mean * mean * mean;
    middle = skew / (2 * variance);
    half = sqrt(middle * middle + variance);
    fades[0] = (float)(mean + middle - half);
    fades[1] = (float)(mean + middle + half);
    weights[0] = (float)(total * (half + middle) / (2 * half));
    weights[1] = (float)(total * (half - middle) / (2 * half));
    return 2;
}

/* Combine the updates after the first `had` into one step. `weights` and `fades` have DY_MOST_DEFERRED elements. */
DY_LAZY void dy_lazy_step(const dy_lazy *lazy, uint32_t had, dy_idle *h, float *weights, float *fades) {
    uint32_t n = lazy->n - had;
    h->b1_power = (float)lazy->b1_powers[n];
    h->b2_power = (float)(lazy->fades[n] * lazy->fades[n]);
    h->b1 = lazy->b1;
    h->b2 = lazy->b2;
    h->eps = lazy->eps;
    h->sum = (float)lazy->moments[had][0];
    h->n = 0;
    h->weights = weights;
    h->fades = fades;
    h->rates = lazy->rates + had;
    if (dy_kind_of_rule(lazy->rule) == DY_REPLAYED) {
        for (; h->n < n; h->n++) weights[h->n] = (float)lazy->weights[had + h->n];
        return;
    }
    if (dy_kind_of_rule(lazy->rule) != DY_FADING && dy_kind_of_rule(lazy->rule) != DY_RATED) return;
    if (!lazy->each) {
        h->n = dy_lazy_two_terms(lazy->moments[had], weights, fades);
        return;
    }
    for (uint32_t j = 1; j <= n; j++) {
        double eps_scale = lazy->eps_scales[had + j - 1];
        weights[j - 1] = (float)(lazy->weights[had + j - 1] / eps_scale * lazy->b1_powers[j]);
        fades[j - 1] = (float)(dy_lazy_fade(lazy, j) / eps_scale);
        h->n = j;
        if (lazy->b1_powers[j] < DY_LEAST_STEP) break;
    }
}

#endif
