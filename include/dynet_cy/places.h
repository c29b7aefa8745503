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

/* The place of element i along an axis of the part. The first three are parts of the whole as pre x len x post, with some
 * places along the middle axis. */
enum {
    DY_PLAIN,                   /* i */
    DY_STARTS,                  /* along the middle axis: i, from item 0 on */
    DY_LISTED,                  /* along the middle axis: item i */
    DY_TURNED,                  /* i, of axes in another order */
    DY_STEPPED                  /* axis k has items 3 k, 3 k + 1, 3 k + 2: the place of element 0, the step, the size */
};

/* How the positions that are values of the graph are meant: attribute 1. */
enum {
    DY_SHARED_POSITIONS,        /* a vector of positions, the same for all lines along the axis */
    DY_ONE_POSITION,            /* one position: the axis is removed */
    DY_OWN_POSITIONS            /* positions of the shape of the part: each element has its own */
};

typedef struct {
    uint32_t kind;
    uint32_t n, axis;           /* axes, in the order of the part, and which of them is listed */
    uint32_t words;             /* items of a batch element */
    uint64_t batch;             /* batch elements; 1 also where the batch is an axis */
    uint64_t offset;            /* of the first element of the whole */
    uint64_t pre, len, post, count;                         /* the part has `count` of the `len` places */
    uint64_t size[DY_PLACE_AXES], extent[DY_PLACE_AXES];    /* of the part, and of the whole */
    uint64_t stride[DY_PLACE_AXES];                         /* in the whole, floats */
} dy_places;
DY_SIZE(dy_places, 256);

static inline void dy_add_places(dy_places *p, uint64_t size, uint64_t extent, uint64_t stride) {
    p->size[p->n] = size;
    p->extent[p->n] = extent;
    p->stride[p->n++] = stride;
}

/* A part of pre x len x post as axes, which all kinds have on GPUs. */
static inline void dy_places_as_axes(dy_places *p) {
    if (p->kind >= DY_TURNED) return;
    if (p->kind == DY_LISTED && p->count == 1) p->kind = DY_STARTS;
    if (p->kind == DY_LISTED) {
        if (p->pre != 1) dy_add_places(p, p->pre, p->pre, 1);
        p->axis = p->n;
        dy_add_places(p, p->count, p->len, p->pre);
    } else {
        dy_add_places(p, p->pre * p->count, p->pre * p->len, 1);
    }
    if (p->post != 1) dy_add_places(p, p->post, p->post, p->pre * p->len);
}

/* Elements of the part, for each batch element. */
static inline size_t dy_places_total(const dy_places *p) {
    size_t n = 1;
    for (uint32_t k = 0; k < p->n; k++) n *= p->size[k];
    return n;
}

#endif
