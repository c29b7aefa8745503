/* SPDX-License-Identifier: Apache-2.0
 *
 * Moves of numbers on a GPU: passes over graphs list them, `move_floats` makes them. */
#ifndef DYNET_CY_GPU_MOVE_H
#define DYNET_CY_GPU_MOVE_H

#include <stddef.h>
#include <stdint.h>

#include "gpu_size.h"

/* n numbers that are copied or added (acc), times scale, from one place of the device to another; from NULL: zeros.
 * Moves with one destination are a chain, in the order in which they are added; its first one is no follower. */
typedef struct {
    const float *source;
    float *to;
    size_t n;
    uint32_t next;              /* number of the next one in the chain + 1, or 0 */
    float scale;
    uint8_t acc, follower, unused[6];
} dy_move;
DY_SIZE(dy_move, 40);

#endif
