/* SPDX-License-Identifier: Apache-2.0
 *
 * DY_EACH(statements) runs the statements for every vector of n elements, the last one possibly in part. Inside,
 * L(p) loads from p, S(p, x) stores to p, and K(x) clears the lanes beyond the end, for sums. `whole` is a
 * constant in each of the two copies, so testing it costs nothing. */
#ifndef DYNET_CY_LOOP_H
#define DYNET_CY_LOOP_H

#define DY_EACH(...)                                                           \
    do {                                                                       \
        size_t i = 0;                                                          \
        for (; i + DY_W <= n; i += DY_W) {                                     \
            enum { whole = 1 };                                                \
            __VA_ARGS__                                                        \
        }                                                                      \
        if (i < n) {                                                           \
            enum { whole = 0 };                                                \
            __VA_ARGS__                                                        \
        }                                                                      \
    } while (0)
#define L(p) (whole ? ld((p) + i) : ld_tail((p) + i, n - i))
#define S(p, x) (whole ? st((p) + i, x) : st_tail((p) + i, x, n - i))
#define K(x) (whole ? (x) : keep_n(x, n - i))

/* Rounding errors grow with the number of terms of a running sum. So sums are computed in blocks of this many elements,
 * and the sums of the blocks are added in double precision. */
#define DY_BLOCK (512 * (size_t)DY_W)
/* Block size of sums whose blocks are added in float32 (products, rows added by index, images): for a million equal terms
 * the relative error is 5e-5 with such blocks, and 0.01 without. */
#define DY_TERMS ((size_t)2048)

/* Stores a gradient: assigns, or adds when `acc` is set.  What is added is rounded first, in the tail as in whole vectors, so
 * that results do not depend on where the tail is. */
#define DY_GRADIENT(p, acc, x)                                                 \
    do {                                                                       \
        vf gradient = DY_N(rounded)(x);                                        \
        S(p, (acc) ? L(p) + gradient : gradient);                              \
    } while (0)

#endif
