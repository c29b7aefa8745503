/* SPDX-License-Identifier: Apache-2.0
 *
 * Axes of tensors: what shape rules and loops of several families share. */
#ifndef DYNET_CY_AXES_H
#define DYNET_CY_AXES_H

#include "tensor.h"

/* A tensor as `pre` x `len` x `post`, with one axis in the middle. */
typedef struct {
    size_t pre, len, post;
} dy_split;

static inline dy_split dy_split_at(const dy_dim *x, uint32_t axis) {
    dy_split s = {1, 1, 1};
    uint32_t i = 0;
    for (; i < x->nd && i < axis; i++) s.pre *= x->d[i];
    if (i < x->nd) s.len = x->d[i++];
    for (; i < x->nd; i++) s.post *= x->d[i];
    return s;
}

/* The shape of x without the axes that are bits of mask; {1} where none is left. */
static inline void dy_without(const dy_dim *x, uint32_t mask, dy_dim *y) {
    y->nd = 0;
    for (uint32_t i = 0; i < x->nd; i++)
        if (!(mask >> i & 1))
            y->d[y->nd++] = x->d[i];
    if (!y->nd) {
        y->nd = 1;
        y->d[0] = 1;
    }
}

#endif
