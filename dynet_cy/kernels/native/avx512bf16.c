/* SPDX-License-Identifier: Apache-2.0 */

#include "isa.h"

#ifdef DY_BF16
DY_TARGET("avx512f,avx512vl,avx512dq,avx512bw,avx512bf16,avx2,fma")
#define DY_AVX512
#define DY_ISA avx512bf16
#define DY_W 16
#include "dynet_cy/bf16.inl"
DY_TARGET_END
#endif
