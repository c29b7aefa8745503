/* SPDX-License-Identifier: Apache-2.0
 *
 * The common beginning of the files of all instruction sets. Each file is a translation unit of its own, so that they
 * are compiled in parallel. DY_SCALAR leaves only plain scalar C. */
#ifndef DYNET_CY_ISA_H
#define DYNET_CY_ISA_H

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dynet_cy/kernels.h"
#include "dynet_cy/loop.h"
#include "dynet_cy/names.h"
#include "dynet_cy/scratch.h"
#include "dynet_cy/scalar.h"

#if !defined(__GNUC__) && !defined(DY_SCALAR)
#define DY_SCALAR
#endif
#if defined(__x86_64__) && !defined(DY_SCALAR)
#define DY_X86
#include <immintrin.h>
/* Compilers that know AVX-512-BF16, which came with GCC 10 and Clang 9, have this header. */
#if defined(__has_include)
#if __has_include(<avx512bf16intrin.h>)
#define DY_BF16
#endif
#endif
#endif
#if defined(__AARCH64EL__) && !defined(DY_SCALAR)
#define DY_ARM
#include <arm_neon.h>
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

/* Each file defines one of them. */
extern const dy_kernels dy_table_baseline, dy_table_neon, dy_table_avx2, dy_table_avx512;
extern const dy_bf16 dy_table_avx512bf16;

#if defined(__clang__)
#define DY_TARGET(isa) _Pragma(DY_STR(clang attribute push(__attribute__((target(isa))), apply_to = function)))
#define DY_TARGET_END _Pragma("clang attribute pop")
#else
#define DY_TARGET(isa) _Pragma("GCC push_options") _Pragma(DY_STR(GCC target(isa)))
#define DY_TARGET_END _Pragma("GCC pop_options")
#endif

#endif
