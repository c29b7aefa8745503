// SPDX-License-Identifier: Apache-2.0
//
// The random numbers of rng.inl: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). An
// element of a draw depends only on (seed, stream, draw, index), so masks are the same as on the CPU.
#pragma once
#include "common.cuh"
#include "dynet_cy/draws.h"

// The four words of a block: elements 4 block .. 4 block + 3 of the draw of a batch element. `stream` is the stream of the
// call.
static __device__ inline void philox(uint64_t seed, uint64_t stream, uint32_t draw, uint32_t block, uint32_t w[4]) {
    uint32_t c0 = block, c1 = draw, c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)c0 * 0xD2511F53u, p1 = (uint64_t)c2 * 0xCD9E8D57u;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    w[0] = c0;
    w[1] = c1;
    w[2] = c2;
    w[3] = c3;
}

// Map bits to [0, 1) with 24 bits, and to (0, 1) with 23 bits plus one half; both are exact.
static __device__ __forceinline__ float unit(uint32_t bits) { return (float)(bits >> 8) * 5.9604644775390625e-8f; }
static __device__ __forceinline__ float open_unit(uint32_t bits) {
    return ((float)(bits >> 9) + 0.5f) * 1.1920928955078125e-7f;
}

// The cosine of 2 pi u for u in [-1, 1], as in vmath.inl: quadrants are exact in these units.
static __device__ inline float cos_turn(float u) {
    float magic = 12582912.f, t = u * 4.f + magic, r = (u - (t - magic) * 0.25f) * 6.28318531f, z = r * r;
    int q = __float_as_int(t);
    float c = (2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f;
    c = c * z * z - 0.5f * z + 1.f;
    float s = (-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f;
    s = s * z * r + r;
    float y = q & 1 ? s : c;
    return (q + 1) & 2 ? -y : y;
}

// Box-Muller makes a pair of normals from a pair of words: the first gives the radius, the other the angle.
static __device__ inline float box_muller(uint32_t even, uint32_t odd, bool second) {
    float turn = unit(odd);
    return sqrtf(-2.f * logf(open_unit(even))) * cos_turn(second ? turn - 0.25f : turn);
}

// draw_<name>(seeds, items, b, i, p0, p1): element i of the draw of batch element b, for each row of rng.def.
#define RNG(name, value) \
    static __device__ inline float draw_##name(const uint64_t *seeds, const uint32_t *items, size_t b, size_t i, \
                                               float p0, float p1) { \
        const uint32_t *own = items + b * DY_DRAW_WORDS; \
        uint32_t w[4]; \
        philox(seeds[0] ^ ((uint64_t)own[2] << 32 | own[1]), seeds[1], own[0], (uint32_t)(i / 4), w); \
        uint32_t even = i & 2 ? w[2] : w[0], odd = i & 2 ? w[3] : w[1], bits = i & 1 ? odd : even; \
        float u = unit(bits), o = open_unit(bits), z = box_muller(even, odd, i & 1); \
        (void)u; (void)o; (void)z; \
        return value; \
    }
#include "dynet_cy/rng.def"
#undef RNG
