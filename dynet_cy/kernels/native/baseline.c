/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels for every CPU. */

#include "isa.h"

#define DY_ISA baseline
#ifdef DY_SCALAR
#define DY_W 1
#else
#define DY_W 4
#endif
#include "dynet_cy/kernels.inl"
