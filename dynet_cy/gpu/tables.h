/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of functions that driver.pyx fills, and the names that it looks up. */
#ifndef DYNET_CY_GPU_TABLES_H
#define DYNET_CY_GPU_TABLES_H

#include "dynet_cy/gpu.h"

static dy_driver dy_driver_table;
static dy_blas dy_blas_table;

static const char *const dy_driver_names[] = {
#define DRIVER(name, arguments) #name,
    DY_DRIVER_FUNCTIONS
#undef DRIVER
};
static const char *const dy_blas_names[] = {
#define BLAS(name, arguments) #name,
    DY_BLAS_FUNCTIONS
#undef BLAS
};

#define DY_COUNT_OF(a) (sizeof(a) / sizeof(*(a)))
enum { DY_DRIVER_COUNT = DY_COUNT_OF(dy_driver_names), DY_BLAS_COUNT = DY_COUNT_OF(dy_blas_names) };
_Static_assert(sizeof(dy_driver) == DY_DRIVER_COUNT * sizeof(void *), "a table of nothing but functions");
_Static_assert(sizeof(dy_blas) == DY_BLAS_COUNT * sizeof(void *), "a table of nothing but functions");

#endif
