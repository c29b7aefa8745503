/* SPDX-License-Identifier: Apache-2.0
 *
 * What updates on a GPU hand to kernels, and what kernels tell of clipping. */
#ifndef DYNET_CY_GPU_UPDATE_H
#define DYNET_CY_GPU_UPDATE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "gpu_size.h"

/* n floats of a plane, from `at` on. */
typedef struct {
    size_t at, n;
} dy_range;
DY_SIZE(dy_range, 16);

/* The same, and where they lie where all of them lie side by side. */
typedef struct {
    size_t at, n, to;
} dy_gather_range;
DY_SIZE(dy_gather_range, 24);

/* Constants of a rule, for a group of parameters. */
typedef struct {
    float lr, grad_scale, b1, b2, eps;
    float decoupled, decay;     /* shares that values lose before their step and after it */
} dy_hyper;
DY_SIZE(dy_hyper, 28);

/* How a group of parameters is clipped, and where the sums of its squares begin. */
typedef struct {
    double threshold;           /* 0: never */
    uint32_t first_sum, sums;
    uint32_t own_norm;          /* by the norm of its own gradients, not together with the first group */
    uint32_t unused[3];
} dy_clip_group;
DY_SIZE(dy_clip_group, 32);

typedef struct {
    double scale;               /* of gradients before all else */
    uint32_t groups;
    uint32_t rates;             /* `dy_rates` of each group: for 0, 1, ... more dropped updates than are known of */
    uint32_t known;
    uint32_t skips;             /* whether an update with a norm that is not finite is dropped */
} dy_clip_limits;
DY_SIZE(dy_clip_limits, 24);

/* What depends on the number of an update, for a group of parameters. */
typedef struct {
    float lr;
    float decoupled;            /* the share that values lose before the step; see `dy_hyper` */
} dy_rates;
DY_SIZE(dy_rates, 8);

/* What clipping has found for a group of parameters in this update. */
typedef struct {
    float scale;                /* of its gradients */
    dy_rates rates;
} dy_chosen;
DY_SIZE(dy_chosen, 12);

/* What clipping has found so far. */
typedef struct {
    double norm;                /* of this update; or of the first that was left out */
    uint32_t done;              /* updates */
    uint32_t dropped;           /* of these: their norms were not finite, and later ones are made all the same */
    uint32_t clips;             /* updates that were clipped */
    uint32_t skipped;           /* updates that were left out: the first had a norm that is not finite */
    uint32_t drops;             /* whether this one is dropped */
    uint32_t unused;
} dy_clip;
DY_SIZE(dy_clip, 32);

/* `done` in the lower half and `dropped` above, read at once: a device may be writing both. */
static inline uint64_t dy_clip_done_dropped(const dy_clip *c) {
    uint64_t both;
    memcpy(&both, &c->done, sizeof both);
    return both;
}

#endif
