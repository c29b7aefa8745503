/* SPDX-License-Identifier: Apache-2.0
 *
 * A struct that launchers pass to a GPU kernel by value: arguments to be concatenated. */
#ifndef DYNET_CY_GPU_PARTS_H
#define DYNET_CY_GPU_PARTS_H

#include <stddef.h>
#include <stdint.h>

#include "gpu_size.h"

#define DY_PARTS 32

typedef struct {
    float *v;                   /* as in dy_tensor */
    size_t bstride;
    float *const *list;
    size_t start, m;            /* where its numbers begin in a column of the result, and how many there are */
} dy_piece;

typedef struct {
    dy_piece part[DY_PARTS];
} dy_parts;
DY_SIZE(dy_parts, 1280);

#endif
