/* SPDX-License-Identifier: Apache-2.0
 *
 * Elementwise loops that may be divided among threads (dynet_cy/kernels/product.pyx). */
#ifndef DYNET_CY_RANGES_H
#define DYNET_CY_RANGES_H

#include <stddef.h>

typedef void (*dy_range_run)(void *job, size_t first, size_t end);
typedef void (*dy_in_ranges)(size_t n, size_t step, size_t cost, dy_range_run run, void *job);

/* Fewer elements are never divided; ranges begin at multiples of the step, a cache line; what an element takes, in
 * multiplications of a product. */
enum { DY_LEAST_DIVIDED = 1 << 16, DY_RANGE_STEP = 16, DY_ELEMENT_COST = 16 };

#endif
