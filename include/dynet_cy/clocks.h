/* Clocks that never go back. */
#ifndef DYNET_CY_CLOCKS_H
#define DYNET_CY_CLOCKS_H

#include <stdint.h>
#include <time.h>

/* Milliseconds.  The coarse clock has a resolution of 1 to 10 and costs a quarter of the exact one. */
static inline int64_t dy_coarse_ms(void) {
    struct timespec t;
#ifdef CLOCK_MONOTONIC_COARSE
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
#else
    clock_gettime(CLOCK_MONOTONIC, &t);
#endif
    return t.tv_sec * INT64_C(1000) + t.tv_nsec / 1000000;
}

static inline uint64_t dy_nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

#endif
