/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of matrices whose elements are rounded to bfloat16 (the upper half of a float: 8 bits of precision), with sums
 * in float32.
 *
 * vdpbf16ps adds two products to a sum: of the terms 2p and 2p + 1. So the two lie side by side, in one lane, and what is
 * a float in panels.inl is such a pair here, with half as many of them; behind an odd number of terms there is a zero. The
 * instruction rounds to nearest and takes denormal numbers for 0, whatever the thread's arithmetic is set to; so does the
 * rounding of factors. Infinities and NaN stay, and numbers from 2^128 - 2^119 on become infinite. */

#include "simd.h"
#define DY_PAIRS
#include "panels.inl"
#undef DY_PAIRS

DY_INLINE vf DY_N(ld_up_to)(const float *x, size_t n) { return n >= DY_W ? ld(x) : n ? ld_n(x, n) : C(0.f); }

/* The pairs of 2 DY_W terms that follow each other, of which there are n. */
DY_INLINE vf DY_N(pairs_along)(const float *x, size_t n) {
    vf low = DY_N(ld_up_to)(x, n), high = n > DY_W ? DY_N(ld_up_to)(x + DY_W, n - DY_W) : C(0.f);
    return (vf)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
}

/* The pairs of one term of n sums, up to DY_W, and the next term, `step` floats away; 0: there is none. */
DY_INLINE vf DY_N(pairs_across)(const float *x, size_t step, size_t n) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20,
                                           4, 19, 3, 18, 2, 17, 1, 16, 0);
    vf first = DY_N(ld_up_to)(x, n), second = step ? DY_N(ld_up_to)(x + step, n) : C(0.f);
    return (vf)_mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
}

#define DY_PAIRS_OF(k) (((k) + 1) / 2)

/* The panel of `rows` rows of op(A) and k of its columns. */
static void DY_N(pack_panel)(int ta, size_t rows, size_t k, const float *a, size_t lda, float *panel) {
    size_t width = (rows + DY_W - 1) / DY_W * DY_W, pairs = DY_PAIRS_OF(k);
    if (!ta) {
        for (size_t p = 0; p < pairs; p++, a += 2 * lda, panel += width)
            for (size_t r = 0; r < rows; r += DY_W) st(panel + r, DY_N(pairs_across)(a + r, 2 * p + 1 < k ? lda : 0, rows - r));
        return;
    }
    for (size_t r = 0; r < rows; r += DY_W)
        for (size_t p = 0; p < pairs; p += DY_W) {
            float block[DY_W * DY_W]; /* a row of op(A) each */
            size_t n = pairs - p < DY_W ? pairs - p : DY_W;
            for (size_t l = 0; l < DY_W; l++)
                st(block + l * DY_W, r + l < rows ? DY_N(pairs_along)(a + (r + l) * lda + 2 * p, k - 2 * p) : C(0.f));
            DY_N(to_lanes)(n, DY_W, block, DY_W, panel + p * width + r, width);
        }
}

static void DY_N(pack)(int ta, size_t m, size_t k, const float *a, size_t lda, float *panels) {
    size_t height = DY_PANEL * DY_W;
    for (size_t i = 0; i < m; i += height, panels += height * DY_PAIRS_OF(k))
        DY_N(pack_panel)(ta, m - i < height ? m - i : height, k, a + (ta ? i * lda : i), lda, panels);
}

/* k terms of w columns of op(B), in the order in which panel_columns takes them: tile by tile where `tb`, else column by
 * column. */
static void DY_N(pack_columns)(int tb, size_t w, size_t k, const float *b, size_t ldb, float *columns) {
    size_t pairs = DY_PAIRS_OF(k), tiles = (w + DY_PANEL_COLUMNS - 1) / DY_PANEL_COLUMNS;
    if (!tb) {
        for (size_t j = 0; j < w; j++, b += ldb, columns += pairs)
            for (size_t p = 0; p < pairs; p += DY_W) {
                vf x = DY_N(pairs_along)(b + 2 * p, k - 2 * p);
                if (pairs - p < DY_W) st_n(columns + p, x, pairs - p);
                else st(columns + p, x);
            }
        return;
    }
    for (size_t v = 0, l = 0, x; v < tiles; v++, l += x) {
        float *to = columns + l * pairs;
        x = (w - l) / (tiles - v);
        for (size_t p = 0; p < pairs; p++, to += x)
            st_tail(to, DY_N(pairs_across)(b + l + 2 * p * ldb, 2 * p + 1 < k ? ldb : 0, x), x);
    }
}

/* C = op(A) op(B) + beta C, with A as `pack` left it in `panels`, or, where that is NULL, packed panel by panel. The order of
 * a sum depends on k only. */
static void DY_N(gemm)(const float *panels, int ta, int tb, size_t m, size_t n, size_t k, const float *a, size_t lda,
                       const float *b, size_t ldb, float beta, float *c, size_t ldc) {
    enum { HEIGHT = DY_PANEL * DY_W, COLUMNS = DY_SCRATCH_COLUMNS / DY_PASS };
    _Static_assert(HEIGHT * DY_PASS <= DY_SCRATCH_PANEL, "scratch.h");
    size_t pairs = DY_PAIRS_OF(k), passes = (pairs + DY_PASS - 1) / DY_PASS, blocks = (n + COLUMNS - 1) / COLUMNS;
    float *scratch = dy_scratch(), *columns = scratch + DY_SCRATCH_PANEL;
    if (!scratch) { /* there is no memory: exact factors */
        dy_kernels_get(NULL)->sgemm(ta, tb, m, n, k, 1, a, lda, b, ldb, beta, c, ldc);
        return;
    }
    for (size_t u = 0, j = 0, w; u < blocks; u++, j += w) {
        w = (n - j) / (blocks - u);
        /* As in sgemm_packed: with few columns several panels at once. */
        size_t most = !panels || tb || w > 3 ? 1 : w == 1 ? 3 : 2;
        for (size_t t = 0, p = 0, part; t < passes; t++, p += part) {
            part = (pairs - p) / (passes - t);
            size_t terms = t + 1 < passes ? 2 * part : k - 2 * p;
            DY_N(pack_columns)(tb, w, terms, b + (tb ? j + 2 * p * ldb : 2 * p + j * ldb), ldb, columns);
            for (size_t i = 0, count; i < m; i += count * HEIGHT) {
                size_t rows = m - i < HEIGHT ? m - i : HEIGHT, width = (rows + DY_W - 1) / DY_W * DY_W;
                const float *panel = scratch, *ahead = NULL;
                for (count = most; count > 1 && i + count * HEIGHT > m;) count--;
                if (panels) {
                    panel = panels + i * pairs + p * width;
                    if (most == 1 && i + 2 * HEIGHT <= m) ahead = panel + HEIGHT * pairs;
                } else {
                    DY_N(pack_panel)(ta, rows, terms, a + (ta ? i * lda + 2 * p : i + 2 * p * lda), lda, scratch);
                }
                DY_N(panel_columns)((int)count, (int)(width / DY_W), w, part, panel, HEIGHT * pairs, columns, tb ? 0 : 1,
                                    tb ? 1 : part, 1, t ? 1 : beta, c + i + j * ldc, ldc, c + i + j * ldc, ldc, rows % DY_W, ahead);
            }
        }
    }
}
#undef DY_PAIRS_OF

const dy_bf16 DY_N(table) = {.panel = DY_PANEL * DY_W, .pack = DY_N(pack), .gemm = DY_N(gemm)};

#undef DY_PANEL
#undef DY_PANEL_COLUMNS
#undef DY_PASS
