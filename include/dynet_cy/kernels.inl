/* SPDX-License-Identifier: Apache-2.0
 *
 * All kernels of one instruction set, ending in their table. The includer sets DY_ISA, the suffix of every name, and
 * DY_W, the lanes of a vector. */

#include "simd.h"
#include "vmath.inl"
#include "elementwise.inl"
#include "rows.inl"
#include "reduce.inl"
#include "line.inl"
#include "lstm.inl"
#include "rng.inl"
#include "panels.inl"
#include "gemm.inl"
#include "winograd.inl"
#include "conv.inl"

const dy_kernels DY_N(table) = {
    .isa = DY_STR(DY_ISA),
    .packs = DY_OWN_PRODUCTS,
    .panel = DY_PANEL * DY_W,
#define UNARY(name, y, dx) .unary_fwd[DY_UNARY_##name] = DY_N(unary_fwd_##name), .unary_bwd[DY_UNARY_##name] = DY_N(unary_bwd_##name),
#include "unary.def"
#undef UNARY
#define BINARY(name, y, da, db)                                                \
    .binary_fwd[DY_BINARY_##name] = DY_N(binary_fwd_##name),                   \
    .binary_bwd_a[DY_BINARY_##name] = DY_N(binary_bwd_a_##name),               \
    .binary_bwd_b[DY_BINARY_##name] = DY_N(binary_bwd_b_##name),
#include "binary.def"
#undef BINARY
#define OPTIM(name, ...) .optim[DY_OPTIM_##name] = DY_N(optim_##name), .idle[DY_OPTIM_##name] = DY_N(idle_##name),
#include "optim.def"
#undef OPTIM
#define RNG(name, value) .rng[DY_RNG_##name] = DY_N(rng_##name),
#include "rng.def"
#undef RNG
#define KERNEL(result, name, arguments) .name = DY_N(name),
#include "kernels.def"
#undef KERNEL
};

#undef DY_PANEL
#undef DY_PANEL_COLUMNS
#undef DY_PASS
#undef DY_BY_LANE
#undef DY_SQUARE
#undef DY_LANE
#undef DY_TO_DOUBLE
#undef DY_TO_FLOAT
#undef DY_OWN_PRODUCTS
#undef DY_ISA
#undef DY_W
