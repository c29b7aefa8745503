/* What compilers without vector extensions get. */

#include "isa.h"

#define DY_ISA scalar
#define DY_W 1
#include "dynet_cy/kernels.inl"
