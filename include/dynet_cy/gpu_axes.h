/* SPDX-License-Identifier: Apache-2.0
 *
 * Structs that launchers pass to GPU kernels by value: axes over which a kernel walks through several arrays at once, and
 * several pointers. Set such a struct to 0 first, since records of launches are compared byte by byte. */
#ifndef DYNET_CY_GPU_AXES_H
#define DYNET_CY_GPU_AXES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "gpu_size.h"

#define DY_AXES 8
#define DY_ARRAYS 3

typedef struct {
    uint32_t n;
    uint64_t size[DY_AXES];
    uint64_t stride[DY_ARRAYS][DY_AXES];    /* floats from one element to the next, in each array; 0: the same one */
} dy_axes;
DY_SIZE(dy_axes, 264);

static inline void dy_no_axes(dy_axes *x) { memset(x, 0, sizeof *x); }

/* Add a further, slower axis. If it continues the last one in all arrays, it makes that one longer instead. */
static inline void dy_add_axis(dy_axes *x, uint64_t size, uint64_t s0, uint64_t s1, uint64_t s2) {
    uint32_t k = x->n - 1;
    if (size == 1)
        return;
    if (x->n && s0 == x->stride[0][k] * x->size[k] && s1 == x->stride[1][k] * x->size[k] &&
        s2 == x->stride[2][k] * x->size[k]) {
        x->size[k] *= size;
        return;
    }
    k = x->n++;
    x->size[k] = size;
    x->stride[0][k] = s0;
    x->stride[1][k] = s1;
    x->stride[2][k] = s2;
}

#define DY_POINTERS 256

typedef struct {
    const float *p[DY_POINTERS];
} dy_pointers;
DY_SIZE(dy_pointers, 2048);

/* Some of the arguments of an op, for kernels that take any number of them in several launches. */
#define DY_SOME 32

typedef struct {
    const float *p[DY_SOME];
    uint32_t first, count;      /* how many were in launches before, and are here */
    uint32_t once;              /* bits: they have batch size 1 */
    uint32_t unused;
} dy_some;
DY_SIZE(dy_some, 272);

static inline uint64_t dy_axes_total(const dy_axes *x) {
    uint64_t n = 1;
    for (uint32_t k = 0; k < x->n; k++)
        n *= x->size[k];
    return n;
}

#endif
