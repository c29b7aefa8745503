/* SPDX-License-Identifier: Apache-2.0
 *
 * Instantiates the kernels for every instruction set and chooses among them at run time. DY_SCALAR leaves only plain
 * scalar C. DY_TEST_ISAS adds tables for tests: "scalar", and "wide", which runs the 16-lane code of AVX-512 on AVX2. */

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dynet_cy/kernels.h"
#include "dynet_cy/loop.h"
#include "dynet_cy/names.h"
#include "dynet_cy/scalar.h"

#if !defined(__GNUC__) && !defined(DY_SCALAR)
#define DY_SCALAR
#endif
#if defined(__x86_64__) && !defined(DY_SCALAR)
#define DY_X86
#include <immintrin.h>
#endif
#if defined(__GNUC__)
/* Vectors wider than the baseline are passed between static functions only. */
#pragma GCC diagnostic ignored "-Wpsabi"
#endif
#if defined(__clang__)
/* Formulas join masks with & and |, which are conditions in the scalar case. */
#pragma clang diagnostic ignored "-Wunknown-warning-option"
#pragma clang diagnostic ignored "-Wbitwise-instead-of-logical"
#endif

extern void scipy_cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                              const float *b, int ldb, float beta, float *c, int ldc);
extern void scipy_cblas_sgemv(int order, int ta, int m, int n, float alpha, const float *a, int lda, const float *x, int incx,
                              float beta, float *y, int incy);

#if defined(__clang__)
#define DY_TARGET(isa) _Pragma(DY_STR(clang attribute push(__attribute__((target(isa))), apply_to = function)))
#define DY_TARGET_END _Pragma("clang attribute pop")
#else
#define DY_TARGET(isa) _Pragma("GCC push_options") _Pragma(DY_STR(GCC target(isa)))
#define DY_TARGET_END _Pragma("GCC pop_options")
#endif

#define DY_ISA baseline
#ifdef DY_SCALAR
#define DY_W 1
#else
#define DY_W 4
#endif
#include "dynet_cy/kernels.inl"

#ifdef DY_X86
DY_TARGET("avx2,fma")
#define DY_ISA avx2
#define DY_W 8
#include "dynet_cy/kernels.inl"
#ifdef DY_TEST_ISAS
#define DY_ISA wide
#define DY_W 16
#include "dynet_cy/kernels.inl"
#endif
DY_TARGET_END

DY_TARGET("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")
#define DY_AVX512
#define DY_ISA avx512
#define DY_W 16
#include "dynet_cy/kernels.inl"
#undef DY_AVX512
DY_TARGET_END
#endif

#if defined(DY_TEST_ISAS) && !defined(DY_SCALAR)
#define DY_ISA scalar
#define DY_W 1
#include "dynet_cy/kernels.inl"
#endif

#define NAME(name, ...) #name,
#define UNARY NAME
#define BINARY NAME
#define OPTIM NAME
#define RNG NAME
const char *const dy_unary_names[DY_UNARY_COUNT] = {
#include "dynet_cy/unary.def"
};
const char *const dy_binary_names[DY_BINARY_COUNT] = {
#include "dynet_cy/binary.def"
};
const char *const dy_optim_names[DY_OPTIM_COUNT] = {
#include "dynet_cy/optim.def"
};
const char *const dy_rng_names[DY_RNG_COUNT] = {
#include "dynet_cy/rng.def"
};
#undef OPTIM
#define OPTIM(name, states, rule) states,
const int dy_optim_states[DY_OPTIM_COUNT] = {
#include "dynet_cy/optim.def"
};

/* The best first; tables for tests come last and are found by name only. */
static const dy_kernels *dy_find(const char *isa) {
#ifdef DY_X86
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
#endif
    const struct {
        const dy_kernels *table;
        int usable;
    } all[] = {
#ifdef DY_X86
        {&dy_table_avx512, avx512},
        {&dy_table_avx2, avx2},
#endif
        {&dy_table_baseline, 1},
#if defined(DY_TEST_ISAS) && defined(DY_X86)
        {&dy_table_wide, avx2},
#endif
#if defined(DY_TEST_ISAS) && !defined(DY_SCALAR)
        {&dy_table_scalar, 1},
#endif
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].usable && (!isa || !strcmp(isa, all[i].table->isa))) return all[i].table;
    return NULL;
}

const dy_kernels *dy_kernels_get(const char *isa) {
    const dy_kernels *found = NULL;
    if (isa) return dy_find(isa);
    const char *wanted = getenv("DYNET_CY_ISA");
    if (wanted) found = dy_find(wanted);
    return found ? found : dy_find(NULL);
}
