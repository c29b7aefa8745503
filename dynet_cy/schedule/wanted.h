/* The nodes that a schedule needs, found by their states.
 *
 * Few may be wanted among many, as when calls of a map compute their own values, whose nodes lie among those of other
 * calls.  So many states are looked at at once.
 */
#ifndef DYNET_CY_WANTED_H
#define DYNET_CY_WANTED_H

#include <string.h>

#include "dynet_cy/graph.h"

/* Whether any of 64 nodes is wanted. */
static inline int dy_wanted_in(const uint8_t *state) {
    uint64_t of[8], all = 0;
    memcpy(of, state, 64);
    for (int i = 0; i < 8; i++)
        all |= of[i];
    return (all & DY_WANTED * UINT64_C(0x0101010101010101)) != 0;
}

/* The first wanted node from i on, or `end`. */
static inline uint32_t dy_next_wanted(const uint8_t *state, uint32_t i, uint32_t end) {
    while (i < end && !(state[i] & DY_WANTED))
        if (i % 64 == 0 && (uint64_t)i + 64 <= end && !dy_wanted_in(state + i))
            i += 64;
        else
            i++;
    return i < end ? i : end;
}

/* The last wanted node before `end`; there is one. */
static inline uint32_t dy_last_wanted(const uint8_t *state, uint32_t end) {
    for (;;) {
        while (end % 64 == 0 && end >= 64 && !dy_wanted_in(state + end - 64))
            end -= 64;
        if (state[--end] & DY_WANTED)
            return end;
    }
}

#endif
