/* SPDX-License-Identifier: Apache-2.0
 *
 * Vector mathematics, a template over simd.h. The functions on the hot path are own polynomials (at most 4 ulp);
 * the rare ones call libm lane by lane. NaN gives NaN everywhere. */

#define DY_LANES(name, fn)                                                     \
    DY_INLINE vf name(vf x) {                                                  \
        vf r = x;                                                              \
        for (int i = 0; i < DY_W; i++) DY_LANE(r, i) = fn(DY_LANE(x, i));      \
        return r;                                                              \
    }
#if DY_W == 4 && defined(DY_X86)
DY_INLINE vf SQRT(vf x) { return (vf)_mm_sqrt_ps((__m128)x); }
#elif DY_W == 8 && defined(DY_X86)
DY_INLINE vf SQRT(vf x) { return (vf)_mm256_sqrt_ps((__m256)x); }
#elif DY_W == 16 && defined(DY_AVX512)
DY_INLINE vf SQRT(vf x) { return (vf)_mm512_sqrt_ps((__m512)x); }
#else
DY_LANES(SQRT, sqrtf)
#endif
DY_LANES(ERF, erff)
DY_LANES(LGAMMA, dy_lgammaf)
DY_LANES(DIGAMMA, dy_digammaf)
DY_LANES(SIN, sinf)
DY_LANES(COS, cosf)
DY_LANES(TAN, tanf)
DY_LANES(ASIN, asinf)
DY_LANES(ACOS, acosf)
DY_LANES(ATAN, atanf)
DY_LANES(SINH, sinhf)
DY_LANES(COSH, coshf)
DY_LANES(ASINH, asinhf)
DY_LANES(ACOSH, acoshf)
DY_LANES(ATANH, atanhf)
DY_LANES(FLOOR, floorf)
DY_LANES(CEIL, ceilf)
DY_LANES(ROUND, roundf)
#undef DY_LANES

DY_INLINE vf POW(vf x, vf p) {
    vf r = x;
    for (int i = 0; i < DY_W; i++) DY_LANE(r, i) = powf(DY_LANE(x, i), DY_LANE(p, i));
    return r;
}

DY_INLINE vf ABS(vf x) { return as_f(as_i(x) & I(0x7fffffff)); }

/* 2^n for n in [-126, 127]. Unsigned, because a NaN argument leaves any n. */
DY_INLINE vf DY_N(pow2)(vi n) { return as_f((vi)(((vu)n + 127u) << 23)); }

/* x = n ln 2 + r with |r| <= ln 2 / 2; returns expm1(r), error below 1 ulp of 1 (Cephes expf polynomial).
 * Adding 1.5 * 2^23 rounds to an integer that then stands in the low bits. ln 2 in two parts keeps r exact. */
DY_INLINE vf DY_N(expm1_reduced)(vf x, vi *n) {
    vf magic = C(12582912.f), t = x * C(1.44269504f) + magic, k = t - magic;
    *n = (vi)((vu)as_i(t) - (vu)as_i(magic));
    vf r = x - k * C(0.693359375f);
    r = r - k * C(-2.12194440e-4f);
    vf q = C(1.9875691500e-4f);
    q = q * r + C(1.3981999507e-3f);
    q = q * r + C(8.3334519073e-3f);
    q = q * r + C(4.1665795894e-2f);
    q = q * r + C(1.6666665459e-1f);
    q = q * r + C(5.0000001201e-1f);
    return q * (r * r) + r;
}

/* The scale is applied in two steps, so that results in the subnormal range and overflow come out right. */
DY_INLINE vf EXP(vf x) {
    vi n;
    x = SEL(x < C(-104.f), C(-104.f), SEL(x > C(89.f), C(89.f), x));
    vf p = DY_N(expm1_reduced)(x, &n) + C(1.f);
    vi half = n >> 1;
    return p * DY_N(pow2)(half) * DY_N(pow2)((vi)((vu)n - (vu)half));
}

/* expm1(x) = p 2^n + (2^n - 1) has no cancellation near zero. Valid for x <= 88, where 2^n is finite. */
DY_INLINE vf DY_N(expm1_small)(vf x) {
    vi n;
    vf p = DY_N(expm1_reduced)(x, &n), s = DY_N(pow2)(n);
    return p * s + (s - C(1.f));
}

DY_INLINE vf EXPM1(vf x) {
    vf small = SEL(x < C(-20.f), C(-20.f), x);
    return SEL(x > C(20.f), EXP(x), DY_N(expm1_small)(small));
}

/* Beyond 9.1 the result rounds to one. */
DY_INLINE vf TANH(vf x) {
    x = SEL(x < C(-9.1f), C(-9.1f), SEL(x > C(9.1f), C(9.1f), x));
    vf e = DY_N(expm1_small)(x + x);
    return e / (e + C(2.f));
}

/* Not 0.5 tanh(x / 2) + 0.5: that is 0 already at x = -22, which breaks the logarithm of a loss. */
DY_INLINE vf LOGISTIC(vf x) { return C(1.f) / (C(1.f) + EXP(C(0.f) - x)); }

/* Cephes logf on a mantissa in [sqrt 1/2, sqrt 2). */
DY_INLINE vf LOG(vf x) {
    vi tiny = x < C(1.17549435e-38f);
    vf s = SEL(tiny, x * C(8388608.f), x);
    vu bits = (vu)as_i(s) - 0x3f3504f3u;
    vf e = to_f((vi)bits >> 23) - SEL(tiny, C(23.f), C(0.f));
    vf m = as_f((vi)((bits & 0x7fffffu) + 0x3f3504f3u)) - C(1.f), z = m * m;
    vf q = C(7.0376836292e-2f);
    q = q * m + C(-1.1514610310e-1f);
    q = q * m + C(1.1676998740e-1f);
    q = q * m + C(-1.2420140846e-1f);
    q = q * m + C(1.4249322787e-1f);
    q = q * m + C(-1.6668057665e-1f);
    q = q * m + C(2.0000714765e-1f);
    q = q * m + C(-2.4999993993e-1f);
    q = q * m + C(3.3333331174e-1f);
    vf r = q * m * z + e * C(-2.12194440e-4f) - C(0.5f) * z;
    r = m + r + e * C(0.693359375f);
    r = SEL(x == C(0.f), C(-INFINITY), r);
    r = SEL(x < C(0.f), C(NAN), r);
    return SEL((x == C(INFINITY)) | (x != x), x, r);
}

/* log(1 + x) with a correction for the rounding of the sum; none where the sum is 0, negative or infinite. */
DY_INLINE vf LOG1P(vf x) {
    vf u = C(1.f) + x, c = (x - (u - C(1.f))) / u;
    return LOG(u) + SEL((u > C(0.f)) & (u < C(INFINITY)), c, C(0.f));
}

DY_INLINE vf SOFTPLUS(vf x) {
    return SEL(x > C(0.f), x, C(0.f)) + LOG1P(EXP(C(0.f) - ABS(x)));
}

/* cos and sin of 2 pi u for u in [0, 1]: quadrants are exact in these units; Cephes polynomials on +-pi/4. */
DY_INLINE vf COS_TURN(vf u) {
    vf magic = C(12582912.f), t = u * C(4.f) + magic, r = (u - (t - magic) * C(0.25f)) * C(6.28318531f), z = r * r;
    vi q = as_i(t);
    vf c = (C(2.443315711809948e-5f) * z + C(-1.388731625493765e-3f)) * z + C(4.166664568298827e-2f);
    c = c * z * z - C(0.5f) * z + C(1.f);
    vf s = (C(-1.9515295891e-4f) * z + C(8.3321608736e-3f)) * z + C(-1.6666654611e-1f);
    s = s * z * r + r;
    vf y = SEL((q & I(1)) == I(1), s, c);
    return SEL(((q + I(1)) & I(2)) == I(2), C(0.f) - y, y);
}
DY_INLINE vf SIN_TURN(vf u) { return COS_TURN(u - C(0.25f)); }
