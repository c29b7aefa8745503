/* SPDX-License-Identifier: Apache-2.0
 *
 * Every template of the kernel layer is included once per instruction set. The names it defines carry the
 * instruction set as a suffix; this header lets the templates spell them without it. The macros expand lazily,
 * so one definition serves every value of DY_ISA. */
#ifndef DYNET_CY_NAMES_H
#define DYNET_CY_NAMES_H

#define DY_CAT_(a, b) a##_##b
#define DY_CAT(a, b) DY_CAT_(a, b)
#define DY_N(name) DY_CAT(dy_##name, DY_ISA)
#define DY_STR_(x) #x
#define DY_STR(x) DY_STR_(x)

#if defined(__GNUC__)
#define DY_INLINE static inline __attribute__((always_inline))
#define DY_UNROLL _Pragma("GCC unroll 16")
/* Prefetch into the second-level cache; into the first one, for writing. Any address is allowed. */
#define DY_PREFETCH(p) __builtin_prefetch((p), 0, 2)
#define DY_PREFETCH_TO_WRITE(p) __builtin_prefetch((p), 1)
#else
#define DY_INLINE static inline
#define DY_UNROLL
#define DY_PREFETCH(p) (void)(p)
#define DY_PREFETCH_TO_WRITE(p) (void)(p)
#endif

/* Vector type, its integer companions and the operations of simd.h. */
#define vf DY_N(vf)
#define vi DY_N(vi)
#define vu DY_N(vu)
#define vd DY_N(vd)
#define C DY_N(splat)
#define I DY_N(splat_i)
#define SEL DY_N(sel)
#define ld DY_N(ld)
#define st DY_N(st)
#define ld_n DY_N(ld_n)
#define st_n DY_N(st_n)
#define keep_n DY_N(keep_n)
#define any DY_N(any)
#define hsum DY_N(hsum)
#define hmax DY_N(hmax)
#define as_i DY_N(as_i)
#define as_f DY_N(as_f)
#define to_f DY_N(to_f)

/* The functions that the formulas of the .def files may use; vmath.inl defines them. */
#define ABS DY_N(abs)
#define SQRT DY_N(sqrt)
#define EXP DY_N(exp)
#define EXPM1 DY_N(expm1)
#define LOG DY_N(log)
#define LOG1P DY_N(log1p)
#define TANH DY_N(tanh)
#define LOGISTIC DY_N(logistic)
#define SOFTPLUS DY_N(softplus)
#define COS_TURN DY_N(cos_turn)
#define SIN_TURN DY_N(sin_turn)
#define POW DY_N(pow)
#define ERF DY_N(erf)
#define LGAMMA DY_N(lgamma)
#define DIGAMMA DY_N(digamma)
#define SIN DY_N(sin)
#define COS DY_N(cos)
#define TAN DY_N(tan)
#define ASIN DY_N(asin)
#define ACOS DY_N(acos)
#define ATAN DY_N(atan)
#define SINH DY_N(sinh)
#define COSH DY_N(cosh)
#define ASINH DY_N(asinh)
#define ACOSH DY_N(acosh)
#define ATANH DY_N(atanh)
#define FLOOR DY_N(floor)
#define CEIL DY_N(ceil)
#define ROUND DY_N(round)

#endif
