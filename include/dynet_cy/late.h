/* SPDX-License-Identifier: Apache-2.0
 *
 * The updates of a lookup table that rows without a gradient have not had yet, and the one step that they amount to. For
 * CPU and GPU; kernels/late_rows.pxd explains the method. */
#ifndef DYNET_CY_LATE_H
#define DYNET_CY_LATE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu_size.h"
#include "optim.h"

#ifdef __CUDACC__
#define DY_LATE __host__ __device__ static inline
#else
#define DY_LATE static inline
#endif

enum { DY_MOST_LATE = 512 };

/* Of a table on a GPU there are two: the one of the host says which updates have been asked for, and the one on the device,
 * `there`, which of these have been made. */
typedef struct dy_late {
    uint32_t n;                 /* number of these updates */
    int rule;                   /* the trainer's rule, constants and state */
    float b1, b2, eps;
    uint8_t each;               /* updates cannot be combined: each is a term of its own */
    uint8_t shared;             /* the states are in memory that several processes share: only updates of all change them */
    uint8_t read;               /* the values of all rows have had all updates; if shared, their states have not */
    uint8_t moving;             /* an update of all processes is changing the states */
    const struct dy_arena *states[3];
    float *rows[3];             /* on a device: the states of the table */
    uint32_t *had;              /* for each row, how many of the updates it has had */
    struct dy_late *there;      /* of the host: the one on the device, in its own memory */
    void *memory;
    void (*close)(struct dy_late *late);
    double weights[DY_MOST_LATE];
    float rates[DY_MOST_LATE];              /* learning rates */
    double moments[DY_MOST_LATE + 1][4];    /* of the updates from one on: sums of weight b1^j b2^(j k / 2), j = 1, 2, ... */
    double kept[DY_MOST_LATE + 1];          /* what weight decay leaves of a value in the updates from one on */
    double fades[DY_MOST_LATE + 1];         /* powers of the root of b2, */
    double b1_powers[DY_MOST_LATE + 1];     /* and of b1 */
} dy_late;
DY_SIZE(dy_late, 104 + 12 * DY_MOST_LATE + 56 * (DY_MOST_LATE + 1));

DY_LATE int dy_kind_of_rule(int rule) {
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

/* Begin anew, with no updates. */
DY_LATE void dy_late_begin(dy_late *late, int rule, float b1, float b2, float eps) {
    late->n = 0;
    late->rule = rule;
    late->b1 = b1;
    late->b2 = b2;
    late->eps = eps;
    late->fades[0] = late->b1_powers[0] = 1;
    late->fades[1] = sqrt((double)b2);
    late->b1_powers[1] = b1;
    for (uint32_t j = 2; j <= DY_MOST_LATE; j++) {
        late->fades[j] = late->fades[j - 1] * late->fades[1];
        late->b1_powers[j] = late->b1_powers[j - 1] * b1;
    }
    late->each = 1 - late->fades[1] > DY_MOST_FADING * (1 - late->b1_powers[1]);
}

/* The weight of an update; see dy_idle. */
DY_LATE double dy_late_weight(int rule, float lr, float step_scale) {
    int kind = dy_kind_of_rule(rule);
    return kind == DY_STEADY || kind == DY_REPLAYED ? (double)step_scale : (double)step_scale * lr;
}

/* Add an update of this weight to what rows that have had s updates are missing, for s = 0, ..., late->n. Then call
 * `dy_late_added`. `kept` is what weight decay leaves of all values after the step. */
DY_LATE void dy_late_add(dy_late *late, uint32_t s, double weight, double kept) {
    uint32_t n = late->n, j = n - s + 1;
    double term = weight * late->b1_powers[j], fade = late->fades[j];
    for (int k = 0; k < 4; k++) {
        late->moments[s][k] = (s == n ? 0 : kept * late->moments[s][k]) + term;
        term *= fade;
    }
    late->kept[s] = s == n ? kept : kept * late->kept[s];
    late->weights[s] = s == n ? weight : kept * late->weights[s];
}

DY_LATE void dy_late_added(dy_late *late, float lr) {
    late->rates[late->n] = lr;
    if (!(late->weights[late->n] >= 0)) late->each = 1;
    late->n++;
}

/* The terms with these moments: the nodes are the roots of the orthogonal polynomial of degree 2. Returns their number. */
DY_LATE uint32_t dy_late_two_terms(const double *moments, float *weights, float *fades) {
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

/* Combine the updates after the first `had` into one step. `weights` and `fades` have room for DY_MOST_LATE terms. */
DY_LATE void dy_late_step(const dy_late *late, uint32_t had, dy_idle *h, float *weights, float *fades) {
    uint32_t n = late->n - had;
    h->b1_power = (float)late->b1_powers[n];
    h->b2_power = (float)(late->fades[n] * late->fades[n]);
    h->b1 = late->b1;
    h->b2 = late->b2;
    h->eps = late->eps;
    h->sum = (float)late->moments[had][0];
    h->n = 0;
    h->weights = weights;
    h->fades = fades;
    h->rates = late->rates + had;
    if (dy_kind_of_rule(late->rule) == DY_REPLAYED) {
        for (; h->n < n; h->n++) weights[h->n] = (float)late->weights[had + h->n];
        return;
    }
    if (dy_kind_of_rule(late->rule) != DY_FADING) return;
    if (!late->each) {
        h->n = dy_late_two_terms(late->moments[had], weights, fades);
        return;
    }
    for (uint32_t j = 1; j <= n; j++) {
        weights[j - 1] = (float)(late->weights[had + j - 1] * late->b1_powers[j]);
        fades[j - 1] = (float)late->fades[j];
        h->n = j;
        if (late->b1_powers[j] < DY_LEAST_STEP) break;
    }
}

#endif
