/* SPDX-License-Identifier: Apache-2.0
 *
 * A group: the parameters of several calls of one kernel, or the lines of a small table, which a launcher passes to a
 * kernel by value. Only the beginning that is in use is set. So nothing has to be sent to the device before the launch. */
#ifndef DYNET_CY_GPU_GROUP_H
#define DYNET_CY_GPU_GROUP_H

#include <stdint.h>

#include "gpu_size.h"

#define DY_GROUP_WORDS 496

typedef struct {
    uint64_t words[DY_GROUP_WORDS];
} dy_group;
DY_SIZE(dy_group, 3968);

/* A group of calls begins with this: call i is at words[first[i]]. The parameters of a call follow each other, each in whole
 * words. Of axes only those in use are there: their number, then for each the size and the strides in all arrays. */
#define DY_GROUP_CALLS 64

typedef struct {
    uint16_t first[DY_GROUP_CALLS];
} dy_group_head;
DY_SIZE(dy_group_head, 128);

/* One of several products of matrices of different sizes, C = op(A) op(B) + beta C, column-major as in BLAS. If b is NULL,
 * it is a copy of m numbers from a to c. */
typedef struct {
    const float *a, *b;
    float *c;
    float *also;                /* where C is written too, without gaps between columns; NULL: nowhere */
    uint32_t m, n, k, lda, ldb, ldc;
    float alpha, beta;
    uint32_t ta, tb;
} dy_group_product;
DY_SIZE(dy_group_product, 72);

#endif
