/* SPDX-License-Identifier: Apache-2.0
 *
 * The struct that launchers pass to the attention kernels by value. */
#ifndef DYNET_CY_GPU_ATTENTION_H
#define DYNET_CY_GPU_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

#include "gpu_size.h"

typedef struct {
    const float *q, *k, *v, *bias;                          /* no bias: NULL */
    size_t q_step, k_step, v_step, bias_step;               /* from one batch element to the next; 0: all share one */
    const float *y, *dy, *means;                            /* of backward */
    float *sums;                                            /* of each head and query, the greatest score and the sum of e^(score - greatest) */
    const uint64_t *seeds;
    const uint32_t *items;                                  /* of the random draws; NULL: no dropout */
    size_t m, n;                                            /* queries, keys */
    size_t place;                                           /* of the first query among the keys */
    size_t before, after;                                   /* how many keys on both sides of its place a query sees */
    uint32_t heads, rows, value_rows;                       /* rows of a head */
    uint32_t bias_columns, bias_heads;
    float scale, keep;
} dy_gpu_attention;
DY_SIZE(dy_gpu_attention, 184);

#endif
