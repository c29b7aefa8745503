/* What each thread knows of the spans that it notes. */
#ifndef DYNET_CY_SPANS_H
#define DYNET_CY_SPANS_H

#include <stdint.h>

static uint32_t dy_threads = 0;
static _Thread_local uint32_t dy_thread = 0;

/* Threads are numbered from 1, in the order in which they note their first span. */
static inline uint32_t dy_number_of_thread(void) {
    if (!dy_thread)
        dy_thread = __atomic_add_fetch(&dy_threads, 1, __ATOMIC_RELAXED);
    return dy_thread;
}

static _Thread_local uint64_t dy_seen_renewal = 0;
static _Thread_local uint32_t dy_seen_nodes = 0;

#endif
