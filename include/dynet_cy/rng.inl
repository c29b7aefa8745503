/* SPDX-License-Identifier: Apache-2.0
 *
 * Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). The counter of a block of four
 * words is (block, draw low, draw high, stream), so an element never depends on how the draws were batched. */

#define DY_BLOCKS 16

/* Blocks first .. first + DY_BLOCKS - 1, word by word; plain loops that compilers turn into vectors. */
static void DY_N(philox)(uint64_t key, uint32_t stream, uint64_t draw, uint32_t first, uint32_t w[4][DY_BLOCKS]) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (uint32_t b = 0; b < DY_BLOCKS; b++) {
        w[0][b] = first + b;
        w[1][b] = (uint32_t)draw;
        w[2][b] = (uint32_t)(draw >> 32);
        w[3][b] = stream;
    }
    for (int round = 0; round < 10; round++) {
        for (int b = 0; b < DY_BLOCKS; b++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * w[0][b], p1 = (uint64_t)0xCD9E8D57u * w[2][b];
            w[0][b] = (uint32_t)(p1 >> 32) ^ w[1][b] ^ k0;
            w[1][b] = (uint32_t)p1;
            w[2][b] = (uint32_t)(p0 >> 32) ^ w[3][b] ^ k1;
            w[3][b] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
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
