/* SPDX-License-Identifier: Apache-2.0 */

#include "isa.h"

#ifdef DY_X86
DY_TARGET("avx2,fma")
#define DY_ISA avx2
#define DY_W 8
#include "dynet_cy/kernels.inl"
DY_TARGET_END
#endif
