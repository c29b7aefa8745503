/* SPDX-License-Identifier: Apache-2.0
 *
 * Products with A in panels: for a matrix that is kept packed, and for one that is packed during the product.
 *
 * A panel has DY_PANEL vectors of rows, stored column after column, so that the innermost loop reads A in the order of
 * memory. The panels of a matrix are contiguous. The last panel of a packed matrix has only as many vectors as it
 * needs; rows beyond the end are zeros. docs/kernels.md has the measurements.
 *
 * DY_PAIRS: an element of panels and of B is not a float but a pair of numbers, two terms of each sum; see bf16.inl. */

/* Transposes a square of DY_SQUARE lines. */
#if DY_W >= 8 && defined(DY_X86)
#define DY_SQUARE 8
typedef __m256 DY_N(line);
DY_INLINE void DY_N(turn)(__m256 v[8]) {
    __m256 p[8], q[8];
    DY_UNROLL for (int i = 0; i < 8; i += 2) {
        p[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        p[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    DY_UNROLL for (int i = 0; i < 8; i += 4)
        DY_UNROLL for (int j = 0; j < 2; j++) {
            q[i + 2 * j] = _mm256_shuffle_ps(p[i + j], p[i + 2 + j], 0x44);
            q[i + 2 * j + 1] = _mm256_shuffle_ps(p[i + j], p[i + 2 + j], 0xEE);
        }
    DY_UNROLL for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2f128_ps(q[i], q[i + 4], 0x20);
        v[i + 4] = _mm256_permute2f128_ps(q[i], q[i + 4], 0x31);
    }
}
#elif defined(DY_NEON)
#define DY_SQUARE 4
typedef vf DY_N(line);
DY_INLINE void DY_N(turn)(vf v[4]) {
    vf even[2], odd[2];
    DY_N(zip)(v[0], v[2], &even[0], &even[1]);
    DY_N(zip)(v[1], v[3], &odd[0], &odd[1]);
    DY_N(zip)(even[0], odd[0], &v[0], &v[1]);
    DY_N(zip)(even[1], odd[1], &v[2], &v[3]);
}
#endif

/* y[i * ystep + l] = x[l * xstep + i] for i below n and l below `lanes`; the remaining lanes, up to DY_W, are zero. */
static void DY_N(to_lanes)(size_t n, size_t lanes, const float *x, size_t xstep, float *y, size_t ystep) {
    size_t i = 0;
#ifdef DY_SQUARE
    if (lanes == DY_W && n >= DY_SQUARE)
        for (; i < n; i += DY_SQUARE) {
            if (n - i < DY_SQUARE) i = n - DY_SQUARE; /* repeat some elements rather than handle the rest one by one */
            DY_UNROLL for (size_t l = 0; l < DY_W; l += DY_SQUARE) {
                DY_N(line) v[DY_SQUARE];
                DY_UNROLL for (int k = 0; k < DY_SQUARE; k++) memcpy(v + k, x + (l + k) * xstep + i, sizeof *v);
                DY_N(turn)(v);
                DY_UNROLL for (int k = 0; k < DY_SQUARE; k++) memcpy(y + (i + k) * ystep + l, v + k, sizeof *v);
            }
        }
#endif
    for (; i < n; i++)
        for (size_t l = 0; l < DY_W; l++) y[i * ystep + l] = l < lanes ? x[l * xstep + i] : 0;
}

#ifndef DY_PAIRS
/* y[l * ystep + i] = x[i * xstep + l] + bias[l] for i below n and l below `lanes`, or adds that. */
static void DY_N(from_lanes)(size_t n, size_t lanes, const float *x, size_t xstep, const float *bias, float *y, size_t ystep,
                             int acc) {
    size_t i = 0;
#ifdef DY_SQUARE
    if (lanes == DY_W && n >= DY_SQUARE)
        for (; i + DY_SQUARE <= n || (i < n && !acc); i += DY_SQUARE) {
            if (n - i < DY_SQUARE) i = n - DY_SQUARE;
            DY_UNROLL for (size_t l = 0; l < DY_W; l += DY_SQUARE) {
                DY_N(line) v[DY_SQUARE], old;
                DY_UNROLL for (int k = 0; k < DY_SQUARE; k++) memcpy(v + k, x + (i + k) * xstep + l, sizeof *v);
                DY_N(turn)(v);
                DY_UNROLL for (int k = 0; k < DY_SQUARE; k++) {
                    float *at = y + (l + k) * ystep + i;
                    if (bias) v[k] += bias[l + k];
                    if (acc) {
                        memcpy(&old, at, sizeof old);
                        v[k] += old;
                    }
                    memcpy(at, v + k, sizeof *v);
                }
            }
        }
#endif
    for (; i < n; i++)
        for (size_t l = 0; l < lanes; l++) {
            float *at = y + l * ystep + i, v = x[i * xstep + l] + (bias ? bias[l] : 0);
            *at = acc ? *at + v : v;
        }
}
#endif

/* The geometry: vectors of rows of a panel, columns of B that are multiplied at once, and columns of A that one pass takes,
 * so that a panel and its part of B stay in the caches; each pass adds to C. benchmarks/panels.py compiles others.
 * DY_PANEL_TILES(T, R) lists the tiles of panels of R vectors as T(columns, panels, R), DY_PANEL_ALL(T) those of all. */
#ifndef DY_PANEL
#if DY_W == 16 /* also when this code is tested on AVX2 */
#define DY_PANEL 3
#define DY_PANEL_COLUMNS 8
#define DY_PASS 512
#define DY_PANEL_TILES(T, R)                                                                                  \
    T(1, 3, R) T(1, 2, R) T(1, 1, R) T(2, 2, R) T(2, 1, R) T(3, 2, R) T(3, 1, R) T(4, 1, R) T(5, 1, R) T(6, 1, R) \
    T(7, 1, R) T(8, 1, R)
#define DY_PANEL_ALL(T) DY_PANEL_TILES(T, 1) DY_PANEL_TILES(T, 2) DY_PANEL_TILES(T, 3)
#elif defined(DY_NEON)
#define DY_PANEL 4
#define DY_PANEL_COLUMNS 5
#define DY_PASS 256
#define DY_PANEL_TILES(T, R) T(1, 3, R) T(1, 2, R) T(1, 1, R) T(2, 2, R) T(2, 1, R) T(3, 1, R) T(4, 1, R) T(5, 1, R)
#define DY_PANEL_ALL(T) DY_PANEL_TILES(T, 1) DY_PANEL_TILES(T, 2) DY_PANEL_TILES(T, 3) DY_PANEL_TILES(T, 4)
#else
#define DY_PANEL 3
#define DY_PANEL_COLUMNS 4
#define DY_PASS 256
#define DY_PANEL_TILES(T, R) T(1, 3, R) T(1, 2, R) T(1, 1, R) T(2, 2, R) T(2, 1, R) T(3, 1, R) T(4, 1, R)
#define DY_PANEL_ALL(T) DY_PANEL_TILES(T, 1) DY_PANEL_TILES(T, 2) DY_PANEL_TILES(T, 3)
#endif
#endif

#ifdef DY_PAIRS
DY_INLINE vf DY_N(broadcast)(const float *p) {
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return (vf)_mm512_set1_epi32(pair);
}
DY_INLINE vf DY_N(add_terms)(vf sums, vf x, vf y) {
    return (vf)_mm512_dpbf16_ps((__m512)sums, (__m512bh)x, (__m512bh)y);
}
#else
DY_INLINE vf DY_N(broadcast)(const float *p) { return C(*p); }
DY_INLINE vf DY_N(add_terms)(vf sums, vf x, vf y) { return sums + x * y; }

/* The panel of `rows` rows of op(A) and k of its columns. */
static void DY_N(pack_panel)(int ta, size_t rows, size_t k, const float *a, size_t lda, float *panel) {
    size_t width = (rows + DY_W - 1) / DY_W * DY_W;
    if (ta)
        for (size_t r = 0; r < rows; r += DY_W)
            DY_N(to_lanes)(k, rows - r < DY_W ? rows - r : DY_W, a + r * lda, lda, panel + r, width);
    else
        for (size_t p = 0; p < k; p++, a += lda, panel += width) {
            size_t r = 0;
            for (; r + DY_W <= rows; r += DY_W) st(panel + r, ld(a + r));
            if (r < rows) st(panel + r, ld_n(a + r, rows - r));
        }
}

static void DY_N(pack)(int ta, size_t m, size_t k, const float *a, size_t lda, float *panels) {
    for (size_t i = 0; i < m; i += DY_PANEL * DY_W, panels += DY_PANEL * DY_W * k)
        DY_N(pack_panel)(ta, m - i < DY_PANEL * DY_W ? m - i : DY_PANEL * DY_W, k, a + (ta ? i * lda : i), lda, panels);
}
#endif

/* The data to prefetch from memory while a panel from the cache is multiplied: the first `lines` of its vectors of each
 * column, from `at` on; by lanes, of its cache lines of each DY_W columns. */
typedef struct {
    const float *at;
    size_t lines;
} DY_N(ahead);
#ifdef DY_BY_LANE
#define DY_LINE (DY_W * DY_W)
#else
#define DY_LINE DY_W
#endif

DY_INLINE void DY_N(prefetch)(DY_N(ahead) ahead) {
    for (size_t l = 0; l < ahead.lines; l++) DY_PREFETCH(ahead.at + l * DY_LINE);
}

/* Element (p, j) of B is at b[p * rs + j * cs]. */
typedef void (*DY_N(panel_fn))(size_t k, const float *a, size_t next, const float *b, size_t rs, size_t cs, float alpha,
                               float beta, const float *old, size_t ldold, float *c, size_t ldc, size_t tail,
                               DY_N(ahead) ahead);

/* Adds a term to each sum: one column of P panels of R vectors, times N numbers of B: those in a lane of each y, or, if
 * `lane` is negative, those at b. */
DY_INLINE void DY_N(panel_term)(const int N, const int P, const int R, const float *a, size_t next, const float *b, size_t cs,
                                const vf *y, const int lane, vf acc[DY_PANEL_COLUMNS][4][DY_PANEL]) {
    vf x[4][DY_PANEL];
    DY_UNROLL for (int q = 0; q < P; q++)
        DY_UNROLL for (int r = 0; r < R; r++) x[q][r] = ld(a + q * next + r * DY_W);
    DY_UNROLL for (int j = 0; j < N; j++) {
        vf number = lane < 0 ? DY_N(broadcast)(b + j * cs) : C(DY_LANE(y[j], lane));
        DY_UNROLL for (int q = 0; q < P; q++)
            DY_UNROLL for (int r = 0; r < R; r++) acc[j][q][r] = DY_N(add_terms)(acc[j][q][r], x[q][r], number);
    }
}

/* C = alpha A B + beta D for P panels of R vectors, `next` floats apart, and N columns; the last vector has `tail` rows,
 * 0 for all. D is at `old`, and may be C. */
DY_INLINE void DY_N(panel)(const int N, const int P, const int R, size_t k, const float *a, size_t next, const float *b,
                           size_t rs, size_t cs, float alpha, float beta, const float *old, size_t ldold, float *c,
                           size_t ldc, size_t tail, DY_N(ahead) ahead) {
    vf acc[DY_PANEL_COLUMNS][4][DY_PANEL]; /* of up to 3 panels; with [3], gcc makes code that is a tenth slower */
    DY_UNROLL for (int j = 0; j < N; j++)
        DY_UNROLL for (int q = 0; q < P; q++)
            DY_UNROLL for (int r = 0; r < R; r++) {
                acc[j][q][r] = C(0.f);
                DY_PREFETCH_TO_WRITE(c + j * ldc + (q * R + r) * DY_W);
            }
    size_t p = 0;
#ifdef DY_BY_LANE
    if (rs == 1)
        for (; p + DY_W <= k; p += DY_W, b += DY_W, ahead.at += R * DY_LINE) {
            vf y[DY_PANEL_COLUMNS];
            DY_N(prefetch)(ahead);
            DY_UNROLL for (int j = 0; j < N; j++) y[j] = DY_N(ld_lanes)(b + j * cs);
            DY_UNROLL for (int lane = 0; lane < DY_W; lane++, a += R * DY_W)
                DY_N(panel_term)(N, P, R, a, next, b, cs, y, lane, acc);
        }
    ahead.lines = 0;
#endif
    for (; p < k; p++, a += R * DY_W, b += rs, ahead.at += R * DY_W) {
        DY_N(prefetch)(ahead);
        DY_N(panel_term)(N, P, R, a, next, b, cs, NULL, -1, acc);
    }
    DY_UNROLL for (int j = 0; j < N; j++, c += ldc, old += ldold)
        DY_UNROLL for (int q = 0; q < P; q++)
            DY_UNROLL for (int r = 0; r < R; r++) {
                size_t at = (q * R + r) * DY_W;
                vf x = C(alpha) * acc[j][q][r];
                if (q == P - 1 && r == R - 1 && tail)
                    st_n(c + at, beta == 0 ? x : x + C(beta) * ld_n(old + at, tail), tail);
                else
                    st(c + at, beta == 0 ? x : x + C(beta) * ld(old + at));
            }
}

#define DY_PANEL_FN(N, P, R)                                                                                           \
    static void DY_N(panel_##N##_##P##_##R)(size_t k, const float *a, size_t next, const float *b, size_t rs, size_t cs, \
                                            float alpha, float beta, const float *old, size_t ldold, float *c,         \
                                            size_t ldc, size_t tail, DY_N(ahead) ahead) {                              \
        DY_N(panel)(N, P, R, k, a, next, b, rs, cs, alpha, beta, old, ldold, c, ldc, tail, ahead);                     \
    }
#define DY_PANEL_NAME(N, P, R) [R - 1][N - 1][P - 1] = DY_N(panel_##N##_##P##_##R),
DY_PANEL_ALL(DY_PANEL_FN)
static const DY_N(panel_fn) DY_N(panel_fns)[DY_PANEL][DY_PANEL_COLUMNS][3] = {DY_PANEL_ALL(DY_PANEL_NAME)};

/* All columns of one group of panels, split evenly among as few tiles as possible. If `rs` is 0, B is packed tile by
 * tile, with its columns side by side. `ahead` are the panels to be multiplied next; NULL: there are none, or they are in the cache. */
static void DY_N(panel_columns)(int count, int vectors, size_t n, size_t k, const float *a, size_t next, const float *b,
                                size_t rs, size_t cs, float alpha, float beta, const float *old, size_t ldold, float *c,
                                size_t ldc, size_t tail, const float *ahead) {
    size_t most = count == 3 ? 1 : count == 2 ? 3 : DY_PANEL_COLUMNS, tiles = (n + most - 1) / most, v = vectors;
    size_t lines = tiles < v ? (v + tiles - 1) / tiles : 1; /* each tile prefetches some, so that no tile has to wait */
    for (size_t u = 0, j = 0; u < tiles; u++) {
        size_t w = (n - j) / (tiles - u), from = u * lines;
        DY_N(ahead) soon = {a, 0};
        if (ahead && from < v) soon = (DY_N(ahead)){ahead + from * DY_LINE, v - from < lines ? v - from : lines};
        DY_N(panel_fns)[vectors - 1][w - 1][count - 1](k, a, next, b + j * (rs ? cs : k), rs ? rs : w, rs ? cs : 1, alpha, beta,
                                                       old + j * ldold, ldold, c + j * ldc, ldc, tail, soon);
        j += w;
    }
}

#ifndef DY_PAIRS
static void DY_N(sgemm_packed)(size_t m, size_t n, size_t k, const float *panels, const float *b, size_t ldb, float beta,
                               const float *old, size_t ldold, float *c, size_t ldc) {
    size_t height = DY_PANEL * DY_W, whole = m / height, rest = m % height, passes = (k + DY_PASS - 1) / DY_PASS;
    /* With few columns, several panels at once give enough independent sums to hide the latency of additions. No
     * prefetching then: they are already read at the speed of memory. */
    size_t most = n == 1 ? 3 : n <= 3 && 2 * n <= DY_PANEL_COLUMNS ? 2 : 1;
    for (size_t t = 0, p = 0; t < passes; t++) {
        size_t part = (k - p) / (passes - t);
        if (t) {
            beta = 1;
            old = c;
            ldold = ldc;
        }
        const float *next = panels + (p + part) * height; /* the first panel of the next pass */
        for (size_t i = 0, count; i < whole; i += count) {
            count = most < whole - i ? most : whole - i;
            const float *a = panels + (i * k + p) * height;
            DY_N(panel_columns)((int)count, DY_PANEL, n, part, a, height * k, b + p, 1, ldb, 1, beta, old + i * height,
                                ldold, c + i * height, ldc, 0,
                                most > 1 ? NULL : i + 1 < whole ? a + height * k : t + 1 < passes ? next : NULL);
        }
        if (rest) {
            size_t vectors = (rest + DY_W - 1) / DY_W;
            DY_N(panel_columns)(1, (int)vectors, n, part, panels + whole * height * k + p * vectors * DY_W, 0, b + p, 1, ldb,
                                1, beta, old + whole * height, ldold, c + whole * height, ldc, rest % DY_W, NULL);
        }
        p += part;
    }
}

#if DY_OWN_PRODUCTS
/* C = alpha op(A) op(B) + beta C with each panel of A packed when it is multiplied, and B where its columns are not
 * contiguous, in `scratch`. The order of the sums depends on k only. */
static void DY_N(gemm_panels)(int ta, int tb, size_t m, size_t n, size_t k, float alpha, const float *a, size_t lda,
                              const float *b, size_t ldb, float beta, float *c, size_t ldc, float *scratch) {
    _Static_assert(DY_PANEL * DY_W * DY_PASS <= DY_SCRATCH_PANEL && DY_PANEL_COLUMNS * DY_PASS <= DY_SCRATCH_COLUMNS,
                   "scratch.h");
    size_t passes = (k + DY_PASS - 1) / DY_PASS, most = DY_SCRATCH_COLUMNS / ((k + passes - 1) / passes);
    size_t vectors = (m + DY_W - 1) / DY_W, groups = (vectors + DY_PANEL - 1) / DY_PANEL;
    size_t blocks = (n + most - 1) / most;
    float *packed = scratch + DY_SCRATCH_PANEL;
    for (size_t u = 0, j = 0, w; u < blocks; u++, j += w) {
        w = (n - j) / (blocks - u);
        for (size_t t = 0, p = 0, part; t < passes; t++, p += part) {
            size_t rs = 1, cs = ldb;
            part = (k - p) / (passes - t);
#ifdef DY_BY_LANE
            if (tb) {
                cs = part;
                for (size_t l = 0; l < w; l += DY_W)
                    DY_N(from_lanes)(part, w - l < DY_W ? w - l : DY_W, b + j + l + p * ldb, ldb, NULL, packed + l * part, part,
                                     0);
            }
#else
            if (tb) {
                rs = 0;
                for (size_t l = 0, v = 0, tiles = (w + DY_PANEL_COLUMNS - 1) / DY_PANEL_COLUMNS, x; v < tiles; v++, l += x) {
                    float *to = packed + l * part;
                    x = (w - l) / (tiles - v);
                    for (size_t q = 0; q < part; q++, to += x) {
                        const float *from = b + j + l + (p + q) * ldb;
                        if (x == DY_PANEL_COLUMNS) memcpy(to, from, DY_PANEL_COLUMNS * sizeof *to); /* without a call */
                        else memcpy(to, from, x * sizeof *to);
                    }
                }
            }
#endif
            for (size_t g = 0, i = 0, count; g < groups; g++, i += count) {
                count = (vectors - i) / (groups - g);
                size_t row = i * DY_W, rows = m - row < count * DY_W ? m - row : count * DY_W;
                DY_N(pack_panel)(ta, rows, part, a + (ta ? row * lda + p : row + p * lda), lda, scratch);
                DY_N(panel_columns)(1, (int)count, w, part, scratch, 0, tb ? packed : b + p + j * ldb, rs, cs, alpha,
                                    t ? 1 : beta, c + row + j * ldc, ldc, c + row + j * ldc, ldc, rows % DY_W, NULL);
            }
        }
    }
}
#endif
#endif

#undef DY_LINE
#undef DY_PANEL_TILES
#undef DY_PANEL_ALL
#undef DY_PANEL_FN
#undef DY_PANEL_NAME
