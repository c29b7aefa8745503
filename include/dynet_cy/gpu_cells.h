/* SPDX-License-Identifier: Apache-2.0
 *
 * What a launcher hands to kernels of the GPU by value: the cells of the children of a node of a tree. */
#ifndef DYNET_CY_GPU_CELLS_H
#define DYNET_CY_GPU_CELLS_H

#include <stddef.h>

#include "gpu_size.h"

#define DY_CELLS 16

typedef struct {
    const float *v[DY_CELLS];
    size_t bstride[DY_CELLS];
} dy_gpu_cells;
DY_SIZE(dy_gpu_cells, 256);

#endif
