/* The code for AVX-512 on AVX2, for CPUs that have no more. */

#include "isa.h"

DY_TARGET("avx2,fma")
#define DY_ISA wide
#define DY_W 16
#include "dynet_cy/kernels.inl"
DY_TARGET_END
