/* SPDX-License-Identifier: Apache-2.0
 *
 * Structs that updates on a GPU pass to kernels, and the record that kernels write about clipping. */
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

/* The same, with their position in a buffer that holds all of them without gaps. */
typedef struct {
    size_t at, n, to;
} dy_gather_range;
DY_SIZE(dy_gather_range, 24);

/* Constants of a rule, for a group of parameters. */
typedef struct {
    float lr, grad_scale, b1, b2, eps, eps_scale;
    float decoupled, decay;     /* shares of weight decay taken off before the step and after it */
} dy_hyper;
DY_SIZE(dy_hyper, 32);

/* How a group of parameters is clipped, and where the sums of its squares begin. */
typedef struct {
    double threshold;           /* 0: never */
    uint32_t first_sum, sums;
    uint32_t own_norm;          /* by the norm of its own gradients, not together with the first group */
    uint32_t unused[3];
} dy_clip_group;
DY_SIZE(dy_clip_group, 32);

typedef struct {
    double scale;               /* factor of gradients, applied first */
    uint32_t groups;
    uint32_t rates;             /* number of `dy_rates` per group: for 0, 1, ... dropped updates beyond the known ones */
    uint32_t known;
    uint32_t skips;             /* whether an update with a norm that is not finite is dropped */
} dy_clip_limits;
DY_SIZE(dy_clip_limits, 24);

/* The constants of a group of parameters that depend on the number of the update. */
typedef struct {
    float lr, eps_scale;
    float decoupled;            /* the share taken off values before the step; see `dy_hyper` */
} dy_rates;
DY_SIZE(dy_rates, 12);

/* The result of clipping for a group of parameters in this update. */
typedef struct {
    float scale;                /* of its gradients */
    dy_rates rates;
} dy_chosen;
DY_SIZE(dy_chosen, 16);

/* The record of clipping so far. */
typedef struct {
    double norm;                /* of this update; or of the first one that was not made */
    uint32_t done;              /* updates */
    uint32_t dropped;           /* of these, those dropped because of a norm that is not finite; later ones are made */
    uint32_t clips;             /* updates that were clipped */
    uint32_t skipped;           /* updates that were not made: the first had a norm that is not finite, the rest follow it */
    uint32_t drops;             /* whether this one is dropped */
    uint32_t unused;
} dy_clip;
DY_SIZE(dy_clip, 32);

/* `done` in the lower half and `dropped` in the upper, read atomically: a device may be writing both. */
static inline uint64_t dy_clip_done_dropped(const dy_clip *c) {
    uint64_t both;
    memcpy(&both, &c->done, sizeof both);
    return both;
}

#endif
