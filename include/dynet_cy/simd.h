/* SPDX-License-Identifier: Apache-2.0
 *
 * One float vector `vf` of DY_W lanes and its operations; a template, included once per instruction set.
 * DY_W 1 is plain scalar C for compilers without vector extensions. Comparisons give a mask (`vi`: all bits set,
 * or 1 in the scalar case), so masks may be joined with & and | but not inverted with ~, and only SEL, any and
 * keep_n consume them. */

/* Whether products have kernels of their own (gemm.inl, panels.inl): they need an instruction that multiplies and adds. */
#if DY_W >= 8 || defined(DY_NEON)
#define DY_OWN_PRODUCTS 1
#else
#define DY_OWN_PRODUCTS 0
#endif

#if DY_W == 1
typedef float vf;
typedef int32_t vi;
typedef uint32_t vu;
typedef double vd;
#define DY_LANE(x, i) (x)
#define DY_TO_DOUBLE(x) ((double)(x))
#define DY_TO_FLOAT(x) ((float)(x))
#else
typedef float vf __attribute__((vector_size(4 * DY_W)));
typedef int32_t vi __attribute__((vector_size(4 * DY_W)));
typedef uint32_t vu __attribute__((vector_size(4 * DY_W)));
typedef double vd __attribute__((vector_size(8 * DY_W)));
#define DY_LANE(x, i) (x)[i]
/* Not functions: where vectors of doubles are longer than registers, compilers warn of how these would be passed. */
#define DY_TO_DOUBLE(x) __builtin_convertvector(x, vd)
#define DY_TO_FLOAT(x) __builtin_convertvector(x, vf)
#endif

DY_INLINE vi as_i(vf x) { vi r; memcpy(&r, &x, sizeof r); return r; }
DY_INLINE vf as_f(vi x) { vf r; memcpy(&r, &x, sizeof r); return r; }
DY_INLINE vf ld(const float *p) { vf r; memcpy(&r, p, sizeof r); return r; }
DY_INLINE void st(float *p, vf x) { memcpy(p, &x, sizeof x); }
#if defined(DY_NEON)
/* Vectors whose lanes are used one by one, by instructions that multiply by a lane: left alone, gcc loads each lane. */
#define DY_BY_LANE
DY_INLINE vf DY_N(ld_lanes)(const float *p) {
    vf r = ld(p);
    __asm__("" : "+w"(r));
    return r;
}
#endif

/* x, as a number that is rounded.  Compilers may contract a product and an addition to one instruction, which does not round
 * the product, and one copy of a loop may be contracted while another is not: here they cannot. */
#if DY_W == 16 && defined(DY_AVX512)
#define DY_REGISTER "+v"
#elif DY_W == 8 && defined(DY_X86)
#define DY_REGISTER "+x"
#elif DY_W == 4 && defined(DY_ARM)
#define DY_REGISTER "+w"
#endif
DY_INLINE vf DY_N(rounded)(vf x) {
#ifdef DY_REGISTER
    __asm__("" : DY_REGISTER(x));
#undef DY_REGISTER
#endif
    return x;
}

#if DY_W == 1
DY_INLINE vf C(float f) { return f; }
DY_INLINE vi I(int32_t i) { return i; }
DY_INLINE vf SEL(vi m, vf a, vf b) { return m ? a : b; }
DY_INLINE vf to_f(vi x) { return (float)x; }
#else
/* f - 0 rather than f + 0: it keeps -0 and so folds to a plain broadcast. */
DY_INLINE vf C(float f) { return f - (vf){0}; }
DY_INLINE vi I(int32_t i) { return i + (vi){0}; }
#if DY_W == 8 && defined(DY_X86)
DY_INLINE vf SEL(vi m, vf a, vf b) { return (vf)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)m); }
#else
DY_INLINE vf SEL(vi m, vf a, vf b) { return as_f((as_i(a) & m) | (as_i(b) & ~m)); }
#endif
DY_INLINE vf to_f(vi x) { return __builtin_convertvector(x, vf); }
#endif

/* The tail of an array: r lanes, 0 < r < DY_W, without touching memory beyond them. The other lanes load as zero. */
#if DY_W == 8 && defined(DY_X86)
DY_INLINE vi DY_N(first)(size_t r) {
    static const int32_t edge[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    vi m;
    memcpy(&m, edge + 8 - r, sizeof m);
    return m;
}
DY_INLINE vf ld_n(const float *p, size_t r) { return (vf)_mm256_maskload_ps(p, (__m256i)DY_N(first)(r)); }
DY_INLINE vf keep_n(vf x, size_t r) { return as_f(as_i(x) & DY_N(first)(r)); }
#elif DY_W == 16 && defined(DY_AVX512)
DY_INLINE vf ld_n(const float *p, size_t r) { return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << r) - 1), p); }
DY_INLINE vf keep_n(vf x, size_t r) { return (vf)_mm512_maskz_mov_ps((__mmask16)((1u << r) - 1), (__m512)x); }
#elif defined(DY_NEON)
DY_INLINE vf ld_n(const float *p, size_t r) {
    float32x4_t x = vdupq_n_f32(0);
    if (!(r & 2)) return (vf)vld1q_lane_f32(p, x, 0);
    x = vcombine_f32(vld1_f32(p), vdup_n_f32(0));
    return (vf)(r & 1 ? vld1q_lane_f32(p + 2, x, 2) : x);
}
DY_INLINE vf keep_n(vf x, size_t r) { return as_f(as_i(x) & ((vi){0, 1, 2, 3} < I((int32_t)r))); }
#else
DY_INLINE vf ld_n(const float *p, size_t r) {
    float b[DY_W] = {0};
    for (size_t i = 0; i < r; i++) b[i] = p[i];
    return ld(b);
}
DY_INLINE vf keep_n(vf x, size_t r) {
    float b[DY_W];
    st(b, x);
    return ld_n(b, r);
}
#endif

/* AVX2 masked stores are microcoded on AMD; pieces of halving size forward from one stored vector. */
#if DY_W == 16 && defined(DY_AVX512)
DY_INLINE void st_n(float *p, vf x, size_t r) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << r) - 1), (__m512)x); }
#elif defined(DY_NEON)
DY_INLINE void st_n(float *p, vf x, size_t r) {
    if (!(r & 2)) {
        vst1q_lane_f32(p, (float32x4_t)x, 0);
        return;
    }
    vst1_f32(p, vget_low_f32((float32x4_t)x));
    if (r & 1) vst1q_lane_f32(p + 2, (float32x4_t)x, 2);
}
#else
DY_INLINE void st_n(float *p, vf x, size_t r) {
    float b[DY_W];
    const float *q = b;
    st(b, x);
    DY_UNROLL for (size_t w = DY_W / 2; w; w /= 2)
        if (r & w) {
            memcpy(p, q, w * sizeof *p);
            p += w;
            q += w;
        }
}
#endif

/* The same for results that are often loaded again right away, by the next node. Masked stores do not forward to loads: a
 * load from the same address waits until the store has reached the cache. So tails of 4 and of 8 lanes, the most frequent
 * ones, are loaded and stored as vectors of 128 and 256 bits, without a mask. */
#if DY_W == 16 && defined(DY_AVX512)
DY_INLINE vf ld_tail(const float *p, size_t r) {
    return r == 8 ? (vf)_mm512_zextps256_ps512(_mm256_loadu_ps(p))
                  : r == 4 ? (vf)_mm512_zextps128_ps512(_mm_loadu_ps(p)) : ld_n(p, r);
}
DY_INLINE void st_tail(float *p, vf x, size_t r) {
    if (r == 8)
        _mm256_storeu_ps(p, _mm512_castps512_ps256((__m512)x));
    else if (r == 4)
        _mm_storeu_ps(p, _mm512_castps512_ps128((__m512)x));
    else
        st_n(p, x, r);
}
#else
DY_INLINE vf ld_tail(const float *p, size_t r) { return ld_n(p, r); }
DY_INLINE void st_tail(float *p, vf x, size_t r) { st_n(p, x, r); }
#endif

/* Separates the even and the odd lanes of two consecutive vectors; and the inverse. */
#if DY_W == 8 && defined(DY_X86)
DY_INLINE void DY_N(unzip)(vf low, vf high, vf *even, vf *odd) {
    __m256d e = _mm256_castps_pd(_mm256_shuffle_ps((__m256)low, (__m256)high, 0x88));
    __m256d o = _mm256_castps_pd(_mm256_shuffle_ps((__m256)low, (__m256)high, 0xDD));
    *even = (vf)_mm256_castpd_ps(_mm256_permute4x64_pd(e, 0xD8));
    *odd = (vf)_mm256_castpd_ps(_mm256_permute4x64_pd(o, 0xD8));
}
DY_INLINE void DY_N(zip)(vf even, vf odd, vf *low, vf *high) {
    __m256 a = _mm256_unpacklo_ps((__m256)even, (__m256)odd), b = _mm256_unpackhi_ps((__m256)even, (__m256)odd);
    *low = (vf)_mm256_permute2f128_ps(a, b, 0x20);
    *high = (vf)_mm256_permute2f128_ps(a, b, 0x31);
}
#elif DY_W == 16 && defined(DY_AVX512)
DY_INLINE void DY_N(unzip)(vf low, vf high, vf *even, vf *odd) {
    const __m512i e = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *even = (vf)_mm512_permutex2var_ps((__m512)low, e, (__m512)high);
    *odd = (vf)_mm512_permutex2var_ps((__m512)low, _mm512_add_epi32(e, _mm512_set1_epi32(1)), (__m512)high);
}
DY_INLINE void DY_N(zip)(vf even, vf odd, vf *low, vf *high) {
    const __m512i l = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *low = (vf)_mm512_permutex2var_ps((__m512)even, l, (__m512)odd);
    *high = (vf)_mm512_permutex2var_ps((__m512)even, _mm512_add_epi32(l, _mm512_set1_epi32(8)), (__m512)odd);
}
#elif defined(DY_NEON)
DY_INLINE void DY_N(unzip)(vf low, vf high, vf *even, vf *odd) {
    *even = (vf)vuzp1q_f32((float32x4_t)low, (float32x4_t)high);
    *odd = (vf)vuzp2q_f32((float32x4_t)low, (float32x4_t)high);
}
DY_INLINE void DY_N(zip)(vf even, vf odd, vf *low, vf *high) {
    *low = (vf)vzip1q_f32((float32x4_t)even, (float32x4_t)odd);
    *high = (vf)vzip2q_f32((float32x4_t)even, (float32x4_t)odd);
}
#else
DY_INLINE void DY_N(unzip)(vf low, vf high, vf *even, vf *odd) {
    float b[2 * DY_W], e[DY_W], o[DY_W];
    st(b, low);
    st(b + DY_W, high);
    DY_UNROLL for (int i = 0; i < DY_W; i++) {
        e[i] = b[2 * i];
        o[i] = b[2 * i + 1];
    }
    *even = ld(e);
    *odd = ld(o);
}
DY_INLINE void DY_N(zip)(vf even, vf odd, vf *low, vf *high) {
    float b[2 * DY_W], e[DY_W], o[DY_W];
    st(e, even);
    st(o, odd);
    DY_UNROLL for (int i = 0; i < DY_W; i++) {
        b[2 * i] = e[i];
        b[2 * i + 1] = o[i];
    }
    *low = ld(b);
    *high = ld(b + DY_W);
}
#endif

/* Mask of the first r lanes. */
DY_INLINE vi DY_N(lanes_below)(size_t r) {
    vf ones = C(1.f);
    return keep_n(ones, r) == ones;
}

#if defined(DY_NEON)
DY_INLINE int any(vi m) { return vmaxvq_u32((uint32x4_t)m) != 0; }
#elif DY_W == 4 && defined(DY_X86)
DY_INLINE int any(vi m) { return _mm_movemask_ps((__m128)m) != 0; }
#elif DY_W == 8 && defined(DY_X86)
DY_INLINE int any(vi m) { return _mm256_movemask_ps((__m256)m) != 0; }
#elif DY_W == 16 && defined(DY_AVX512)
DY_INLINE int any(vi m) { return _mm512_test_epi32_mask((__m512i)m, (__m512i)m) != 0; }
#else
DY_INLINE int any(vi m) {
    int32_t b[DY_W], r = 0;
    memcpy(b, &m, sizeof b);
    for (int i = 0; i < DY_W; i++) r |= b[i];
    return r != 0;
}
#endif

#define DY_HALVES(name, join)                                                  \
    DY_INLINE float name(vf x) {                                               \
        float b[DY_W];                                                         \
        st(b, x);                                                              \
        for (int w = DY_W / 2; w; w /= 2)                                      \
            for (int i = 0; i < w; i++) b[i] = join(b[i], b[i + w]);           \
        return b[0];                                                           \
    }
#define DY_JOIN_ADD(p, q) ((p) + (q))
#define DY_JOIN_MAX(p, q) ((p) > (q) || (p) != (p) ? (p) : (q))
#if DY_W == 8 && defined(DY_X86)
/* Products with a transposed matrix end in many of these. */
DY_INLINE float hsum(vf x) {
    __m128 q = _mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
#elif DY_W == 16 && defined(DY_AVX512)
DY_INLINE float hsum(vf x) { return _mm512_reduce_add_ps((__m512)x); }
#elif defined(DY_NEON)
DY_INLINE float hsum(vf x) { return vaddvq_f32((float32x4_t)x); }
#else
DY_HALVES(hsum, DY_JOIN_ADD)
#endif
#if defined(DY_NEON)
DY_INLINE float hmax(vf x) { return vmaxvq_f32((float32x4_t)x); } /* a NaN stays */
#else
DY_HALVES(hmax, DY_JOIN_MAX)
#endif
#undef DY_HALVES
#undef DY_JOIN_ADD
#undef DY_JOIN_MAX
