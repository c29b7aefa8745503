/* SPDX-License-Identifier: Apache-2.0
 *
 * sgemm: our own microkernels for products with few columns, where general libraries lose most; panels (panels.inl) for
 * products of medium size; OpenBLAS for the rest. docs/kernels.md has the measurements behind these choices. */

#if DY_OWN_PRODUCTS

/* The largest tile of C, in vectors of rows, for 1 to 6 columns: its accumulators take up to 12 of the 16 registers
 * of AVX2, 24 of the 32 of AVX-512 and 20 of those of NEON, where numbers of B are in registers too. DY_TILES(T) lists all tiles as T(columns, vectors). */
#define DY_UP_TO_2(T, N) T(N, 1) T(N, 2)
#define DY_UP_TO_3(T, N) DY_UP_TO_2(T, N) T(N, 3)
#define DY_UP_TO_4(T, N) DY_UP_TO_3(T, N) T(N, 4)
#define DY_UP_TO_6(T, N) DY_UP_TO_4(T, N) T(N, 5) T(N, 6)
#define DY_UP_TO_8(T, N) DY_UP_TO_6(T, N) T(N, 7) T(N, 8)
#define DY_MAX_COLUMNS 6
#if DY_W == 16
#define DY_MAX_VECTORS {8, 8, 8, 6, 4, 4}
#define DY_TILES(T) DY_UP_TO_8(T, 1) DY_UP_TO_8(T, 2) DY_UP_TO_8(T, 3) DY_UP_TO_6(T, 4) DY_UP_TO_4(T, 5) DY_UP_TO_4(T, 6)
#elif defined(DY_NEON)
#define DY_MAX_VECTORS {8, 8, 6, 4, 4, 3}
#define DY_TILES(T) DY_UP_TO_8(T, 1) DY_UP_TO_8(T, 2) DY_UP_TO_6(T, 3) DY_UP_TO_4(T, 4) DY_UP_TO_4(T, 5) DY_UP_TO_3(T, 6)
#else
#define DY_MAX_VECTORS {8, 6, 4, 3, 2, 2}
#define DY_TILES(T) DY_UP_TO_8(T, 1) DY_UP_TO_6(T, 2) DY_UP_TO_4(T, 3) DY_UP_TO_3(T, 4) DY_UP_TO_2(T, 5) DY_UP_TO_2(T, 6)
#endif

/* Products that our microkernels compute: all with an inner dimension up to DY_MOST_RANK; if A is not transposed, those
 * with few columns and those whose A stays in the cache; if it is, those with few columns, more if the dot products are
 * long. */
#define DY_MOST_RANK 8
#if DY_W == 16
#define DY_MOST_COLUMNS 64
#else
#define DY_MOST_COLUMNS 24
#endif
#define DY_OWN_N(m, n, k) ((n) == 1 ? (m) * (k) <= 8192 : (n) <= DY_MOST_COLUMNS || (m) * (k) <= 16384)
#define DY_OWN_T(n, k) ((n) <= 8 || ((n) <= 32 && (k) >= 128))

typedef void (*DY_N(tile_fn))(size_t k, float alpha, const float *a, size_t lda, const float *b, size_t rs, size_t cs,
                              float beta, float *c, size_t ldc, size_t tail);

DY_INLINE vf DY_N(axpby)(vf product, float alpha, float beta, vf old) {
    return beta == 0 ? C(alpha) * product : C(alpha) * product + C(beta) * old;
}

/* C = alpha A B + beta C for R vectors of rows and N columns; element (p, j) of B is at b[p * rs + j * cs]. If
 * `part` is set, the last vector has `tail` lanes. R, N and part are literals wherever this is inlined: with sizes
 * unknown to the compiler, the accumulators would live in memory. */
DY_INLINE void DY_N(tile)(const int N, const int R, const int part, size_t k, float alpha, const float *a, size_t lda,
                          const float *b, size_t rs, size_t cs, float beta, float *c, size_t ldc, size_t tail) {
    vf acc[DY_MAX_COLUMNS][8];
    DY_UNROLL for (int j = 0; j < N; j++)
        DY_UNROLL for (int r = 0; r < R; r++) acc[j][r] = C(0.f);
    for (size_t p = 0; p < k; p++, a += lda, b += rs) {
        vf x[8];
        DY_UNROLL for (int r = 0; r < R; r++)
            x[r] = part && r == R - 1 ? ld_n(a + r * DY_W, tail) : ld(a + r * DY_W);
        DY_UNROLL for (int j = 0; j < N; j++) {
            vf y = C(b[j * cs]);
            DY_UNROLL for (int r = 0; r < R; r++) acc[j][r] += x[r] * y;
        }
    }
    DY_UNROLL for (int j = 0; j < N; j++, c += ldc)
        DY_UNROLL for (int r = 0; r < R; r++) {
            float *q = c + r * DY_W;
            if (part && r == R - 1)
                st_n(q, DY_N(axpby)(acc[j][r], alpha, beta, beta == 0 ? C(0.f) : ld_n(q, tail)), tail);
            else
                st(q, DY_N(axpby)(acc[j][r], alpha, beta, beta == 0 ? C(0.f) : ld(q)));
        }
}

#define DY_TILE_PART(N, R, part)                                                    \
    static void DY_N(tile_##N##_##R##_##part)(size_t k, float alpha, const float *a, size_t lda, const float *b, \
                                              size_t rs, size_t cs, float beta, float *c, size_t ldc, size_t tail) { \
        DY_N(tile)(N, R, part, k, alpha, a, lda, b, rs, cs, beta, c, ldc, tail); \
    }
#define DY_TILE(N, R) DY_TILE_PART(N, R, 0) DY_TILE_PART(N, R, 1)
DY_TILES(DY_TILE)
#define DY_TILE_ROW(N, R) [N - 1][R - 1] = {DY_N(tile_##N##_##R##_0), DY_N(tile_##N##_##R##_1)},
static const DY_N(tile_fn) DY_N(tiles)[DY_MAX_COLUMNS][8][2] = {DY_TILES(DY_TILE_ROW)};

/* Both directions are split evenly among as few tiles as possible. The columns are the inner loop, so that the rows
 * of A come from the first-level cache again. */
static void DY_N(gemm_n)(size_t m, size_t n, size_t k, float alpha, const float *a, size_t lda, const float *b, size_t rs,
                         size_t cs, float beta, float *c, size_t ldc) {
    static const unsigned char most[DY_MAX_COLUMNS] = DY_MAX_VECTORS;
    size_t vectors = (m + DY_W - 1) / DY_W, tail = m % DY_W, column_tiles = (n + DY_MAX_COLUMNS - 1) / DY_MAX_COLUMNS;
    size_t most_vectors = most[(n + column_tiles - 1) / column_tiles - 1];
    size_t row_tiles = (vectors + most_vectors - 1) / most_vectors;
    for (size_t t = 0, v = 0; t < row_tiles; t++) {
        size_t r = (vectors - v) / (row_tiles - t);
        int part = tail && t + 1 == row_tiles;
        for (size_t u = 0, j = 0; u < column_tiles; u++) {
            size_t w = (n - j) / (column_tiles - u);
            DY_N(tiles)[w - 1][r - 1][part](k, alpha, a + v * DY_W, lda, b + j * cs, rs, cs, beta, c + v * DY_W + j * ldc,
                                            ldc, tail);
            j += w;
        }
        v += r;
    }
}

/* C = alpha A B + beta C for N columns of C and K of A, down the whole columns: the elements of B stay in registers.
 * For a short inner dimension, where the memory traffic of C decides. */
DY_INLINE void DY_N(rank)(const int K, const int N, size_t n, float alpha, const float *a, size_t lda, const float *b,
                          size_t rs, size_t cs, float beta, float *c, size_t ldc) {
    vf y[4][4], old = C(beta);
    DY_UNROLL for (int p = 0; p < K; p++)
        DY_UNROLL for (int j = 0; j < N; j++) y[p][j] = C(alpha * b[p * rs + j * cs]);
    DY_EACH(
        vf x[4];
        DY_UNROLL for (int p = 0; p < K; p++) x[p] = L(a + p * lda);
        DY_UNROLL for (int j = 0; j < N; j++) {
            vf t = beta == 0 ? C(0.f) : old * L(c + j * ldc);
            DY_UNROLL for (int p = 0; p < K; p++) t += x[p] * y[p][j];
            S(c + j * ldc, t);
        }
    );
}

typedef void (*DY_N(rank_fn))(size_t m, float alpha, const float *a, size_t lda, const float *b, size_t rs, size_t cs,
                              float beta, float *c, size_t ldc);
#define DY_RANK_FN(K, N)                                                       \
    static void DY_N(rank_##K##_##N)(size_t m, float alpha, const float *a, size_t lda, const float *b, size_t rs, \
                                     size_t cs, float beta, float *c, size_t ldc) { \
        DY_N(rank)(K, N, m, alpha, a, lda, b, rs, cs, beta, c, ldc);           \
    }
#define DY_RANK_NAME(K, N) [K - 1][N - 1] = DY_N(rank_##K##_##N),
#define DY_RANKS(T) DY_UP_TO_2(T, 1) DY_UP_TO_2(T, 2) DY_UP_TO_2(T, 3) DY_UP_TO_2(T, 4)
DY_RANKS(DY_RANK_FN)
static const DY_N(rank_fn) DY_N(ranks)[4][2] = {DY_RANKS(DY_RANK_NAME)};

static void DY_N(gemm_rank)(size_t m, size_t n, size_t k, float alpha, const float *a, size_t lda, const float *b, size_t rs,
                            size_t cs, float beta, float *c, size_t ldc) {
    size_t passes = (k + 3) / 4;
    for (size_t j = 0; j < n; j += 2)
        for (size_t t = 0, p = 0; t < passes; t++) {
            size_t q = (k - p) / (passes - t);
            DY_N(ranks)[q - 1][j + 1 < n](m, alpha, a + p * lda, lda, b + p * rs + j * cs, rs, cs, t ? 1 : beta, c + j * ldc,
                                          ldc);
            p += q;
        }
}

/* C = alpha A' B + beta C for R columns of A and N of B: R * N dot products side by side. */
DY_INLINE void DY_N(dots)(const int R, const int N, size_t k, float alpha, const float *a, size_t lda, const float *b,
                          size_t ldb, float beta, float *c, size_t ldc) {
    vf acc[4][4];
    DY_UNROLL for (int i = 0; i < R; i++)
        DY_UNROLL for (int j = 0; j < N; j++) acc[i][j] = C(0.f);
    size_t n = k;
    DY_EACH(
        vf y[4];
        DY_UNROLL for (int j = 0; j < N; j++) y[j] = L(b + j * ldb);
        DY_UNROLL for (int r = 0; r < R; r++) {
            vf x = L(a + r * lda);
            DY_UNROLL for (int j = 0; j < N; j++) acc[r][j] += x * y[j];
        }
    );
    DY_UNROLL for (int j = 0; j < N; j++)
        DY_UNROLL for (int r = 0; r < R; r++) {
            float *q = c + r + j * ldc, s = alpha * hsum(acc[r][j]);
            *q = beta == 0 ? s : s + beta * *q;
        }
}

typedef void (*DY_N(dots_fn))(size_t k, float alpha, const float *a, size_t lda, const float *b, size_t ldb, float beta,
                              float *c, size_t ldc);
#define DY_DOTS(N, R)                                                          \
    static void DY_N(dots_##N##_##R)(size_t k, float alpha, const float *a, size_t lda, const float *b, size_t ldb, \
                                     float beta, float *c, size_t ldc) {       \
        DY_N(dots)(R, N, k, alpha, a, lda, b, ldb, beta, c, ldc);              \
    }
#define DY_DOTS_ROW(N, R) [N - 1][R - 1] = DY_N(dots_##N##_##R),
#define DY_ALL_DOTS(T) DY_UP_TO_4(T, 1) DY_UP_TO_4(T, 2) DY_UP_TO_4(T, 3) DY_UP_TO_3(T, 4)
DY_ALL_DOTS(DY_DOTS)
static const DY_N(dots_fn) DY_N(dots_table)[4][4] = {DY_ALL_DOTS(DY_DOTS_ROW)};

static void DY_N(gemm_t)(size_t m, size_t n, size_t k, float alpha, const float *a, size_t lda, const float *b, size_t ldb,
                         float beta, float *c, size_t ldc) {
    size_t column_tiles = (n + 3) / 4, most = (n + column_tiles - 1) / column_tiles == 4 ? 3 : 4;
    size_t row_tiles = (m + most - 1) / most;
    for (size_t t = 0, i = 0; t < row_tiles; t++) {
        size_t r = (m - i) / (row_tiles - t);
        for (size_t u = 0, j = 0; u < column_tiles; u++) {
            size_t w = (n - j) / (column_tiles - u);
            DY_N(dots_table)[w - 1][r - 1](k, alpha, a + i * lda, lda, b + j * ldb, ldb, beta, c + i + j * ldc, ldc);
            j += w;
        }
        i += r;
    }
}

#undef DY_UP_TO_2
#undef DY_UP_TO_3
#undef DY_UP_TO_4
#undef DY_UP_TO_6
#undef DY_UP_TO_8
#undef DY_MAX_COLUMNS
#undef DY_MAX_VECTORS
#undef DY_TILES
#undef DY_TILE_PART
#undef DY_TILE
#undef DY_TILE_ROW
#undef DY_RANK_FN
#undef DY_RANK_NAME
#undef DY_RANKS
#undef DY_DOTS
#undef DY_DOTS_ROW
#undef DY_ALL_DOTS
#endif

static int DY_N(sgemm_way)(int ta, int tb, size_t m, size_t n, size_t k) {
#if DY_OWN_PRODUCTS
    if (!ta && k <= DY_MOST_RANK) return DY_SGEMM_RANK;
    if (!ta && DY_OWN_N(m, n, k)) return DY_SGEMM_TILES;
    if (ta && !tb && DY_OWN_T(n, k)) return DY_SGEMM_DOTS;
#else
    (void)ta, (void)tb, (void)k;
#endif
    /* A single row or column is several times slower in sgemm than in sgemv. */
    if (m == 1 || n == 1) return DY_SGEMM_VECTOR;
    /* OpenBLAS divides large ones among more levels of cache. */
    return DY_OWN_PRODUCTS && m * n * k <= 200000000 ? DY_SGEMM_PANELS : DY_SGEMM_LIBRARY;
}
#if DY_OWN_PRODUCTS
#undef DY_MOST_RANK
#undef DY_MOST_COLUMNS
#undef DY_OWN_N
#undef DY_OWN_T
#endif

/* Long sums are computed in blocks. OpenBLAS does this itself, except in sgemv and in products that it treats as small. */
#define DY_IN_PARTS(k, most, p, q) (size_t p = 0, q; q = (k) - p < (most) ? (k) - p : (most), p < (k); p += q)
#define DY_IN_BLOCKS(k, p, q) DY_IN_PARTS(k, DY_TERMS, p, q)
#define DY_LIBRARY_SMALL 1000000
/* OpenBLAS takes sizes as int. Rows and strides always are (core/tensor.pxd), but the columns of many examples, which are one
 * matrix, or of a tensor, whose axes after the first are one, may be more. */
#ifndef DY_LIBRARY_MOST
#define DY_LIBRARY_MOST 0x40000000
#endif

/* y = alpha op(A) x + beta y, op(A) with m rows and k columns. */
static void DY_N(gemv)(int ta, size_t m, size_t k, float alpha, const float *a, size_t lda, const float *x, size_t step,
                       float beta, float *y, size_t ystep) {
    enum { COL_MAJOR = 102, PLAIN = 111, TRANSPOSED = 112, ROWS = 1024 };
    float part[ROWS];
    if (k <= DY_TERMS && m <= DY_LIBRARY_MOST) {
        scipy_cblas_sgemv(COL_MAJOR, ta ? TRANSPOSED : PLAIN, (int)(ta ? k : m), (int)(ta ? m : k), alpha, a, (int)lda, x,
                          (int)step, beta, y, (int)ystep);
        return;
    }
    for (size_t i = 0; i < m; i += ROWS) {
        size_t rows = m - i < ROWS ? m - i : ROWS;
        for DY_IN_BLOCKS(k, p, q) {
            scipy_cblas_sgemv(COL_MAJOR, ta ? TRANSPOSED : PLAIN, (int)(ta ? q : rows), (int)(ta ? rows : q), alpha,
                              a + (ta ? i * lda + p : i + p * lda), (int)lda, x + p * step, (int)step, 0, part, 1);
            for (size_t r = 0; r < rows; r++) {
                float *at = y + (i + r) * ystep;
                *at = p ? *at + part[r] : beta == 0 ? part[r] : part[r] + beta * *at;
            }
        }
    }
}

static void DY_N(sgemm_by)(int way, int ta, int tb, size_t m, size_t n, size_t k, float alpha, const float *a, size_t lda,
                           const float *b, size_t ldb, float beta, float *c, size_t ldc) {
    enum { COL_MAJOR = 102, PLAIN = 111, TRANSPOSED = 112 };
    size_t as = ta ? 1 : lda, bs = tb ? ldb : 1; /* from one term of a sum to the next */
#if DY_OWN_PRODUCTS
    float *scratch = way == DY_SGEMM_PANELS ? dy_scratch() : NULL;
    if (way == DY_SGEMM_PANELS && !scratch) way = DY_SGEMM_LIBRARY;
#endif
    switch (way) {
#if DY_OWN_PRODUCTS
    case DY_SGEMM_RANK:
        DY_N(gemm_rank)(m, n, k, alpha, a, lda, b, bs, tb ? 1 : ldb, beta, c, ldc);
        return;
    case DY_SGEMM_TILES:
        for DY_IN_BLOCKS(k, p, q)
            DY_N(gemm_n)(m, n, q, alpha, a + p * as, lda, b + p * bs, bs, tb ? 1 : ldb, p ? 1 : beta, c, ldc);
        return;
    case DY_SGEMM_DOTS:
        for DY_IN_BLOCKS(k, p, q)
            DY_N(gemm_t)(m, n, q, alpha, a + p * as, lda, b + p * bs, ldb, p ? 1 : beta, c, ldc);
        return;
#endif
    case DY_SGEMM_VECTOR:
        if (n == 1) DY_N(gemv)(ta, m, k, alpha, a, lda, b, bs, beta, c, 1);
        else DY_N(gemv)(!tb, n, k, alpha, b, ldb, a, as, beta, c, ldc);
        return;
#if DY_OWN_PRODUCTS
    case DY_SGEMM_PANELS:
        DY_N(gemm_panels)(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, scratch);
        return;
#endif
    default: {
        size_t most = m * n * k > DY_LIBRARY_SMALL ? k : DY_TERMS;
        for DY_IN_PARTS(n, DY_LIBRARY_MOST, j, columns)
            for DY_IN_PARTS(k, most < DY_LIBRARY_MOST ? most : DY_LIBRARY_MOST, p, q)
                scipy_cblas_sgemm(COL_MAJOR, ta ? TRANSPOSED : PLAIN, tb ? TRANSPOSED : PLAIN, (int)m, (int)columns, (int)q,
                                  alpha, a + p * as, (int)lda, b + p * bs + j * (tb ? 1 : ldb), (int)ldb, p ? 1 : beta,
                                  c + j * ldc, (int)ldc);
    }
    }
}

static void DY_N(sgemm)(int ta, int tb, size_t m, size_t n, size_t k, float alpha, const float *a, size_t lda, const float *b,
                        size_t ldb, float beta, float *c, size_t ldc) {
    if (!m || !n) return;
    if (!k || alpha == 0) {
        for (size_t j = 0; j < n; j++, c += ldc)
            if (beta == 0) DY_N(fill)(m, 0, c);
            else if (beta != 1) DY_N(scale)(m, beta, c, c);
        return;
    }
    DY_N(sgemm_by)(DY_N(sgemm_way)(ta, tb, m, n, k), ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
#undef DY_IN_BLOCKS
#undef DY_IN_PARTS
#undef DY_LIBRARY_SMALL
