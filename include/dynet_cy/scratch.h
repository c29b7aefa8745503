/* SPDX-License-Identifier: Apache-2.0
 *
 * Scratch memory of a thread for products, for packed parts of matrices. */
#ifndef DYNET_CY_SCRATCH_H
#define DYNET_CY_SCRATCH_H

#include <pthread.h>
#include <stdlib.h>

/* Floats for a panel and for columns (panels.inl): 352 KiB, allocated at the first product and kept while the thread
 * lives. */
enum {
    DY_SCRATCH_PANEL = 48 * 512,
    DY_SCRATCH_COLUMNS = 128 * 512,
    DY_SCRATCH = DY_SCRATCH_PANEL + DY_SCRATCH_COLUMNS
};

static _Thread_local float *dy_scratch_of_thread;
static pthread_key_t dy_scratch_key;
static pthread_once_t dy_scratch_once = PTHREAD_ONCE_INIT;

static inline void dy_scratch_free(void *scratch) {
    dy_scratch_of_thread = NULL;
    free(scratch);
}
static inline void dy_scratch_init(void) { pthread_key_create(&dy_scratch_key, dy_scratch_free); }

/* NULL: there is no memory. */
static inline float *dy_scratch(void) {
    if (!dy_scratch_of_thread) {
        pthread_once(&dy_scratch_once, dy_scratch_init);
        float *scratch = malloc(DY_SCRATCH * sizeof *scratch);
        if (scratch && pthread_setspecific(dy_scratch_key, scratch)) {
            free(scratch);
            scratch = NULL;
        }
        dy_scratch_of_thread = scratch;
    }
    return dy_scratch_of_thread;
}

#endif
