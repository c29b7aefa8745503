/* SPDX-License-Identifier: Apache-2.0
 *
 * A struct that launchers pass to GPU kernels by value: the cells of the children of a tree node. */
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
