/* SPDX-License-Identifier: Apache-2.0
 *
 * Every 64-bit ARM has these instructions, and compilers use them in baseline.c too, for loops over elements. Here tails,
 * sums of a vector, shuffles and random numbers use them as well, and products have tiles of their own. */

#include "isa.h"

#ifdef DY_ARM
#define DY_NEON
#define DY_ISA neon
#define DY_W 4
#include "dynet_cy/kernels.inl"
#endif
