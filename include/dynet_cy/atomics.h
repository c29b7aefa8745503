/* Numbers that several threads read and change. */
#ifndef DYNET_CY_ATOMICS_H
#define DYNET_CY_ATOMICS_H

#include <stdatomic.h>
#include <stdint.h>

typedef _Atomic int dy_setting;
typedef _Atomic uint64_t dy_number;

/* Both return the number before. */
static inline int dy_change(dy_setting *x, int by) {
    return atomic_fetch_add_explicit(x, by, memory_order_relaxed);
}
static inline uint64_t dy_add_to(dy_number *x, uint64_t n) {
    return atomic_fetch_add_explicit(x, n, memory_order_relaxed);
}

#endif
