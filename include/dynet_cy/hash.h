/* The hash of some words. */
#ifndef DYNET_CY_HASH_H
#define DYNET_CY_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t dy_hash_mix(uint64_t h, const uint32_t *two) {
    uint64_t w;
    memcpy(&w, two, sizeof w);
    h = (h ^ w) * 0xD6E8FEB86659FD93u;
    return h ^ h >> 32;
}

static inline uint64_t dy_hash(const uint32_t *w, size_t n) {
    uint64_t h = 0x9E3779B97F4A7C15u ^ n;
    if (n >= 64) {                          /* lanes, so that multiplications overlap */
        uint64_t lane[4] = {h, 1, 2, 3};
        for (; n >= 8; n -= 8, w += 8)
            for (int k = 0; k < 4; k++) {
                lane[k] = dy_hash_mix(lane[k], w + 2 * k);
                /* Kept in registers of its own: vectors of two lanes have no product of 64 bits, and take twice
                 * as long. */
                __asm__("" : "+r"(lane[k]));
            }
        for (int k = 0; k < 4; k++) {
            uint32_t two[2] = {(uint32_t)lane[k], (uint32_t)(lane[k] >> 32)};
            h = dy_hash_mix(h, two);
        }
    }
    for (; n >= 2; n -= 2, w += 2)
        h = dy_hash_mix(h, w);
    if (n) {
        uint32_t two[2] = {*w, 0};
        h = dy_hash_mix(h, two);
    }
    return h;
}

#endif
