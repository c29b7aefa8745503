/* SPDX-License-Identifier: Apache-2.0
 *
 * Moves of numbers on a GPU: passes over graphs list them, and the kernel `move_floats` executes them. */
#ifndef DYNET_CY_GPU_MOVE_H
#define DYNET_CY_GPU_MOVE_H

#include <stddef.h>
#include <stdint.h>

#include "gpu_size.h"

/* Copies n numbers, or adds them (acc), times scale, from one address on the device to another; source NULL means zeros.
 * Moves with the same destination form a chain, executed in order; all but the first one are followers.
 * A move with a period has so many numbers as its source, again and again, and is not part of a chain. */
typedef struct {
    const float *source;
    float *to;
    size_t n;
    uint32_t next;              /* number of the next one in the chain + 1, or 0 */
    float scale;
    uint8_t acc, follower, unused[2];
    uint32_t period;            /* 0: none */
} dy_move;
DY_SIZE(dy_move, 40);

#endif
