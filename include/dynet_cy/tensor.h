/* Plain structs shared by every layer, CPU and GPU.
 *
 * A tensor is column-major; the batch is its last, separate dimension, as in
 * DyNet.  Batch elements are `bstride` floats apart; a tensor whose batch size
 * is 1 is shared by all batch elements of the others, so its bstride is 0.
 */
#ifndef DYNET_CY_TENSOR_H
#define DYNET_CY_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "draws.h"

#define DY_MAX_ND 7

/* The types of elements: 4 bytes each, so memory does not depend on them. */
enum {
    DY_FLOATS,                  /* float32 */
    DY_INTEGERS                 /* int32; their bits are in the floats that tensors point to, see `dy_integers` */
};

typedef struct {
    uint32_t d[DY_MAX_ND];
    uint8_t nd;
    uint8_t type;               /* of the elements */
    uint32_t bd;                /* batch size */
} dy_dim;

typedef struct {
    dy_dim dim;
    float *v;
    size_t bstride;             /* floats from one batch element to the next */
    float *const *list;         /* NULL, or a pointer to each batch element; v and bstride are unused then */
    struct dy_pack *pack;       /* of a parameter: its packed form; else NULL */
} dy_tensor;

/* One word of an op's parameters: an axis, a flag, a constant. */
typedef union {
    float f;
    int32_t i;
    uint32_t u;
} dy_attr;

#define DY_ATTRS 4

/* All that a forward or backward function sees.  The nodes of a batch are one call, whose batch size is the sum of
 * theirs. */
typedef struct {
    uint32_t n;                 /* number of arguments */
    const dy_tensor *x;
    dy_tensor y;
    dy_tensor dy;               /* backward: gradient of y */
    dy_tensor dx;               /* backward: gradient of argument i */
    int accumulate;             /* backward: add to dx (1) or assign it (0) */
    int first;                  /* backward: this is the first argument of the call whose gradient this pass computes */
    size_t before;              /* backward: the sum of op.part() of the arguments before this one */
    const dy_attr *attrs;
    const uint32_t *items;      /* op-specific list, item_count words per batch element of y */
    uint32_t item_count;
    void *object;               /* long-lived object of the node: a lookup table */
    void *on;                   /* the GPU that runs the call; NULL: the CPU does */
    uint64_t seed;              /* key of the random stream */
    uint64_t stream;            /* graph and renewal that the draws belong to */
    float *saved;               /* op.saved() floats, written forward, read backward */
    float *work;                /* op.work() floats, contents undefined */
} dy_call;

/* The seed and the number of the draw of a batch element of a random op. */
static inline uint64_t dy_draw_key(const dy_call *c, uint32_t b) {
    const uint32_t *w = c->items + (size_t)b * DY_DRAW_WORDS;
    return c->seed ^ ((uint64_t)w[2] << 32 | w[1]);
}

static inline uint64_t dy_draw_number(const dy_call *c, uint32_t b) {
    return (c->stream & 0xFFFFFFFFu) << 32 | c->items[(size_t)b * DY_DRAW_WORDS];
}

/* Number of floats in one batch element. */
static inline size_t dy_size(const dy_dim *x) {
    size_t n = 1;
    for (uint32_t i = 0; i < x->nd; i++)
        n *= x->d[i];
    return n;
}

static inline size_t dy_total(const dy_dim *x) { return dy_size(x) * x->bd; }

static inline uint32_t dy_axis(const dy_dim *x, uint32_t i) { return i < x->nd ? x->d[i] : 1; }

static inline uint32_t dy_rows(const dy_dim *x) { return dy_axis(x, 0); }

/* The number of columns, with all axes after the first taken as one. */
static inline size_t dy_cols(const dy_dim *x) {
    size_t n = 1;
    for (uint32_t i = 1; i < x->nd; i++)
        n *= x->d[i];
    return n;
}

/* Equal shapes, ignoring trailing axes of size 1; the batch is not compared. */
static inline int dy_same_shape(const dy_dim *a, const dy_dim *b) {
    uint32_t n = a->nd > b->nd ? a->nd : b->nd;
    for (uint32_t i = 0; i < n; i++)
        if (dy_axis(a, i) != dy_axis(b, i))
            return 0;
    return 1;
}

/* The shape of a lookup table as one tensor: the row index is the last axis. */
static inline dy_dim dy_dim_with_rows(const dy_dim *row, uint32_t rows) {
    dy_dim d = *row;
    if (rows)
        d.d[d.nd++] = rows;
    return d;
}

static inline float *dy_element(const dy_tensor *x, uint32_t b) {
    return x->list ? x->list[b] : x->v + b * x->bstride;
}

/* The integers that lie where floats are expected.  The attribute lets both be read and written in one function. */
#if defined(__GNUC__)
typedef int32_t __attribute__((may_alias)) dy_int;
#else
typedef int32_t dy_int;
#endif

static inline dy_int *dy_integers(float *v) { return (dy_int *)(void *)v; }

static inline const dy_int *dy_const_integers(const float *v) { return (const dy_int *)(const void *)v; }

/* Element k of batch element b of a tensor of either type; a double holds all of them. */
static inline double dy_number_at(const dy_tensor *x, uint32_t b, size_t k) {
    const float *v = dy_element(x, b) + k;
    return x->dim.type == DY_INTEGERS ? (double)*dy_const_integers(v) : (double)*v;
}

#endif
