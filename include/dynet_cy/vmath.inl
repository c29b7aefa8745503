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
DY_LANES(LGAMMA, dy_lgammaf)
DY_LANES(DIGAMMA, dy_digammaf)
DY_LANES(FLOOR, floorf)
DY_LANES(CEIL, ceilf)
DY_LANES(ROUND, roundf)
#undef DY_LANES

DY_INLINE vf ABS(vf x) { return as_f(as_i(x) & I(0x7fffffff)); }
/* x with the sign of s. */
DY_INLINE vf DY_N(signed_as)(vf x, vf s) { return as_f((as_i(x) & I(0x7fffffff)) | (as_i(s) & I(INT32_MIN))); }

/* 2^n for n in [-126, 127]. Unsigned, because a NaN argument leaves any n. */
DY_INLINE vf DY_N(pow2)(vi n) { return as_f((vi)(((vu)n + 127u) << 23)); }

/* expm1(r) for |r| <= ln 2 / 2, error below 1 ulp of 1 (Cephes expf polynomial). */
DY_INLINE vf DY_N(expm1_near_0)(vf r) {
    vf q = C(1.9875691500e-4f);
    q = q * r + C(1.3981999507e-3f);
    q = q * r + C(8.3334519073e-3f);
    q = q * r + C(4.1665795894e-2f);
    q = q * r + C(1.6666665459e-1f);
    q = q * r + C(5.0000001201e-1f);
    return q * (r * r) + r;
}

/* x = n ln 2 + r with |r| <= ln 2 / 2; returns expm1(r).
 * Adding 1.5 * 2^23 rounds to an integer that then stands in the low bits. ln 2 in two parts keeps r exact. */
DY_INLINE vf DY_N(expm1_reduced)(vf x, vi *n) {
    vf magic = C(12582912.f), t = x * C(1.44269504f) + magic, k = t - magic;
    *n = (vi)((vu)as_i(t) - (vu)as_i(magic));
    vf r = x - k * C(0.693359375f);
    return DY_N(expm1_near_0)(r - k * C(-2.12194440e-4f));
}

/* p 2^n, in two steps, so that results in the subnormal range and overflow come out right. */
DY_INLINE vf DY_N(times_pow2)(vf p, vi n) {
    vi half = n >> 1;
    return p * DY_N(pow2)(half) * DY_N(pow2)((vi)((vu)n - (vu)half));
}

DY_INLINE vf EXP(vf x) {
    vi n;
    x = SEL(x < C(-104.f), C(-104.f), SEL(x > C(89.f), C(89.f), x));
    vf p = DY_N(expm1_reduced)(x, &n) + C(1.f);
    return DY_N(times_pow2)(p, n);
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

/* erf(t) = -expm1(-t (1 + q)) for t > 0, where q approximates -log(erfc(t)) / t - 1: nothing cancels near 0, and where t is
 * large, errors of the exponent are multiplied by a small erfc(t).  Beyond 3.92 the result rounds to one.  Where products are
 * rounded before they are added, the error would exceed 2 ulp: what rounding took from the exponent is added back. */
DY_INLINE vf ERF(vf x) {
    vf t = ABS(x);
    t = SEL(t > C(3.92f), C(3.92f), t);
    vf q = C(-9.38813173e-6f);
    q = q * t + C(1.18862248e-4f);
    q = q * t + C(-6.37365214e-4f);
    q = q * t + C(1.67567784e-3f);
    q = q * t + C(-1.69504681e-4f);
    q = q * t + C(-1.91478226e-2f);
    q = q * t + C(0.102776304f);
    q = q * t + C(0.636619568f);
    q = q * t + C(0.128379166f);
    vf p = q * t, r = t + p, e = DY_N(expm1_small)(C(0.f) - r);
    if (!DY_OWN_PRODUCTS) e = e - (t - r + p) * (e + C(1.f));
    return DY_N(signed_as)(e, x);
}

/* A quarter of e^t and of expm1(t), for 0 <= t <= 89.5, where e^t overflows but sinh and cosh do not. */
DY_INLINE vf DY_N(quarter_exp)(vf t, vf one) {
    vi n;
    t = SEL(t > C(89.5f), C(89.5f), t);
    vf p = DY_N(expm1_reduced)(t, &n), s = DY_N(pow2)((vi)((vu)n - 2u));
    return p * s + (s - (C(0.25f) - C(0.25f) * one));
}

/* With e = expm1(t): (e + e / (e + 1)) / 2; t itself where the rest is below half an ulp. */
DY_INLINE vf SINH(vf x) {
    vf t = ABS(x), h = DY_N(quarter_exp)(t, C(0.f));
    vf least = SEL(h > C(1e9f), C(1e9f), h), y = (h + h) + (least + least) / (C(4.f) * least + C(1.f));
    return SEL(t < C(2e-4f), x, DY_N(signed_as)(y, x));
}

DY_INLINE vf COSH(vf x) {
    vf h = DY_N(quarter_exp)(ABS(x), C(1.f));
    return (h + h) + C(0.125f) / h;
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

/* log(t + sqrt(t^2 + 1)); beyond 1e9 that is log(2 t). */
DY_INLINE vf ASINH(vf x) {
    vf t = ABS(x), z = t * t;
    vi big = t > C(1e9f);
    vf y = LOG1P(SEL(big, t, t + z / (C(1.f) + SQRT(C(1.f) + z)))) + SEL(big, C(0.693147181f), C(0.f));
    return DY_N(signed_as)(y, x);
}

DY_INLINE vf ACOSH(vf x) {
    vf u = x - C(1.f);
    vi big = x > C(1e9f);
    vf y = LOG1P(SEL(big, x, u + SQRT(u * (u + C(2.f))))) + SEL(big, C(0.693147181f), C(0.f));
    return SEL(x < C(1.f), C(NAN), y);
}

DY_INLINE vf ATANH(vf x) {
    vf t = ABS(x);
    return DY_N(signed_as)(C(0.5f) * LOG1P((t + t) / (C(1.f) - t)), x);
}

/* asin(s) for s in [0, 1/2]; z is its square. */
DY_INLINE vf DY_N(asin_small)(vf s, vf z) {
    vf q = C(4.21582982e-2f);
    q = q * z + C(2.41847802e-2f);
    q = q * z + C(4.54691499e-2f);
    q = q * z + C(7.49530941e-2f);
    q = q * z + C(0.166667521f);
    return q * z * s + s;
}

/* Above 1/2, asin(t) = pi / 2 - 2 asin(sqrt((1 - t) / 2)). */
DY_INLINE vf ASIN(vf x) {
    vf t = ABS(x);
    vi low = t <= C(0.5f);
    vf z = SEL(low, t * t, C(0.5f) - C(0.5f) * t), y = DY_N(asin_small)(SEL(low, t, SQRT(z)), z);
    return DY_N(signed_as)(SEL(low, y, C(1.57079637f) - (y + y) - C(4.37113883e-8f)), x);
}

DY_INLINE vf ACOS(vf x) {
    vf t = ABS(x);
    vi low = t <= C(0.5f);
    vf z = SEL(low, t * t, C(0.5f) - C(0.5f) * t), y = DY_N(asin_small)(SEL(low, t, SQRT(z)), z);
    vf outer = SEL(x < C(0.f), C(3.14159274f) - (y + y), y + y);
    return SEL(low, C(1.57079637f) - DY_N(signed_as)(y, x), outer);
}

/* Above 1, atan(t) = pi / 2 - atan(1 / t). */
DY_INLINE vf ATAN(vf x) {
    vf t = ABS(x);
    vi high = t > C(1.f);
    t = SEL(high, C(1.f) / t, t);
    vf z = t * t, q = C(2.91972281e-3f);
    q = q * z + C(-1.6364133e-2f);
    q = q * z + C(4.32058573e-2f);
    q = q * z + C(-7.55172372e-2f);
    q = q * z + C(0.106657855f);
    q = q * z + C(-0.142110035f);
    q = q * z + C(0.199937671f);
    q = q * z + C(-0.333331525f);
    vf y = q * z * t + t;
    return DY_N(signed_as)(SEL(high, C(1.57079637f) - y, y), x);
}

/* sin and cos of r in [-pi/4, pi/4] (Cephes). */
DY_INLINE vf DY_N(sin_small)(vf r) {
    vf z = r * r, s = (C(-1.9515295891e-4f) * z + C(8.3321608736e-3f)) * z + C(-1.6666654611e-1f);
    return s * z * r + r;
}
DY_INLINE vf DY_N(cos_small)(vf r) {
    vf z = r * r, c = (C(2.443315711809948e-5f) * z + C(-1.388731625493765e-3f)) * z + C(4.166664568298827e-2f);
    return c * z * z - C(0.5f) * z + C(1.f);
}
/* sin(r + q pi / 2). */
DY_INLINE vf DY_N(sin_at)(vf r, vi q) {
    vf y = SEL((q & I(1)) == I(1), DY_N(cos_small)(r), DY_N(sin_small)(r));
    return SEL((q & I(2)) == I(2), C(0.f) - y, y);
}

/* x = k pi / 2 + r for |x| <= 12000; the lowest two bits of *q are those of k.  The first three parts of pi / 2 have so few
 * bits that their products and differences are exact, also where r is tiny. */
#define DY_MOST_REDUCED 12000.f
DY_INLINE vf DY_N(reduced)(vf x, vi *q) {
    vf magic = C(12582912.f), t = x * C(0.636619772f) + magic, k = t - magic;
    *q = as_i(t);
    x = x - k * C(1.5703125f);
    x = x - k * C(4.83751296997e-4f);
    x = x - k * C(7.54953362047e-8f);
    return x - k * C(2.56334406825708960e-12f);
}

/* y, and for lanes beyond the reach of `reduced` what libm says: lane by lane, so that no lane depends on others. */
#define DY_REDUCED(name, fn, value)                                            \
    static vf DY_N(far_##name)(vf x, vf y) {                                   \
        for (int i = 0; i < DY_W; i++)                                         \
            if (fabsf(DY_LANE(x, i)) > DY_MOST_REDUCED) DY_LANE(y, i) = fn(DY_LANE(x, i)); \
        return y;                                                              \
    }                                                                          \
    DY_INLINE vf name(vf x) {                                                  \
        vi q;                                                                  \
        vf t = ABS(x), r = DY_N(reduced)(t, &q), y = value;                    \
        return any(t > C(DY_MOST_REDUCED)) ? DY_N(far_##name)(x, y) : y;       \
    }
DY_INLINE vf DY_N(tan_at)(vf r, vi q) {
    vi odd = (q & I(1)) == I(1);
    vf s = DY_N(sin_small)(r), c = DY_N(cos_small)(r);
    return SEL(odd, C(0.f) - c, s) / SEL(odd, s, c);
}
DY_INLINE vf DY_N(turned_as)(vf y, vf x) { return as_f(as_i(y) ^ (as_i(x) & I(INT32_MIN))); }
DY_REDUCED(SIN, sinf, DY_N(turned_as)(DY_N(sin_at)(r, q), x))
DY_REDUCED(COS, cosf, DY_N(sin_at)(r, q + I(1)))
DY_REDUCED(TAN, tanf, DY_N(turned_as)(DY_N(tan_at)(r, q), x))
#undef DY_REDUCED
#undef DY_MOST_REDUCED

/* cos and sin of 2 pi u for u in [0, 1]: quadrants are exact in these units. */
DY_INLINE vf COS_TURN(vf u) {
    vf magic = C(12582912.f), t = u * C(4.f) + magic;
    return DY_N(sin_at)((u - (t - magic) * C(0.25f)) * C(6.28318531f), as_i(t) + I(1));
}
DY_INLINE vf SIN_TURN(vf u) { return COS_TURN(u - C(0.25f)); }

/* x^p = 2^(p log2 |x|), whose exponent needs double precision; negative where x is and p is odd.  By libm, lane by lane, where
 * x is 0, subnormal or not finite, x is negative and p not a whole number below 2^22, or p is huge or nan. */
static vf DY_N(far_pow)(vf x, vf p, vf y, vf near) {
    for (int i = 0; i < DY_W; i++)
        if (DY_LANE(near, i) == 0.f) DY_LANE(y, i) = powf(DY_LANE(x, i), DY_LANE(p, i));
    return y;
}
DY_INLINE vf POW(vf x, vf p) {
    vf magic = C(12582912.f), t = ABS(x), whole = p + magic;
    vi is_whole = (ABS(p) < C(4194304.f)) & (whole - magic == p);
    vf near = SEL((t >= C(FLT_MIN)) & (t <= C(FLT_MAX)) & (ABS(p) < C(1e30f)) & ((x > C(0.f)) | is_whole), C(1.f), C(0.f));
    vu bits = (vu)as_i(t) - 0x3f3504f3u;
    vd m = DY_TO_DOUBLE(as_f((vi)((bits & 0x7fffffu) + 0x3f3504f3u)) - C(1.f)), e = DY_TO_DOUBLE(to_f((vi)bits >> 23));
    vd s = m / (m + 2.), z = s * s;
    vd l = 0.3407496921248414 * z + 0.4116716981836118;
    l = l * z + 0.5770836013923668;
    l = l * z + 0.9617966732575133;
    l = l * z + 2.8853900817901614;
    vd exponent = (l * s + e) * DY_TO_DOUBLE(p);
    vf rough = DY_TO_FLOAT(exponent);
    rough = SEL(rough < C(-151.f), C(-151.f), SEL(rough > C(129.f), C(129.f), rough)) + magic;
    vf n = rough - magic, rest = DY_TO_FLOAT(exponent - DY_TO_DOUBLE(n));
    rest = SEL(ABS(rest) > C(1.f), C(0.f), rest);
    vi k = (vi)((vu)as_i(rough) - (vu)as_i(magic));
    vf y = DY_N(times_pow2)(DY_N(expm1_near_0)(rest * C(0.693147181f)) + C(1.f), k);
    y = SEL((x < C(0.f)) & ((as_i(whole) & I(1)) == I(1)), C(0.f) - y, y);
    return any(near == C(0.f)) ? DY_N(far_pow)(x, p, y, near) : y;
}
