/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays as the host passes them to kernels of custom ops: see cuda/custom.cuh. */
#ifndef DYNET_CY_GPU_CUSTOM_H
#define DYNET_CY_GPU_CUSTOM_H

#include <stddef.h>
#include <stdint.h>

#include "gpu_size.h"

typedef struct {
    float *v;
    size_t size, stride;        /* of a batch element; from one batch element to the next, 0: all are the same one */
    int32_t batch, nd, shape[7], unused;
} dy_array;
DY_SIZE(dy_array, 64);

#endif
