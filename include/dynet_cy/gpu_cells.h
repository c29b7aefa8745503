/* SPDX-License-Identifier: Apache-2.0
 *
 * Structs for the kernels of recurrent cells: the addresses of an LSTM cell, of which kernels read tables; products that
 * are computed together with cells. */
#ifndef DYNET_CY_GPU_CELLS_H
#define DYNET_CY_GPU_CELLS_H

#include <stddef.h>
#include <stdint.h>

#include "gpu_size.h"

/* One batch element of an LSTM cell with h numbers, forward; gates have 4 h. */
typedef struct {
    float *gates;               /* sums at first, then gates */
    const float *bias;          /* NULL: they are gates already */
    const float *before;        /* the state before */
    float *c, *y;               /* state and output */
} dy_lstm_cell;
DY_SIZE(dy_lstm_cell, 40);

/* The same, backward: gradients begin with d. */
typedef struct {
    const float *gates, *before, *c;
    const float *dy;            /* NULL: the output has none */
    float *dc;                  /* in: that of other uses, if there is one; out: the whole gradient */
    float *dgates;              /* in: that of other uses; out: the gradient of the sums */
    float *dbefore;             /* NULL: it needs none */
    uint8_t has_dc, has_dgates; /* there is one of other uses */
    uint8_t acc;                /* add to dbefore instead of assigning */
    uint8_t unused[5];
} dy_lstm_cell_back;
DY_SIZE(dy_lstm_cell_back, 64);

/* One or two products of equal sizes whose columns belong to cells, to be computed in the launch of these: the sums of the
 * gates, A B, or gradients of the outputs, A' B. Column 0 of each belongs to line `first` of the table, the others to the
 * lines after it. Lines without a column have their numbers already. */
#define DY_CELL_PRODUCTS 2

typedef struct {
    const float *a, *b;
    int64_t stride_a, stride_b; /* from the first product to the second */
    uint32_t lda, ldb, k;
    uint32_t n;                 /* columns of each product */
    uint32_t count;
    uint32_t acc;               /* add to what is there instead of assigning */
    uint32_t first[DY_CELL_PRODUCTS];
} dy_cell_products;
DY_SIZE(dy_cell_products, 64);

#endif
