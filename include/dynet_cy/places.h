/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the elements of one tensor, the part, lie in another, the whole. Rows of index.def fill the struct; the CPU and GPU
 * kernels read it in either direction. */
#ifndef DYNET_CY_PLACES_H
#define DYNET_CY_PLACES_H

#include <stddef.h>
#include <stdint.h>

#include "gpu_size.h"

#define DY_PLACE_AXES 8

/* The place of element i along an axis of the part. */
enum {
    DY_PLAIN,                   /* i */
    DY_STARTS,                  /* along axis 0: i, from item 0 times `unit` on */
    DY_LISTED,                  /* along `axis`: item i */
    DY_STEPPED                  /* axis k has items 3 k, 3 k + 1, 3 k + 2: the place of element 0, the step, the size */
};

/* How the positions that are values of the graph are meant: attribute 1. */
enum {
    DY_SHARED_POSITIONS,        /* a vector of positions, the same for all lines along the axis */
    DY_ONE_POSITION,            /* one position: the axis is removed */
    DY_OWN_POSITIONS            /* positions of the shape of the part: each element has its own */
};

typedef struct {
    uint32_t n;                 /* axes, in the order of the part */
    uint32_t kind, axis;
    uint32_t words;             /* items of a batch element */
    uint64_t batch;             /* batch elements; 1 also where the batch is an axis */
    uint64_t offset;            /* of the first element of the whole */
    uint64_t unit, count;       /* floats of one place along the axis of a selection, and how many places the part has */
    uint64_t size[DY_PLACE_AXES], extent[DY_PLACE_AXES];    /* of the part, and of the whole */
    uint64_t stride[DY_PLACE_AXES];                         /* in the whole, floats */
} dy_places;
DY_SIZE(dy_places, 240);

static inline void dy_add_places(dy_places *p, uint64_t size, uint64_t extent, uint64_t stride) {
    p->size[p->n] = size;
    p->extent[p->n] = extent;
    p->stride[p->n++] = stride;
}

/* Elements of the part, for each batch element. */
static inline size_t dy_places_total(const dy_places *p) {
    size_t n = 1;
    for (uint32_t k = 0; k < p->n; k++) n *= p->size[k];
    return n;
}

#endif
