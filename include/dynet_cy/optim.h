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
 * (STEADY); by that times the learning rate over a divisor that stays (RATED) or decays, too (FADING); or something of
 * which several have no closed form, so that they are made one by one (REPLAYED). */
enum { DY_STILL, DY_STEADY, DY_RATED, DY_FADING, DY_REPLAYED };

/* Hyperparameters of one update; unused ones are ignored. The gradient is multiplied by grad_scale, the step by
 * step_scale. lr includes bias corrections (Adam: lr sqrt(1 - b2^t) / (1 - b1^t)), and rules read eps times eps_scale,
 * which is sqrt(1 - b2^t) where eps is added to the corrected root of the mean of g^2. */
typedef struct {
    float lr, grad_scale, step_scale, b1, b2, eps, eps_scale;
} dy_optim;

/* Several updates with a zero gradient, combined into one step; see optim.def. The weight of an update is its step_scale,
 * for DY_RATED and DY_FADING times lr. For these two the updates are n terms, each with a weight and a factor to which the
 * divisor without eps has decayed, both over eps_scale, so that eps is the same in all of them; for DY_REPLAYED they are n
 * updates, each with a weight and a learning rate. */
typedef struct {
    float b1_power, b2_power, b1, b2, eps, sum;
    uint32_t n;
    const float *weights, *fades, *rates;
    int keeps;                  /* whether the states are written, not only the values */
} dy_idle;

/* The updates of a rule of the kind DY_REPLAYED, one by one; their sum is d. */
#define DY_REPLAY(kind, rule) \
    if (kind == DY_REPLAYED) { \
        vf g = C(0.f), total = g; \
        for (uint32_t k = 0; k < h->n; k++) { \
            vf lr __attribute__((unused)) = C(h->rates[k]); /* most rules are never replayed */ \
            rule \
            total = total + C(h->weights[k]) * d; \
        } \
        d = total; \
    }

#endif
