/* SPDX-License-Identifier: Apache-2.0
 *
 * Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). The counter of a block of four
 * words is (block, draw low, draw high, stream), so an element never depends on how the draws were batched. */

#define DY_BLOCKS 16

/* Words of the state are in lanes of 64 bits, which hold a product of two words; their upper halves are don't-care. */
#if DY_W == 1
typedef uint64_t DY_N(vq);
DY_INLINE uint64_t DY_N(splat_q)(uint64_t x) { return x; }
#else
typedef uint64_t DY_N(vq) __attribute__((vector_size(4 * DY_W)));
DY_INLINE DY_N(vq) DY_N(splat_q)(uint64_t x) { return x + (DY_N(vq)){0}; }
#endif
DY_INLINE DY_N(vq) DY_N(product)(DY_N(vq) a, DY_N(vq) b) {
#if DY_W == 4 && defined(DY_X86)
    return (DY_N(vq))_mm_mul_epu32((__m128i)a, (__m128i)b);
#elif DY_W == 8 && defined(DY_X86)
    return (DY_N(vq))_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif DY_W == 16 && defined(DY_AVX512)
    return (DY_N(vq))_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(DY_NEON)
    return (DY_N(vq))vmull_u32(vmovn_u64((uint64x2_t)a), vmovn_u64((uint64x2_t)b));
#else
    return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

/* Blocks first .. first + DY_BLOCKS - 1, word by word. */
static void DY_N(philox)(uint64_t key, uint32_t stream, uint64_t draw, uint32_t first, uint32_t w[4][DY_BLOCKS]) {
    enum { lanes = sizeof(DY_N(vq)) / sizeof(uint64_t) };
    uint64_t state[4][DY_BLOCKS];
    for (uint32_t b = 0; b < DY_BLOCKS; b++) state[0][b] = (uint32_t)(first + b);
    for (int b = 0; b < DY_BLOCKS; b += lanes) {
        uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
        DY_N(vq) c[4], m0 = DY_N(splat_q)(0xD2511F53u), m1 = DY_N(splat_q)(0xCD9E8D57u);
        memcpy(&c[0], state[0] + b, sizeof c[0]);
        c[1] = DY_N(splat_q)(draw);
        c[2] = DY_N(splat_q)(draw >> 32);
        c[3] = DY_N(splat_q)(stream);
        for (int round = 0; round < 10; round++) {
            DY_N(vq) p0 = DY_N(product)(c[0], m0), p1 = DY_N(product)(c[2], m1);
            c[0] = (p1 >> 32) ^ c[1] ^ DY_N(splat_q)(k0);
            c[1] = p1;
            c[2] = (p0 >> 32) ^ c[3] ^ DY_N(splat_q)(k1);
            c[3] = p0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        for (int i = 0; i < 4; i++) memcpy(state[i] + b, &c[i], sizeof c[i]);
    }
    for (int i = 0; i < 4; i++)
        for (int b = 0; b < DY_BLOCKS; b++) w[i][b] = (uint32_t)state[i][b];
}

/* Copies the part of a chunk of 4 * DY_BLOCKS elements, made of columns of words, that the caller asked for. */
#define DY_CHUNKS(type, out, ...)                                              \
    for (size_t end = offset + n, at = offset - offset % 4; at < end; at += 4 * DY_BLOCKS) { \
        uint32_t w[4][DY_BLOCKS];                                              \
        type e[4 * DY_BLOCKS];                                                 \
        DY_N(philox)(key, stream, draw, (uint32_t)(at / 4), w);                \
        __VA_ARGS__                                                            \
        size_t skip = at < offset ? offset - at : 0;                           \
        size_t stop = end - at < 4 * DY_BLOCKS ? end - at : 4 * DY_BLOCKS;     \
        memcpy((out) + (at + skip - offset), e + skip, (stop - skip) * sizeof *e); \
    }

static void DY_N(random_words)(uint64_t key, uint32_t stream, uint64_t draw, size_t offset, size_t n, uint32_t *out) {
    DY_CHUNKS(uint32_t, out,
        for (int b = 0; b < DY_BLOCKS; b++)
            for (int k = 0; k < 4; k++) e[4 * b + k] = w[k][b];
    )
}

/* Bits to [0, 1) with 24 bits, and to (0, 1) with 23 bits and a half, both exact. */
DY_INLINE vf DY_N(unit)(vu bits) { return to_f((vi)(bits >> 8)) * C(5.9604644775390625e-8f); }
DY_INLINE vf DY_N(open_unit)(vu bits) { return (to_f((vi)(bits >> 9)) + C(0.5f)) * C(1.1920928955078125e-7f); }

/* Box-Muller makes a pair of normals from a pair of words: word 0 gives the radius, word 1 the angle. */
DY_INLINE vf DY_N(box_muller)(vu even, vu odd, int second) {
    vf radius = SQRT(C(-2.f) * LOG(DY_N(open_unit)(even))), turn = DY_N(unit)(odd);
    return radius * (second ? SIN_TURN(turn) : COS_TURN(turn));
}

#define RNG(name, value)                                                       \
    static void DY_N(rng_##name)(uint64_t key, uint32_t stream, uint64_t draw, size_t offset, size_t n, float low, \
                                 float high, float *out) {                     \
        vf p0 = C(low), p1 = C(high);                                          \
        DY_CHUNKS(float, out,                                                  \
            float f[4][DY_BLOCKS];                                             \
            for (int k = 0; k < 4; k++)                                        \
                for (int b = 0; b < DY_BLOCKS; b += DY_W) {                    \
                    vu bits, even, odd;                                        \
                    memcpy(&bits, w[k] + b, sizeof bits);                      \
                    memcpy(&even, w[k & 2] + b, sizeof even);                  \
                    memcpy(&odd, w[k | 1] + b, sizeof odd);                    \
                    vf u = DY_N(unit)(bits), o = DY_N(open_unit)(bits), z = DY_N(box_muller)(even, odd, k & 1); \
                    (void)u; (void)o; (void)z;                                 \
                    st(f[k] + b, value);                                       \
                }                                                              \
            for (int b = 0; b < DY_BLOCKS; b++)                                \
                for (int k = 0; k < 4; k++) e[4 * b + k] = f[k][b];            \
        )                                                                      \
    }
#include "rng.def"
#undef RNG
#undef DY_CHUNKS
#undef DY_BLOCKS
