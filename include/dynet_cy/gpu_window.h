/* SPDX-License-Identifier: Apache-2.0
 *
 * A struct that launchers pass to GPU kernels by value: the geometry of a convolution, as in kernels.h. */
#ifndef DYNET_CY_GPU_WINDOW_H
#define DYNET_CY_GPU_WINDOW_H

#include <stdint.h>

#include "gpu_size.h"

/* Index 0 is the direction of rows, the contiguous one. */
typedef struct {
    uint32_t in[2], out[2], size[2], stride[2], pad[2], channels, dilation[2];
} dy_gpu_window;
DY_SIZE(dy_gpu_window, 52);

#endif
