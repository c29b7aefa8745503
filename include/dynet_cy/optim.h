/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules of trainers, rows of optim.def: their numbers, kinds and constants.  For CPU and GPU. */
#ifndef DYNET_CY_OPTIM_H
#define DYNET_CY_OPTIM_H

#include <stdint.h>

#define OPTIM(name, ...) DY_OPTIM_##name,
enum {
#include "optim.def"
    DY_OPTIM_COUNT
};
#undef OPTIM

/* What an optimiser does to a number whose gradient is zero: nothing (STILL); move it by a decaying state, if at all
 * (STEADY); by that times the learning rate (RATED); or by that over a divisor that decays, too (FADING). */
enum { DY_STILL, DY_STEADY, DY_RATED, DY_FADING };

/* Hyperparameters of one update; unused ones are ignored. The gradient is multiplied by grad_scale, the step by
 * step_scale. lr includes bias corrections (Adam: lr sqrt(1 - b2^t) / (1 - b1^t)). */
typedef struct {
    float lr, grad_scale, step_scale, b1, b2, eps;
} dy_optim;

/* Several updates with a zero gradient, combined into one step; see optim.def. The weight of an update is its step_scale,
 * for DY_RATED and DY_FADING times lr. For DY_FADING the updates are n terms, each with a weight and a factor to which the
 * square root of s1 has decayed. */
typedef struct {
    float b1_power, b2_power, b1, b2, eps, sum;
    uint32_t n;
    const float *weights, *fades;
    int keeps;                  /* whether the states are written, not only the values */
} dy_idle;

#endif
