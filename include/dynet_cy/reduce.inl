/* SPDX-License-Identifier: Apache-2.0
 *
 * Reductions, and the kernels that work column by column. */

/* Four vectors of running sums in each block hide the latency of the addition. `term` is a macro of a loader. */
#define DY_AT(p, k) ld((p) + i + (k) * DY_W)
#define DY_TAIL(p, k) ld_n((p) + i, n - i)
#define DY_SUM(name, arguments, term)                                          \
    static float DY_N(name) arguments {                                        \
        double total = 0;                                                      \
        size_t i = 0, end;                                                     \
        do {                                                                   \
            vf s0 = C(0.f), s1 = s0, s2 = s0, s3 = s0;                         \
            end = n - i > DY_BLOCK ? i + DY_BLOCK : n;                         \
            for (; i + 4 * DY_W <= end; i += 4 * DY_W) {                       \
                s0 += term(DY_AT, 0);                                          \
                s1 += term(DY_AT, 1);                                          \
                s2 += term(DY_AT, 2);                                          \
                s3 += term(DY_AT, 3);                                          \
            }                                                                  \
            for (; i + DY_W <= end; i += DY_W) s0 += term(DY_AT, 0);           \
            if (i < end) s1 += term(DY_TAIL, 0);                               \
            total += hsum((s0 + s1) + (s2 + s3));                              \
            i = end;                                                           \
        } while (end < n);                                                     \
        return (float)total;                                                   \
    }
#define DY_TERM_SUM(load, k) load(x, k)
#define DY_TERM_SUMSQ(load, k) (load(x, k) * load(x, k))
#define DY_TERM_DOT(load, k) (load(x, k) * load(y, k))
DY_SUM(sum, (size_t n, const float *x), DY_TERM_SUM)
DY_SUM(sumsq, (size_t n, const float *x), DY_TERM_SUMSQ)
DY_SUM(dot, (size_t n, const float *x, const float *y), DY_TERM_DOT)
#undef DY_AT
#undef DY_TAIL
#undef DY_SUM
#undef DY_TERM_SUM
#undef DY_TERM_SUMSQ
#undef DY_TERM_DOT

/* A NaN stays. Four running maxima hide the latency of the comparison. */
DY_INLINE vf DY_N(larger)(vf m, vf t) { return SEL((t > m) | (t != t), t, m); }

static float DY_N(max)(size_t n, const float *x) {
    vf m = C(-INFINITY), m1 = m, m2 = m, m3 = m;
    size_t i = 0;
    for (; i + 4 * DY_W <= n; i += 4 * DY_W) {
        m = DY_N(larger)(m, ld(x + i));
        m1 = DY_N(larger)(m1, ld(x + i + DY_W));
        m2 = DY_N(larger)(m2, ld(x + i + 2 * DY_W));
        m3 = DY_N(larger)(m3, ld(x + i + 3 * DY_W));
    }
    for (; i + DY_W <= n; i += DY_W) m = DY_N(larger)(m, ld(x + i));
    if (i < n) m1 = DY_N(larger)(m1, SEL(DY_N(lanes_below)(n - i), ld_n(x + i, n - i), C(-INFINITY)));
    return hmax(DY_N(larger)(DY_N(larger)(m, m1), DY_N(larger)(m2, m3)));
}

/* Two passes, both at the speed of memory: faster than keeping indices in vectors. */
static size_t DY_N(argmax)(size_t n, const float *x) {
    float m = DY_N(max)(n, x);
    size_t i = 0;
    if (m == m) {
        while (i + DY_W <= n && !any(ld(x + i) == C(m))) i += DY_W;
        while (i < n && x[i] != m) i++;
    } else {
        while (i < n && x[i] == x[i]) i++;
    }
    return i;
}

#define DY_NEXT(within)                                                                                                \
    for (; i + 4 * DY_W <= n; i += 4 * DY_W)                                                                           \
        if (any(~((ld(x + i) within m) & (ld(x + i + DY_W) within m) & (ld(x + i + 2 * DY_W) within m) &               \
                  (ld(x + i + 3 * DY_W) within m))))                                                                   \
            break;                                                                                                     \
    while (i + DY_W <= n && !any(~(ld(x + i) within m))) i += DY_W;                                                    \
    while (i < n && x[i] within limit) i++;

static size_t DY_N(next_beyond)(size_t n, const float *x, float limit, int above) {
    vf m = C(limit);
    size_t i = 0;
    if (above) {
        DY_NEXT(<=)
    } else {
        DY_NEXT(>=)
    }
    return i;
}
#undef DY_NEXT

static int DY_N(all_finite)(size_t n, const float *x) {
    vi bad = I(0), exponent = I(0x7f800000);
    DY_EACH(bad |= (as_i(L(x)) & exponent) == exponent;);
    return !any(bad);
}

static void DY_N(repeat)(size_t rows, size_t cols, const float *b, float *y) {
    for (size_t c = 0; c < cols; c++) memcpy(y + c * rows, b, rows * sizeof *b);
}

static void DY_N(bias_add)(size_t rows, size_t cols, const float *b, const float *x, float *y) {
    size_t n = rows;
    for (size_t c = 0; c < cols; c++, x += rows, y += rows) DY_EACH(S(y, L(x) + L(b)););
}

/* The sum of the columns in `lanes` rows; more columns than this are summed recursively, by halves. */
#define DY_COLUMNS 256
static vf DY_N(sum_columns)(size_t lanes, size_t rows, size_t cols, const float *x) {
    vf t = C(0.f);
    if (cols > DY_COLUMNS) {
        size_t half = cols / 2;
        return DY_N(sum_columns)(lanes, rows, half, x) + DY_N(sum_columns)(lanes, rows, cols - half, x + half * rows);
    }
    if (lanes == DY_W)
        for (size_t c = 0; c < cols; c++) t += ld(x + c * rows);
    else
        for (size_t c = 0; c < cols; c++) t += ld_n(x + c * rows, lanes);
    return t;
}

static void DY_N(bias_bwd)(size_t rows, size_t cols, const float *dy, float *db, int acc) {
    size_t n = rows;
    DY_EACH(DY_GRADIENT(db, acc, DY_N(sum_columns)(whole ? DY_W : n - i, rows, cols, dy + i)););
}

/* The sum of e^(x - m), in blocks as above; unless y is NULL, the terms too. */
DY_INLINE double DY_N(sum_exp)(size_t rows, float m, const float *x, float *y) {
    double total = 0;
    for (size_t at = 0; at < rows; at += DY_BLOCK) {
        size_t n = rows - at < DY_BLOCK ? rows - at : DY_BLOCK;
        vf s = C(0.f);
        DY_EACH(
            vf e = EXP(L(x + at) - C(m));
            if (y) S(y + at, e);
            s += K(e);
        );
        total += hsum(s);
    }
    return total;
}

static void DY_N(softmax_part)(size_t rows, size_t cols, float *x, float *top, float *total, float *factor) {
    for (size_t c = 0; c < cols; c++, x += rows) {
        float m = DY_N(max)(rows, x);
        m = top[c] > m ? top[c] : m;
        /* Where all are -inf the sum of exponentials is 0. */
        factor[c] = top[c] == m ? 1 : expf(top[c] - m);
        total[c] = total[c] * factor[c] + (float)DY_N(sum_exp)(rows, m == -INFINITY ? 0 : m, x, x);
        top[c] = m;
    }
}

static void DY_N(exp_less)(size_t rows, size_t cols, const float *z, float *x) {
    size_t n = rows;
    for (size_t c = 0; c < cols; c++, x += rows) {
        vf shift = C(z[2 * c]), share = C(1 / z[2 * c + 1]);
        DY_EACH(S(x, EXP(L(x) - shift) * share););
    }
}

static void DY_N(softmax_part_bwd)(size_t rows, size_t cols, const float *y, const float *mean, float *dy) {
    size_t n = rows;
    for (size_t c = 0; c < cols; c++, y += rows, dy += rows) {
        vf middle = C(mean[c]);
        DY_EACH(S(dy, L(y) * (L(dy) - middle)););
    }
}
