/* SPDX-License-Identifier: Apache-2.0
 *
 * The windows of pooling, for CPU and GPU: all of one size at a fixed stride, or adaptive: a given number of windows that
 * cover the image evenly. */
#ifndef DYNET_CY_POOLING_H
#define DYNET_CY_POOLING_H

#include <stdint.h>

#include "gpu_size.h"

#ifdef __CUDACC__
#define DY_POOLING __host__ __device__ static inline
#else
#define DY_POOLING static inline
#endif

/* Index 0 is the direction of rows, the contiguous one. */
typedef struct {
    uint32_t in[2], out[2], size[2], stride[2], pad[2], channels, adaptive;
} dy_pooling;
DY_SIZE(dy_pooling, 48);

/* The inputs [*low, *high) along direction d under window o. */
DY_POOLING void dy_pooled(const dy_pooling *p, int d, uint32_t o, uint32_t *low, uint32_t *high) {
    if (p->adaptive) {
        *low = (uint32_t)((uint64_t)o * p->in[d] / p->out[d]);
        *high = (uint32_t)((((uint64_t)o + 1) * p->in[d] + p->out[d] - 1) / p->out[d]);
        return;
    }
    uint32_t start = o * p->stride[d];
    *low = start < p->pad[d] ? 0 : start - p->pad[d];
    *high = start + p->size[d] - p->pad[d];
    if (*high > p->in[d]) *high = p->in[d];
}

/* The windows [*low, *high) along direction d that contain input i. */
DY_POOLING void dy_pooling_of(const dy_pooling *p, int d, uint32_t i, uint32_t *low, uint32_t *high) {
    if (p->adaptive) {
        *low = (uint32_t)((uint64_t)i * p->out[d] / p->in[d]);
        *high = (uint32_t)((((uint64_t)i + 1) * p->out[d] + p->in[d] - 1) / p->in[d]);
        return;
    }
    uint32_t at = i + p->pad[d], end = at / p->stride[d] + 1;
    *low = at < p->size[d] ? 0 : (at - p->size[d]) / p->stride[d] + 1;
    *high = end < p->out[d] ? end : p->out[d];
}

#endif
