/* SPDX-License-Identifier: Apache-2.0
 *
 * An index that kernels have refused, in memory of the host that they can write: see dynet_cy/gpu/driver.pyx. */
#ifndef DYNET_CY_GPU_REFUSED_H
#define DYNET_CY_GPU_REFUSED_H

#include <stdint.h>

#include "gpu_size.h"

typedef struct {
    unsigned any;               /* how many were refused; the first of them is described */
    uint32_t function;          /* number of the public function's name */
    uint32_t b, n;              /* batch element of the call, and how many there are to choose from */
    uint64_t k;                 /* position in the batch element */
    double v;
} dy_refused_index;
DY_SIZE(dy_refused_index, 32);

#endif
